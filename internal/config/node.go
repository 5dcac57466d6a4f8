package config

import (
	"regexp"
	"strconv"

	"github.com/goccy/go-yaml/token"
)

type kind int

const (
	kindNull kind = iota
	kindText
	kindInteger
	kindFloat
	kindBoolean
	kindList
	kindMapping
)

// node is one value of the file, of a variable or of a flag, after substitution. It knows where it was written, so
// that a fault found much later can say so.
type node struct {
	kind   kind
	text   string  // of a scalar
	loose  bool    // a text that stands for whatever type its place wants: substituted, or from outside the file
	hidden bool    // may be secret: no fault quotes it
	broken bool    // already at fault: say no more about it
	key    string  // its key in the mapping around it
	keys   []*node // of a mapping: its values in the order of the file, no key twice
	items  []*node // of a list
	path   string
	pos    Pos          // of its key, where it has one
	token  *token.Token // the same place, for an excerpt; nil outside the file
}

// child returns the value under a key of a mapping; nil when it is not there.
func (n *node) child(key string) *node {
	for _, c := range n.keys {
		if c.key == key {
			return c
		}
	}
	return nil
}

func (n *node) column() int {
	if n.token == nil {
		return 0
	}
	return n.token.Position.Column
}

// describe completes "is …: must be …" without quoting what may be secret; "" where that leaves nothing to say.
func (n *node) describe() string {
	switch {
	case n.kind == kindMapping:
		return "a mapping"
	case n.kind == kindList:
		return "a list"
	case n.kind == kindNull:
		return "empty"
	case n.hidden:
		return ""
	case n.kind == kindText:
		return strconv.Quote(n.text)
	default:
		return n.text
	}
}

var plainKey = regexp.MustCompile(`^[A-Za-z0-9_$-]+$`)

// join puts a key below a path, in quotes where it would not read as one segment.
func join(path, key string) string {
	switch {
	case !plainKey.MatchString(key):
		return path + "[" + strconv.Quote(key) + "]"
	case path == "":
		return key
	default:
		return path + "." + key
	}
}

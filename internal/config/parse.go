package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

const (
	maxFile  = 1 << 20 // bytes; the parser slows down out of proportion on larger ones
	maxDepth = 100     // the server's own bound for nested BSON
)

// parse turns the text of the file into a tree of nodes with variables substituted; nil when it is no YAML or empty.
func (r *reader) parse(data []byte) *node {
	top := &node{pos: Pos{File: r.file, Line: 1}}
	r.nodes[""] = top
	switch {
	case len(data) > maxFile:
		r.fault(top, "is larger than %d bytes: this is hardly a configuration", maxFile)
		return nil
	case !utf8.Valid(data):
		r.fault(top, "is not UTF-8 text: save it as UTF-8")
		return nil
	}
	source := strings.TrimPrefix(string(data), "\ufeff")
	// Keys given twice are found below, so that they do not hide the faults after them.
	file, err := parser.ParseBytes([]byte(source), 0, parser.AllowDuplicateMapKey())
	if err != nil {
		r.syntaxFault(err, source)
		return nil
	}
	return r.documents(file, top)
}

func (r *reader) documents(file *ast.File, top *node) *node {
	if len(file.Docs) > 1 {
		extra := &node{pos: r.pos(file.Docs[1].Start)}
		r.fault(extra, "starts a second YAML document: keep one document a file")
	}
	if len(file.Docs) > 0 && file.Docs[0].Body != nil {
		c := converter{reader: r}
		c.fill(top, file.Docs[0].Body)
	}
	return top
}

// syntaxFault reports where the parser gave up. Its messages hold no text of the file beyond a character.
func (r *reader) syntaxFault(err error, source string) {
	at, message := &node{pos: Pos{File: r.file, Line: 1}}, "cannot be parsed"
	var syntax yaml.Error
	if errors.As(err, &syntax) {
		at.pos, at.token, message = r.pos(syntax.GetToken()), syntax.GetToken(), syntax.GetMessage()
	}
	advice := "mend the YAML here"
	if lines := strings.Split(source, "\n"); at.pos.Line <= len(lines) && strings.Contains(lines[at.pos.Line-1], "${") {
		advice = "put the value with ${…} in quotes"
	}
	r.fault(at, "is not valid YAML (%s): %s", message, advice)
}

func (r *reader) pos(t *token.Token) Pos {
	if t == nil || t.Position == nil {
		return Pos{File: r.file, Line: 1}
	}
	return Pos{File: r.file, Line: t.Position.Line}
}

// converter turns the parser's tree into nodes.
type converter struct {
	*reader
	depth int
}

// convert makes the node of n, which is named at the token.
func (c *converter) convert(n ast.Node, key, path string, at *token.Token) *node {
	out := &node{key: key, path: path, pos: c.pos(at), token: at}
	c.nodes[path] = out
	c.fill(out, n)
	return out
}

func (c *converter) fill(out *node, n ast.Node) {
	c.depth++
	defer func() { c.depth-- }()
	if c.depth > maxDepth {
		c.breaks(out, fmt.Sprintf("is nested more than %d deep: flatten it", maxDepth))
		return
	}
	switch n := n.(type) {
	case *ast.MappingNode:
		c.fillMapping(out, n.Values)
	case *ast.MappingValueNode:
		c.fillMapping(out, []*ast.MappingValueNode{n})
	case *ast.SequenceNode:
		out.kind = kindList
		for i, item := range n.Values {
			out.items = append(out.items, c.convert(item, "", fmt.Sprintf("%s[%d]", out.path, i), item.GetToken()))
		}
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		c.breaks(out, "uses a YAML anchor, alias or tag: write the value out")
	default:
		c.fillScalar(out, n)
	}
}

func (c *converter) fillScalar(out *node, n ast.Node) {
	switch n := n.(type) {
	case *ast.StringNode:
		c.fillText(out, n.Value)
	case *ast.LiteralNode:
		c.fillText(out, n.Value.Value)
	case *ast.IntegerNode:
		out.kind, out.text = kindInteger, fmt.Sprint(n.Value)
	case *ast.FloatNode:
		out.kind, out.text = kindFloat, strconv.FormatFloat(n.Value, 'g', -1, 64)
	case *ast.InfinityNode:
		out.kind, out.text = kindFloat, strings.Replace(fmt.Sprint(n.Value), "Inf", "Infinity", 1)
	case *ast.NanNode:
		out.kind, out.text = kindFloat, "NaN"
	case *ast.BoolNode:
		out.kind, out.text = kindBoolean, strconv.FormatBool(n.Value)
	}
}

func (c *converter) fillText(out *node, s string) {
	value, changed, wrong := substitute(s, c.env)
	out.kind, out.text, out.loose, out.hidden = kindText, value, changed, changed
	for _, w := range wrong {
		c.breaks(out, w)
	}
}

func (c *converter) fillMapping(out *node, values []*ast.MappingValueNode) {
	out.kind = kindMapping
	for _, v := range values {
		at, ok := keyToken(v.Key)
		if glued(v) {
			c.breaks(out, "has a colon without a space after it: add one, or put the text in quotes")
			return
		}
		path := join(out.path, at.Value)
		if first := out.child(at.Value); !ok || first != nil {
			twice := &node{path: path, pos: c.pos(at), token: at}
			if !ok {
				c.fault(twice, "is not a plain key: write the keys out, without merges, anchors or tags")
			} else {
				c.fault(twice, "is here twice, first on line %d: keep one", first.pos.Line)
			}
			continue
		}
		out.keys = append(out.keys, c.convert(v.Value, at.Value, path, at))
	}
}

// glued tells whether a plain key and its value stand together, as in {a:b}. That is one text in YAML, but two to the
// parser (goccy/go-yaml#832); reading it either way would surprise someone.
func glued(v *ast.MappingValueNode) bool {
	colon, key := v.Start, v.Key.GetToken()
	if colon == nil || colon.Next == nil || key.Indicator == token.QuotedScalarIndicator {
		return false
	}
	next := colon.Next
	return next.Position.Line == colon.Position.Line && next.Position.Column == colon.Position.Column+1 &&
		next.CharacterType != token.CharacterTypeIndicator
}

// keyToken returns the token of a key, and whether the key is a plain one.
func keyToken(key ast.Node) (*token.Token, bool) {
	if explicit, ok := key.(*ast.MappingKeyNode); ok && explicit.Value != nil {
		key = explicit.Value
	}
	switch key.(type) {
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.NullNode:
		return key.GetToken(), true
	default:
		return key.GetToken(), false
	}
}

package config

import (
	"strings"

	"github.com/goccy/go-yaml/token"
)

// excerpt shows the line of a key with a caret below it. Only keys and punctuation are shown: any value on the line
// may be a secret, the more so where the key is not one that we know.
func excerpt(key *token.Token) string {
	if key == nil {
		return ""
	}
	first := key
	for first.Prev != nil && first.Prev.Position.Line == key.Position.Line {
		first = first.Prev
	}
	var line strings.Builder
	line.WriteString(strings.Repeat(" ", max(first.Position.Column-1, 0)))
	caret := 0
	for t := first; t != nil && t.Position.Line == key.Position.Line; t = t.Next {
		if t == key {
			caret = len([]rune(line.String()))
		}
		line.WriteString(outline(t))
	}
	return strings.TrimRight(line.String(), " ") + "\n" + strings.Repeat(" ", caret) + "^"
}

// outline is what an excerpt shows of a token.
func outline(t *token.Token) string {
	switch t.Type {
	case token.MappingValueType, token.CollectEntryType, token.SequenceEntryType:
		return t.Value + " "
	case token.MappingStartType, token.MappingEndType, token.SequenceStartType, token.SequenceEndType:
		return t.Value
	case token.CommentType:
		return ""
	}
	if t.NextType() == token.MappingValueType {
		return t.Value
	}
	return "…"
}

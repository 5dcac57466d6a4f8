package logkey_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"regexp"
	"strconv"
	"testing"
)

// Two keys with one value, or a key that some log store must quote, would be found only when it hurts.
func TestKeysAreDistinctAndPlain(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "logkey.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	plain := regexp.MustCompile(`^[a-z][a-z_]*$`)
	reserved := map[string]bool{"time": true, "level": true, "msg": true}
	seen := make(map[string]bool)
	ast.Inspect(file, func(n ast.Node) bool {
		literal, ok := n.(*ast.BasicLit)
		if !ok {
			return true
		}
		key, err := strconv.Unquote(literal.Value)
		if err != nil || !plain.MatchString(key) || reserved[key] || seen[key] {
			t.Errorf("key %s is not plain, is slog's own or stands twice", literal.Value)
		}
		seen[key] = true
		return true
	})
	if len(seen) == 0 {
		t.Error("no keys found")
	}
}

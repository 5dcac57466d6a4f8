// Package expression evaluates aggregation expressions over a row in Go: a listed subset, with exactly the answers of the
// server. What it compiles has an answer for every row: nothing in the subset can fail.
package expression

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Expression is a compiled expression, for any number of goroutines.
type Expression struct{ of node }

// node is the value of an expression for a row. Its type is 0 where the server says "missing".
type node func(row bson.Raw) bson.RawValue

// Error is why an expression is not in the subset.
type Error struct {
	Path   string // of the part at fault, such as $and[1].$regexMatch; "" for the whole
	Reason string // completes "Path …", without any text of the expression but the names of operators
}

// Error is the path and the reason.
func (e *Error) Error() string {
	if e.Path == "" {
		return e.Reason
	}
	return e.Path + " " + e.Reason
}

// Compile takes an expression, which the error, an *Error, says to be outside of the subset.
func Compile(v bson.RawValue) (*Expression, error) {
	of, err := compile(v, "")
	if err != nil {
		return nil, err
	}
	return &Expression{of: of}, nil
}

// Of is the expression's value for a row, of type 0 when it is missing.
func (e *Expression) Of(row bson.Raw) bson.RawValue { return e.of(row) }

// Holds reports whether the expression counts as true for a row.
func (e *Expression) Holds(row bson.Raw) bool { return truth(e.of(row)) }

// Operators are the names of those that can be compiled, sorted.
func Operators() []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range maps.Keys(operators) {
			if !yield(name) {
				return
			}
		}
		yield("$literal")
	})
}

func compile(v bson.RawValue, path string) (node, error) {
	switch v.Type { //nolint:exhaustive // all others are constants
	case bson.TypeString:
		if s := v.StringValue(); strings.HasPrefix(s, "$") {
			return compilePath(s, path)
		}
		return constant(v), nil
	case bson.TypeArray:
		return compileArray(v.Array(), path)
	case bson.TypeEmbeddedDocument:
		return compileOperator(v.Document(), path)
	default:
		return constant(v), nil
	}
}

func constant(v bson.RawValue) node { return func(bson.Raw) bson.RawValue { return v } }

func compilePath(s, path string) (node, error) {
	if strings.HasPrefix(s, "$$") {
		return nil, &Error{Path: path, Reason: "reads a variable: only paths of fields can be read, such as $status"}
	}
	p := ParsePath(s[1:])
	if slices.ContainsFunc(p, func(part string) bool { return part == "" || part[0] == '$' }) {
		return nil, &Error{Path: path, Reason: "is not a path of a field: a part of it is empty or starts with $"}
	}
	return p.In, nil
}

// compileArray makes an array of the values of its items. One that is missing is null.
func compileArray(items bson.RawArray, path string) (node, error) {
	values, err := items.Values()
	if err != nil {
		return nil, &Error{Path: path, Reason: "is not valid"}
	}
	nodes, err := compileAll(values, path)
	if err != nil {
		return nil, err
	}
	list := func(row bson.Raw) bson.RawValue {
		b := newArray()
		for _, n := range nodes {
			v := n(row)
			if missing(v) {
				v.Type = bson.TypeNull
			}
			b.add(v)
		}
		return b.value()
	}
	if !slices.ContainsFunc(values, looksAtRow) {
		return constant(list(nil)), nil
	}
	return list, nil
}

// looksAtRow is false for what is certainly the same for every row.
func looksAtRow(v bson.RawValue) bool {
	switch v.Type { //nolint:exhaustive // all others are constants
	case bson.TypeString:
		return strings.HasPrefix(v.StringValue(), "$")
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return true
	default:
		return false
	}
}

func compileAll(values []bson.RawValue, path string) ([]node, error) {
	nodes := make([]node, len(values))
	for i, v := range values {
		var err error
		if nodes[i], err = compile(v, fmt.Sprintf("%s[%d]", path, i)); err != nil {
			return nil, err
		}
	}
	return nodes, nil
}

func compileOperator(d bson.Raw, path string) (node, error) {
	elements, err := d.Elements()
	if err != nil || len(elements) != 1 || !strings.HasPrefix(elements[0].Key(), "$") {
		return nil, &Error{Path: path, Reason: "is not one operator with its arguments: put plain data under $literal"}
	}
	name, argument := elements[0].Key(), elements[0].Value()
	if path = strings.TrimPrefix(path+"."+name, "."); name == "$literal" {
		return constant(argument), nil
	}
	o, known := operators[name]
	if !known {
		return nil, &Error{Path: path, Reason: "cannot be evaluated outside of the server: possible are " + strings.Join(Operators(), ", ")}
	}
	return o.compileArguments(argument, path)
}

// compileArguments takes a list of arguments, arguments by name, or one without brackets.
func (o operator) compileArguments(argument bson.RawValue, path string) (node, error) {
	arguments, compileThem := []bson.RawValue{argument}, func(values []bson.RawValue) ([]node, error) {
		n, err := compile(values[0], path)
		return []node{n}, err
	}
	switch {
	case argument.Type == bson.TypeEmbeddedDocument && o.compile != nil:
		return o.compile(argument.Document(), path)
	case argument.Type == bson.TypeArray:
		var err error
		if arguments, err = argument.Array().Values(); err != nil {
			return nil, &Error{Path: path, Reason: "is not valid"}
		}
		compileThem = func(values []bson.RawValue) ([]node, error) { return compileAll(values, path) }
	}
	if n := len(arguments); n < o.least || o.most >= 0 && n > o.most {
		return nil, &Error{Path: path, Reason: fmt.Sprintf("has %d arguments and takes %s", n, o.takes())}
	}
	if o.check != nil {
		if err := o.check(arguments, path); err != nil {
			return nil, err
		}
	}
	nodes, err := compileThem(arguments)
	if err != nil {
		return nil, err
	}
	return o.make(nodes), nil
}

// Path is a dotted path into a row.
type Path []string

// ParsePath splits a dotted path, without a $ before it.
func ParsePath(dotted string) Path { return strings.Split(dotted, ".") }

// In is the value at the path in a row, as an aggregation expression reads it: of an array on the way, the values in all
// of its documents, and never an item by its number. Its type is 0 when it is missing.
func (p Path) In(row bson.Raw) bson.RawValue {
	v := field(row, p[0])
	for i, part := range p[1:] {
		switch v.Type { //nolint:exhaustive // nothing is below any other
		case bson.TypeEmbeddedDocument:
			v = field(v.Value, part)
		case bson.TypeArray:
			return p[i+1:].inItems(v)
		default:
			return bson.RawValue{}
		}
	}
	return v
}

func (p Path) inItems(items bson.RawValue) bson.RawValue {
	b := newArray()
	for _, item := range elements(items.Value) {
		if item.Type != bson.TypeEmbeddedDocument {
			continue
		}
		if v := p.In(item.Value); !missing(v) {
			b.add(v)
		}
	}
	return b.value()
}

func missing(v bson.RawValue) bool { return v.Type == 0 }

// field is the first field of that name in a document; what is cut short in it is not there.
func field(document []byte, name string) bson.RawValue {
	for key, v := range elements(document) {
		if string(key) == name {
			return v
		}
	}
	return bson.RawValue{}
}

// elements are the names and values of a document or array.
func elements(document []byte) func(yield func([]byte, bson.RawValue) bool) {
	return func(yield func([]byte, bson.RawValue) bool) {
		_, rest, _ := bsoncore.ReadLength(document)
		for len(rest) > 1 {
			element, remaining, ok := bsoncore.ReadElement(rest)
			if !ok {
				return
			}
			v := element.Value()
			if !yield(element.KeyBytes(), bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}) {
				return
			}
			rest = remaining
		}
	}
}

// arrayBuilder makes an array of values.
type arrayBuilder struct {
	content []byte
	start   int32
	n       int
}

func newArray() *arrayBuilder {
	b := &arrayBuilder{}
	b.start, b.content = bsoncore.AppendArrayStart(nil)
	return b
}

func (b *arrayBuilder) add(v bson.RawValue) {
	b.content = append(bsoncore.AppendHeader(b.content, bsoncore.Type(v.Type), fmt.Sprint(b.n)), v.Value...)
	b.n++
}

func (b *arrayBuilder) value() bson.RawValue {
	b.content, _ = bsoncore.AppendArrayEnd(b.content, b.start) // it was begun
	return bson.RawValue{Type: bson.TypeArray, Value: b.content}
}

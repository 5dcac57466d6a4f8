package expression

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// operator is one of the subset: how many arguments it takes and what it makes of them.
type operator struct {
	least, most int // most below 0: any number
	make        func(arguments []node) node
	check       func(arguments []bson.RawValue, path string) error  // what their number does not tell
	compile     func(arguments bson.Raw, path string) (node, error) // of arguments by name, where it takes them
}

func (o operator) takes() string {
	switch {
	case o.most < 0:
		return fmt.Sprintf("at least %d", o.least)
	default:
		return fmt.Sprint(o.least)
	}
}

// operators are all but $literal, whose argument is no expression. None of them can fail on some row: hence $in takes
// nothing but a list that is written out, since the server fails where a field that it looks into is no array.
var operators map[string]operator

func init() {
	operators = map[string]operator{
		"$eq":     comparison(func(order int) bool { return order == 0 }),
		"$ne":     comparison(func(order int) bool { return order != 0 }),
		"$gt":     comparison(func(order int) bool { return order > 0 }),
		"$gte":    comparison(func(order int) bool { return order >= 0 }),
		"$lt":     comparison(func(order int) bool { return order < 0 }),
		"$lte":    comparison(func(order int) bool { return order <= 0 }),
		"$in":     {least: 2, most: 2, check: writtenOut, make: in},
		"$and":    {most: -1, make: and},
		"$or":     {most: -1, make: or},
		"$not":    {least: 1, most: 1, make: not},
		"$ifNull": {least: 2, most: -1, make: ifNull},
		"$cond":   {least: 3, most: 3, make: cond, compile: compileCond},
		"$type":   {least: 1, most: 1, make: typeOf},
	}
}

func comparison(holds func(order int) bool) operator {
	return operator{least: 2, most: 2, make: func(arguments []node) node {
		a, b := arguments[0], arguments[1]
		return func(row bson.Raw) bson.RawValue { return boolean(holds(compare(a(row), b(row)))) }
	}}
}

func writtenOut(arguments []bson.RawValue, path string) error {
	if arguments[1].Type == bson.TypeArray {
		return nil
	}
	return &Error{Path: path + "[1]", Reason: "is not a list that is written out: a field may hold no list in some row, which the server has no answer for"}
}

func in(arguments []node) node {
	value, list := arguments[0], arguments[1]
	return func(row bson.Raw) bson.RawValue {
		v := value(row)
		for _, item := range elements(list(row).Value) {
			if compare(v, item) == 0 {
				return boolean(true)
			}
		}
		return boolean(false)
	}
}

func and(arguments []node) node {
	return func(row bson.Raw) bson.RawValue {
		return boolean(!slices.ContainsFunc(arguments, func(n node) bool { return !truth(n(row)) }))
	}
}

func or(arguments []node) node {
	return func(row bson.Raw) bson.RawValue {
		return boolean(slices.ContainsFunc(arguments, func(n node) bool { return truth(n(row)) }))
	}
}

func not(arguments []node) node {
	return func(row bson.Raw) bson.RawValue { return boolean(!truth(arguments[0](row))) }
}

// ifNull is the first value that is not missing, null or undefined, or the last one.
func ifNull(arguments []node) node {
	return func(row bson.Raw) (v bson.RawValue) {
		for _, n := range arguments {
			if v = n(row); !nullish(v) {
				break
			}
		}
		return v
	}
}

func cond(arguments []node) node {
	return func(row bson.Raw) bson.RawValue {
		if truth(arguments[0](row)) {
			return arguments[1](row)
		}
		return arguments[2](row)
	}
}

// compileCond reads {if: …, then: …, else: …}.
func compileCond(named bson.Raw, path string) (node, error) {
	names := []string{"if", "then", "else"}
	arguments := make([]node, len(names))
	for name, v := range elements(named) {
		i := slices.Index(names, string(name))
		if i < 0 || arguments[i] != nil {
			return nil, &Error{Path: path, Reason: "takes if, then and else, once each"}
		}
		var err error
		if arguments[i], err = compile(v, path+"."+names[i]); err != nil {
			return nil, err
		}
	}
	if slices.ContainsFunc(arguments, func(n node) bool { return n == nil }) {
		return nil, &Error{Path: path, Reason: "takes if, then and else, once each"}
	}
	return cond(arguments), nil
}

// typeNames are the names of the types as $type gives them.
var typeNames = map[bson.Type]string{
	0: "missing", bson.TypeMinKey: "minKey", bson.TypeDouble: "double", bson.TypeString: "string", bson.TypeEmbeddedDocument: "object",
	bson.TypeArray: "array", bson.TypeBinary: "binData", bson.TypeUndefined: "undefined", bson.TypeObjectID: "objectId",
	bson.TypeBoolean: "bool", bson.TypeDateTime: "date", bson.TypeNull: "null", bson.TypeRegex: "regex", bson.TypeDBPointer: "dbPointer",
	bson.TypeJavaScript: "javascript", bson.TypeSymbol: "symbol", bson.TypeCodeWithScope: "javascriptWithScope", bson.TypeInt32: "int",
	bson.TypeTimestamp: "timestamp", bson.TypeInt64: "long", bson.TypeDecimal128: "decimal", bson.TypeMaxKey: "maxKey",
}

func typeOf(arguments []node) node {
	return func(row bson.Raw) bson.RawValue {
		name := typeNames[arguments[0](row).Type]
		return bson.RawValue{Type: bson.TypeString, Value: bsoncore.AppendString(nil, name)}
	}
}

var falseValue, trueValue = bson.RawValue{Type: bson.TypeBoolean, Value: []byte{0}}, bson.RawValue{Type: bson.TypeBoolean, Value: []byte{1}}

func boolean(b bool) bson.RawValue {
	if b {
		return trueValue
	}
	return falseValue
}

func nullish(v bson.RawValue) bool {
	return missing(v) || v.Type == bson.TypeNull || v.Type == bson.TypeUndefined
}

// truth is what the server takes a value for where it needs a condition.
func truth(v bson.RawValue) bool {
	switch v.Type { //nolint:exhaustive // all others are true
	case 0, bson.TypeNull, bson.TypeUndefined:
		return false
	case bson.TypeBoolean:
		return v.Boolean()
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return compareNumbers(v, zero) != 0
	default:
		return true
	}
}

var zero = bson.RawValue{Type: bson.TypeInt32, Value: make([]byte, 4)}

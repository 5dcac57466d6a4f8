package expression

import (
	"bytes"
	"cmp"
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// class is where a type stands among the types. Types of one class are compared by their values.
func class(t bson.Type) int {
	switch t {
	case bson.TypeMinKey:
		return -1
	case 0, bson.TypeUndefined:
		return 0
	case bson.TypeNull:
		return 5
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return 10
	case bson.TypeString, bson.TypeSymbol:
		return 15
	case bson.TypeEmbeddedDocument:
		return 20
	case bson.TypeArray:
		return 25
	case bson.TypeBinary:
		return 30
	case bson.TypeObjectID:
		return 35
	case bson.TypeBoolean:
		return 40
	case bson.TypeDateTime:
		return 45
	case bson.TypeTimestamp:
		return 47
	case bson.TypeRegex:
		return 50
	case bson.TypeDBPointer:
		return 55
	case bson.TypeJavaScript:
		return 60
	case bson.TypeCodeWithScope:
		return 65
	default: // MaxKey
		return 127
	}
}

// compare orders two values as the server's aggregation does, with the simple collation: below 0, 0 or above.
// https://github.com/mongodb/mongo/blob/v6.0/src/mongo/db/exec/document_value/value.cpp
func compare(a, b bson.RawValue) int {
	if order := cmp.Compare(class(a.Type), class(b.Type)); order != 0 {
		return order
	}
	switch a.Type { //nolint:exhaustive // of all others there is one value
	case bson.TypeInt32, bson.TypeInt64, bson.TypeDouble, bson.TypeDecimal128:
		return compareNumbers(a, b)
	case bson.TypeString, bson.TypeSymbol, bson.TypeJavaScript:
		return bytes.Compare(characters(a.Value), characters(b.Value))
	case bson.TypeEmbeddedDocument:
		return compareDocuments(a.Value, b.Value)
	case bson.TypeArray:
		return compareArrays(a.Value, b.Value)
	case bson.TypeBinary: // its length, its subtype, its bytes: so they stand, but the length is little-endian
		return cmp.Or(cmp.Compare(len(a.Value), len(b.Value)), bytes.Compare(a.Value[4:], b.Value[4:]))
	case bson.TypeObjectID, bson.TypeBoolean, bson.TypeRegex:
		return bytes.Compare(a.Value, b.Value)
	case bson.TypeDateTime:
		return cmp.Compare(int64(binary.LittleEndian.Uint64(a.Value)), int64(binary.LittleEndian.Uint64(b.Value))) //nolint:gosec // its bits
	case bson.TypeTimestamp:
		return cmp.Compare(binary.LittleEndian.Uint64(a.Value), binary.LittleEndian.Uint64(b.Value))
	case bson.TypeDBPointer: // the length of the name, and the id; not the name itself
		return cmp.Or(cmp.Compare(len(a.Value), len(b.Value)), bytes.Compare(pointer(a.Value), pointer(b.Value)))
	case bson.TypeCodeWithScope:
		codeA, scopeA, _, _ := bsoncore.ReadCodeWithScope(a.Value)
		codeB, scopeB, _, _ := bsoncore.ReadCodeWithScope(b.Value)
		return cmp.Or(cmp.Compare(codeA, codeB), compareDocuments(scopeA, scopeB))
	default:
		return 0
	}
}

// characters are those of a BSON string, which has its length before and a zero byte behind it.
func characters(value []byte) []byte { return value[4 : len(value)-1] }

// pointer is the id of a DBPointer, which ends it.
func pointer(value []byte) []byte { return value[len(value)-12:] }

// compareDocuments goes field by field: by the types' classes, the names, the values. What is the start of the other is
// the lesser.
func compareDocuments(a, b []byte) int {
	return compareElements(a, b, func(nameA, nameB []byte, x, y bson.RawValue) int {
		return cmp.Or(cmp.Compare(class(x.Type), class(y.Type)), bytes.Compare(nameA, nameB), compare(x, y))
	})
}

func compareArrays(a, b []byte) int {
	return compareElements(a, b, func(_, _ []byte, x, y bson.RawValue) int { return compare(x, y) })
}

func compareElements(a, b []byte, order func(nameA, nameB []byte, x, y bson.RawValue) int) int {
	_, a, _ = bsoncore.ReadLength(a)
	_, b, _ = bsoncore.ReadLength(b)
	for {
		x, restA, okA := bsoncore.ReadElement(a)
		y, restB, okB := bsoncore.ReadElement(b)
		switch {
		case !okA && !okB:
			return 0
		case !okA:
			return -1
		case !okB:
			return 1
		}
		u, v := x.Value(), y.Value()
		if o := order(x.KeyBytes(), y.KeyBytes(), bson.RawValue{Type: bson.Type(u.Type), Value: u.Data}, bson.RawValue{Type: bson.Type(v.Type), Value: v.Data}); o != 0 {
			return o
		}
		a, b = restA, restB
	}
}

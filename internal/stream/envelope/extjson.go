package envelope

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// maxDepth is how deep a document may be nested: MongoDB takes no more.
const maxDepth = 200

var (
	errDeep    = fmt.Errorf("is nested more than %d deep", maxDepth)
	errInteger = errors.New("holds an integer of more than 64 bits")
	errName    = errors.New("holds a null character in the name of a field or a regular expression")
)

// document is the row in v, an object or a string that holds one, as extended JSON; nil where there is none. Of extended
// JSON all forms are read, canonical, relaxed and the strict one of version 1, which both connectors write by default.
func document(v value) (bson.Raw, error) {
	if v.none() {
		return nil, nil
	}
	inner, ok := v.opened()
	switch {
	case ok && inner.kind() == null:
		return nil, nil
	case !ok || inner.kind() != object:
		return nil, errors.New("is neither a document nor a string with one as extended JSON")
	}
	return appendDocument(nil, inner, 1)
}

// raw is the value v as extended JSON.
func raw(v value) (bson.RawValue, error) {
	content, kind, err := appendValue(nil, v, 0)
	return bson.RawValue{Type: bson.Type(kind), Value: content}, err
}

// as is the value in v, or in a string that v is, when it has the given type.
func (v value) as(t bson.Type) (bson.RawValue, bool) {
	inner, ok := v.opened()
	if !ok || inner.none() {
		return bson.RawValue{}, false
	}
	r, err := raw(inner)
	return r, err == nil && r.Type == t
}

func appendDocument(dst []byte, v value, depth int) ([]byte, error) {
	start, dst := bsoncore.ReserveLength(dst)
	for name, member := range v.members() {
		var err error
		if dst, err = appendElement(dst, name, member, depth); err != nil {
			return nil, err
		}
	}
	return bsoncore.UpdateLength(append(dst, 0), start, int32(len(dst)+1-int(start))), nil //nolint:gosec // a record is smaller
}

func appendArray(dst []byte, v value, depth int) ([]byte, error) {
	start, dst := bsoncore.ReserveLength(dst)
	n := int64(0)
	for item := range v.items() {
		var err error
		if dst, err = appendElement(dst, strconv.AppendInt(nil, n, 10), item, depth); err != nil {
			return nil, err
		}
		n++
	}
	return bsoncore.UpdateLength(append(dst, 0), start, int32(len(dst)+1-int(start))), nil //nolint:gosec // a record is smaller
}

// appendElement appends type, name and value; the type is known only after the value.
func appendElement(dst, name []byte, v value, depth int) ([]byte, error) {
	for _, b := range name {
		if b == 0 {
			return nil, errName
		}
	}
	at := len(dst)
	dst = append(append(append(dst, 0), name...), 0)
	dst, kind, err := appendValue(dst, v, depth)
	if err != nil {
		return nil, err
	}
	dst[at] = byte(kind)
	return dst, nil
}

// appendValue appends the BSON content of v and returns its type.
func appendValue(dst []byte, v value, depth int) ([]byte, bsoncore.Type, error) {
	if depth > maxDepth {
		return nil, 0, errDeep
	}
	switch v.kind() {
	case object:
		return appendObject(dst, v, depth)
	case array:
		dst, err := appendArray(dst, v, depth+1)
		return dst, bsoncore.TypeArray, err
	case text:
		return bsoncore.AppendString(dst, string(v.bytes())), bsoncore.TypeString, nil
	case null:
		return dst, bsoncore.TypeNull, nil
	case number:
		return appendNumber(dst, v)
	default:
		return bsoncore.AppendBoolean(dst, v[0] == 't'), bsoncore.TypeBoolean, nil
	}
}

// appendNumber makes an integer an int, or a long where that is too small, and anything else a double.
func appendNumber(dst []byte, v value) ([]byte, bsoncore.Type, error) {
	n, err := strconv.ParseInt(string(v), 10, 64)
	switch {
	case err == nil && n >= math.MinInt32 && n <= math.MaxInt32:
		return bsoncore.AppendInt32(dst, int32(n)), bsoncore.TypeInt32, nil
	case err == nil:
		return bsoncore.AppendInt64(dst, n), bsoncore.TypeInt64, nil
	case errors.Is(err, strconv.ErrRange):
		return nil, 0, errInteger
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		return nil, 0, fmt.Errorf("holds the number %s, which no double holds", v.excerpt())
	}
	return bsoncore.AppendDouble(dst, f), bsoncore.TypeDouble, nil
}

// appendObject appends a document, or the value that {$oid: …} and the like stand for.
func appendObject(dst []byte, v value, depth int) ([]byte, bsoncore.Type, error) {
	var name string
	var inner value
	members := 0
	for n, member := range v.members() {
		if members++; members > 1 {
			break
		}
		if len(n) == 0 || n[0] != '$' {
			break
		}
		name, inner = string(n), member
	}
	if name == "" {
		dst, err := appendDocument(dst, v, depth+1)
		return dst, bsoncore.TypeEmbeddedDocument, err
	}
	if members == 1 {
		if dst, kind, ok := appendCommon(dst, name, inner); ok {
			return dst, kind, nil
		}
	}
	return appendRare(dst, name, v, depth)
}

// appendCommon appends what rows hold much of. ok is false for anything else, right or wrong.
func appendCommon(dst []byte, name string, v value) (_ []byte, kind bsoncore.Type, ok bool) {
	switch name {
	case "$oid":
		if v.kind() == text {
			id, err := bson.ObjectIDFromHex(string(v.bytes()))
			return bsoncore.AppendObjectID(dst, id), bsoncore.TypeObjectID, err == nil
		}
	case "$numberLong":
		if v.kind() == text {
			n, err := strconv.ParseInt(string(v.bytes()), 10, 64)
			return bsoncore.AppendInt64(dst, n), bsoncore.TypeInt64, err == nil
		}
	case "$date":
		if v.kind() == number {
			ms, err := strconv.ParseInt(string(v), 10, 64)
			return bsoncore.AppendDateTime(dst, ms), bsoncore.TypeDateTime, err == nil
		}
		if v.kind() == text {
			t, err := time.Parse(time.RFC3339, string(v.bytes()))
			return bsoncore.AppendDateTime(dst, t.UnixMilli()), bsoncore.TypeDateTime, err == nil
		}
	case "$timestamp":
		t, i, ok := timestamp(v)
		return bsoncore.AppendTimestamp(dst, t, i), bsoncore.TypeTimestamp, ok
	}
	return dst, 0, false
}

func timestamp(v value) (t, i uint32, ok bool) {
	members := 0
	for name, member := range v.members() {
		n, err := strconv.ParseUint(string(member), 10, 32)
		switch members++; {
		case err == nil && string(name) == "t" && members == 1:
			t = uint32(n)
		case err == nil && string(name) == "i" && members == 2:
			i = uint32(n)
		default:
			return 0, 0, false
		}
	}
	return t, i, members == 2
}

// appendRare leaves to the driver what is written in no other way than it knows.
func appendRare(dst []byte, name string, v value, depth int) ([]byte, bsoncore.Type, error) {
	if pattern, options, ok := regexOfVersion1(v); ok {
		if strings.ContainsRune(pattern+options, 0) {
			return nil, 0, errName
		}
		return bsoncore.AppendRegex(dst, pattern, options), bsoncore.TypeRegex, nil
	}
	if !wrappers[name] {
		dst, err := appendDocument(dst, v, depth+1)
		return dst, bsoncore.TypeEmbeddedDocument, err
	}
	var wrapped struct{ V bson.RawValue }
	if err := bson.UnmarshalExtJSON([]byte(`{"v":`+string(v)+`}`), false, &wrapped); err != nil {
		return nil, 0, fmt.Errorf("holds %s, which is not valid extended JSON", v.excerpt())
	}
	return append(dst, wrapped.V.Value...), bsoncore.Type(wrapped.V.Type), nil
}

// wrappers are the names that begin an object which stands for a value of another type.
var wrappers = map[string]bool{
	"$numberInt": true, "$numberLong": true, "$numberDouble": true, "$numberDecimal": true, "$oid": true, "$symbol": true,
	"$binary": true, "$uuid": true, "$code": true, "$scope": true, "$timestamp": true, "$regularExpression": true,
	"$dbPointer": true, "$date": true, "$minKey": true, "$maxKey": true, "$undefined": true,
}

// regexOfVersion1 reads {"$regex": pattern, "$options": options}, which the driver takes for a query.
func regexOfVersion1(v value) (pattern, options string, ok bool) {
	members := 0
	hasPattern, hasOptions := false, false
	for name, member := range v.members() {
		members++
		switch {
		case string(name) == "$regex" && member.kind() == text:
			pattern, hasPattern = string(member.bytes()), true
		case string(name) == "$options" && member.kind() == text:
			options, hasOptions = string(member.bytes()), true
		}
	}
	return pattern, options, members == 2 && hasPattern && hasOptions
}

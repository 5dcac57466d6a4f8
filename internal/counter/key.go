package counter

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// tooManyDigits is the first number that the 34 digits of a Decimal128 do not hold.
var tooManyDigits = new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil)

// Canonical returns a form of v that is equal for two values exactly when the server holds them for one _id: 1, 1.0 and
// Decimal 1 are one key, and so are a symbol and a string of the same text. It is for comparing, not for reading.
func Canonical(v bson.RawValue) string {
	var room [64]byte // for all but the longest, so that only the result is allocated
	return string(appendCanonical(room[:0], v))
}

// ParseKey reads a key as an operator writes it: extended JSON, else the 24 hexadecimal digits of an ObjectId, else text.
func ParseKey(text string) (bson.RawValue, error) {
	key, err := parseKey(text)
	if err == nil && !Usable(key) {
		err = errors.New("cannot be a key: null, an array, a regular expression and a document with a $-field name no counter")
	}
	return key, err
}

func parseKey(text string) (bson.RawValue, error) {
	if json.Valid([]byte(text)) {
		var wrapped struct{ K bson.RawValue }
		if err := bson.UnmarshalExtJSON([]byte(`{"k": `+text+`}`), false, &wrapped); err == nil && !wrapped.K.IsZero() {
			return wrapped.K, nil
		}
	}
	if strings.HasPrefix(strings.TrimSpace(text), "{") {
		return bson.RawValue{}, errors.New("is not valid extended JSON")
	}
	value := any(text)
	if id, err := bson.ObjectIDFromHex(text); err == nil {
		value = id
	}
	kind, data, err := bson.MarshalValue(value)
	return bson.RawValue{Type: kind, Value: data}, err
}

// Usable reports whether v names a counter document: what usableKey asks the server, for a value that we have.
func Usable(v bson.RawValue) bool {
	switch v.Type {
	case 0, bson.TypeNull, bson.TypeUndefined, bson.TypeArray, bson.TypeRegex:
		return false
	case bson.TypeEmbeddedDocument:
		return storable(v.Value, maxKeyDepth)
	default:
		return true
	}
}

// storable is false for the content of a document or array that cannot be part of an _id. See unstorable.
func storable(fields []byte, depth int) bool {
	if depth == 0 {
		return false
	}
	_, rest, _ := bsoncore.ReadLength(fields)
	for len(rest) > 1 {
		element, remaining, ok := bsoncore.ReadElement(rest)
		if !ok || len(element.KeyBytes()) > 0 && element.KeyBytes()[0] == '$' {
			return false
		}
		rest = remaining
		value := element.Value()
		switch value.Type { //nolint:exhaustive // all others are single values
		case bsoncore.TypeCodeWithScope:
			return false
		case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
			if !storable(value.Data, depth-1) {
				return false
			}
		}
	}
	return true
}

// appendCanonical appends the canonical form of v to dst. Every form begins with the class of its type and says its own
// length, so that forms can stand behind one another.
func appendCanonical(dst []byte, v bson.RawValue) []byte {
	switch v.Type {
	case bson.TypeInt32:
		return appendInt(dst, int64(v.Int32()))
	case bson.TypeInt64:
		return appendInt(dst, v.Int64())
	case bson.TypeDouble:
		return appendDouble(dst, v.Double())
	case bson.TypeDecimal128:
		return appendDecimal(dst, v.Decimal128())
	case bson.TypeString, bson.TypeSymbol:
		// Both are a length, the text and a zero byte.
		return append(append(dst, 's'), v.Value...)
	case bson.TypeEmbeddedDocument, bson.TypeArray:
		return appendFields(dst, v)
	case bson.TypeCodeWithScope:
		code, scope, _ := v.CodeWithScopeOK()
		dst = append(binary.LittleEndian.AppendUint32(append(dst, 'c'), uint32(len(code))), code...) //nolint:gosec // a document is at most 16 MiB
		return appendCanonical(dst, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: scope})
	default:
		return append(append(dst, byte(v.Type)), v.Value...)
	}
}

func appendInt(dst []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, 'i'), uint64(n)) //nolint:gosec // the bits, not the number
}

func appendDouble(dst []byte, f float64) []byte {
	switch {
	case f == math.Trunc(f) && f >= -1<<63 && f < 1<<63:
		return appendInt(dst, int64(f))
	case math.IsNaN(f):
		return append(dst, 'n')
	case math.IsInf(f, 0):
		return strconv.AppendBool(append(dst, '8'), f > 0)
	}
	// Exactly, for the server compares a double and a decimal exactly: 0.1 is no decimal, 0.5 is one.
	mantissa, e := math.Frexp(math.Abs(f))
	n := big.NewInt(int64(math.Ldexp(mantissa, 53)))
	zeros := n.TrailingZeroBits()
	n.Rsh(n, zeros)
	e += int(zeros) - 53
	exponent := 0
	switch {
	case e < -48, e > 150: // n is odd: 34 digits hold no such number, for 5^49 and 2^128 have more
		return appendBits(dst, f)
	case e < 0: // n / 2^-e = n * 5^-e * 10^e
		n.Mul(n, new(big.Int).Exp(big.NewInt(5), big.NewInt(int64(-e)), nil))
		exponent = e
	default:
		n.Lsh(n, uint(e))
	}
	if n, exponent = withoutZeros(n, exponent); n.Cmp(tooManyDigits) >= 0 {
		return appendBits(dst, f)
	}
	return appendScientific(dst, f < 0, n, exponent)
}

// appendBits appends a double that no other type holds.
func appendBits(dst []byte, f float64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, 'f'), math.Float64bits(f))
}

func appendDecimal(dst []byte, d bson.Decimal128) []byte {
	switch {
	case d.IsNaN():
		return append(dst, 'n')
	case d.IsInf() != 0:
		return strconv.AppendBool(append(dst, '8'), d.IsInf() > 0)
	}
	n, e, err := d.BigInt()
	switch {
	case err != nil: // neither NaN nor infinite: it has digits
		return append(dst, 'n')
	case n.CmpAbs(tooManyDigits) >= 0: // its bits hold more than its digits: by definition a zero
		return appendInt(dst, 0)
	}
	return appendScientific(dst, n.Sign() < 0, n.Abs(n), e)
}

// withoutZeros returns n * 10^e with the same value and no trailing zeros in n, which is not 0.
func withoutZeros(n *big.Int, e int) (*big.Int, int) {
	ten := big.NewInt(10)
	for {
		quotient, remainder := new(big.Int).QuoRem(n, ten, new(big.Int))
		if remainder.Sign() != 0 {
			return n, e
		}
		n, e = quotient, e+1
	}
}

// appendScientific appends n * 10^e without trailing zeros in n, as an integer when it is one of 64 bits.
func appendScientific(dst []byte, negative bool, n *big.Int, e int) []byte {
	if n.Sign() == 0 {
		return appendInt(dst, 0)
	}
	n, e = withoutZeros(n, e)
	if negative {
		n = new(big.Int).Neg(n)
	}
	if e >= 0 && e < 19 {
		if whole := new(big.Int).Mul(n, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(e)), nil)); whole.IsInt64() {
			return appendInt(dst, whole.Int64())
		}
	}
	return append(append(strconv.AppendInt(append(n.Append(append(dst, 'd'), 10), 'e'), int64(e), 10), 0), 0)
}

// appendFields walks a document without judging it: what the driver finds odd, such as an array whose fields are not
// numbers, the server keeps apart all the same.
func appendFields(dst []byte, v bson.RawValue) []byte {
	dst = append(dst, byte(v.Type))
	_, rest, _ := bsoncore.ReadLength(v.Value)
	for len(rest) > 1 {
		element, remaining, ok := bsoncore.ReadElement(rest)
		if !ok {
			return append(dst, rest...)
		}
		rest = remaining
		dst = append(dst, 1)
		if v.Type == bson.TypeEmbeddedDocument {
			dst = append(append(dst, element.KeyBytes()...), 0)
		}
		value := element.Value()
		dst = appendCanonical(dst, bson.RawValue{Type: bson.Type(value.Type), Value: value.Data})
	}
	return append(dst, 0)
}

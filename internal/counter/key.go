package counter

import (
	"encoding/binary"
	"errors"
	"math"
	"math/big"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// decimalDigits is the precision of Decimal128, to which the server rounds a double before it compares the two.
const decimalDigits = 34

// Canonical returns a form of v that is equal for two values exactly when the server holds them for one _id: 1, 1.0 and
// Decimal 1 are one key, and so are a symbol and a string of the same text. It is for comparing, not for reading.
func Canonical(v bson.RawValue) string {
	return string(appendCanonical(nil, v))
}

// ParseKey reads a key as an operator writes it: extended JSON, else the 24 hexadecimal digits of an ObjectId, else text.
func ParseKey(text string) (bson.RawValue, error) {
	var wrapped struct{ K bson.RawValue }
	if err := bson.UnmarshalExtJSON([]byte(`{"k": `+text+`}`), false, &wrapped); err == nil && !wrapped.K.IsZero() {
		return wrapped.K, nil
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
		code, scope := v.CodeWithScope()
		dst = append(binary.LittleEndian.AppendUint32(append(dst, 'c'), uint32(len(code))), code...) //nolint:gosec // a document is at most 16 MiB
		return appendCanonical(dst, bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: scope})
	case bson.TypeUndefined:
		return append(dst, byte(bson.TypeNull))
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
	digits := strconv.FormatFloat(math.Abs(f), 'e', decimalDigits-1, 64)
	mantissa, exponent, _ := strings.Cut(digits, "e")
	e, _ := strconv.Atoi(exponent)
	n, _ := new(big.Int).SetString(strings.Replace(mantissa, ".", "", 1), 10)
	return appendScientific(dst, f < 0, n, e-(decimalDigits-1))
}

func appendDecimal(dst []byte, d bson.Decimal128) []byte {
	switch {
	case d.IsNaN():
		return append(dst, 'n')
	case d.IsInf() != 0:
		return strconv.AppendBool(append(dst, '8'), d.IsInf() > 0)
	}
	n, e, err := d.BigInt()
	if err != nil { // neither NaN nor infinite: it has digits
		return append(dst, 'n')
	}
	return appendScientific(dst, n.Sign() < 0, n.Abs(n), e)
}

// appendScientific appends n * 10^e without trailing zeros in n, as an integer when it is one of 64 bits.
func appendScientific(dst []byte, negative bool, n *big.Int, e int) []byte {
	if n.Sign() == 0 {
		return appendInt(dst, 0)
	}
	ten, rest := big.NewInt(10), new(big.Int)
	for {
		quotient, remainder := new(big.Int).QuoRem(n, ten, rest)
		if remainder.Sign() != 0 {
			break
		}
		n, e = quotient, e+1
	}
	if negative {
		n = new(big.Int).Neg(n)
	}
	if e >= 0 && e < 19 {
		if whole := new(big.Int).Mul(n, new(big.Int).Exp(ten, big.NewInt(int64(e)), nil)); whole.IsInt64() {
			return appendInt(dst, whole.Int64())
		}
	}
	return append(append(strconv.AppendInt(append(n.Append(append(dst, 'd'), 10), 'e'), int64(e), 10), 0), 0)
}

func appendFields(dst []byte, v bson.RawValue) []byte {
	dst = append(dst, byte(v.Type))
	elements, _ := bson.Raw(v.Value).Elements()
	for _, e := range elements {
		dst = append(dst, 1)
		if v.Type == bson.TypeEmbeddedDocument {
			dst = append(append(dst, e.Key()...), 0)
		}
		dst = appendCanonical(dst, e.Value())
	}
	return append(dst, 0)
}

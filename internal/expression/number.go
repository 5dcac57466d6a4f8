package expression

import (
	"cmp"
	"math"
	"math/big"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// compareNumbers orders two numbers of whatever types. NaN is the least and equals itself.
func compareNumbers(a, b bson.RawValue) int {
	switch {
	case a.Type == bson.TypeDecimal128 || b.Type == bson.TypeDecimal128:
		return compareDecimals(toDecimal(a), toDecimal(b))
	case a.Type == bson.TypeDouble && b.Type == bson.TypeDouble:
		return cmp.Compare(a.Double(), b.Double()) // has NaN as the least
	case a.Type == bson.TypeDouble:
		return -compareLongToDouble(b.AsInt64(), a.Double())
	case b.Type == bson.TypeDouble:
		return compareLongToDouble(a.AsInt64(), b.Double())
	default:
		return cmp.Compare(a.AsInt64(), b.AsInt64())
	}
}

// Long is a number as a 64-bit integer, as $convert gives it: cut off at its point, and 0 where there is none, for NaN,
// what is beyond 64 bits and all that is no number.
func Long(v bson.RawValue) int64 {
	switch v.Type { //nolint:exhaustive // all others are no numbers
	case bson.TypeInt32, bson.TypeInt64:
		return v.AsInt64()
	case bson.TypeDouble:
		if f := v.Double(); f >= -1<<63 && f < 1<<63 {
			return int64(f)
		}
	case bson.TypeDecimal128:
		return ofDecimal128(v.Decimal128()).long()
	}
	return 0
}

func (d decimal) long() int64 {
	const most = 19 // digits of a 64-bit integer
	switch {
	case d.nan, d.infinite, d.sign() == 0, len(d.digits.String())+d.exponent > most:
		return 0
	}
	var whole *big.Int
	if d.exponent >= 0 {
		whole = d.scaled(0)
	} else {
		whole = new(big.Int).Quo(d.digits, new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(-d.exponent)), nil))
	}
	if d.negative {
		whole.Neg(whole)
	}
	if !whole.IsInt64() {
		return 0
	}
	return whole.Int64()
}

// compareLongToDouble compares the exact values.
func compareLongToDouble(n int64, f float64) int {
	const exact = 1 << 53 // up to here a double holds every integer, and beyond it no fraction
	switch {
	case math.IsNaN(f):
		return 1
	case n >= -exact && n <= exact:
		return cmp.Compare(float64(n), f)
	case f >= 1<<63:
		return -1
	case f < -1<<63:
		return 1
	default:
		return cmp.Compare(n, int64(f))
	}
}

// decimal is a number: sign * digits * 10^exponent, or NaN, or infinite.
type decimal struct {
	nan      bool
	infinite bool
	negative bool
	digits   *big.Int // not negative
	exponent int
}

// tooManyDigits is the first number that 34 digits do not hold.
var tooManyDigits = new(big.Int).Exp(big.NewInt(10), big.NewInt(34), nil)

// toDecimal is exact, as is the server's comparison: the double 0.1 is more than the decimal of its first 34 digits.
func toDecimal(v bson.RawValue) decimal {
	switch v.Type { //nolint:exhaustive // those are the numbers
	case bson.TypeDecimal128:
		return ofDecimal128(v.Decimal128())
	case bson.TypeDouble:
		return ofDouble(v.Double())
	default:
		n := v.AsInt64()
		return decimal{negative: n < 0, digits: new(big.Int).Abs(big.NewInt(n))}
	}
}

func ofDecimal128(d bson.Decimal128) decimal {
	if d.IsNaN() {
		return decimal{nan: true}
	}
	if inf := d.IsInf(); inf != 0 {
		return decimal{infinite: true, negative: inf < 0}
	}
	n, exponent, err := d.BigInt()
	if err != nil || n.CmpAbs(tooManyDigits) >= 0 { // bits that hold more than the digits are a zero by definition
		return decimal{digits: new(big.Int)}
	}
	return decimal{negative: n.Sign() < 0, digits: n.Abs(n), exponent: exponent}
}

func ofDouble(f float64) decimal {
	if math.IsNaN(f) {
		return decimal{nan: true}
	}
	if math.IsInf(f, 0) {
		return decimal{infinite: true, negative: f < 0}
	}
	fraction, e := math.Frexp(math.Abs(f))
	digits, e := big.NewInt(int64(math.Ldexp(fraction, 53))), e-53
	if e >= 0 {
		return decimal{negative: f < 0, digits: digits.Lsh(digits, uint(e))}
	}
	zeros := min(digits.TrailingZeroBits(), uint(-e))
	digits.Rsh(digits, zeros)
	e += int(zeros)
	// n / 2^-e = n * 5^-e * 10^e
	five := new(big.Int).Exp(big.NewInt(5), big.NewInt(int64(-e)), nil)
	return decimal{negative: f < 0, digits: digits.Mul(digits, five), exponent: e}
}

func compareDecimals(a, b decimal) int {
	switch {
	case a.nan || b.nan:
		return cmp.Compare(order(!a.nan), order(!b.nan))
	case a.sign() != b.sign():
		return cmp.Compare(a.sign(), b.sign())
	case a.sign() < 0:
		return compareMagnitudes(b, a)
	default:
		return compareMagnitudes(a, b)
	}
}

func order(later bool) int {
	if later {
		return 1
	}
	return 0
}

func (d decimal) sign() int {
	switch {
	case !d.infinite && d.digits.Sign() == 0:
		return 0
	case d.negative:
		return -1
	default:
		return 1
	}
}

// compareMagnitudes compares two numbers of one sign. Only numbers of about one size are brought to one exponent.
func compareMagnitudes(a, b decimal) int {
	switch {
	case a.infinite || b.infinite:
		return cmp.Compare(order(a.infinite), order(b.infinite))
	case a.sign() == 0: // and so is b
		return 0
	}
	if o := cmp.Compare(len(a.digits.String())+a.exponent, len(b.digits.String())+b.exponent); o != 0 {
		return o
	}
	least := min(a.exponent, b.exponent)
	return a.scaled(least).Cmp(b.scaled(least))
}

func (d decimal) scaled(exponent int) *big.Int {
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(d.exponent-exponent)), nil)
	return power.Mul(power, d.digits)
}

package expression_test

import (
	"context"
	"fmt"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"driftless/internal/expression"
	"driftless/internal/realtest"
)

// checker is what *testing.T and *rapid.T have in common.
type checker interface {
	Helper()
	Context() context.Context
	Fatalf(format string, args ...any)
}

func check(t checker, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func raw(t checker, v any) bson.RawValue {
	t.Helper()
	if v == nil {
		return bson.RawValue{Type: bson.TypeNull}
	}
	kind, data, err := bson.MarshalValue(v)
	check(t, err)
	return bson.RawValue{Type: kind, Value: data}
}

func decimal(t checker, s string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(s)
	check(t, err)
	return d
}

// server evaluates expressions over rows.
type server struct{ rows *mongo.Collection }

func newServer(t *testing.T) server {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	return server{client.Database(realtest.Database(t)).Collection("rows")}
}

// agree holds the values of every expression for every row to the server's.
func (s server) agree(t checker, rows []bson.D, expressions []any) (cases int) {
	t.Helper()
	_, err := s.rows.DeleteMany(t.Context(), bson.D{})
	check(t, err)
	for i := range rows {
		rows[i] = append(bson.D{{Key: "_id", Value: i}}, rows[i]...)
	}
	_, err = s.rows.InsertMany(t.Context(), rows)
	check(t, err)
	project := bson.D{{Key: "row", Value: "$$ROOT"}}
	compiled := make([]*expression.Expression, len(expressions))
	for i, e := range expressions {
		if compiled[i], err = expression.Compile(raw(t, e)); err != nil {
			t.Fatalf("%v: %v", raw(t, e), err)
		}
		project = append(project, bson.E{Key: fmt.Sprintf("v%d", i), Value: e},
			bson.E{Key: fmt.Sprintf("c%d", i), Value: bson.D{{Key: "$cond", Value: bson.A{e, true, false}}}})
	}
	cursor, err := s.rows.Aggregate(t.Context(), bson.A{bson.D{{Key: "$project", Value: project}}})
	check(t, err)
	for cursor.Next(t.Context()) {
		row := cursor.Current.Lookup("row").Document()
		for i, c := range compiled {
			cases++
			want := cursor.Current.Lookup(fmt.Sprintf("v%d", i))
			if got := c.Of(row); got.Type != want.Type || string(got.Value) != string(want.Value) {
				t.Fatalf("%v of %v: got %s %v, the server says %s %v", raw(t, expressions[i]), row, got.Type, got, want.Type, want)
			}
			if got, want := c.Holds(row), cursor.Current.Lookup(fmt.Sprintf("c%d", i)).Boolean(); got != want {
				t.Fatalf("%v holds for %v: got %v, the server says %v", raw(t, expressions[i]), row, got, want)
			}
		}
	}
	check(t, cursor.Err())
	if cases != len(rows)*len(expressions) {
		t.Fatalf("%d cases, want %d", cases, len(rows)*len(expressions))
	}
	return cases
}

// values are of every type, and near to one another where types or sizes meet.
func values(t checker) []any {
	t.Helper()
	all := []any{
		nil, bson.Undefined{}, bson.MinKey{}, bson.MaxKey{}, true, false,
		int32(0), int32(1), int32(-1), int32(5), int64(0), int64(1), int64(1 << 53), int64(1<<53 + 1), int64(-1<<53 - 1), int64(math.MaxInt64), int64(math.MinInt64),
		0.0, math.Copysign(0, -1), 1.0, 0.1, 0.5, 1.5, -1.5, 1e300, -1e300, 5e-324, math.MaxFloat64, math.NaN(), math.Inf(1), math.Inf(-1),
		float64(1 << 53), float64(1<<53) + 2, float64(1 << 63), -float64(1 << 63), math.Nextafter(1<<63, 0), 123456789.125,
		"", "a", "A", "aa", "b", "é", "\x00", "a\x00b", "1", "$a", "5", "spam", bson.Symbol("a"), bson.Symbol("z"),
		bson.D{}, bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "a", Value: 1.0}}, bson.D{{Key: "a", Value: "1"}}, bson.D{{Key: "b", Value: 0}}, bson.D{{Key: "a", Value: nil}},
		bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}, bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}}, bson.D{{Key: "a", Value: bson.Undefined{}}}, bson.D{{Key: "", Value: 1}},
		bson.A{}, bson.A{1}, bson.A{1.0, "x"}, bson.A{nil}, bson.A{bson.Undefined{}}, bson.A{bson.A{1}}, bson.A{bson.D{{Key: "a", Value: 1}}, 5, bson.D{{Key: "b", Value: 1}}, bson.A{bson.D{{Key: "a", Value: 2}}}},
		bson.A{bson.D{{Key: "a", Value: bson.A{bson.D{{Key: "b", Value: 7}}}}}, bson.D{{Key: "a", Value: bson.D{{Key: "b", Value: 8}}}}},
		bson.Binary{}, bson.Binary{Data: []byte("a")}, bson.Binary{Data: []byte("b")}, bson.Binary{Data: []byte("aa")}, bson.Binary{Subtype: 2, Data: []byte("a")}, bson.Binary{Subtype: 0x80, Data: []byte("a")},
		bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.ObjectID{1}, bson.ObjectID{2}, bson.ObjectID{0xff},
		bson.DateTime(0), bson.DateTime(-1), bson.DateTime(1 << 40), bson.Timestamp{T: 1, I: 2}, bson.Timestamp{T: 2, I: 1}, bson.Timestamp{T: 1 << 31, I: 0},
		bson.Regex{Pattern: "a"}, bson.Regex{Pattern: "a", Options: "i"}, bson.Regex{Pattern: "a", Options: "m"}, bson.Regex{Pattern: "b"}, bson.Regex{Pattern: ""}, bson.Regex{Pattern: "aa"},
		bson.DBPointer{DB: "a", Pointer: bson.ObjectID{2}}, bson.DBPointer{DB: "b", Pointer: bson.ObjectID{1}}, bson.DBPointer{DB: "aa", Pointer: bson.ObjectID{1}}, bson.DBPointer{DB: "a", Pointer: bson.ObjectID{1}},
		bson.JavaScript("a"), bson.JavaScript("b"), bson.JavaScript("aa"),
		bson.CodeWithScope{Code: "a", Scope: bson.D{}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1.0}}}, bson.CodeWithScope{Code: "b", Scope: bson.D{}},
	}
	for _, digits := range []string{
		"0", "-0", "0E+10", "1", "1.0", "10E-1", "1.5", "0.1", "0.5", "NaN", "Infinity", "-Infinity", "9223372036854775807", "9223372036854775808", "-9223372036854775808.5",
		"1E+6111", "9.999999999999999999999999999999999E+6144", "1E-6176", "1E+300", "-1.5",
		"0.1000000000000000055511151231257827", "0.1000000000000000055511151231257828", "0.1000000000000000055511151231257826", // 0.1 as a double, to 34 digits and beside them
		"1000000000000000052504760255204420", "9007199254740993", "123456789.125", "4.940656458412465441765687928682214E-324", "4.9E-324",
	} {
		all = append(all, decimal(t, digits))
	}
	const exponentZero = uint64(6176) << 49
	return append(all, // bits of a decimal that nobody writes
		bson.NewDecimal128(exponentZero|0x1ed09bead87c0, 0x378d8e63ffffffff), bson.NewDecimal128(exponentZero|0x1ed09bead87c0, 0x378d8e6400000000),
		bson.NewDecimal128(3<<61|uint64(6176)<<47, 1), bson.NewDecimal128(0x7e<<56, 0), bson.NewDecimal128(0xfc<<56, 0))
}

func op(name string, arguments ...any) bson.D { return bson.D{{Key: name, Value: bson.A(arguments)}} }

func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

// TestEveryTwoValuesCompareAsOnTheServer, and so does each with a field that is missing.
func TestEveryTwoValuesCompareAsOnTheServer(t *testing.T) {
	t.Parallel()
	s, all := newServer(t), values(t)
	rows := []bson.D{{}}
	for _, v := range all {
		rows = append(rows, bson.D{{Key: "v", Value: v}})
	}
	var expressions []any
	for _, v := range all {
		for _, name := range []string{"$eq", "$lt", "$gte"} {
			expressions = append(expressions, op(name, "$v", literal(v)))
		}
	}
	for _, name := range []string{"$eq", "$lt", "$gte"} {
		expressions = append(expressions, op(name, "$v", "$gone"))
	}
	t.Logf("%d cases", s.agree(t, rows, expressions))
}

// TestAwkwardExpressionsGiveTheServersAnswers: what is easily taken for something else.
func TestAwkwardExpressionsGiveTheServersAnswers(t *testing.T) {
	t.Parallel()
	var rows []bson.D
	for _, v := range values(t) {
		rows = append(rows, bson.D{{Key: "v", Value: v}}, bson.D{{Key: "d", Value: bson.D{{Key: "v", Value: v}}}}, bson.D{{Key: "d", Value: bson.A{v, bson.D{{Key: "v", Value: v}}}}})
	}
	rows = append(rows, bson.D{{Key: "d.v", Value: 1}, {Key: "", Value: 2}}, bson.D{{Key: "d", Value: bson.D{{Key: "v", Value: bson.D{{Key: "0", Value: "zero"}}}}}})
	expressions := []any{
		"$v", "$d.v", "$d.v.a", "$d.v.a.b", "$v.a", "$v.a.b", "$v.0", "$d.0", "$d.v.0", "$gone", "$gone.x", "$_id", "$_id.x",
		op("$type", "$v"), op("$type", "$d.v"), bson.D{{Key: "$type", Value: "$v"}}, op("$eq", op("$type", "$v"), "missing"), op("$type", bson.A{"$v"}), op("$type", literal(nil)),
		op("$gt", "$v", nil), op("$lte", "$v", nil), op("$eq", "$v", nil), op("$ne", "$v", nil), op("$eq", "$v", bson.Undefined{}), op("$eq", "$gone", bson.Undefined{}), op("$lt", "$gone", nil),
		op("$in", "$v", bson.A{"spam", 1, nil}), op("$in", "$gone", bson.A{nil}), op("$in", "$gone", bson.A{bson.Undefined{}}), op("$in", "$v", bson.A{}), op("$in", "$v", bson.A{"$gone", "$d.v"}), op("$in", "$v", bson.A{bson.A{1}}),
		op("$and"), op("$or"), op("$and", "$v"), bson.D{{Key: "$and", Value: "$v"}}, bson.D{{Key: "$or", Value: "$v"}}, op("$and", "$v", true), op("$or", "$v", "$d.v"), op("$and", true, op("$or", false, "$v")),
		op("$not", "$v"), bson.D{{Key: "$not", Value: "$v"}}, op("$not", bson.A{"$v"}), op("$not", op("$not", "$d.v")), op("$not", bson.A{}),
		op("$ifNull", "$v", "ok"), op("$ifNull", "$gone", "$v"), op("$ifNull", "$v", "$gone", "$d.v"), op("$ifNull", "$gone", "$gone"), op("$ifNull", "$gone", nil), op("$ifNull", "$gone", bson.Undefined{}),
		op("$cond", "$v", "yes", "$gone"), bson.D{{Key: "$cond", Value: bson.D{{Key: "else", Value: 0}, {Key: "if", Value: "$v"}, {Key: "then", Value: "$d.v"}}}},
		op("$eq", bson.A{"$v", "$gone"}, bson.A{"$v", nil}), op("$ifNull", bson.A{"$v", "$gone"}, 1), op("$eq", "$v", literal("$a")), op("$eq", "$v", literal(bson.D{{Key: "a", Value: 1}})), op("$eq", literal(op("$eq", 1, 1)), "$v"),
		op("$eq", bson.Symbol("$v"), "$v"), op("$lt", "$v", bson.Regex{Pattern: "a"}), op("$cond", literal(""), "true", "false"), op("$cond", literal(math.NaN()), "true", "false"),
	}
	t.Logf("%d cases", newServer(t).agree(t, rows, expressions))
}

// TestRandomExpressionsGiveTheServersAnswers on random rows.
func TestRandomExpressionsGiveTheServersAnswers(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	all := values(t)
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]bson.D, 30)
		for i := range rows {
			rows[i] = drawRow(t, all)
		}
		expressions := make([]any, 30)
		for i := range expressions {
			expressions[i] = drawOperator(t, all, 3)
		}
		cases += s.agree(t, rows, expressions)
	})
	t.Logf("%d cases", cases)
}

func drawRow(t *rapid.T, all []any) bson.D {
	row := bson.D{}
	for _, name := range []string{"a", "b", "c"} {
		switch value := rapid.SampledFrom(all).Draw(t, "value"); rapid.IntRange(0, 4).Draw(t, "form") {
		case 0:
		case 1:
			row = append(row, bson.E{Key: name, Value: bson.D{{Key: "a", Value: value}, {Key: "b", Value: rapid.SampledFrom(all).Draw(t, "value")}}})
		case 2:
			row = append(row, bson.E{Key: name, Value: bson.A{bson.D{{Key: "a", Value: value}}, value, bson.D{{Key: "b", Value: bson.D{{Key: "a", Value: value}}}}}})
		default:
			row = append(row, bson.E{Key: name, Value: value})
		}
	}
	return row
}

func drawExpression(t *rapid.T, all []any, depth int) any {
	switch n := rapid.IntRange(0, 6).Draw(t, "expression"); {
	case n <= 2:
		path := "$" + rapid.SampledFrom([]string{"a", "b", "c", "gone"}).Draw(t, "field")
		for range rapid.IntRange(0, 2).Draw(t, "below") {
			path += "." + rapid.SampledFrom([]string{"a", "b", "0"}).Draw(t, "part")
		}
		return path
	case n == 3:
		return literal(rapid.SampledFrom(all).Draw(t, "literal"))
	case n == 4:
		return rapid.SampledFrom([]any{nil, true, false, int32(0), int32(1), int64(5), 1.5, "a", "", bson.ObjectID{1}}).Draw(t, "constant")
	case n == 5 && depth > 0:
		return drawList(t, all, depth-1)
	case depth > 0:
		return drawOperator(t, all, depth-1)
	default:
		return nil
	}
}

func drawList(t *rapid.T, all []any, depth int) bson.A {
	list := bson.A{}
	for range rapid.IntRange(0, 3).Draw(t, "items") {
		list = append(list, drawExpression(t, all, depth))
	}
	return list
}

func drawOperator(t *rapid.T, all []any, depth int) any {
	arguments := func(n int) (list bson.A) {
		for range n {
			list = append(list, drawExpression(t, all, depth))
		}
		return list
	}
	switch name := rapid.SampledFrom(expression.Operators()).Draw(t, "operator"); name {
	case "$literal":
		return literal(rapid.SampledFrom(all).Draw(t, "literal"))
	case "$in":
		return op(name, drawExpression(t, all, depth), drawList(t, all, depth))
	case "$and", "$or":
		return op(name, drawList(t, all, depth)...)
	case "$ifNull":
		return op(name, arguments(rapid.IntRange(2, 4).Draw(t, "arguments"))...)
	case "$cond":
		return op(name, arguments(3)...)
	case "$not", "$type":
		return op(name, arguments(1)...)
	default:
		return op(name, arguments(2)...)
	}
}

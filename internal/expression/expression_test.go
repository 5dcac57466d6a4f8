package expression_test

import (
	"errors"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/expression"
)

// TestWhatCannotBeCompiledSaysWhereAndWhy, without any text of the expression, which may be secret.
func TestWhatCannotBeCompiledSaysWhereAndWhy(t *testing.T) {
	t.Parallel()
	const (
		variable = "reads a variable: only paths of fields can be read, such as $status"
		path     = "is not a path of a field: a part of it is empty or starts with $"
		plain    = "is not one operator with its arguments: put plain data under $literal"
		unknown  = "cannot be evaluated outside of the server: possible are $and, $cond, $eq, $gt, $gte, $ifNull, $in, $literal, $lt, $lte, $ne, $not, $or, $type"
	)
	for _, test := range []struct {
		expression any
		want       string
	}{
		{op("$regexMatch", 1), "$regexMatch " + unknown},
		{op("$and", "$a", op("$or", op("$size", "$list"))), "$and[1].$or[0].$size " + unknown},
		{bson.D{{Key: "$and", Value: op("$toLower", "$a")}}, "$and.$toLower " + unknown},
		{op("$eq", "$$ROOT.secret", 1), "$eq[0] " + variable},
		{"$$CURRENT.a", variable},
		{"$", path}, {"$a..b", path}, {"$a.", path}, {"$a.$b", path},
		{bson.D{{Key: "a", Value: "$b"}}, plain}, {bson.D{}, plain}, {bson.D{{Key: "$eq", Value: bson.A{1, 2}}, {Key: "$ne", Value: bson.A{1, 2}}}, plain},
		{op("$eq", "$a", bson.D{{Key: "b", Value: 1}}), "$eq[1] " + plain},
		{op("$eq", "$a"), "$eq has 1 arguments and takes 2"}, {op("$not", 1, 2), "$not has 2 arguments and takes 1"}, {op("$ifNull", "$a"), "$ifNull has 1 arguments and takes at least 2"},
		{op("$cond", 1, 2), "$cond has 2 arguments and takes 3"},
		{bson.D{{Key: "$cond", Value: bson.D{{Key: "if", Value: 1}, {Key: "then", Value: 2}}}}, "$cond takes if, then and else, once each"},
		{bson.D{{Key: "$cond", Value: bson.D{{Key: "if", Value: 1}, {Key: "then", Value: 2}, {Key: "else", Value: 2}, {Key: "or", Value: 2}}}}, "$cond takes if, then and else, once each"},
		{bson.D{{Key: "$cond", Value: bson.D{{Key: "if", Value: op("$rand")}, {Key: "then", Value: 2}, {Key: "else", Value: 2}}}}, "$cond.if.$rand " + unknown},
		{op("$in", 1, "$tags"), "$in[1] is not a list that is written out: a field may hold no list in some row, which the server has no answer for"},
		{op("$in", 1, bson.A{op("$abs", 1)}), "$in[1][0].$abs " + unknown},
	} {
		_, err := expression.Compile(raw(t, test.expression))
		var wrong *expression.Error
		if !errors.As(err, &wrong) || err.Error() != test.want {
			t.Errorf("%v:\ngot  %v\nwant %s", raw(t, test.expression), err, test.want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v quotes the expression", err)
		}
	}
}

func BenchmarkHolds(b *testing.B) {
	e, err := expression.Compile(raw(b, op("$and", op("$ne", "$status", "spam"), op("$in", "$kind", bson.A{"comment", "reply"}))))
	if err != nil {
		b.Fatal(err)
	}
	row, err := bson.Marshal(bson.D{{Key: "_id", Value: bson.ObjectID{1}}, {Key: "post_id", Value: 1}, {Key: "text", Value: "hello"}, {Key: "status", Value: "ok"}, {Key: "kind", Value: "reply"}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if !e.Holds(row) {
			b.Fatal("it does not hold")
		}
	}
}

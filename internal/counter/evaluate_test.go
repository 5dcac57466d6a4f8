package counter_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// evaluated declares counters of every kind that can be computed without the server.
func evaluated(t checker) []config.Counter {
	t.Helper()
	return []config.Counter{
		{Name: "plain", Key: "key"},
		{Name: "soft", Key: "key", SoftDelete: "gone"},
		{Name: "dotted", Key: "doc.key", SoftDelete: "doc.gone"},
		{Name: "sum", Key: "key", SoftDelete: "gone", Sum: "n"},
		{Name: "dotted_sum", Key: "doc.key", Sum: "doc.n"},
		{Name: "own_id", Key: "_id", SoftDelete: "gone"},
		{Name: "sum_of_key", Key: "key", Sum: "key"},
		{Name: "gone_key", Key: "gone", SoftDelete: "key"},
		{Name: "key_below_gone", Key: "doc.key", SoftDelete: "doc"},
		{Name: "visible", Key: "key", SoftDelete: "gone", CountIf: expression(t, e("$ne", "$status", "spam"))},
		{Name: "bare", Key: "key", Sum: "n", CountIf: expression(t, "$doc.n")},
		{Name: "adult", Key: "key", CountIf: expression(t, e("$and", e("$gte", "$author.age", 18), e("$in", "$status", bson.A{"ok", nil})))},
	}
}

// compare holds the contribution of every row in Go to the server's, and their sum to its recount.
func (d *deployment) compare(t checker, rows []mongo.WriteModel) (cases int) {
	t.Helper()
	_, err := d.rows().DeleteMany(t.Context(), bson.D{})
	check(t, err)
	d.write(t, rows...)
	project := bson.D{{Key: "row", Value: "$$ROOT"}}
	evaluators := make([]*counter.Evaluator, len(d.definitions))
	added := make([]map[string]int64, len(d.definitions))
	for i, definition := range d.definitions {
		evaluators[i] = must[*counter.Evaluator](t)(counter.Compile(definition))
		added[i] = map[string]int64{}
		project = append(project, bson.E{Key: fmt.Sprintf("c%d", i), Value: counter.ContributionExpression(definition)})
	}
	cursor := must[*mongo.Cursor](t)(d.rows().Aggregate(t.Context(), bson.A{e1("$project", project)}))
	for cursor.Next(t.Context()) {
		row := cursor.Current.Lookup("row").Document()
		for i, evaluator := range evaluators {
			cases++
			key, weight := evaluator.Contribution(row)
			wantKey, wantWeight := contributed(cursor.Current.Lookup(fmt.Sprintf("c%d", i)))
			if weight != wantWeight || key.Type != wantKey.Type || string(key.Value) != string(wantKey.Value) {
				t.Fatalf("counter %s of %v: got %v %d, the server says %v %d", d.definitions[i].Name, row, key, weight, wantKey, wantWeight)
			}
			if weight != 0 {
				added[i][counter.Canonical(key)] += weight
			}
		}
	}
	check(t, cursor.Err())
	for i, definition := range d.definitions {
		truths, _, err := definition.Count(t.Context(), d.client, everything)
		check(t, err)
		for key := range union(added[i], truths) {
			if truth := truths[key]; truth.Bad == "" && added[i][key] != truth.N {
				t.Fatalf("counter %s of %q: the rows come to %d, the recount is %d", definition.Name, key, added[i][key], truth.N)
			}
		}
	}
	return cases
}

// contributed reads {k, w}, where w is left out when it is 1, or null.
func contributed(v bson.RawValue) (key bson.RawValue, weight int64) {
	document, ok := v.DocumentOK()
	if !ok {
		return bson.RawValue{}, 0
	}
	if w, err := document.LookupErr("w"); err == nil {
		return document.Lookup("k"), w.Int64()
	}
	return document.Lookup("k"), 1
}

// TestContributionsInGoAreThoseOfTheServer (I3) on random rows, for the event and for the recount.
func TestContributionsInGoAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	d := prepare(t, evaluated(t)...)
	cases := 0
	rapid.Check(t, func(t *rapid.T) {
		rows := make([]mongo.WriteModel, 50)
		for id := range rows {
			rows[id] = insert(drawRow(t, id))
		}
		cases += d.compare(t, rows)
	})
	t.Logf("%d cases", cases)
}

// TestAwkwardContributionsInGoAreThoseOfTheServer: every value as a key, a soft delete, a number to add up.
func TestAwkwardContributionsInGoAreThoseOfTheServer(t *testing.T) {
	t.Parallel()
	d := prepare(t, evaluated(t)...)
	all := append([]any{
		1.9, -1.9, 0.9, math.Nextafter(1<<63, 0), float64(1 << 63), -float64(1 << 63), math.Nextafter(-1<<63, math.Inf(-1)), 9.3e18, 5e-324, int32(-7),
		int64(1<<53 + 1), nested(5, "a"), nested(6, "a"), bson.D{{Key: "x", Value: bson.A{bson.D{{Key: "$y", Value: 1}}}}},
	}, values...)
	for _, digits := range []string{
		"1.9", "-1.9", "0.9", "9223372036854775807", "9223372036854775807.9", "9223372036854775808", "-9223372036854775808", "-9223372036854775808.9", "-9223372036854775809",
		"12E+17", "1E+18", "1E+19", "1E+6000", "1E-6000", "NaN", "Infinity", "-Infinity", "-0", "1234567890123456789.5", "12345678901234567890E-1", "1000E-3",
	} {
		all = append(all, decimal(t, digits))
	}
	all = append(all, bson.NewDecimal128(3<<61|uint64(6176)<<47, 1), bson.NewDecimal128(0x7e<<56, 0))
	var rows []mongo.WriteModel
	for _, v := range all {
		doc := bson.D{{Key: "key", Value: v}, {Key: "gone", Value: nil}, {Key: "n", Value: v}}
		rows = append(rows,
			insert(bson.D{{Key: "key", Value: v}, {Key: "n", Value: 5}, {Key: "doc", Value: doc}}),
			insert(bson.D{{Key: "key", Value: "a"}, {Key: "gone", Value: v}, {Key: "n", Value: v}, {Key: "status", Value: v}, {Key: "doc", Value: bson.D{{Key: "key", Value: 1}, {Key: "gone", Value: v}, {Key: "n", Value: v}}}}),
			insert(bson.D{{Key: "key", Value: bson.D{{Key: "a", Value: v}}}, {Key: "author", Value: bson.D{{Key: "age", Value: v}}}, {Key: "doc", Value: bson.A{doc}}}),
			insert(bson.D{{Key: "author", Value: bson.A{bson.D{{Key: "age", Value: v}}}}, {Key: "doc", Value: v}}))
	}
	t.Logf("%d cases", d.compare(t, rows))
}

func TestAConditionThatOnlyTheServerKnowsIsNotCompiled(t *testing.T) {
	t.Parallel()
	d := must[*counter.Definition](t)(counter.Define(config.Counter{Name: "long", Key: "key", CountIf: expression(t, e("$and", e("$gt", e1("$strLenCP", "$text"), 5), "$visible"))}))
	_, err := counter.Compile(d)
	if err == nil || !strings.HasPrefix(err.Error(), "counter long: count_if: $and[0].$gt[0].$strLenCP cannot be evaluated outside of the server: possible are $and, ") {
		t.Errorf("got %v", err)
	}
}

// TestNoRowContributesNothing: what was not there before an insert, or is not after a delete.
func TestNoRowContributesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range evaluated(t) {
		evaluator := must[*counter.Evaluator](t)(counter.Compile(must[*counter.Definition](t)(counter.Define(c))))
		if key, weight := evaluator.Contribution(nil); weight != 0 || !key.IsZero() {
			t.Errorf("%s: got %v %d", c.Name, key, weight)
		}
	}
}

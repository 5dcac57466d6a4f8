package counter_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// fill inserts n rows with keys of the given ones in turn, and every kind of soft-delete field.
func (d *deployment) fill(t testing.TB, n int, keys []any) {
	t.Helper()
	gone := []any{deletedAt, nil, bson.Undefined{}, false, "", deletedAt, nil}
	if slices.ContainsFunc(keys, func(key any) bool { return raw(t, key).Type == bson.TypeArray }) {
		gone = append(gone, bson.A{}, bson.A{nil})
	}
	rows := make([]any, n)
	for i := range rows {
		row := bson.D{{Key: "_id", Value: i}, {Key: "key", Value: keys[i%len(keys)]}, {Key: "text", Value: "not in an index"}}
		if pick := i / 3 % (2 * len(gone)); pick < len(gone) { // the others have no such field
			row = append(row, bson.E{Key: "gone", Value: gone[pick]})
		}
		rows[i] = row
	}
	_, err := d.rows().InsertMany(t.Context(), rows)
	check(t, err)
}

// fillTargets makes counter documents of the given keys, those that are one document once.
func (d *deployment) fillTargets(t testing.TB, keys []any) {
	t.Helper()
	documents := make([]any, len(keys))
	for i, key := range keys {
		documents[i] = bson.D{{Key: "_id", Value: key}, {Key: "plain_base", Value: int64(i)}}
	}
	_, err := d.database.Collection(targetName).InsertMany(t.Context(), documents, options.InsertMany().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || bulk.WriteConcernError != nil {
		check(t, err)
	}
}

func allKeys(t checker) []any {
	t.Helper()
	return slices.Concat(usableKeys(t)...)
}

func numbers(from, to int) []any {
	var keys []any
	for i := from; i < to; i++ {
		keys = append(keys, []any{int32(i), int64(i), float64(i), fmt.Sprint("k", i), bson.ObjectID{1, byte(i >> 8), byte(i)}}[i%5])
	}
	return keys
}

func TestRangesHoldEveryKeyExactlyOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name         string
		rows         int
		rowsPerRange int64
		keys         []any
		targets      []any
		index        bool
		atLeast      int // selections
	}{
		{"no index, one range", 600, 1000, slices.Concat(allKeys(t), unusableKeys), allKeys(t), false, 13},
		{"no index, a few keys bounds", 300, 1, slices.Concat(allKeys(t), unusableKeys), nil, false, 13},
		{"index, every key a bound", 300, 1, allKeys(t), numbers(0, 40), true, 60},
		{"index over arrays, a few keys bounds", 300, 1, slices.Concat(allKeys(t), unusableKeys), allKeys(t), true, 13},
		{"bounds of documents alone", 0, 1, []any{1}, slices.Concat(allKeys(t), numbers(0, 40)), true, 60},
		{"index, thousands of rows", 5000, 100, slices.Concat(numbers(0, 900), allKeys(t)), numbers(500, 1500), true, 40},
		{"index over arrays, thousands of rows", 5000, 2, slices.Concat(numbers(0, 900), allKeys(t), unusableKeys), numbers(500, 1500), true, 40},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			d := prepare(t, config.Counter{Name: "plain", Key: "key", SoftDelete: "gone"})
			if c.index {
				_, err := d.rows().Indexes().CreateOne(t.Context(), d.definitions[0].RowsIndex().Model())
				check(t, err)
			}
			if c.rows > 0 {
				d.fill(t, c.rows, c.keys)
			}
			if len(c.targets) > 0 {
				d.fillTargets(t, c.targets)
			}
			ranges := must[[]counter.Selection](t)(d.definitions[0].Ranges(t.Context(), d.client, c.rowsPerRange))
			if len(ranges) < c.atLeast {
				t.Errorf("selections: got %d, want at least %d", len(ranges), c.atLeast)
			}
			d.wantExactlyOnce(t, ranges)
		})
	}
}

// wantExactlyOnce holds selections to their promise for rows and documents: each usable key is in exactly one.
func (d *deployment) wantExactlyOnce(t testing.TB, ranges []counter.Selection) {
	t.Helper()
	definition := d.definitions[0]
	rows, documents := map[string]int{}, map[string]int{}
	counts := map[string]int64{}
	for _, which := range ranges {
		for _, key := range d.keysOf(t, d.rows(), "key", which) {
			if counter.Usable(key) {
				rows[counter.Canonical(key)]++
			}
		}
		found, err := definition.Documents(t.Context(), d.client, which)
		check(t, err)
		for key := range found {
			documents[key]++
		}
		truths, _, err := definition.Count(t.Context(), d.client, which)
		check(t, err)
		for key, truth := range truths {
			counts[key] += truth.N
		}
	}
	want := map[string]int{}
	for _, key := range d.keysOf(t, d.rows(), "key", everything) {
		if counter.Usable(key) {
			want[counter.Canonical(key)]++
		}
	}
	for key := range union(want, rows) {
		if rows[key] != want[key] {
			t.Errorf("rows of %.60q: the selections hold %d, there are %d", key, rows[key], want[key])
		}
	}
	all, err := definition.Documents(t.Context(), d.client, everything)
	check(t, err)
	for key := range union(all, documents) {
		if documents[key] != 1 {
			t.Errorf("document %.60q: in %d selections", key, documents[key])
		}
	}
	diffCounts(t, "count by ranges", counts, d.recounted(t, "plain"))
}

// keysOf reads the value at path of every document that the selection names.
func (d *deployment) keysOf(t testing.TB, c *mongo.Collection, path string, which counter.Selection) []bson.RawValue {
	t.Helper()
	cursor, err := c.Find(t.Context(), which.On(path), options.Find().SetProjection(bson.D{{Key: "_id", Value: 0}, {Key: path, Value: 1}}).
		SetCollation(&options.Collation{Locale: "simple"}))
	check(t, err)
	var found []bson.Raw
	check(t, cursor.All(t.Context(), &found))
	keys := make([]bson.RawValue, len(found))
	for i, document := range found {
		keys[i] = document.Lookup(path)
	}
	return keys
}

// TestLongKeysDoNotOutgrowTheirCommand: the bounds of a full pass are sent in one command of 16 MiB.
func TestLongKeysDoNotOutgrowTheirCommand(t *testing.T) {
	t.Parallel()
	d := prepare(t, config.Counter{Name: "plain", Key: "key", SoftDelete: "gone"})
	_, err := d.rows().Indexes().CreateOne(t.Context(), d.definitions[0].RowsIndex().Model())
	check(t, err)
	const keys = 18
	for i := range keys {
		_, err := d.rows().InsertOne(t.Context(), bson.D{{Key: "key", Value: fmt.Sprintf("%03d", i) + strings.Repeat("x", 1<<20)}})
		check(t, err)
	}
	ranges := must[[]counter.Selection](t)(d.definitions[0].Ranges(t.Context(), d.client, 1))
	if len(ranges) < 14 {
		t.Errorf("selections: got %d, and so no bound at all", len(ranges))
	}
	counted := 0
	for _, which := range ranges {
		truths, _, err := d.definitions[0].Count(t.Context(), d.client, which)
		check(t, err)
		counted += len(truths)
	}
	if counted != keys {
		t.Errorf("keys in all selections: got %d, want %d", counted, keys)
	}
}

// commands is a client that keeps the last aggregate command it has sent.
func commands(t testing.TB) (*mongo.Client, func() bson.D) {
	t.Helper()
	var last bson.Raw
	client := realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "aggregate" {
				last = slices.Clone(e.Command)
			}
		},
	}))
	return client, func() bson.D {
		var command, own bson.D
		check(t, bson.Unmarshal(last, &command))
		for _, field := range command {
			if slices.Contains([]string{"aggregate", "pipeline", "cursor", "collation", "allowDiskUse"}, field.Key) {
				own = append(own, field)
			}
		}
		return own
	}
}

// TestARecountIsAnsweredFromTheIndex: no row is fetched for a range, nor for listed keys, with the index that setup
// creates; that is what makes a full pass three times as fast.
func TestARecountIsAnsweredFromTheIndex(t *testing.T) {
	t.Parallel()
	for _, declared := range []config.Counter{
		{Name: "plain", Key: "key"},
		{Name: "soft", Key: "key", SoftDelete: "gone"},
		{Name: "sum", Key: "key", SoftDelete: "gone", Sum: "n"},
		{Name: "dotted", Key: "doc.key", SoftDelete: "doc.gone"},
		{Name: "sum_of_key", Key: "key", Sum: "key"},
		{Name: "same_field", Key: "key", SoftDelete: "gone", Sum: "gone"},
		{Name: "inside", Key: "doc.key", SoftDelete: "doc"},
	} {
		t.Run(declared.Name, func(t *testing.T) {
			t.Parallel()
			d := prepare(t, declared)
			definition := d.definitions[0]
			_, err := d.rows().Indexes().CreateOne(t.Context(), definition.RowsIndex().Model())
			check(t, err)
			rows := make([]any, 1000)
			for i := range rows {
				key := numbers(i%100, i%100+1)[0]
				rows[i] = bson.D{{Key: "key", Value: key}, {Key: "n", Value: 2}, {Key: "doc", Value: bson.D{{Key: "key", Value: key}}}}
			}
			_, err = d.rows().InsertMany(t.Context(), rows)
			check(t, err)
			client, last := commands(t)
			ranges := must[[]counter.Selection](t)(definition.Ranges(t.Context(), client, 50))
			ranges = append(ranges, counter.Listed([]bson.RawValue{raw(t, 1), raw(t, "k3"), raw(t, "none")}))
			for _, which := range ranges {
				truths, _, err := definition.Count(t.Context(), client, which)
				check(t, err)
				if len(truths) == 0 {
					continue // a type that no key has
				}
				d.wantCovered(t, last(), declared.Name != "inside")
			}
		})
	}
}

// wantCovered explains a command. Where the server has to fetch whole rows, it only is to use an index.
func (d *deployment) wantCovered(t testing.TB, command bson.D, covered bool) {
	t.Helper()
	explained := must[bson.Raw](t)(d.database.RunCommand(t.Context(), bson.D{
		{Key: "explain", Value: command}, {Key: "verbosity", Value: "executionStats"},
	}).Raw())
	stages := map[string]bool{}
	examined := int64(0)
	walk(bson.RawValue{Type: bson.TypeEmbeddedDocument, Value: explained}, func(name string, v bson.RawValue) {
		switch name {
		case "stage":
			if stage, ok := v.StringValueOK(); ok {
				stages[stage] = true
			}
		case "totalDocsExamined":
			examined += v.AsInt64()
		}
	})
	if !stages["IXSCAN"] || stages["COLLSCAN"] {
		t.Errorf("%v: stages %v, want an index", command, stages)
	}
	if covered && (stages["FETCH"] || examined != 0) {
		t.Errorf("%v: %d rows examined, stages %v", command, examined, stages)
	}
}

// walk visits every field of a document at any depth.
func walk(v bson.RawValue, visit func(name string, v bson.RawValue)) {
	if v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
		return
	}
	elements, _ := bson.Raw(v.Value).Elements()
	for _, element := range elements {
		visit(element.Key(), element.Value())
		walk(element.Value(), visit)
	}
}

// TestACounterDoesNotWrapAt32Bits: whatever type a field had before, an increment keeps it whole, and as a long.
func TestACounterDoesNotWrapAt32Bits(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "comments", Key: "post"}, config.Counter{Name: "votes", Key: "post", Sum: "n"})
	for _, start := range []any{int32(math.MaxInt32), int64(math.MaxInt32)} {
		_, err := d.database.Collection(targetName).ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: "p"}},
			bson.D{{Key: "comments_base", Value: int32(0)}, {Key: "comments_live", Value: start}, {Key: "comments_total", Value: start}},
			options.Replace().SetUpsert(true))
		check(t, err)
		d.write(t, insert(bson.D{{Key: "post", Value: "p"}}), insert(bson.D{{Key: "post", Value: "p"}}))
		d.catchUp(t)
		document := must[bson.Raw](t)(d.database.Collection(targetName).FindOne(t.Context(), bson.D{{Key: "_id", Value: "p"}}).Raw())
		for _, field := range []string{"comments_live", "comments_total"} {
			if v := document.Lookup(field); v.Type != bson.TypeInt64 || v.Int64() != math.MaxInt32+2 {
				t.Errorf("%s from %T: got %s %v, want the long %d", field, start, v.Type, v, math.MaxInt32+2)
			}
		}
	}
	d.write(t, insert(bson.D{{Key: "post", Value: "q"}, {Key: "n", Value: int32(math.MaxInt32)}}), insert(bson.D{{Key: "post", Value: "q"}, {Key: "n", Value: int32(math.MaxInt32)}}))
	d.catchUp(t)
	d.wantCounts(t, "votes", map[any]int64{"q": 2 * math.MaxInt32})
}

// TestADocumentWhoseFieldIsNoIntegerIsSetApart: $inc would keep a double for ever, and refuses the rest.
func TestADocumentWhoseFieldIsNoIntegerIsSetApart(t *testing.T) {
	t.Parallel()
	d := prepare(t, config.Counter{Name: "plain", Key: "key", Target: config.Target{Base: "n.base", Live: "n.live", Total: "total", Upsert: true}})
	n := func(base, live any) bson.D {
		return bson.D{{Key: "n", Value: bson.D{{Key: "base", Value: base}, {Key: "live", Value: live}}}}
	}
	for _, c := range []struct {
		name  string
		rest  bson.D
		bad   bool
		count int64
		total bool
	}{
		{"nothing", bson.D{}, false, 0, false},
		{"longs", n(int64(2), int64(3)), false, 5, false},
		{"ints", n(int32(2), int32(-3)), false, -1, false},
		{"live alone", bson.D{{Key: "n", Value: bson.D{{Key: "live", Value: int64(3)}}}}, false, 3, false},
		{"with a total", append(n(int64(2), int64(3)), bson.E{Key: "total", Value: int64(5)}), false, 5, true},
		{"a double", n(2.0, int64(3)), true, 0, false},
		{"a decimal", n(int64(2), decimal(t, "3")), true, 0, false},
		{"a text", n("2", int64(3)), true, 0, false},
		{"null", n(int64(2), nil), true, 0, false},
		{"a total that is a double", append(n(int64(2), int64(3)), bson.E{Key: "total", Value: 5.0}), true, 0, false},
		{"fields of ours that somebody else wrote", append(n(int64(2), int64(3)), bson.E{Key: "driftless", Value: "mine"}), false, 5, false},
	} {
		_, err := d.database.Collection(targetName).InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: c.name}}, c.rest...))
		check(t, err)
		documents, err := d.definitions[0].Documents(t.Context(), d.client, counter.Listed([]bson.RawValue{raw(t, c.name), raw(t, "none")}))
		check(t, err)
		document, found := documents[canonical(t, c.name)]
		switch {
		case !found || len(documents) != 1 || !document.Exists:
			t.Errorf("%s: got %+v, want the one document", c.name, documents)
		case c.bad != (document.Bad != ""):
			t.Errorf("%s: set apart for %q", c.name, document.Bad)
		case !c.bad && (document.Base+document.Live != c.count || document.HasTotal != c.total):
			t.Errorf("%s: got %+v, want a count of %d", c.name, document, c.count)
		}
	}
}

// TestTheCollationOfTheRowsDoesNotJoinKeys: to such a collection "a" and "A" are one text, and to us two counters.
func TestTheCollationOfTheRowsDoesNotJoinKeys(t *testing.T) {
	t.Parallel()
	d := prepare(t, config.Counter{Name: "plain", Key: "key", SoftDelete: "gone", CountIf: expression(t, e("$ne", "$status", "spam"))})
	check(t, d.rows().Drop(t.Context()))
	check(t, d.database.CreateCollection(t.Context(), source, options.CreateCollection().
		SetCollation(&options.Collation{Locale: "en", Strength: 2, NumericOrdering: true}).
		SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
	d.open(t)
	keys := []any{"a", "A", "á", "b", "1", "01", "10", "9", bson.D{{Key: "k", Value: "a"}}, bson.D{{Key: "k", Value: "A"}}}
	want := map[string]int64{}
	for i, key := range keys {
		for range i + 1 {
			d.write(t, insert(bson.D{{Key: "key", Value: key}, {Key: "status", Value: "SPAM"}}))
		}
		d.write(t, insert(bson.D{{Key: "key", Value: key}, {Key: "status", Value: "spam"}}))
		want[canonical(t, key)] = int64(i + 1)
	}
	d.catchUp(t)
	diffCounts(t, "displayed", d.displayed(t, "plain"), want)
	diffCounts(t, "recounted", d.recounted(t, "plain"), want)
	ranges := must[[]counter.Selection](t)(d.definitions[0].Ranges(t.Context(), d.client, 1))
	d.wantExactlyOnce(t, ranges)

	// A move from "a" to "A" is a change, though the collection's own equality sees none.
	_, err := d.rows().UpdateMany(t.Context(), bson.D{{Key: "key", Value: "a"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "key", Value: "A"}}}},
		options.UpdateMany().SetCollation(&options.Collation{Locale: "simple"}))
	check(t, err)
	d.catchUp(t)
	want[canonical(t, "A")] += want[canonical(t, "a")]
	want[canonical(t, "a")] = 0
	diffCounts(t, "displayed after the move", d.displayed(t, "plain"), want)
	diffCounts(t, "recounted after the move", d.recounted(t, "plain"), want)
}

// TestRangesAreFewWhereEachOfThemScansAllRows: a single row with an array for its key makes an index whose bounds cannot be
// used together, and a full pass of small ranges would read all rows once for each of them.
func TestRangesAreFewWhereEachOfThemScansAllRows(t *testing.T) {
	t.Parallel()
	d := prepare(t, config.Counter{Name: "plain", Key: "key", SoftDelete: "gone"})
	_, err := d.rows().Indexes().CreateOne(t.Context(), d.definitions[0].RowsIndex().Model())
	check(t, err)
	d.fill(t, 2000, numbers(0, 500))
	divided := func() int {
		return len(must[[]counter.Selection](t)(d.definitions[0].Ranges(t.Context(), d.client, 20)))
	}
	plain := divided()
	_, err = d.rows().InsertOne(t.Context(), bson.D{{Key: "key", Value: bson.A{1, 2}}})
	check(t, err)
	if arrays := divided(); plain < 60 || arrays > 20 {
		t.Errorf("selections: %d with the plain index, %d once it has a row with an array", plain, arrays)
	}
}

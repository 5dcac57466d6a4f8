package counter_test

import (
	"bytes"
	"errors"
	"flag"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

var record = flag.Bool("record", false, "write testdata/events.jsonl anew, from a server")

const recordedEvents = "testdata/events.jsonl"

// counters are definitions that nothing but their order matters of.
func counters(t checker, names ...string) []*counter.Definition {
	t.Helper()
	var ds []*counter.Definition
	for _, name := range names {
		ds = append(ds, must[*counter.Definition](t)(counter.Define(config.Counter{Name: name, Key: "key"})))
	}
	return ds
}

// wallTime is the time of event i.
func wallTime(i int) time.Time { return deletedAt.Add(time.Duration(i) * time.Second) }

// projected is an event as the pipeline projects it, the i-th at wallTime(i).
func projected(t checker, i int, fields ...bson.E) stream.Event {
	t.Helper()
	document := append(bson.D{{Key: "_id", Value: bson.D{{Key: "_data", Value: "82"}}}, {Key: "t", Value: wallTime(i)}}, fields...)
	return stream.Event{Doc: must[[]byte](t)(bson.Marshal(document))}
}

// gave is a contribution of weight 1.
func gave(field string, key any) bson.E {
	return bson.E{Key: field, Value: bson.D{{Key: "k", Value: key}}}
}

func weighed(field string, key any, weight int64) bson.E {
	return bson.E{Key: field, Value: bson.D{{Key: "k", Value: key}, {Key: "w", Value: weight}}}
}

func nothing(field string) bson.E { return bson.E{Key: field, Value: nil} }

func special(operation string, row any) bson.E {
	return bson.E{Key: "s", Value: bson.D{{Key: "op", Value: operation}, {Key: "row", Value: row}}}
}

// sum is a delta without its types.
type sum struct {
	counter     string
	key         string
	n, inc, dec int64
}

func sums(deltas []counter.Delta) []sum {
	var all []sum
	for _, d := range deltas {
		all = append(all, sum{d.Counter.Name, counter.Canonical(d.Key), d.N, d.Inc, d.Dec})
	}
	return all
}

func TestFoldSumsPerCounterAndKeyInOrderOfFirstAppearance(t *testing.T) {
	t.Parallel()
	ds := counters(t, "x", "y")
	key := func(v any) string { return canonical(t, v) }
	for _, c := range []struct {
		name   string
		events []stream.Event
		want   []sum
	}{
		{"nothing", nil, nil},
		{"insert", []stream.Event{projected(t, 0, nothing("b0"), gave("a0", "p"), nothing("b1"), nothing("a1"))}, []sum{{"x", key("p"), 1, 1, 0}}},
		{"delete", []stream.Event{projected(t, 0, gave("b0", "p"), nothing("a0"))}, []sum{{"x", key("p"), -1, 0, 1}}},
		{"move", []stream.Event{projected(t, 0, gave("b0", "p"), gave("a0", "q"))}, []sum{{"x", key("p"), -1, 0, 1}, {"x", key("q"), 1, 1, 0}}},
		{
			"a sum of zero marks its key all the same",
			[]stream.Event{projected(t, 0, gave("a0", "p")), projected(t, 1, gave("b0", "p"))},
			[]sum{{"x", key("p"), 0, 1, 1}},
		},
		{
			"a change of the summed field",
			[]stream.Event{projected(t, 0, weighed("b0", "p", 3), weighed("a0", "p", 13))},
			[]sum{{"x", key("p"), 10, 13, 3}},
		},
		{
			"what does not change for a counter does not touch it",
			[]stream.Event{
				projected(t, 0, gave("b0", "p"), gave("a0", "p"), gave("b1", "p"), nothing("a1")),
				projected(t, 1, weighed("b0", "q", 3), weighed("a0", "q", 3), nothing("b1"), gave("a1", "q")),
			},
			[]sum{{"y", key("p"), -1, 0, 1}, {"y", key("q"), 1, 1, 0}},
		},
		{
			"a change of weight beside one that does not change",
			[]stream.Event{projected(t, 0, weighed("b0", "p", 3), gave("a0", "p"), gave("b1", "p"), gave("a1", "p"))},
			[]sum{{"x", key("p"), -2, 1, 3}},
		},
		{
			"negative weights",
			[]stream.Event{projected(t, 0, weighed("a0", "p", -5)), projected(t, 1, weighed("b0", "p", -5), weighed("a0", "p", -2))},
			[]sum{{"x", key("p"), -2, 5, 7}},
		},
		{
			"order",
			[]stream.Event{
				projected(t, 0, gave("a0", "q"), gave("a1", "q")), projected(t, 1, gave("a0", "p")),
				projected(t, 2, gave("a1", "p")), projected(t, 3, gave("a0", "q")),
			},
			[]sum{{"x", key("q"), 2, 2, 0}, {"y", key("q"), 1, 1, 0}, {"x", key("p"), 1, 1, 0}, {"y", key("p"), 1, 1, 0}},
		},
		{
			"numbers of any type are one key",
			[]stream.Event{projected(t, 0, gave("a0", 1)), projected(t, 1, gave("a0", 1.0)), projected(t, 2, gave("b0", decimal(t, "1.0"))), projected(t, 3, gave("a0", "1"))},
			[]sum{{"x", key(1), 1, 2, 1}, {"x", key("1"), 1, 1, 0}},
		},
		{
			"weights beyond 64 bits wrap in the sum and stop in its parts",
			[]stream.Event{projected(t, 0, weighed("b0", "p", math.MinInt64)), projected(t, 1, weighed("a0", "q", math.MaxInt64)), projected(t, 2, gave("a0", "q"))},
			[]sum{{"x", key("p"), math.MinInt64, math.MaxInt64, 0}, {"x", key("q"), math.MinInt64, math.MaxInt64, 0}},
		},
		{
			"many counters have numbers of several digits",
			[]stream.Event{projected(t, 0, gave("a01", "p"))},
			[]sum{{"y", key("p"), 1, 1, 0}},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			folded := must[counter.Folded](t)(counter.Fold(ds, c.events))
			if got := sums(folded.Deltas); !slices.Equal(got, c.want) {
				t.Errorf("deltas: got %+v, want %+v", got, c.want)
			}
			if folded.Events != len(c.events) || folded.Ended != nil || folded.Missing != nil {
				t.Errorf("got %d events, ended %v, missing %v", folded.Events, folded.Ended, folded.Missing)
			}
			if len(c.events) > 0 && !folded.Oldest.Equal(wallTime(0)) {
				t.Errorf("oldest: got %v, want that of the first event", folded.Oldest)
			}
		})
	}
}

func TestFoldKeepsTheFirstRawValueOfAKey(t *testing.T) {
	t.Parallel()
	folded := must[counter.Folded](t)(counter.Fold(counters(t, "x"), []stream.Event{
		projected(t, 0, gave("a0", 1.0)), projected(t, 1, gave("a0", int32(1))),
	}))
	if len(folded.Deltas) != 1 || folded.Deltas[0].Key.Type != bson.TypeDouble {
		t.Errorf("got %+v, want one delta, of the double", folded.Deltas)
	}
}

// TestFoldStopsAtWhatEndsTheStream: what comes after a drop is of another collection.
func TestFoldStopsAtWhatEndsTheStream(t *testing.T) {
	t.Parallel()
	for _, operation := range []string{"drop", "rename", "dropDatabase", "invalidate", "somethingNew"} {
		folded := must[counter.Folded](t)(counter.Fold(counters(t, "x"), []stream.Event{
			projected(t, 0, gave("a0", "p")), projected(t, 1, special(operation, nil)), projected(t, 2, gave("a0", "p")), projected(t, 3, special("drop", nil)),
		}))
		if folded.Ended == nil || folded.Ended.Operation != operation {
			t.Fatalf("%s: ended %+v", operation, folded.Ended)
		}
		if folded.Events != 1 || len(folded.Deltas) != 1 || folded.Deltas[0].N != 1 {
			t.Errorf("%s: got %d events and %+v, want the one before it", operation, folded.Events, folded.Deltas)
		}
	}
}

// TestFoldRecordsAMissingImageAndGoesOn: of such an event nothing is applied, not even the half that is known.
func TestFoldRecordsAMissingImageAndGoesOn(t *testing.T) {
	t.Parallel()
	var events []stream.Event
	operations := []string{"insert", "update", "replace", "delete"}
	for i, operation := range operations {
		events = append(events, projected(t, i, special(operation, i), gave("b0", "half"), nothing("a0")))
	}
	events = append(events, projected(t, 9, gave("a0", "p")))
	folded := must[counter.Folded](t)(counter.Fold(counters(t, "x"), events))
	if got, want := sums(folded.Deltas), []sum{{"x", canonical(t, "p"), 1, 1, 0}}; !slices.Equal(got, want) {
		t.Errorf("deltas: got %+v, want %+v", got, want)
	}
	if folded.Events != len(events) || folded.Ended != nil || len(folded.Missing) != len(operations) {
		t.Fatalf("got %d events, ended %v, missing %v", folded.Events, folded.Ended, folded.Missing)
	}
	for i, change := range folded.Missing {
		if change.Operation != operations[i] || change.Row.AsInt64() != int64(i) {
			t.Errorf("missing image %d: got %s of row %v", i, change.Operation, change.Row)
		}
	}
}

// TestFoldRefusesWhatIsNoEventOfItsPipeline: a document it cannot read stops the lane; guessing would miscount.
func TestFoldRefusesWhatIsNoEventOfItsPipeline(t *testing.T) {
	t.Parallel()
	whole := projected(t, 0, gave("a0", "p")).Doc
	patched := func(change func(bson.Raw)) bson.Raw {
		doc := slices.Clone(whole)
		change(doc)
		return doc
	}
	at := bytes.Index(whole, []byte("a0\x00")) + 3 // the contribution's length
	of := func(fields ...bson.E) bson.Raw { return projected(t, 0, fields...).Doc }
	for name, doc := range map[string]bson.Raw{
		"nothing":                       nil,
		"no length":                     {5, 0, 0},
		"a length of nothing":           {4, 0, 0, 0},
		"a negative length":             {0, 0, 0, 0x80, 0},
		"a longer length than there is": patched(func(d bson.Raw) { d[0]++ }),
		"a counter that is not there":   of(gave("a2", "p")),
		"no counter's number":           of(gave("ax", "p")),
		"a number below zero":           of(gave("a-1", "p")),
		"a number beyond an int":        of(gave("a18446744073709551616", "p")),
		"a contribution without a key":  of(bson.E{Key: "a0", Value: bson.D{}}),
		"a weight that is a text":       of(bson.E{Key: "a0", Value: bson.D{{Key: "k", Value: "p"}, {Key: "w", Value: "1"}}}),
		"a weight that is a double":     of(bson.E{Key: "a0", Value: bson.D{{Key: "k", Value: "p"}, {Key: "w", Value: 1.5}}}),
		"a contribution of no length":   patched(func(d bson.Raw) { copy(d[at:], []byte{0, 0, 0, 0}) }),
		"a contribution of length 4":    patched(func(d bson.Raw) { copy(d[at:], []byte{4, 0, 0, 0}) }),
		"a contribution beyond its end": patched(func(d bson.Raw) { d[at]++; d[at+1]++ }),
		"a special event of no kind":    of(bson.E{Key: "s", Value: bson.D{{Key: "row", Value: 1}}}),
		"a special event of a number":   of(bson.E{Key: "s", Value: bson.D{{Key: "op", Value: 1}}}),
		"a special event that is none":  of(bson.E{Key: "s", Value: "drop"}),
	} {
		good := projected(t, 0, gave("a0", "p"))
		if folded, err := counter.Fold(counters(t, "x", "y"), []stream.Event{good, {Doc: doc}}); err == nil {
			t.Errorf("%s: got %+v, want an error", name, folded)
		} else if folded.Deltas != nil {
			t.Errorf("%s: an error, and deltas beside it", name)
		}
	}
	for n := range whole {
		if _, err := counter.Fold(counters(t, "x"), []stream.Event{{Doc: whole[:n]}}); err == nil {
			t.Errorf("an event cut after %d of %d bytes is taken for a whole one", n, len(whole))
		}
	}
}

// TestFoldOfAllIsTheSumOfItsParts: a batch may be cut anywhere, and a conflict halves it at will. The model is a map.
func TestFoldOfAllIsTheSumOfItsParts(t *testing.T) {
	t.Parallel()
	ds := counters(t, "x", "y", "z")
	rapid.Check(t, func(t *rapid.T) {
		model := map[string]sum{}
		var events []stream.Event
		for i := range rapid.IntRange(0, 30).Draw(t, "events") {
			var fields []bson.E
			for c := range ds {
				for _, side := range []string{"a", "b"} { // in this order no two are a pair without a change
					name := side + string(rune('0'+c))
					if rapid.IntRange(0, 2).Draw(t, "counts") == 0 {
						fields = append(fields, nothing(name))
						continue
					}
					key, weight := anyValue(t), int64(rapid.IntRange(-3, 3).Draw(t, "weight"))
					if weight == 1 {
						fields = append(fields, gave(name, key))
					} else {
						fields = append(fields, weighed(name, key, weight))
					}
					if side == "b" {
						weight = -weight
					}
					s := model[ds[c].Name+canonical(t, key)]
					model[ds[c].Name+canonical(t, key)] = sum{n: s.n + weight, inc: s.inc + max(weight, 0), dec: s.dec - min(weight, 0)}
				}
			}
			events = append(events, projected(t, i, fields...))
		}
		untouched := make([]bson.Raw, len(events))
		for i, e := range events {
			untouched[i] = slices.Clone(e.Doc)
		}
		cut := rapid.IntRange(0, len(events)).Draw(t, "cut")
		all, first, second := fold(t, ds, events), fold(t, ds, events[:cut]), fold(t, ds, events[cut:])
		parts := map[string]sum{}
		for _, s := range append(first, second...) {
			p := parts[s.counter+s.key]
			parts[s.counter+s.key] = sum{n: p.n + s.n, inc: p.inc + s.inc, dec: p.dec + s.dec}
		}
		if len(all) != len(model) {
			t.Fatalf("%d deltas of %d keys", len(all), len(model))
		}
		for _, s := range all {
			whole := sum{n: s.n, inc: s.inc, dec: s.dec}
			if at := s.counter + s.key; whole != model[at] || whole != parts[at] {
				t.Fatalf("%q: got %+v, of its parts %+v, want %+v", at, whole, parts[at], model[at])
			}
		}
		if again := fold(t, ds, events); !slices.Equal(again, all) {
			t.Fatalf("the second time: got %+v, want %+v", again, all)
		}
		for i, e := range events {
			if !bytes.Equal(e.Doc, untouched[i]) {
				t.Fatalf("event %d has been written to", i)
			}
		}
	})
}

func fold(t checker, ds []*counter.Definition, events []stream.Event) []sum {
	t.Helper()
	return sums(must[counter.Folded](t)(counter.Fold(ds, events)).Deltas)
}

// recording makes a history with everything that a stream can deliver, ending with the collection's end.
func recording(t *testing.T) []bson.Raw {
	t.Helper()
	d := deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"}, config.Counter{Name: "votes", Key: "post", Sum: "n"})
	d.write(t,
		insert(append(comment(1, "p", nil), bson.E{Key: "n", Value: 3})),
		set(1, bson.D{{Key: "n", Value: 5}}),
		set(1, bson.D{{Key: "post", Value: bson.D{{Key: "site", Value: 1}, {Key: "path", Value: bson.A{"a", 2.5}}}}}),
		set(1, bson.D{{Key: "deleted_at", Value: deletedAt}}),
		replace(1, comment(1, bson.CodeWithScope{Code: "x", Scope: bson.D{{Key: "y", Value: 1}}}, nil)),
		remove(1),
		insert(comment(2, decimal(t, "1.5"), nil)),
		insert(comment(3, bson.Binary{Subtype: 2, Data: []byte("old")}, nil)),
		insert(comment(4, bson.DBPointer{DB: "a", Pointer: bson.ObjectID{1}}, nil)),
	)
	check(t, d.database.RunCommand(t.Context(), bson.D{
		{Key: "collMod", Value: source}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}},
	}).Err())
	d.write(t, set(2, bson.D{{Key: "post", Value: "q"}}), remove(3))
	check(t, d.rows().Drop(t.Context()))
	var docs []bson.Raw
	for {
		batch, err := d.reader.Next(t.Context())
		for _, e := range batch.Events {
			docs = append(docs, e.Doc)
		}
		if errors.Is(err, stream.ErrCollectionChanged) || len(docs) > 0 && strings.Contains(docs[len(docs)-1].String(), "invalidate") {
			return docs
		}
		check(t, err)
	}
}

// TestRecordedEventsAreTheServers: the fuzz test begins with real events, and they are what a server sends today.
func TestRecordedEventsAreTheServers(t *testing.T) {
	t.Parallel()
	events := recording(t)
	if *record {
		var lines bytes.Buffer
		for _, e := range events {
			lines.Write(must[[]byte](t)(bson.MarshalExtJSON(e, true, false)))
			lines.WriteByte('\n')
		}
		check(t, os.MkdirAll("testdata", 0o755))
		check(t, os.WriteFile(recordedEvents, lines.Bytes(), 0o600))
	}
	recorded := readRecorded(t)
	if len(recorded) != len(events) {
		t.Fatalf("events: got %d, recorded are %d", len(events), len(recorded))
	}
	for i := range events {
		if got, want := timeless(t, events[i]), timeless(t, recorded[i]); got != want {
			t.Errorf("event %d: got %s, recorded is %s", i, got, want)
		}
	}
	ds := counters(t, "comments", "votes", markerName)
	all := make([]stream.Event, len(recorded))
	for i, doc := range recorded {
		all[i] = stream.Event{Doc: doc}
	}
	folded := must[counter.Folded](t)(counter.Fold(ds, all))
	if folded.Ended == nil || folded.Ended.Operation != "drop" || len(folded.Missing) != 2 {
		t.Errorf("ended %+v, missing %+v, want the drop and two", folded.Ended, folded.Missing)
	}
}

func readRecorded(t checker) []bson.Raw {
	t.Helper()
	var docs []bson.Raw
	for line := range bytes.Lines(must[[]byte](t)(os.ReadFile(recordedEvents))) {
		var doc bson.Raw
		check(t, bson.UnmarshalExtJSON(line, true, &doc))
		docs = append(docs, doc)
	}
	return docs
}

// timeless is an event without its token and time.
func timeless(t checker, doc bson.Raw) string {
	t.Helper()
	var fields bson.D
	check(t, bson.Unmarshal(doc, &fields))
	fields = slices.DeleteFunc(fields, func(e bson.E) bool { return e.Key == "_id" || e.Key == "t" })
	return string(must[[]byte](t)(bson.MarshalExtJSON(fields, true, false)))
}

// FuzzFold: whatever bytes stand for an event, Fold answers with sums that make sense or with an error.
func FuzzFold(f *testing.F) {
	for _, doc := range readRecorded(f) {
		f.Add([]byte(doc))
	}
	for _, key := range values {
		f.Add([]byte(projected(f, 0, gave("a0", key), weighed("b1", bson.D{{Key: "d", Value: key}}, -2)).Doc))
	}
	ds := counters(f, "x", "y")
	f.Fuzz(func(t *testing.T, doc []byte) {
		folded, err := counter.Fold(ds, []stream.Event{{Doc: doc}, {Doc: doc}})
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, d := range folded.Deltas {
			at := d.Counter.Name + counter.Canonical(d.Key)
			switch {
			case seen[at]:
				t.Errorf("key %v of %s stands twice", d.Key, d.Counter.Name)
			case d.Inc < 0 || d.Dec < 0:
				t.Errorf("inc %d, dec %d", d.Inc, d.Dec)
			case d.Inc < math.MaxInt64 && d.Dec < math.MaxInt64 && d.N != d.Inc-d.Dec:
				t.Errorf("n is %d, inc %d and dec %d", d.N, d.Inc, d.Dec)
			}
			seen[at] = true
			counter.Usable(d.Key)
		}
		if folded.Ended == nil && folded.Events != 2 || folded.Ended != nil && folded.Events != 0 {
			t.Errorf("%d events, ended %v", folded.Events, folded.Ended)
		}
	})
}

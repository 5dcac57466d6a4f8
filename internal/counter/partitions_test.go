package counter_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// whole is the one lane of a source that is not divided.
var whole = checkpoint.LaneID{Source: source}

// witness reads every change of the rows as the server tells it, so that each lane's pipeline can be run on the same ones.
type witness struct {
	d      *deployment
	reader stream.Reader
}

func (d *deployment) witness(t testing.TB) *witness {
	t.Helper()
	w := &witness{d: d}
	w.open(t)
	t.Cleanup(func() { w.reader.Close(context.WithoutCancel(t.Context())) })
	return w
}

func (w *witness) open(t checker) {
	t.Helper()
	now := must[bson.Timestamp](t)(w.d.checkpoints.Now(t.Context(), "afresh"))
	changes := stream.NewChangeStream(w.d.client, w.d.database.Name(), source, bson.A{}, batchEvents)
	w.reader = must[stream.Reader](t)(changes.Open(t.Context(), stream.Start{Position: now}))
}

// events are the changes since the last call, less the marker's.
func (w *witness) events(t checker) []bson.Raw {
	t.Helper()
	w.d.mark(t)
	var events []bson.Raw
	for {
		batch := must[stream.Batch](t)(w.reader.Next(t.Context()))
		for _, e := range batch.Events {
			if n, ok := e.Doc.Lookup("fullDocument", markerField).AsInt64OK(); ok && n == w.d.marker {
				return events
			} else if !ok {
				events = append(events, e.Doc)
			}
		}
	}
}

// fold is what a lane makes of the events.
func (w *witness) fold(t checker, events []bson.Raw, lane checkpoint.LaneID) counter.Folded {
	t.Helper()
	documents := make(bson.A, len(events))
	for i, e := range events {
		documents[i] = bson.D{{Key: "e", Value: bson.D{{Key: "$literal", Value: e}}}}
	}
	stages := bson.A{
		bson.D{{Key: "$documents", Value: documents}},
		bson.D{{Key: "$replaceRoot", Value: bson.D{{Key: "newRoot", Value: "$e"}}}},
	}
	cursor, err := w.d.database.Aggregate(t.Context(), append(stages, must[bson.A](t)(counter.Pipeline(w.d.definitions, lane))...),
		options.Aggregate().SetCollation(&options.Collation{Locale: "simple"}))
	check(t, err)
	var projected []bson.Raw
	check(t, cursor.All(t.Context(), &projected))
	var given []stream.Event
	for _, doc := range projected {
		given = append(given, stream.Event{Doc: doc})
	}
	return must[counter.Folded](t)(counter.Fold(w.d.definitions, given))
}

// wantDivided fails unless the lanes make of the events together what one lane does alone, and no two of them touch one
// counter document.
func (w *witness) wantDivided(t checker, events []bson.Raw, n int) {
	t.Helper()
	if len(events) == 0 {
		return
	}
	name := func(d counter.Delta) string { return d.Counter.Name + "/" + counter.Canonical(d.Key) }
	want := map[string]counter.Delta{}
	for _, d := range w.fold(t, events, whole).Deltas {
		want[name(d)] = d
	}
	owner := map[string]int{}
	for i, lane := range checkpoint.Lanes(source, n) {
		for _, d := range w.fold(t, events, lane).Deltas {
			whole, known := want[name(d)]
			switch other, twice := owner[name(d)]; {
			case twice:
				t.Fatalf("of %d lanes, %d and %d touch %s of key %s", n, other, i, d.Counter.Name, describe(t, d.Key))
			case !known:
				t.Fatalf("of %d lanes, %d touches %s of key %s, and one lane alone does not", n, i, d.Counter.Name, describe(t, d.Key))
			case whole.N != d.N || whole.Inc != d.Inc || whole.Dec != d.Dec:
				t.Fatalf("of %d lanes, %d makes %+v of what is %+v", n, i, d, whole)
			}
			owner[name(d)] = i
		}
	}
	for key, d := range want {
		if _, given := owner[key]; !given {
			t.Fatalf("none of %d lanes counts %s of key %s", n, d.Counter.Name, describe(t, d.Key))
		}
	}
}

var divisions = []int{2, 3, 4, 7}

// TestEqualKeysBelongToOneLane whatever their types: two lanes that both write one document would have no position that
// it can be judged at.
func TestEqualKeysBelongToOneLane(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key"})
	w := d.witness(t)
	var writes []mongo.WriteModel
	for _, group := range usableKeys(t) {
		for _, key := range group {
			writes = append(writes, insert(bson.D{{Key: "key", Value: key}}), insert(bson.D{{Key: "key", Value: bson.D{{Key: "v", Value: key}}}}))
		}
	}
	for _, key := range unusableKeys {
		writes = append(writes, insert(bson.D{{Key: "key", Value: key}}))
	}
	d.write(t, writes...)
	events := w.events(t)
	if len(events) != len(writes) {
		t.Fatalf("%d events of %d writes", len(events), len(writes))
	}
	for _, n := range append(divisions, 64, 1024) {
		w.wantDivided(t, events, n)
	}
}

// TestEqualNumbersBelongToOneLane is the same for numbers around the edges of their types.
func TestEqualNumbersBelongToOneLane(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key"})
	w := d.witness(t)
	rapid.Check(t, func(t *rapid.T) {
		var writes []mongo.WriteModel
		for _, key := range rapid.SliceOfN(rapid.Custom(drawKey), 1, 60).Draw(t, "keys") {
			writes = append(writes, insert(bson.D{{Key: "key", Value: key}}))
			if f, ok := key.(float64); ok { // and the decimal of the same value, where there is one
				writes = append(writes, insert(bson.D{{Key: "key", Value: parseDecimal(t, strconv.FormatFloat(f, 'e', 33, 64))}}))
			}
		}
		for _, f := range rapid.SliceOfN(rapid.SampledFrom([]float64{-2.5, -1.75, -0.5, 0.25, 0.5, 1.5, 1.75, 2.5, 3.5, 1<<52 + 0.5}), 0, 5).Draw(t, "fractions") {
			writes = append(writes, insert(bson.D{{Key: "key", Value: f}}), insert(bson.D{{Key: "key", Value: parseDecimal(t, strconv.FormatFloat(f, 'f', -1, 64))}}))
		}
		d.write(t, writes...)
		w.wantDivided(t, w.events(t), rapid.SampledFrom(divisions).Draw(t, "lanes"))
	})
}

// TestLanesTogetherMakeOfAHistoryWhatOneDoes: inserts, moves from one lane's key to another's, replacements, deletes,
// counts and sums.
func TestLanesTogetherMakeOfAHistoryWhatOneDoes(t *testing.T) {
	t.Parallel()
	d := deploy(t,
		config.Counter{Name: "plain", Key: "key"},
		config.Counter{Name: "soft", Key: "key", SoftDelete: "gone"},
		config.Counter{Name: "dotted", Key: "doc.key", SoftDelete: "doc.gone"},
		config.Counter{Name: "sum", Key: "key", SoftDelete: "gone", Sum: "n"},
		config.Counter{Name: "own_id", Key: "_id", SoftDelete: "gone"},
		config.Counter{Name: "sum_of_key", Key: "key", Sum: "key"},
		config.Counter{Name: "conditional", Key: "key", CountIf: expression(t, e("$eq", "$$ROOT.status", "ok"))})
	w := d.witness(t)
	rapid.Check(t, func(t *rapid.T) {
		d.write(t, rapid.SliceOfN(rapid.Custom(drawWrite), 1, 60).Draw(t, "writes")...)
		w.wantDivided(t, w.events(t), rapid.SampledFrom(divisions).Draw(t, "lanes"))
	})
}

// TestAMoveBetweenLanesIsHalfAnEventOfEach, on real streams, and what is no matter of keys is an event of every lane.
func TestAMoveBetweenLanesIsHalfAnEventOfEach(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "votes", Key: "key", Sum: "n"})
	const n = 3
	var readers []stream.Reader
	for _, lane := range checkpoint.Lanes(source, n) {
		stages := must[bson.A](t)(counter.Pipeline(d.definitions, lane))
		reader := must[stream.Reader](t)(stream.NewChangeStream(d.client, d.database.Name(), source, stages, batchEvents).Open(t.Context(), d.at.Start()))
		t.Cleanup(func() { reader.Close(context.WithoutCancel(t.Context())) })
		readers = append(readers, reader)
	}
	const keys = 20
	for i := range keys {
		row := bson.D{{Key: "_id", Value: i}, {Key: "key", Value: i}, {Key: "n", Value: 10}}
		d.write(t, insert(row), set(i, bson.D{{Key: "key", Value: i + 1}, {Key: "n", Value: 4}}))
	}
	check(t, d.database.RunCommand(t.Context(), bson.D{
		{Key: "collMod", Value: source}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}},
	}).Err())
	d.write(t, set(0, bson.D{{Key: "n", Value: 7}}))
	check(t, d.rows().Drop(t.Context()))

	got := map[int64]int64{}
	deltas, moves := 0, 0
	for i, reader := range readers {
		var events []stream.Event
		folded := counter.Folded{}
		for folded.Ended == nil {
			batch := must[stream.Batch](t)(reader.Next(t.Context()))
			events = append(events, batch.Events...)
			folded = must[counter.Folded](t)(counter.Fold(d.definitions, events))
		}
		if folded.Ended.Operation != "drop" || len(folded.Missing) != 1 || folded.Missing[0].Operation != "update" || folded.Missing[0].Row.AsInt64() != 0 {
			t.Errorf("lane %d sees the missing images %+v and the end %+v", i, folded.Missing, folded.Ended)
		}
		moves += folded.Events - 1
		for _, delta := range folded.Deltas {
			got[delta.Key.AsInt64()] += delta.N
			deltas++
		}
	}
	want := map[int64]int64{0: 0, keys: 4}
	for i := range int64(keys - 1) {
		want[i+1] = 4
	}
	if fmt.Sprint(got) != fmt.Sprint(want) || deltas != keys+1 {
		t.Errorf("%d deltas %v, want one for each of %v", deltas, got, want)
	}
	// An insert is one lane's; a move is one lane's or two's.
	if moves <= 2*keys || moves > 3*keys {
		t.Errorf("%d events of %d inserts and moves in %d lanes: no move was between two", moves, keys, n)
	}
}

// TestKeysOfALaneAreThoseThatItsEventsAreOf, in rows and in documents, and none is left out or listed twice.
func TestKeysOfALaneAreThoseThatItsEventsAreOf(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key"})
	w := d.witness(t)
	definition := d.definition(t, "plain")
	var all []string
	var writes []mongo.WriteModel
	for _, group := range usableKeys(t) {
		all = append(all, canonical(t, group[0]))
		for _, key := range group {
			writes = append(writes, insert(bson.D{{Key: "key", Value: key}}))
		}
	}
	for _, key := range unusableKeys {
		writes = append(writes, insert(bson.D{{Key: "key", Value: key}}))
	}
	d.write(t, writes...)
	events := w.events(t)
	d.catchUp(t) // makes the documents
	for _, index := range []bool{false, true} {
		if index {
			_, err := d.rows().Indexes().CreateOne(t.Context(), definition.RowsIndex().Model())
			check(t, err)
		}
		for _, n := range divisions {
			documents := must[map[string]counter.Document](t)(definition.DocumentsOfLanes(t.Context(), d.client, everything, n))
			var listed []string
			for _, lane := range checkpoint.Lanes(source, n) {
				touched := map[string]bool{}
				for _, delta := range w.fold(t, events, lane).Deltas {
					touched[counter.Canonical(delta.Key)] = true
				}
				for _, key := range must[[]bson.RawValue](t)(definition.Keys(t.Context(), d.client, everything, lane)) {
					form := counter.Canonical(key)
					listed = append(listed, form)
					if !touched[form] || documents[form].Partition != lane.Partition {
						t.Errorf("key %s is listed for lane %s: its events are there %v, its document is of %d",
							describe(t, key), lane, touched[form], documents[form].Partition)
					}
				}
			}
			slices.Sort(listed)
			slices.Sort(all)
			if !slices.Equal(listed, all) {
				t.Errorf("index %v: %d keys of %d lanes, want %d, each once", index, len(listed), n, len(all))
			}
		}
	}
}

// TestKeysOfALaneAreListedWithoutReadingEveryRow: a lane costs a full pass one look at every key.
func TestKeysOfALaneAreListedWithoutReadingEveryRow(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key", SoftDelete: "gone"})
	definition := d.definition(t, "plain")
	_, err := d.rows().Indexes().CreateOne(t.Context(), definition.RowsIndex().Model())
	check(t, err)
	const keys, each = 20, 50
	var writes []mongo.WriteModel
	for i := range keys * each {
		writes = append(writes, insert(bson.D{{Key: "key", Value: i % keys}}))
	}
	d.write(t, writes...)
	var listed []bson.RawValue
	for i := range keys {
		listed = append(listed, raw(t, i))
	}
	lanes := checkpoint.Lanes(source, 2)
	seen := d.examined(t, func() {
		for _, lane := range lanes {
			for _, which := range []counter.Selection{{{Key: "$gte", Value: 0}, {Key: "$lt", Value: keys}}, counter.Listed(listed)} {
				must[[]bson.RawValue](t)(definition.Keys(t.Context(), d.client, which, lane))
			}
		}
	})
	if len(seen) != 2*len(lanes) {
		t.Fatalf("%d commands in the profile, want %d", len(seen), 2*len(lanes))
	}
	for _, s := range seen {
		if s.KeysExamined > 2*keys+1 || s.DocsExamined != 0 {
			t.Errorf("%d index entries and %d rows read for %d keys", s.KeysExamined, s.DocsExamined, keys)
		}
	}
}

// examined is what the server has looked at to answer a command.
type examined struct{ KeysExamined, DocsExamined int }

// examined has the server tell what each aggregation of the rows costs it.
func (d *deployment) examined(t testing.TB, do func()) []examined {
	t.Helper()
	profile := func(level int) {
		check(t, d.database.RunCommand(t.Context(), bson.D{{Key: "profile", Value: level}}).Err())
	}
	profile(2)
	do()
	profile(0)
	cursor, err := d.database.Collection("system.profile").Find(t.Context(), bson.D{{Key: "command.aggregate", Value: source}})
	check(t, err)
	var seen []examined
	check(t, cursor.All(t.Context(), &seen))
	return seen
}

// TestChunksOfKeysFitIntoACommand and hold every key once.
func TestChunksOfKeysFitIntoACommand(t *testing.T) {
	t.Parallel()
	text := func(bytes int) bson.RawValue { return raw(t, string(make([]byte, bytes))) }
	const mib = 1 << 20
	for name, c := range map[string]struct {
		keys   []bson.RawValue
		chunks int
	}{
		"none":                       {nil, 0},
		"one":                        {[]bson.RawValue{raw(t, 1)}, 1},
		"small ones":                 {slices.Repeat([]bson.RawValue{raw(t, 1)}, 10_000), 1},
		"many small ones":            {slices.Repeat([]bson.RawValue{raw(t, 1)}, 1_000_000), 5},
		"a large one":                {[]bson.RawValue{text(15 * mib)}, 1},
		"a large one at the end":     {[]bson.RawValue{text(3 * mib), text(15 * mib)}, 2},
		"a large one in the middle":  {[]bson.RawValue{raw(t, 1), text(15 * mib), raw(t, 2)}, 3},
		"large ones, one after each": {[]bson.RawValue{text(3 * mib), text(3 * mib), text(3 * mib)}, 3},
	} {
		chunks := counter.Chunks(c.keys)
		var kept []bson.RawValue
		for _, chunk := range chunks {
			keys, ok := chunk[0].Value.([]bson.RawValue)
			if !ok || len(keys) == 0 {
				t.Fatalf("%s: chunk %v", name, chunk)
			}
			kept = append(kept, keys...)
			if command := must[[]byte](t)(bson.Marshal(chunk.On("key"))); len(command) > 16*mib {
				t.Errorf("%s: a chunk of %d keys takes %d bytes", name, len(keys), len(command))
			}
		}
		same := slices.EqualFunc(kept, c.keys, func(a, b bson.RawValue) bool { return a.Equal(b) })
		if len(chunks) != c.chunks || !same {
			t.Errorf("%s: %d keys in %d chunks, want %d in %d", name, len(kept), len(chunks), len(c.keys), c.chunks)
		}
	}
}

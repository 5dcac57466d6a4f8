package counter_test

import (
	"context"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// checker is what *testing.T, *testing.F and *rapid.T have in common.
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

func must[T any](t checker) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		check(t, err)
		return v
	}
}

const (
	source      = "rows" // the name of the source, its lane and its collection
	targetName  = "targets"
	markerName  = "marker"
	markerField = "marker"
	batchEvents = 1000
)

// everything selects all keys at once, of rows and of documents.
var everything = counter.Selection{{Key: "$nin", Value: bson.A{}}}

// deployment is a real installation in miniature, driven by hand: rows with images, counter documents, state, and the
// stream of one lane with its applier.
type deployment struct {
	client      *mongo.Client
	database    *mongo.Database // of rows, counters and state alike
	definitions []*counter.Definition
	checkpoints *checkpoint.Store
	states      *counter.States
	lane        *counter.Lane
	applier     *counter.Applier
	reader      stream.Reader
	failed      bool // the reader has
	at          checkpoint.Checkpoint

	events  int               // delivered since the last take, without markers
	applied []counter.Applied // transactions since the last take
	marker  int64
}

// deploy declares the given counters over one collection of rows and opens their lane. What a declaration leaves out is
// filled in: each counter has fields of its own in a document that all share.
func deploy(t testing.TB, declared ...config.Counter) *deployment {
	t.Helper()
	d := prepare(t, declared...)
	d.open(t)
	return d
}

// prepare is deploy without the lane: nothing is followed yet.
func prepare(t testing.TB, declared ...config.Counter) *deployment {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	d := &deployment{client: client, database: client.Database(realtest.Database(t))}
	images := options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})
	check(t, d.database.CreateCollection(t.Context(), source, images))
	for _, name := range []string{
		targetName, checkpoint.Collection, counter.StatesCollection, counter.TouchedCollection,
		counter.DeadLettersCollection, counter.GapsCollection,
	} {
		check(t, d.database.CreateCollection(t.Context(), name))
	}
	// The marker's own counter: its row has no other key, so it counts for nobody else.
	for _, c := range append(declared, config.Counter{Name: markerName, Key: markerField}) {
		d.definitions = append(d.definitions, must[*counter.Definition](t)(counter.Define(complete(c, d.database.Name()))))
	}
	for _, definition := range d.definitions {
		if definition.Target.Upsert {
			_, err := d.targets(definition).Indexes().CreateOne(t.Context(), definition.TouchedIndex().Model())
			check(t, err)
		}
	}
	d.checkpoints = checkpoint.NewStore(client, d.database.Name())
	d.states = counter.NewStates(client, d.database.Name())
	d.lane = counter.NewLane(checkpoint.LaneID{Source: source}, client, d.checkpoints, d.states, d.definitions)
	return d
}

// open takes the lane up at its checkpoint, as a process does that has just started.
func (d *deployment) open(t testing.TB) {
	t.Helper()
	d.at = must[checkpoint.Checkpoint](t)(d.lane.Load(t.Context(), nil))
	d.follow(t, d.at.Start())
	t.Cleanup(func() { d.reader.Close(context.WithoutCancel(t.Context())) })
	d.applier = counter.NewApplier(d.client, d.checkpoints, d.states, d.definitions, d.definitions, batchEvents, d)
}

// follow opens the stream at a position, instead of the one that is open.
func (d *deployment) follow(t checker, from stream.Start) {
	t.Helper()
	if d.reader != nil {
		d.reader.Close(t.Context())
	}
	stages := must[bson.A](t)(counter.Pipeline(d.definitions, checkpoint.LaneID{}))
	changes := stream.NewChangeStream(d.client, d.database.Name(), source, stages, batchEvents)
	d.reader = must[stream.Reader](t)(changes.Open(t.Context(), from))
}

// skip passes over all that has happened so far, on a stream that works again if it had failed.
func (d *deployment) skip(t checker) {
	t.Helper()
	if d.failed {
		now := must[bson.Timestamp](t)(d.checkpoints.Now(t.Context(), "afresh"))
		d.follow(t, stream.Start{Position: now})
		d.failed = false
	}
	d.read(t)
}

// complete fills in what a declaration leaves out.
func complete(c config.Counter, database string) config.Counter {
	c.Source = source
	c.Rows.Database = database
	if c.Rows.Collection == "" {
		c.Rows.Collection = source
	}
	if c.Target == (config.Target{}) {
		c.Target = config.Target{
			Base: c.Name + "_base", Live: c.Name + "_live", Total: c.Name + "_total", ReconciledAt: c.Name + "_at", Upsert: true,
		}
	}
	c.Target.Database = database
	if c.Target.Collection == "" {
		c.Target.Collection = targetName
	}
	return c
}

// Applied and Retried make the deployment its applier's observer.
func (d *deployment) Applied(a counter.Applied) { d.applied = append(d.applied, a) }
func (d *deployment) Retried(string, error)     {}

func (d *deployment) rows() *mongo.Collection { return d.database.Collection(source) }

func (d *deployment) targets(definition *counter.Definition) *mongo.Collection {
	return d.database.Collection(definition.Target.Collection)
}

func (d *deployment) definition(t checker, name string) *counter.Definition {
	t.Helper()
	for _, definition := range d.definitions {
		if definition.Name == name {
			return definition
		}
	}
	t.Fatalf("no counter %s", name)
	return nil
}

// catchUp applies every change of a row made so far: it writes a marker and reads until that comes by. It returns how
// many events the stream delivered, the marker's own left out.
func (d *deployment) catchUp(t checker) (events int) {
	t.Helper()
	d.mark(t)
	for !d.sawMarker() {
		batch := must[stream.Batch](t)(d.reader.Next(t.Context()))
		d.events += len(batch.Events)
		var err error
		d.at, err = d.applier.Apply(t.Context(), d.at, batch)
		check(t, err)
	}
	events, d.events, d.applied = d.events-1, 0, nil
	return events
}

// read is catchUp that hands the events over instead of applying them, the marker's own left out.
func (d *deployment) read(t checker) []stream.Event {
	t.Helper()
	d.mark(t)
	var events []stream.Event
	for {
		batch, err := d.reader.Next(t.Context())
		d.failed = err != nil
		check(t, err)
		events = append(events, batch.Events...)
		if n := len(events); n > 0 {
			folded := must[counter.Folded](t)(counter.Fold(d.definitions, events[n-1:]))
			if isMarker(folded.Deltas, d.marker) {
				return events[:n-1]
			}
		}
	}
}

func (d *deployment) mark(t checker) {
	t.Helper()
	d.marker++
	_, err := d.rows().ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: markerName}},
		bson.D{{Key: markerField, Value: d.marker}}, options.Replace().SetUpsert(true))
	check(t, err)
}

func (d *deployment) sawMarker() bool {
	n := len(d.applied)
	return n > 0 && isMarker(d.applied[n-1].Deltas, d.marker)
}

func isMarker(deltas []counter.Delta, marker int64) bool {
	for _, delta := range deltas {
		if delta.Counter.Name == markerName && delta.N == 1 && delta.Key.AsInt64() == marker {
			return true
		}
	}
	return false
}

// displayed is base + live of every counter document, by canonical key.
func (d *deployment) displayed(t checker, name string) map[string]int64 {
	t.Helper()
	documents, err := d.definition(t, name).Documents(t.Context(), d.client, everything)
	check(t, err)
	counts := make(map[string]int64, len(documents))
	for key, document := range documents {
		if document.Bad != "" {
			t.Fatalf("counter %s of %v: %s", name, document.Key, document.Bad)
		}
		counts[key] = document.Base + document.Live
	}
	return counts
}

// recounted is what the rows come to now, by canonical key.
func (d *deployment) recounted(t checker, name string) map[string]int64 {
	t.Helper()
	truths, _, err := d.definition(t, name).Count(t.Context(), d.client, everything)
	check(t, err)
	counts := make(map[string]int64, len(truths))
	for key, truth := range truths {
		if truth.Bad != "" {
			t.Fatalf("counter %s of %v: %s", name, truth.Key, truth.Bad)
		}
		counts[key] = truth.N
	}
	return counts
}

// canonical is the canonical form of a value as the driver encodes it.
func canonical(t checker, key any) string {
	t.Helper()
	return counter.Canonical(raw(t, key))
}

func raw(t checker, v any) bson.RawValue {
	t.Helper()
	switch v := v.(type) {
	case bson.RawValue:
		return v
	case nil:
		return bson.RawValue{Type: bson.TypeNull}
	}
	kind, data, err := bson.MarshalValue(v)
	check(t, err)
	return bson.RawValue{Type: kind, Value: data}
}

// expression is a count_if.
func expression(t checker, v any) bson.RawValue {
	t.Helper()
	return raw(t, v)
}

// wantCounts holds a counter to the given counts in three ways: what is displayed, what a recount says, and the numbers
// in the test. A key that is not named is to be 0.
func (d *deployment) wantCounts(t testing.TB, name string, want map[any]int64) {
	t.Helper()
	expected := make(map[string]int64, len(want))
	for key, n := range want {
		expected[canonical(t, key)] = n
	}
	diffCounts(t, name+" displayed", d.displayed(t, name), expected)
	diffCounts(t, name+" recounted", d.recounted(t, name), expected)
}

func diffCounts(t testing.TB, what string, got, want map[string]int64) {
	t.Helper()
	for key := range union(got, want) {
		if got[key] != want[key] {
			t.Errorf("%s of %.60q: got %d, want %d", what, key, got[key], want[key])
		}
	}
}

func union[A, B any](a map[string]A, b map[string]B) map[string]bool {
	all := make(map[string]bool, len(a)+len(b))
	for key := range a {
		all[key] = true
	}
	for key := range b {
		all[key] = true
	}
	return all
}

// patience is how long a test waits for what should happen at once.
const patience = 30 * time.Second

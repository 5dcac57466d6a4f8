package reconciler

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

func TestMain(m *testing.M) { realtest.Main(m) }

// Names of the fixture: one source, whose rows are comments, and one counter unless the test declares others.
const (
	sourceName  = "comments"
	counterName = "comments_per_post"
	targetName  = "post_counters"
)

// patience bounds every wait for something that comes by itself.
const patience = 30 * time.Second

// soak reports whether the full numbers are asked for.
func soak() bool { return os.Getenv("DRIFTLESS_SOAK") != "" }

// fixture is an installation in miniature: rows, counter documents, a state database, and lanes that run like the
// incrementer's. Reconcilers are made by the test.
type fixture struct {
	t           testing.TB
	uri         string
	client      *mongo.Client
	config      *config.Config
	definitions []*counter.Definition
	rows        *mongo.Collection
	targets     *mongo.Collection
	state       *mongo.Database
	checkpoints *checkpoint.Store
	states      *counter.States

	stop  func()         // all lanes, nil before the first start
	stops map[int]func() // of those that run, by partition
}

// setUp makes a fixture on the shared server, with the lane not started. Edits change the configuration first.
func setUp(t testing.TB, edits ...func(*config.Config)) *fixture {
	t.Helper()
	return setUpOn(t, realtest.Shared(t).URI(), edits...)
}

func setUpOn(t testing.TB, uri string, edits ...func(*config.Config)) *fixture {
	t.Helper()
	client := realtest.Client(t, uri)
	data := client.Database(realtest.DatabaseOn(t, client))
	c := config.Default()
	c.MongoDB.URI, c.MongoDB.StateDatabase = uri, realtest.DatabaseOn(t, client)
	c.Incrementer.IdleCheckpoint = 50 * time.Millisecond
	c.Reconciler.JudgeTimeout = 10 * time.Second
	c.Sources = []config.Source{{
		Name: sourceName, OnPositionLost: "recount",
		ChangeStream: &config.ChangeStream{Database: data.Name(), Collection: "comments", Partitions: 1},
	}}
	c.Counters = []config.Counter{declared(data.Name(), counterName, "base_count", "live_delta")}
	for _, edit := range edits {
		edit(c)
	}
	f := &fixture{
		t: t, uri: uri, client: client, config: c, rows: data.Collection("comments"), targets: data.Collection(targetName),
		state:       client.Database(c.MongoDB.StateDatabase),
		checkpoints: checkpoint.NewStore(client, c.MongoDB.StateDatabase), states: counter.NewStates(client, c.MongoDB.StateDatabase),
	}
	f.create(data, "comments", options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}}))
	if c.Counters[0].Target.Collection != targetName {
		f.targets = data.Collection(c.Counters[0].Target.Collection)
		f.create(data, f.targets.Name())
	}
	f.install()
	return f
}

// declared is a counter of live comments per post, under the given fields.
func declared(database, name, base, live string) config.Counter {
	return config.Counter{
		Name: name, Source: sourceName, Rows: config.Rows{Database: database, Collection: "comments"},
		Key: "post_id", SoftDelete: "deleted_at",
		Target: config.Target{Database: database, Collection: targetName, Base: base, Live: live, ReconciledAt: "reconciled_at", Upsert: true},
	}
}

// install does what `incrementer setup` does for the fixture's configuration.
func (f *fixture) install() {
	f.t.Helper()
	ctx := f.t.Context()
	definitions, err := counter.DefineAll(f.config.Counters)
	f.check(err)
	f.definitions = definitions
	for _, name := range []string{
		checkpoint.Collection, counter.StatesCollection, counter.TouchedCollection, counter.DeadLettersCollection, counter.GapsCollection,
		counter.SweepsCollection, counter.RepairsCollection, counter.RunsCollection, counter.DedupeCollection,
	} {
		f.create(f.state, name)
		for _, index := range counter.StateIndexes()[name] {
			_, err = f.state.Collection(name).Indexes().CreateOne(ctx, index.Model())
			f.check(err)
		}
	}
	const otherName = 85 // IndexOptionsConflict: two counters of the same rows want the same index under two names
	var server mongo.ServerError
	for _, d := range definitions {
		if d.Target.Upsert {
			f.create(f.targets.Database(), d.Target.Collection)
			_, err = f.targets.Database().Collection(d.Target.Collection).Indexes().CreateOne(ctx, d.TouchedIndex().Model())
			f.check(err)
		}
		if _, err = f.rows.Indexes().CreateOne(ctx, d.RowsIndex().Model()); !errors.As(err, &server) || !server.HasErrorCode(otherName) {
			f.check(err)
		}
	}
}

// create creates a collection, unless it is there.
func (f *fixture) create(db *mongo.Database, name string, opts ...options.Lister[options.CreateCollectionOptions]) {
	f.t.Helper()
	const namespaceExists = 48
	var server mongo.ServerError
	if err := db.CreateCollection(f.t.Context(), name, opts...); !errors.As(err, &server) || !server.HasErrorCode(namespaceExists) {
		f.check(err)
	}
}

func (f *fixture) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// must unwraps a result, or fails the test.
func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// divided gives the source so many lanes.
func divided(lanes int) func(*config.Config) {
	return func(c *config.Config) { c.Sources[0].ChangeStream.Partitions = lanes }
}

func (f *fixture) laneIDs() []checkpoint.LaneID {
	return checkpoint.Lanes(sourceName, f.config.Sources[0].ChangeStream.Partitions)
}

// start runs the lanes until stop or the end of the test.
func (f *fixture) start() {
	f.t.Helper()
	for _, id := range f.laneIDs() {
		f.startLane(id.Partition)
	}
	f.stop = func() {
		for partition := range f.stops {
			f.stopLane(partition)
		}
	}
}

// startLane runs one lane, unless it is running.
func (f *fixture) startLane(partition int) {
	f.t.Helper()
	if f.stops[partition] != nil {
		return
	}
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	lane := f.lane(f.laneIDs()[partition])
	running.Go(func() { _ = lane.Run(ctx) })
	stop := sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	if f.stops == nil {
		f.stops = map[int]func(){}
	}
	f.stops[partition] = stop
	f.t.Cleanup(stop)
}

// stopLane holds one lane back, if it is running, while the others go on.
func (f *fixture) stopLane(partition int) {
	if stop := f.stops[partition]; stop != nil {
		stop()
		delete(f.stops, partition)
	}
}

// lane is wired as cmd/incrementer does.
func (f *fixture) lane(id checkpoint.LaneID) *incrementer.Lane {
	c, log := f.config, slog.New(slog.NewTextHandler(io.Discard, nil))
	metrics := incrementer.NewMetrics(prometheus.NewRegistry())
	mine := f.definitions
	return &incrementer.Lane{
		ID: id, Definitions: mine,
		Counters: counter.NewLane(id, f.client, f.checkpoints, f.states, mine),
		OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
			stages, err := counter.Pipeline(ds, id)
			return stream.NewChangeStream(f.client, f.rows.Database().Name(), f.rows.Name(), stages, c.Incrementer.MaxBatchEvents), err
		},
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			return counter.NewApplier(f.client, f.checkpoints, f.states, ds, mine, c.Incrementer.MaxBatchEvents,
				incrementer.Observer{Metrics: metrics, Source: sourceName, Lane: id.String(), Log: log})
		},
		IdleCheckpoint: c.Incrementer.IdleCheckpoint, State: incrementer.NewState(nil), Metrics: metrics, Log: log,
	}
}

// catchUp waits until the running lanes have applied everything that has been written so far, and have positions that
// cover it.
func (f *fixture) catchUp() {
	f.t.Helper()
	now := f.now()
	for _, id := range f.laneIDs() {
		if f.stops[id.Partition] == nil {
			continue
		}
		realtest.Eventually(f.t, patience, "lane "+id.String()+" to catch up", func() bool {
			at, err := f.checkpoints.Load(f.t.Context(), id.String())
			return err == nil && !at.Position.Before(stream.Before(now))
		})
	}
}

// now is a cluster time after every write so far. The rows do not change by it.
func (f *fixture) now() bson.Timestamp {
	f.t.Helper()
	session := must(f.client.StartSession())(f.t)
	defer session.EndSession(f.t.Context())
	majority := options.Collection().SetWriteConcern(writeconcern.Majority())
	_, err := f.state.Collection("test_clock", majority).UpdateByID(mongo.NewSessionContext(f.t.Context(), session), 0,
		bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
	f.check(err)
	return *session.OperationTime()
}

// equipment is what a reconciler of a test has besides the fixture.
type equipment struct {
	app     string
	log     slog.Handler
	started func(*event.CommandStartedEvent) // before a command of the reconciler is sent
	done    func()                           // after a command came true, before the reconciler learns of it
	tails   *atomic.Int64                    // counts the checkpoints read that have a tail
	metrics *Metrics
}

// reconciler makes one with a client of its own, so that fail points and hooks concern nobody else.
func (f *fixture) reconciler(with equipment) *Reconciler {
	f.t.Helper()
	o := options.Client()
	if with.app != "" {
		o.SetAppName(with.app)
	}
	o.SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if with.started != nil {
				with.started(e)
			}
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			if with.done != nil {
				with.done()
			}
			if tail := lookup(e.Reply, "cursor.firstBatch.0.tail.deltas.0"); with.tails != nil && !tail.IsZero() {
				with.tails.Add(1)
			}
		},
	})
	if with.log == nil {
		with.log = slog.NewTextHandler(io.Discard, nil)
	}
	if with.metrics == nil {
		with.metrics = NewMetrics(prometheus.NewRegistry(), f.definitions)
	}
	return New(realtest.Client(f.t, f.uri, o), f.config.MongoDB.StateDatabase, f.definitions, f.config.Reconciler, with.metrics, slog.New(with.log))
}

// run does one run that must not fail.
func (f *fixture) run(r *Reconciler, o Options) *Report {
	f.t.Helper()
	report, err := r.RunOnce(f.t.Context(), o)
	f.check(err)
	return report
}

// activate does the first full run, after which the counters are active and right.
func (f *fixture) activate(r *Reconciler) {
	f.t.Helper()
	report := f.run(r, Options{})
	if report.Result != ResultOK {
		f.t.Fatalf("first run: %s", show(report))
	}
	for _, d := range f.definitions {
		if state := f.stateOf(d.Name); state.State != counter.Active {
			f.t.Fatalf("after the first run %s is %s", d.Name, state.State)
		}
	}
}

func (f *fixture) stateOf(name string) counter.State {
	f.t.Helper()
	return must(f.states.All(f.t.Context()))(f.t)[name]
}

// only is the part of a report about its one counter.
func only(t testing.TB, r *Report) *CounterReport {
	t.Helper()
	if len(r.Counters) != 1 {
		t.Fatalf("report of %d counters, want 1", len(r.Counters))
	}
	return r.Counters[0]
}

func show(r *Report) string {
	text := r.Run + " " + r.Result
	for _, c := range r.Counters {
		text += fmt.Sprintf("\n%+v", *c)
	}
	return text
}

// wantDrift fails unless the run found exactly these drifts of its one counter and judged everything.
func wantDrift(t testing.TB, r *Report, want map[any]int64) {
	t.Helper()
	if r.Result != ResultOK {
		t.Errorf("result %s: %s", r.Result, show(r))
	}
	got, wanted := map[string]int64{}, map[string]int64{}
	for _, d := range only(t, r).Drifted {
		got[d.Key.String()] += d.Drift
	}
	for key, drift := range want {
		wanted[ExtendedJSON{raw(key)}.String()] = drift
	}
	if !maps.Equal(got, wanted) {
		t.Errorf("drift %v, want %v", got, wanted)
	}
	if keys := only(t, r).Drift.Keys; keys != int64(len(want)) {
		t.Errorf("%d drifted keys, want %d", keys, len(want))
	}
}

// raw is a value as BSON.
func raw(v any) bson.RawValue {
	document, err := bson.Marshal(bson.D{{Key: "v", Value: v}})
	if err != nil {
		panic(err)
	}
	return bson.Raw(document).Lookup("v")
}

// comment inserts n rows of a post.
func (f *fixture) comment(post any, n int) {
	f.t.Helper()
	if n == 0 {
		return
	}
	rows := make([]any, n)
	for i := range rows {
		rows[i] = bson.D{{Key: "post_id", Value: post}}
	}
	_, err := f.rows.InsertMany(f.t.Context(), rows)
	f.check(err)
}

// edit changes a counter document behind everybody's back.
func (f *fixture) edit(post any, update bson.D) {
	f.t.Helper()
	_, err := f.targets.UpdateByID(f.t.Context(), post, update)
	f.check(err)
}

// plant makes a counter wrong by n.
func (f *fixture) plant(post any, n int64) {
	f.t.Helper()
	f.edit(post, inc("base_count", n))
}

// touch marks a document as an increment does.
func (f *fixture) touch(post any) {
	f.t.Helper()
	own := "driftless." + counterName + "."
	f.edit(post, bson.D{{Key: "$set", Value: bson.D{{Key: own + "touched", Value: true}, {Key: own + "stamp", Value: bson.NewObjectID()}}}})
}

func inc(path string, n any) bson.D {
	return bson.D{{Key: "$inc", Value: bson.D{{Key: path, Value: n}}}}
}

func set(path string, v any) bson.D {
	return bson.D{{Key: "$set", Value: bson.D{{Key: path, Value: v}}}}
}

// document returns the counter document of a post, nil when there is none.
func (f *fixture) document(post any) bson.Raw {
	f.t.Helper()
	document, err := f.targets.FindOne(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: post}}}}).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil
	}
	f.check(err)
	return document
}

// shown is what a document displays under the given two fields.
func shown(document bson.Raw, base, live string) int64 {
	var n int64
	for _, field := range []string{base, live} {
		if v, err := document.LookupErr(field); err == nil {
			n += v.AsInt64()
		}
	}
	return n
}

// wantShown fails unless the one counter of the fixture displays n.
func (f *fixture) wantShown(post any, n int64) {
	f.t.Helper()
	document := f.document(post)
	if got := shown(document, "base_count", "live_delta"); got != n {
		f.t.Errorf("post %v displays %d, want %d: %v", post, got, n, document)
	}
}

// wantExact waits for the lane and fails unless every counter document displays what a plain count of the rows says, by
// its parts and by their total.
func (f *fixture) wantExact() {
	f.t.Helper()
	f.catchUp()
	want := f.plainCount()
	cursor := must(f.targets.Find(f.t.Context(), bson.D{}))(f.t)
	var documents []bson.Raw
	f.check(cursor.All(f.t.Context(), &documents))
	for _, d := range documents {
		key := counter.Canonical(d.Lookup("_id"))
		n := shown(d, "base_count", "live_delta")
		if n != want[key] {
			f.t.Errorf("post %v displays %d, and has %d rows", d.Lookup("_id"), n, want[key])
		}
		if total, err := d.LookupErr("driftless", counterName, "total"); n != 0 && (err != nil || total.AsInt64() != n) {
			f.t.Errorf("post %v displays %d, but its total is %v", d.Lookup("_id"), n, total)
		}
		delete(want, key)
	}
	for key, n := range want {
		if n != 0 {
			f.t.Errorf("no document for a post of %d rows, canonical key %q", n, key)
		}
	}
}

// plainCount counts the rows that are not deleted, here and not on the server.
func (f *fixture) plainCount() map[string]int64 {
	f.t.Helper()
	cursor := must(f.rows.Find(f.t.Context(), bson.D{}))(f.t)
	counts := map[string]int64{}
	var rows []struct {
		Post    bson.RawValue `bson:"post_id"`
		Deleted bson.RawValue `bson:"deleted_at"`
	}
	f.check(cursor.All(f.t.Context(), &rows))
	for _, row := range rows {
		usable := isBound(row.Post) || row.Post.Type == bson.TypeDouble // null, an array and the like are no keys
		if usable && (row.Deleted.IsZero() || row.Deleted.Type == bson.TypeNull) {
			counts[counter.Canonical(row.Post)]++
		}
	}
	return counts
}

// marks counts the marks of keys that wait to be compared, in the documents and in the state database.
func (f *fixture) marks() (documents, state int64) {
	f.t.Helper()
	documents, err := f.targets.CountDocuments(f.t.Context(), bson.D{{Key: "driftless." + counterName + ".touched", Value: true}})
	f.check(err)
	state, err = f.state.Collection(counter.TouchedCollection).CountDocuments(f.t.Context(), bson.D{})
	f.check(err)
	return documents, state
}

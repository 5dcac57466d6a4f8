package reconciler

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/realtest"
)

// kept is a fixture of one counter that the application increments itself, in one field unless an edit says otherwise.
func kept(t testing.TB, edits ...func(*config.Config)) *fixture {
	t.Helper()
	return keptOn(t, realtest.Shared(t).URI(), edits...)
}

func keptOn(t testing.TB, uri string, edits ...func(*config.Config)) *fixture {
	t.Helper()
	f := setUpOn(t, uri, append([]func(*config.Config){func(c *config.Config) {
		d := &c.Counters[0]
		d.Source, d.Repair = config.Application, "difference"
		d.Rows.CreatedAt = "created_at"
		d.Target = config.Target{Database: d.Target.Database, Collection: "posts", Count: "comment_count"}
		c.Reconciler.Settle = time.Second
	}}, edits...)...)
	return f
}

func splitFields(c *config.Config) {
	d := &c.Counters[0]
	d.Target.Count, d.Target.Base, d.Target.Live = "", "base_count", "live_delta"
}

// post inserts a counter document.
func (f *fixture) post(key any, fields ...bson.E) {
	f.t.Helper()
	must(f.targets.InsertOne(f.t.Context(), append(bson.D{{Key: "_id", Value: key}}, fields...)))(f.t)
}

func count(n any) bson.E { return bson.E{Key: "comment_count", Value: n} }

// skips fails unless the run skipped exactly these.
func wantSkips(t testing.TB, r *Report, want map[string]int64) {
	t.Helper()
	if got := only(t, r).Skipped; !maps.Equal(got, want) {
		t.Errorf("skipped %v, want %v: %s", got, want, show(r))
	}
}

func TestKeptCountersAreJudgedOnBothSides(t *testing.T) {
	t.Parallel()
	f := kept(t)
	for post, n := range map[any]int{
		"right": 3, "high": 2, "low": 4, "lacks the field": 2, "no document": 5, "text": 1, "null": 1, "half": 1, "whole": 2, "deleted rows": 3,
	} {
		f.comment(post, n)
	}
	must(f.rows.UpdateMany(t.Context(), bson.D{{Key: "post_id", Value: "deleted rows"}}, set("deleted_at", time.Now())))(t)
	f.comment("deleted rows", 1)
	f.post("right", count(3))
	f.post("high", count(7))
	f.post("low", count(int64(-1)))
	f.post("lacks the field")
	f.post("lacks the field and has no rows")
	f.post("zero", count(0))
	f.post("no rows", count(2))
	f.post("text", count("1"))
	f.post("null", count(nil))
	f.post("half", count(1.5))
	f.post("whole", count(2.0))
	f.post("deleted rows", count(1))
	report := f.run(f.reconciler(equipment{}), Options{DryRun: true, Full: true, Wait: true})
	wantSkips(t, report, map[string]int64{skipBadField: 3, skipNoDocument: 1})
	report.Result = ResultOK
	wantDrift(t, report, map[any]int64{"high": 5, "low": -5, "lacks the field": -2, "no rows": 2})
	if c := only(t, report); c.Checked != 9 || c.Drift.Over != 7 || c.Drift.Under != 7 {
		t.Errorf("%s", show(report))
	}
}

func TestKeptSplitFieldsAreJudgedByTheirSum(t *testing.T) {
	t.Parallel()
	f := kept(t, splitFields)
	f.comment(1, 3)
	f.comment(2, 3)
	f.comment(3, 3)
	f.post(1, bson.E{Key: "base_count", Value: 2}, bson.E{Key: "live_delta", Value: 1})
	f.post(2, bson.E{Key: "base_count", Value: 2}, bson.E{Key: "live_delta", Value: 2.0})
	f.post(3, bson.E{Key: "live_delta", Value: 3})
	wantDrift(t, f.run(f.reconciler(equipment{}), Options{DryRun: true, Wait: true}), map[any]int64{2: 1})
}

// A collection that has been dropped looks like one without rows: nothing is judged by it.
func TestNothingIsJudgedByACollectionThatIsNotThere(t *testing.T) {
	t.Parallel()
	for name, gone := range map[string]func(*fixture) *mongo.Collection{
		skipNoRows: func(f *fixture) *mongo.Collection { return f.rows }, skipNoTarget: func(f *fixture) *mongo.Collection { return f.targets },
	} {
		f := kept(t)
		f.comment(1, 1)
		f.post(1, count(1))
		f.check(gone(f).Drop(t.Context()))
		report := f.run(f.reconciler(equipment{}), Options{DryRun: true})
		wantSkips(t, report, map[string]int64{name: 1})
		if report.Result != ResultSkipped {
			t.Errorf("%s", show(report))
		}
	}
}

// writers do what users do, row first or counter first, with increments that come late.
type writers struct {
	*fixture
	posts int
	inc   func(ctx context.Context, post any, n int) error
	late  func() time.Duration
	done  atomic.Int64
}

// act does one thing: the row and its counters, in either order.
func (w *writers) act(ctx context.Context) error {
	some := rand.IntN(w.posts)
	live := bson.D{{Key: "post_id", Value: some}, {Key: "deleted_at", Value: nil}}
	w.done.Add(1)
	switch dice := rand.IntN(100); {
	case dice < 30:
		_, err := w.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: some}, {Key: "created_at", Value: time.Now()}})
		return w.then(ctx, err, some, 1)
	case dice < 50: // the counter first
		if err := w.then(ctx, nil, some, 1); err != nil {
			return err
		}
		_, err := w.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: some}})
		return err
	case dice < 65:
		changed, err := w.rows.UpdateOne(ctx, live, set("deleted_at", time.Now()))
		return w.if1(ctx, changed, err, some, -1)
	case dice < 75:
		changed, err := w.rows.UpdateOne(ctx, bson.D{{Key: "post_id", Value: some}, {Key: "deleted_at", Value: bson.D{{Key: "$ne", Value: nil}}}},
			bson.D{{Key: "$unset", Value: bson.D{{Key: "deleted_at", Value: ""}}}})
		return w.if1(ctx, changed, err, some, 1)
	case dice < 85:
		other := rand.IntN(w.posts)
		if other == some {
			return nil
		}
		changed, err := w.rows.UpdateOne(ctx, live, set("post_id", other))
		if err != nil || changed.ModifiedCount == 0 {
			return err
		}
		if err := w.then(ctx, nil, some, -1); err != nil {
			return err
		}
		return w.inc(ctx, other, 1)
	default:
		gone, err := w.rows.DeleteOne(ctx, live)
		if err != nil || gone.DeletedCount == 0 {
			return err
		}
		return w.then(ctx, nil, some, -1)
	}
}

func (w *writers) if1(ctx context.Context, r *mongo.UpdateResult, err error, post any, n int) error {
	if err != nil || r.ModifiedCount == 0 {
		return err
	}
	return w.then(ctx, nil, post, n)
}

// then sends the increment, late.
func (w *writers) then(ctx context.Context, err error, post any, n int) error {
	if err != nil {
		return err
	}
	timer := time.NewTimer(w.late())
	defer timer.Stop()
	<-timer.C
	return w.inc(ctx, post, n)
}

// start writes with so many at a time until stop, which lets every increment come.
func (w *writers) start(n int) (stop func()) {
	done := make(chan struct{})
	var running sync.WaitGroup
	for range n {
		running.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				if err := w.act(w.t.Context()); err != nil {
					w.t.Error(err)
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() {
		close(done)
		running.Wait()
	})
}

func TestKeptCountersUnderLoadRaiseNoFalseAlarmAndShowWhatIsPlanted(t *testing.T) {
	t.Parallel()
	const posts, quiet, runs = 40, 200, 4
	for name, edit := range map[string]func(*config.Config){"one field": func(*config.Config) {}, "split fields": splitFields} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := kept(t, edit, func(c *config.Config) { c.Reconciler.Settle = 2 * time.Second })
			field := "comment_count"
			if f.config.Counters[0].Target.Count == "" {
				field = "live_delta"
			}
			want := map[any]int64{}
			for i := range quiet {
				n, key := i%5, fmt.Sprintf("quiet %d", i)
				f.comment(key, n)
				f.post(key, bson.E{Key: field, Value: n + i%3 - 1})
				if i%3 != 1 {
					want[key] = int64(i%3 - 1)
				}
			}
			for i := range posts {
				planted := int64(0)
				if i%10 == 0 {
					planted = 3
				}
				f.post(i, bson.E{Key: field, Value: planted})
			}
			w := &writers{fixture: f, posts: posts, late: func() time.Duration { return time.Duration(rand.IntN(300)) * time.Millisecond },
				inc: func(ctx context.Context, post any, n int) error {
					_, err := f.targets.UpdateByID(ctx, post, inc(field, n), options.UpdateOne())
					return err
				}}
			made := time.Now()
			stop := w.start(12)
			defer stop()
			realtest.Eventually(t, patience, "the quiet posts are older than what may be under way", func() bool {
				return time.Since(made) > f.config.Reconciler.Settle+time.Second
			})
			r := f.reconciler(equipment{})
			r.rowsPerRange = 100
			var busy int64
			for run := range runs {
				report := f.run(r, Options{DryRun: true, Full: true, Wait: run%2 == 1})
				found := map[string]int64{}
				for _, d := range only(t, report).Drifted {
					found[d.Key.String()] = d.Drift
				}
				for key, drift := range want {
					if found[raw(key).String()] != drift {
						t.Errorf("run %d: %v is wrong by %d, and found is %d", run, key, drift, found[raw(key).String()])
					}
					delete(found, raw(key).String())
				}
				for key, drift := range found {
					t.Logf("busy key %s found wrong by %d", key, drift)
					if drift != 3 {
						t.Errorf("run %d: %s is not wrong by %d", run, key, drift)
					}
				}
				busy += only(t, report).Skipped[skipBusy]
			}
			stop()
			t.Logf("%d writes, %d busy keys in %d runs", w.done.Load(), busy, runs)
			if busy == 0 {
				t.Error("no key was ever busy: the test proves nothing")
			}
			for i := range posts {
				if i%10 == 0 {
					want[i] = 3
				}
			}
			var last *Report // what young rows could explain is found once they are no longer young
			realtest.Eventually(t, patience, "every planted drift to be found", func() bool {
				last = f.run(r, Options{DryRun: true, Full: true, Wait: true})
				return last.Result == ResultOK && only(t, last).Drift.Keys >= int64(len(want))
			})
			wantDrift(t, last, want)
		})
	}
}

type beats struct{}

func (beats) Beat()    {}
func (beats) Waiting() {}

// A pass over all keys of a large counter may take a tenth of the time, and a single run looks whenever it is asked to.
func TestTheLoopLeavesAKeptCounterAloneForAWhile(t *testing.T) {
	t.Parallel()
	f := kept(t)
	f.comment(1, 1)
	f.post(1, count(1))
	r := f.reconciler(equipment{})
	for range 2 {
		if report := f.run(r, Options{}); len(report.Counters) != 1 {
			t.Errorf("a single run: %s", show(report))
		}
	}
	r.heart = beats{}
	r.idle[counterName] = time.Now().Add(time.Hour)
	if report := f.run(r, Options{}); len(report.Counters) != 0 || report.Result != ResultOK {
		t.Errorf("the loop while it rests: %s", show(report))
	}
	r.idle[counterName] = time.Now()
	started := time.Now()
	if report := f.run(r, Options{}); len(report.Counters) != 1 {
		t.Errorf("the loop after that: %s", show(report))
	}
	if took := time.Since(started); !r.idle[counterName].After(started.Add(5 * took)) {
		t.Errorf("a pass of %s, and the next may come %s after it", took, r.idle[counterName].Sub(started))
	}
}

// A key that has neither rows nor a document is right, as one of a counter that is followed is.
func TestASingleKeyOfAKeptCounter(t *testing.T) {
	t.Parallel()
	f := kept(t)
	f.comment("wrong", 2)
	f.post("wrong", count(5))
	f.post("also wrong", count(5))
	r := f.reconciler(equipment{})
	if report := f.run(r, Options{Key: raw("nothing"), Wait: true}); only(t, report).Checked != 1 || report.Drifted() {
		t.Errorf("%s", show(report))
	}
	wantDrift(t, f.run(r, Options{Key: raw("wrong"), Wait: true}), map[any]int64{"wrong": 3})
	f.wantField("wrong", "comment_count", int32(2))
	f.wantField("also wrong", "comment_count", int32(5))
}

// Where the server keeps no snapshots for as long as a change may be under way, the second look comes after a wait.
func TestKeptCountersAreJudgedByAServerThatForgets(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{Params: map[string]string{"minSnapshotHistoryWindowInSeconds": "1"}})
	f := keptOn(t, m.URI(), func(c *config.Config) { c.Reconciler.Settle = 4 * time.Second })
	f.comment("quiet", 2)
	f.post("quiet", count(5))
	f.post("busy", count(5))
	var told atomic.Int64
	stop := f.pace(20, func(ctx context.Context, _ int) error {
		_, err := f.targets.UpdateByID(ctx, "busy", inc("comment_count", 1))
		return err
	})
	defer stop()
	report := f.run(f.reconciler(equipment{}), Options{DryRun: true, Tell: func(string) { told.Add(1) }})
	wantSkips(t, report, map[string]int64{skipBusy: 1})
	report.Result = ResultOK
	wantDrift(t, report, map[any]int64{"quiet": 3})
	if told.Load() != 1 {
		t.Errorf("waited %d times, want once", told.Load())
	}
}

// A single instant of history is enough where nothing has changed: no wait.
func TestAQuietKeptCounterIsJudgedWithoutAWait(t *testing.T) {
	t.Parallel()
	f := kept(t)
	f.comment(1, 2)
	f.post(1, count(5))
	r := f.reconciler(equipment{})
	realtest.Eventually(t, patience, "the server to keep a snapshot from before", func() bool {
		waited := false
		report := f.run(r, Options{DryRun: true, Wait: true, Tell: func(string) { waited = true }})
		wantDrift(t, report, map[any]int64{1: 3})
		f.now() // the cluster's time goes on
		return !waited
	})
}

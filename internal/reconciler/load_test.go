package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/config"
)

// smallBatches cut what the incrementer reads, transactions included.
func smallBatches(c *config.Config) {
	c.Incrementer.MaxBatchEvents, c.Reconciler.JudgeTimeout = 400, patience
}

// watch reconciles over and over beside work, until it is done, and fails at any drift. It returns how many runs there were.
func (f *fixture) watch(r *Reconciler, work func()) (runs int) {
	f.t.Helper()
	done := make(chan struct{})
	var working sync.WaitGroup
	working.Go(func() {
		defer close(done)
		work()
	})
	defer working.Wait()
	for {
		// The third of three is a full one: it looks at keys that the incrementer is in the middle of.
		report, err := r.RunOnce(f.t.Context(), Options{Full: runs%3 == 2})
		if err != nil {
			f.t.Error(err)
			return runs
		}
		runs++
		if report.Result != ResultOK || report.Drifted() {
			f.t.Errorf("run %d: %s", runs, show(report))
		}
		select {
		case <-done:
			return runs
		default:
		}
	}
}

func TestTransactionCutIntoBatchesIsNoDrift(t *testing.T) {
	rows := 5000
	for name, keys := range map[string]int{"few keys": 20, "many keys": 1500, "more keys than a tail lists": 4000} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t, smallBatches)
			for i := range keys {
				if i%7 == 0 {
					f.comment(i, 1)
				}
			}
			f.start()
			var tails atomic.Int64
			r := f.reconciler(equipment{tails: &tails})
			f.activate(r)
			insert := func(ctx context.Context) {
				documents := make([]any, rows)
				for i := range documents {
					documents[i] = bson.D{{Key: "post_id", Value: i % keys}, {Key: "n", Value: i}}
				}
				must(f.rows.InsertMany(ctx, documents))(t)
			}
			remove := func(ctx context.Context) {
				must(f.rows.DeleteMany(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$gte", Value: rows / 4}}}}))(t)
			}
			runs := f.watch(r, func() {
				f.transaction(func(ctx context.Context) { insert(ctx) })
				f.catchUp()
				f.transaction(func(ctx context.Context) { remove(ctx) })
				f.catchUp()
				insert(t.Context())
				remove(t.Context())
				f.transaction(func(ctx context.Context) {
					insert(ctx)
					remove(ctx)
				})
				f.catchUp()
			})
			t.Logf("%d runs, %d readings in the middle of a group", runs, tails.Load())
			if tails.Load() == 0 {
				t.Error("no run met a transaction half applied: the test proves nothing")
			}
			f.wantExact()
			wantDrift(t, f.run(r, Options{Full: true}), nil)
		})
	}
}

// transaction does the given writes in one.
func (f *fixture) transaction(do func(context.Context)) {
	f.t.Helper()
	session := must(f.client.StartSession())(f.t)
	defer session.EndSession(f.t.Context())
	f.check(session.StartTransaction())
	ctx := mongo.NewSessionContext(f.t.Context(), session)
	do(ctx)
	f.check(session.CommitTransaction(ctx))
}

// pace calls do so many times a second, as far as the machine lets it, until stop is called, which returns how often it was.
func (f *fixture) pace(perSecond int, do func(context.Context, int) error) (stop func() int) {
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	n := 0
	running.Go(func() {
		const beat = 5 * time.Millisecond
		ticker := time.NewTicker(beat)
		defer ticker.Stop()
		started := time.Now()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			for due := int(time.Since(started).Seconds() * float64(perSecond)); n < due; n++ {
				if err := do(ctx, n); err != nil {
					if !errors.Is(err, context.Canceled) {
						f.t.Error(err)
					}
					return
				}
			}
		}
	})
	return func() int {
		cancel()
		running.Wait()
		return n
	}
}

func TestOneKeyIsJudgedWhileItIsWrittenTo(t *testing.T) {
	looks := 30
	if soak() {
		looks = 100
	}
	for _, perSecond := range []int{20, 200, 1000} {
		t.Run(fmt.Sprint(perSecond, " a second"), func(t *testing.T) {
			f := setUp(t)
			f.comment("hot", 10)
			f.start()
			var tails atomic.Int64
			r := f.reconciler(equipment{tails: &tails})
			f.activate(r)
			started := time.Now()
			stop := f.pace(perSecond, func(ctx context.Context, n int) error {
				if n%3 == 2 {
					_, err := f.rows.DeleteOne(ctx, bson.D{{Key: "post_id", Value: "hot"}, {Key: "deleted_at", Value: nil}})
					return err
				}
				_, err := f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: "hot"}})
				return err
			})
			judged := 0
			for range looks {
				report := f.run(r, Options{Key: raw("hot")})
				c := only(t, report)
				if c.Drift.Keys != 0 {
					t.Errorf("false drift: %s", show(report))
				}
				if report.Result == ResultOK && c.Checked == 1 {
					judged++
				}
			}
			writes := stop()
			t.Logf("%d of %d judged, %d of them in the middle of a group, at %.0f writes/s", judged, looks, tails.Load(),
				float64(writes)/time.Since(started).Seconds())
			if judged*100 < looks*95 {
				t.Errorf("%d of %d judged, want at least 95 %%", judged, looks)
			}
			f.wantExact()
			wantDrift(t, f.run(r, Options{Full: true}), nil)
		})
	}
}

func TestTouchedKeysUnderLoadShowNoDrift(t *testing.T) {
	const perSecond, posts = 2000, 300
	lasts := 6 * time.Second
	if soak() {
		lasts = time.Minute
	}
	f := setUp(t)
	f.start()
	var tails atomic.Int64
	r := f.reconciler(equipment{tails: &tails})
	f.activate(r)
	var stops []func() int
	const writers = 4
	for range writers {
		stops = append(stops, f.pace(perSecond/writers, f.mixed(posts)))
	}
	started := time.Now()
	runs := f.watch(r, func() {
		timer := time.NewTimer(lasts)
		defer timer.Stop()
		<-timer.C
	})
	writes := 0
	for _, stop := range stops {
		writes += stop()
	}
	t.Logf("%d runs, %d readings in the middle of a group, at %.0f writes/s", runs, tails.Load(), float64(writes)/time.Since(started).Seconds())
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

func TestFirstRecountUnderLoadIsExact(t *testing.T) {
	const posts = 400
	f := setUp(t)
	for i := range posts {
		if i%2 == 0 {
			f.comment(i, 5)
		}
	}
	r := f.reconciler(equipment{})
	r.rowsPerRange = 40
	stop := f.pace(500, f.mixed(posts))
	f.start()
	report := f.run(r, Options{})
	if c := only(t, report); report.Result != ResultOK || c.Drift.Keys != 0 || c.Rebased == 0 {
		t.Errorf("want keys rebased, and no drift: %s", show(report))
	}
	f.watch(r, func() {
		timer := time.NewTimer(time.Second)
		defer timer.Stop()
		<-timer.C
	})
	stop()
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

func TestTwoReconcilersUnderLoadShowNoDrift(t *testing.T) {
	const posts = 30 // few, so that the two meet
	f := setUp(t)
	f.start()
	f.activate(f.reconciler(equipment{}))
	stop := f.pace(1000, f.mixed(posts))
	var both sync.WaitGroup
	var runs, raced atomic.Int64
	for range 2 {
		r := f.reconciler(equipment{})
		both.Go(func() {
			for range 40 {
				report, err := r.RunOnce(t.Context(), Options{})
				if err != nil {
					t.Error(err)
					return
				}
				c := report.Counters[0]
				if report.Drifted() || int64(len(c.Skipped)) > min(1, c.Skipped[skipRaced]) {
					t.Errorf("want no drift, and at most keys raced: %s", show(report))
				}
				runs.Add(1)
				raced.Add(c.Skipped[skipRaced])
			}
		})
	}
	both.Wait()
	stop()
	t.Logf("%d runs, %d keys raced", runs.Load(), raced.Load())
	f.wantExact()
	wantDrift(t, f.run(f.reconciler(equipment{}), Options{Full: true}), nil)
}

// mixed does all that can happen to rows, one at a time.
func (f *fixture) mixed(posts int) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		some := bson.D{{Key: "post_id", Value: rand.IntN(posts)}}
		var err error
		switch dice := rand.IntN(100); {
		case dice < 55:
			_, err = f.rows.InsertOne(ctx, some)
		case dice < 70:
			_, err = f.rows.UpdateOne(ctx, append(some, bson.E{Key: "deleted_at", Value: nil}), set("deleted_at", time.Now()))
		case dice < 78:
			_, err = f.rows.UpdateOne(ctx, append(some, bson.E{Key: "deleted_at", Value: bson.D{{Key: "$ne", Value: nil}}}), set("deleted_at", nil))
		case dice < 86:
			_, err = f.rows.UpdateOne(ctx, some, set("post_id", rand.IntN(posts)))
		case dice < 96:
			_, err = f.rows.DeleteOne(ctx, some)
		default:
			_, err = f.rows.ReplaceOne(ctx, some, bson.D{{Key: "post_id", Value: rand.IntN(posts)}})
		}
		return err
	}
}

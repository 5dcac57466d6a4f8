package counter_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/realtest"
	"driftless/internal/reconciler"
)

// The recipes of design.md, section 2, as they are told, each in the interleaving that breaks it, and ours in the same
// one. Times are given, not taken: a recipe fails by what it asks, not by when the test happens to run.

// watermark is W of a recipe: rows created up to it are recounted.
var watermark = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

var (
	before = watermark.Add(-time.Minute)
	after  = watermark.Add(time.Minute)
)

// recipe is a post's rows and its counter document, kept by hand: no code of ours is in it.
type recipe struct {
	rows, counters *mongo.Collection
}

const post = "post"

func newRecipe(t testing.TB) *recipe {
	t.Helper()
	db := realtest.Client(t, realtest.Shared(t).URI()).Database(realtest.Database(t))
	r := &recipe{rows: db.Collection("rows"), counters: db.Collection("counters")}
	_, err := r.counters.InsertOne(t.Context(), bson.D{{Key: "_id", Value: post}, {Key: "count", Value: 0}, {Key: "base", Value: 0}, {Key: "live", Value: 0}})
	check(t, err)
	return r
}

// created inserts rows; the consumer hears of them by consumed.
func (r *recipe) created(t testing.TB, at time.Time, ids ...any) {
	t.Helper()
	for _, id := range ids {
		_, err := r.rows.InsertOne(t.Context(), bson.D{{Key: "_id", Value: id}, {Key: "created_at", Value: at}})
		check(t, err)
	}
}

func (r *recipe) deleted(t testing.TB, at time.Time, id any) {
	t.Helper()
	_, err := r.rows.UpdateOne(t.Context(), byID(id), bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: at}}}})
	check(t, err)
}

// consumed is what an incrementer does about an event: one $inc, and the delta with its time for the recipe that wants
// to tell what came after W.
func (r *recipe) consumed(t testing.TB, at time.Time, delta int) {
	t.Helper()
	_, err := r.counters.UpdateOne(t.Context(), byID(post), bson.D{
		{Key: "$inc", Value: bson.D{{Key: "count", Value: delta}, {Key: "live", Value: delta}}},
		{Key: "$push", Value: bson.D{{Key: "recent", Value: bson.D{{Key: "at", Value: at}, {Key: "delta", Value: delta}}}}},
	})
	check(t, err)
}

func (r *recipe) set(t testing.TB, fields bson.D) {
	t.Helper()
	_, err := r.counters.UpdateOne(t.Context(), byID(post), bson.D{{Key: "$set", Value: fields}})
	check(t, err)
}

type recipeCounter struct {
	Count, Base, Live int64
	Recent            []struct {
		At    time.Time
		Delta int64
	}
}

func (r *recipe) read(t testing.TB) recipeCounter {
	t.Helper()
	var c recipeCounter
	check(t, r.counters.FindOne(t.Context(), byID(post)).Decode(&c))
	return c
}

func (r *recipe) count(t testing.TB, filter bson.D) int64 {
	t.Helper()
	return must[int64](t)(r.rows.CountDocuments(t.Context(), filter))
}

var alive = bson.D{{Key: "deleted_at", Value: nil}}

// truthAtWatermark is what the recipe asks: rows created up to W that are not deleted.
func (r *recipe) truthAtWatermark(t testing.TB) int64 {
	t.Helper()
	return r.count(t, bson.D{{Key: "created_at", Value: bson.D{{Key: "$lte", Value: watermark}}}, {Key: "deleted_at", Value: nil}})
}

// rebase is the well-known recipe: base := truth, live -= truth - base. It returns what it takes for the drift.
func (r *recipe) rebase(t testing.TB) (drift int64) {
	t.Helper()
	truth, c := r.truthAtWatermark(t), r.read(t)
	drift = truth - c.Base
	_, err := r.counters.UpdateOne(t.Context(), byID(post), bson.D{
		{Key: "$set", Value: bson.D{{Key: "base", Value: truth}}}, {Key: "$inc", Value: bson.D{{Key: "live", Value: -drift}}},
	})
	check(t, err)
	return drift
}

// rebaseMended is that recipe with the obvious mend: live keeps only what came after W.
func (r *recipe) rebaseMended(t testing.TB) {
	t.Helper()
	truth := r.truthAtWatermark(t)
	var later int64
	for _, d := range r.read(t).Recent {
		if d.At.After(watermark) {
			later += d.Delta
		}
	}
	r.set(t, bson.D{{Key: "base", Value: truth}, {Key: "live", Value: later}})
}

// wantWrong holds a recipe to its fault: what it displays is not the truth, by exactly so much.
func (r *recipe) wantWrong(t testing.TB, displayed, by int64) {
	t.Helper()
	if truth := r.count(t, alive); displayed-truth != by {
		t.Errorf("the recipe displays %d of %d: got a drift of %d, want its fault, %d", displayed, truth, displayed-truth, by)
	}
}

// hook runs a function once in the middle of a run, at the moment that a command of the reconciler's client begins or
// has ended.
type hook struct {
	mutex      sync.Mutex
	command    string
	collection string
	ended      bool // when it has ended, instead of when it begins
	run        func()
	following  map[int64]bool
}

func (h *hook) started(_ context.Context, e *event.CommandStartedEvent) {
	name, _ := e.Command.Lookup(e.CommandName).StringValueOK()
	h.mutex.Lock()
	matches := h.run != nil && e.CommandName == h.command && name == h.collection
	if matches && h.ended {
		h.following[e.RequestID] = true
	}
	h.mutex.Unlock()
	if matches && !h.ended {
		h.fire()
	}
}

func (h *hook) succeeded(_ context.Context, e *event.CommandSucceededEvent) {
	h.mutex.Lock()
	matches := h.following[e.RequestID]
	h.mutex.Unlock()
	if matches {
		h.fire()
	}
}

func (h *hook) fire() {
	h.mutex.Lock()
	run := h.run
	h.run = nil
	h.mutex.Unlock()
	if run != nil {
		run()
	}
}

// ours is the same post, kept by our incrementer's pieces and our reconciler.
type ours struct {
	*deployment
	reconciler *reconciler.Reconciler
	hook       hook
}

// newOurs is past its first recount: from here on, every difference is drift.
func newOurs(t testing.TB) *ours {
	t.Helper()
	o := &ours{deployment: deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"})}
	o.hook.following = map[int64]bool{}
	client := realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetMonitor(&event.CommandMonitor{
		Started: o.hook.started, Succeeded: o.hook.succeeded,
	}))
	definitions := o.definitions[:1] // without the marker's
	o.reconciler = reconciler.New(client, o.database.Name(), definitions,
		config.Reconciler{BatchKeys: 500, JudgeTimeout: patience, PauseWhenLagging: patience, HoldMinKeys: 1000, HoldWhenDriftedShare: 1},
		reconciler.NewMetrics(prometheus.NewRegistry(), definitions), slog.New(slog.DiscardHandler))
	o.reconcile(t, nil)
	return o
}

// between runs f while a run is between its recount and its repair.
func between(f func()) *hook {
	return &hook{command: "aggregate", collection: source, ended: true, run: f}
}

// beforeRecount runs f while a run has read the position and the counter, and not yet the rows.
func beforeRecount(f func()) *hook {
	return &hook{command: "aggregate", collection: source, run: f}
}

// reconcile runs once over the touched keys and returns the drift that the run reports.
func (o *ours) reconcile(t testing.TB, in *hook) reconciler.Drift {
	t.Helper()
	if in != nil {
		o.hook.command, o.hook.collection, o.hook.ended, o.hook.run = in.command, in.collection, in.ended, in.run
	}
	report := must[*reconciler.Report](t)(o.reconciler.RunOnce(t.Context(), reconciler.Options{}))
	if !report.Complete() {
		t.Errorf("the run is not complete: %s, %+v", report.Result, *report.Counters[0])
	}
	if in != nil && o.hook.run != nil {
		t.Error("the run did not come by the place to interleave at")
	}
	return report.Counters[0].Drift
}

func (o *ours) created(t testing.TB, ids ...any) {
	t.Helper()
	for _, id := range ids {
		o.write(t, insert(comment(id, post, nil)))
	}
}

func (o *ours) wantDrift(t testing.TB, got reconciler.Drift, over, under int64) {
	t.Helper()
	if got.Over != over || got.Under != under {
		t.Errorf("reported drift: got %+v, want %d over and %d under", got, over, under)
	}
}

// spoil makes the displayed count wrong by so much, as a crash in a write service would.
func (o *ours) spoil(t testing.TB, by int64) {
	t.Helper()
	_, err := o.database.Collection(targetName).UpdateOne(t.Context(), byID(post), bson.D{{Key: "$inc", Value: bson.D{{Key: "comments_live", Value: by}, {Key: "comments_total", Value: by}}}})
	check(t, err)
}

// TestIncrementsDuringARepairSurvive: overwriting the count with what was counted loses those that came meanwhile.
func TestIncrementsDuringARepairSurvive(t *testing.T) {
	t.Parallel()
	t.Run("overwrite loses them", func(t *testing.T) {
		t.Parallel()
		r := newRecipe(t)
		r.created(t, before, 1, 2, 3)
		r.set(t, bson.D{{Key: "count", Value: 5}}) // wrong by 2
		counted := r.count(t, alive)
		r.created(t, after, 4)
		r.consumed(t, after, +1)
		r.set(t, bson.D{{Key: "count", Value: counted}})
		r.wantWrong(t, r.read(t).Count, -1)
	})
	t.Run("ours keeps them", func(t *testing.T) {
		t.Parallel()
		o := newOurs(t)
		o.created(t, 1, 2, 3)
		o.catchUp(t)
		o.spoil(t, +2)
		drift := o.reconcile(t, between(func() {
			o.created(t, 4)
			o.catchUp(t)
		}))
		o.wantDrift(t, drift, 2, 0)
		o.wantCounts(t, "comments", map[any]int64{post: 4})
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
	})
}

// TestARepairChangesWhatIsDisplayed (F1): moving a difference from one part of a sum to the other leaves the sum wrong.
func TestARepairChangesWhatIsDisplayed(t *testing.T) {
	t.Parallel()
	t.Run("rebase leaves it wrong", func(t *testing.T) {
		t.Parallel()
		r := newRecipe(t)
		r.created(t, before, 1, 2, 3)
		r.set(t, bson.D{{Key: "live", Value: 5}})
		for range 3 { // for ever
			r.rebase(t)
			c := r.read(t)
			r.wantWrong(t, c.Base+c.Live, +2)
		}
	})
	t.Run("ours makes it right", func(t *testing.T) {
		t.Parallel()
		o := newOurs(t)
		o.created(t, 1, 2, 3)
		o.catchUp(t)
		o.spoil(t, +2)
		o.wantDrift(t, o.reconcile(t, nil), 2, 0)
		o.wantCounts(t, "comments", map[any]int64{post: 3})
	})
}

// TestGrowthIsNotDrift (F2): what a healthy post has grown by since the last run is no error.
func TestGrowthIsNotDrift(t *testing.T) {
	t.Parallel()
	t.Run("rebase alarms", func(t *testing.T) {
		t.Parallel()
		r := newRecipe(t)
		r.created(t, before, 1, 2, 3)
		for range 3 {
			r.consumed(t, before, +1)
		}
		c := r.read(t)
		r.wantWrong(t, c.Base+c.Live, 0) // it is right
		if drift := r.rebase(t); drift != 3 {
			t.Errorf("drift by the recipe: got %d, want its false alarm, 3", drift)
		}
	})
	t.Run("ours does not", func(t *testing.T) {
		t.Parallel()
		o := newOurs(t)
		o.created(t, 1, 2, 3)
		o.catchUp(t)
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
		o.created(t, 4, 5)
		o.catchUp(t)
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
		o.wantCounts(t, "comments", map[any]int64{post: 5})
	})
}

// TestARowDeletedDuringARecountIsTakenOffOnce (F3): "created up to W and not deleted" is asked now, not at W.
func TestARowDeletedDuringARecountIsTakenOffOnce(t *testing.T) {
	t.Parallel()
	t.Run("the mended rebase takes it off twice", func(t *testing.T) {
		t.Parallel()
		r := newRecipe(t)
		r.created(t, before, 1, 2)
		r.consumed(t, before, +1)
		r.consumed(t, before, +1)
		r.deleted(t, after, 1)
		r.consumed(t, after, -1)
		r.rebaseMended(t)
		c := r.read(t)
		r.wantWrong(t, c.Base+c.Live, -1)
	})
	for _, c := range []struct {
		name string
		when func(func()) *hook
		how  mongo.WriteModel
	}{
		{"ours, soft delete before the recount", beforeRecount, set(1, bson.D{{Key: "deleted_at", Value: after}})},
		{"ours, hard delete before the recount", beforeRecount, remove(1)},
		{"ours, soft delete after the recount", between, set(1, bson.D{{Key: "deleted_at", Value: after}})},
	} {
		for _, applied := range []bool{false, true} {
			name := c.name
			if applied {
				name += ", applied at once"
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				o := newOurs(t)
				o.created(t, 1, 2)
				o.catchUp(t)
				drift := o.reconcile(t, c.when(func() {
					o.write(t, c.how)
					if applied {
						o.catchUp(t)
					}
				}))
				o.wantDrift(t, drift, 0, 0)
				o.catchUp(t)
				o.wantCounts(t, "comments", map[any]int64{post: 1})
				o.wantDrift(t, o.reconcile(t, nil), 0, 0)
			})
		}
	}
}

// TestAConsumerThatLagsIsNotCountedAhead (F4): a row older than W may still be on its way into live_delta.
func TestAConsumerThatLagsIsNotCountedAhead(t *testing.T) {
	t.Parallel()
	t.Run("the mended rebase counts it twice", func(t *testing.T) {
		t.Parallel()
		r := newRecipe(t)
		r.created(t, before, 1, 2)
		r.consumed(t, before, +1) // the second is on its way
		r.rebaseMended(t)
		r.consumed(t, before, +1)
		c := r.read(t)
		r.wantWrong(t, c.Base+c.Live, +1)
	})
	t.Run("ours waits for it", func(t *testing.T) {
		t.Parallel()
		o := newOurs(t)
		o.created(t, 1)
		o.catchUp(t)
		o.created(t, 2, 3) // on their way
		o.write(t, remove(1))
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
		if got := o.displayed(t, "comments")[canonical(t, post)]; got != 1 {
			t.Errorf("displayed at the consumer's position: got %d, want 1", got)
		}
		o.catchUp(t)
		o.wantCounts(t, "comments", map[any]int64{post: 2})
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
	})
	t.Run("ours repairs what is wrong and still waits", func(t *testing.T) {
		t.Parallel()
		o := newOurs(t)
		o.created(t, 1)
		o.catchUp(t)
		o.spoil(t, -4)
		o.created(t, 2)
		o.wantDrift(t, o.reconcile(t, nil), 0, 4)
		o.catchUp(t)
		o.wantCounts(t, "comments", map[any]int64{post: 2})
		o.wantDrift(t, o.reconcile(t, nil), 0, 0)
	})
}

package reconciler

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// keptPosts makes so many posts of a counter that the application keeps, of which the first are wrong by one.
func keptPosts(t *testing.T, posts, wrong int, edits ...func(*config.Config)) *fixture {
	t.Helper()
	f := kept(t, edits...)
	f.posts(posts)
	field := "comment_count"
	if f.config.Counters[0].Target.Count == "" {
		field = "live_delta"
	}
	documents := make([]any, posts)
	for i := range documents {
		n := 1 + i%3 // as posts makes them
		if i < wrong {
			n++
		}
		documents[i] = bson.D{{Key: "_id", Value: i}, {Key: field, Value: n}}
	}
	must(f.targets.InsertMany(t.Context(), documents))(t)
	return f
}

// put makes the first n posts right, or wrong, by as much.
func (f *fixture) put(n, by int) {
	f.t.Helper()
	must(f.targets.UpdateMany(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: n}}}}, inc("comment_count", by)))(f.t)
}

// written increments some posts all the time, so that nobody knows what of them is under way.
func (f *fixture) written(from, to int) (stop func() int) {
	f.t.Helper()
	var done atomic.Int64
	stop = f.pace(40, func(ctx context.Context, n int) error {
		_, err := f.targets.UpdateByID(ctx, from+n%(to-from), inc("comment_count", 1))
		done.Add(1)
		return err
	})
	realtest.Eventually(f.t, patience, "each is written to", func() bool { return done.Load() >= int64(to-from) })
	return stop
}

func TestTooManyDriftedKeysOfAKeptCounterAreHeldUntilApproved(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*config.Config){
		"difference": func(*config.Config) {}, "overwrite": overwriting, "split fields": splitFields,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := keptPosts(t, 200, 60, edit)
			r := f.reconciler(equipment{})
			before := f.hashTargets()
			first := f.run(r, Options{Wait: true})
			wantHeld(t, first, 60)
			wantHeld(t, f.run(r, Options{Full: true, Wait: true}), 60)
			if f.hashTargets() != before || len(f.entries()) != 0 || f.stateOf(counterName).Held != first.Run {
				t.Errorf("a run that held the repairs changed a document, or %+v is not held by %s", f.stateOf(counterName), first.Run)
			}
			if run, err := r.history.Run(t.Context(), first.Run); err != nil || run.Result != ResultHeld || len(run.Held) != 1 {
				t.Errorf("the record of the run: %+v, %v", run, err)
			}
			// Looking holds nothing, and ends no hold.
			report := f.run(r, Options{DryRun: true, Wait: true})
			if c := only(t, report); report.Result != ResultOK || c.Drift.Keys != 60 || f.stateOf(counterName).Held != first.Run {
				t.Errorf("a dry run: %s", show(report))
			}
			// For one key somebody has asked.
			if c := only(t, f.run(r, Options{Key: raw(0), Wait: true})); c.Repaired != 1 || f.stateOf(counterName).Held != first.Run {
				t.Errorf("one key: %+v", *c)
			}
			report = f.run(r, Options{Approved: []string{counterName}, Wait: true})
			if c := only(t, report); report.Result != ResultOK || c.Repaired != 59 || f.stateOf(counterName).Held != "" {
				t.Errorf("after the approval: %s, %+v", show(report), f.stateOf(counterName))
			}
			wantDrift(t, f.run(r, Options{Wait: true}), nil)
		})
	}
}

func TestAFewDriftedKeysOfAKeptCounterAreRepairedAtOnce(t *testing.T) {
	t.Parallel()
	f := keptPosts(t, 200, 40, func(c *config.Config) { c.Reconciler.BatchKeys = 10 }) // at the limit
	looks, before := 0, 0                                                              // of all, and before the first repair
	r := f.reconciler(equipment{started: func(e *event.CommandStartedEvent) {
		if isOn(e, "aggregate", "comments") {
			looks++
		}
		if isOn(e, "insert", counter.RepairsCollection) && before == 0 {
			before = looks
		}
	}})
	report := f.run(r, Options{Wait: true})
	if c := only(t, report); report.Result != ResultOK || c.Repaired != 40 || len(f.entries()) != 40 {
		t.Errorf("%s", show(report))
	}
	if looks-before < 3 { // of three more batches
		t.Error("the first batch waited for the last, although no more could be wrong than may be")
	}
	if state := f.stateOf(counterName); state.Held != "" {
		t.Errorf("held: %+v", state)
	}
}

// A counter stays held until it is approved or found right: neither fewer wrong keys nor keys that nobody could judge end it.
func TestAKeptCounterStaysHeldUntilItIsFoundRight(t *testing.T) {
	t.Parallel()
	f := keptPosts(t, 200, 60)
	r := f.reconciler(equipment{})
	wantHeld(t, f.run(r, Options{Wait: true}), 60)
	f.put(60, -1)
	f.put(3, 1)
	wantHeld(t, f.run(r, Options{Wait: true}), 3)
	stop := f.written(0, 3)
	report := f.run(r, Options{})
	if c := only(t, report); c.Skipped[skipBusy] != 3 || f.stateOf(counterName).Held == "" {
		t.Errorf("%s, %+v", show(report), f.stateOf(counterName))
	}
	stop()
	for i := range 3 {
		f.edit(i, set("comment_count", 1+i%3))
	}
	wantDrift(t, f.run(r, Options{Wait: true}), nil)
	if held := f.stateOf(counterName).Held; held != "" {
		t.Errorf("held by %s", held)
	}
	f.put(3, 1)
	if c := only(t, f.run(r, Options{Wait: true})); c.Repaired != 3 {
		t.Errorf("%+v", *c)
	}
}

// Repairs that had to wait for the share overwrite nothing that has come meanwhile.
func TestAnOverwriteThatHasWaitedLosesNothing(t *testing.T) {
	t.Parallel()
	f := keptPosts(t, 40, 6, overwriting, func(c *config.Config) { c.Reconciler.HoldMinKeys, c.Reconciler.BatchKeys = 10, 3 })
	r := f.reconciler(equipment{started: once(func(e *event.CommandStartedEvent) bool { return isOn(e, "insert", counter.RepairsCollection) }, func() {
		f.comment(0, 1)
		f.edit(0, inc("comment_count", 1))
	})})
	defer f.written(10, 15)() // they differ as well, and might be wrong
	report := f.run(r, Options{Wait: true})
	if c := only(t, report); c.Repaired != 5 || c.Skipped[skipRaced] != 1 || c.Skipped[skipBusy] != 5 {
		t.Errorf("%s", show(report))
	}
	f.wantField(0, "comment_count", int32(3))
}

// What stands in the record is believed only of the very counter, and a record is not taken away from whoever is at work.
func TestTheRecordOfAKeptCounterIsItsOwn(t *testing.T) {
	t.Parallel()
	f := keptPosts(t, 20, 1)
	d := f.definitions[0]
	r := f.reconciler(equipment{})
	other := counter.State{Name: d.Name, Hash: "another"}
	f.check(f.states.Mark(t.Context(), &counter.Definition{Counter: d.Counter, Hash: other.Hash}, counter.ReasonGap))
	other = f.stateOf(d.Name)
	other.Held = "run"
	must(f.state.Collection(counter.StatesCollection).UpdateByID(t.Context(), d.Name, set("held", other.Held)))(t)
	lanes := checkpoint.NewLeases(f.client, f.state.Name(), "an incrementer", patience)
	must(f.state.Collection(checkpoint.Collection).InsertOne(t.Context(), bson.D{
		{Key: "_id", Value: "elsewhere"}, {Key: "counters", Value: bson.D{{Key: d.Name, Value: bson.D{{Key: "hash", Value: other.Hash}}}}},
	}))(t)
	must(lanes.Acquire(t.Context(), "elsewhere"))(t)
	report := f.run(r, Options{Wait: true})
	wantSkips(t, report, map[string]int64{skipDefinition: 1})
	if f.stateOf(d.Name).Hash != other.Hash {
		t.Error("the record was taken away")
	}
	wantDrift(t, f.run(r, Options{DryRun: true, Wait: true}), map[any]int64{0: 1})

	f.check(lanes.Release(t.Context(), "elsewhere"))
	if other.HeldBy(d) != "" {
		t.Error("another's hold is believed")
	}
	wantDrift(t, f.run(r, Options{Wait: true}), map[any]int64{0: 1})
	state := f.stateOf(d.Name)
	if state.Hash != d.Hash || state.State != counter.Active || state.Held != "" || state.Reason != "" || state.UpdatedAt.IsZero() {
		t.Errorf("the record is %+v", state)
	}
	f.run(r, Options{Wait: true})
	again := f.stateOf(d.Name)
	if !state.VerifiedThrough.Before(again.VerifiedThrough) {
		t.Errorf("verified through %v, and then %v", state.VerifiedThrough, again.VerifiedThrough)
	}
	if again.VerifiedThrough = state.VerifiedThrough; fmt.Sprint(again) != fmt.Sprint(state) {
		t.Errorf("the next run made %+v of it", again)
	}
}

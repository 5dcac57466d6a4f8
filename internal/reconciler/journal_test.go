package reconciler

import (
	"bytes"
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// journal is all entries, the oldest first.
func (f *fixture) journal() []counter.Entry {
	f.t.Helper()
	cursor := must(f.state.Collection(counter.RepairsCollection).Find(f.t.Context(), bson.D{}, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))(f.t)
	var entries []counter.Entry
	f.check(cursor.All(f.t.Context(), &entries))
	return entries
}

// emptyJournal forgets all repairs so far.
func (f *fixture) emptyJournal() {
	f.t.Helper()
	must(f.state.Collection(counter.RepairsCollection).DeleteMany(f.t.Context(), bson.D{}))(f.t)
}

// wantJournalled fails unless the journal tells exactly how the documents came to what they hold: each entry begins with what
// the one before left, less what increments did.
func (f *fixture) wantJournalled(want map[any]int64) {
	f.t.Helper()
	got := map[string]int64{}
	for _, e := range f.journal() {
		got[e.Key] += e.Drift
		if moved := e.After.Base + e.After.Live - e.Before.Base - e.Before.Live; moved != -e.Drift {
			f.t.Errorf("the drift was %d, and the entry moves %d: %+v", e.Drift, moved, e)
		}
	}
	for key, n := range want {
		if name := raw(key).String(); got[name] != n {
			f.t.Errorf("the journal of %v comes to %d, want %d", key, got[name], n)
		}
		delete(got, raw(key).String())
	}
	if len(got) != 0 {
		f.t.Errorf("the journal has others as well: %v", got)
	}
}

func TestEveryRepairIsJournalled(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("high", 3)
	f.comment("gone", 2)
	f.comment("right", 1)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	for _, e := range f.journal() {
		if !e.Rebased || e.Before != (counter.Values{}) && !e.Made {
			t.Errorf("the first count is an entry of its own kind: %+v", e)
		}
	}
	f.emptyJournal()
	f.plant("high", 5)
	must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "gone"}}))(t)
	f.touch("right")

	report := f.run(r, Options{Full: true})
	wantDrift(t, report, map[any]int64{"high": 5, "gone": -2})
	f.wantJournalled(map[any]int64{"high": 5, "gone": -2})
	for _, e := range f.journal() {
		document := f.document(map[string]any{raw("high").String(): "high", raw("gone").String(): "gone"}[e.Key])
		if e.Run != report.Run || e.Counter != counterName || e.Position.IsZero() || e.At.IsZero() || e.ExpiresAt.Sub(e.At).Round(1e9) != counter.KeptFor ||
			e.Made != (e.Drift < 0) || e.Rebased || lookup(document, "driftless."+counterName+".repair").ObjectID() != e.ID {
			t.Errorf("entry %+v of %v", e, document)
		}
		if e.Drift > 0 && (e.Before != counter.Values{Base: 8, Total: 3} || e.After != counter.Values{Base: 3, Total: 3} || e.Truth != 3 || e.Cause != string(CauseEdited)) {
			t.Errorf("entry %+v", e)
		}
	}
	f.wantExact()
}

// A run that is killed at any of its commands has repaired, journalled and told of a key, or left it as it was, and the next
// one goes on at once.
func TestAKillAtAnyStepOfARepairLosesNoEntryAndRepairsNothingTwice(t *testing.T) {
	t.Parallel()
	for what, after := range map[string]bool{"before a command": false, "after it came true": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, noUpsert)
			const keys = 3
			want := map[any]int64{}
			for i := range keys {
				must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}))(t)
				f.comment(i, 1)
			}
			f.start()
			f.activate(f.reconciler(equipment{}))
			f.emptyJournal()
			for step, ended := 1, false; !ended; step++ {
				for i := range keys {
					f.plant(i, 5)
					want[i] += 5
				}
				f.check(f.definitions[0].Touch(t.Context(), f.states, []bson.RawValue{raw(0), raw(1), raw(2)}))
				before := len(f.journal())
				var told int
				ended, told = f.killedAt(step, after)
				if entries := len(f.journal()) - before; entries != 0 && entries != keys || told < entries {
					t.Errorf("%d keys journalled, and %d told of", entries, told)
				}
				if report := f.run(f.reconciler(equipment{}), Options{}); report.Result != ResultOK {
					t.Errorf("the run after it: %s", show(report))
				}
				f.wantJournalled(want)
				for i := range keys {
					f.wantShown(i, 1)
				}
				if _, marks := f.marks(); marks != 0 {
					t.Errorf("%d marks left", marks)
				}
				if t.Failed() {
					t.Fatalf("killed at step %d", step)
				}
				if ended {
					t.Logf("%d steps", step)
				}
			}
		})
	}
}

// killedAt runs a reconciler whose goroutine ends at its nth command from the first of its repairs on, and leaves on the
// server what it had begun. It reports whether the run ended before, and of how many keys it told.
func (f *fixture) killedAt(step int, after bool) (ended bool, told int) {
	f.t.Helper()
	var log bytes.Buffer
	commands, repairing := 0, false
	count := func() {
		if repairing {
			commands++
		}
		if commands == step {
			repairing, commands = false, 0
			runtime.Goexit()
		}
	}
	r := f.reconciler(equipment{
		log: slog.NewTextHandler(&log, nil),
		started: func(e *event.CommandStartedEvent) {
			repairing = repairing || e.CommandName == "findAndModify" // takes its session
			if !after {
				count()
			}
		},
		done: func() {
			if after {
				count()
			}
		},
	})
	var running sync.WaitGroup
	running.Go(func() {
		_, err := r.RunOnce(f.t.Context(), Options{})
		ended = err == nil
	})
	running.Wait()
	repairing = false // the farewell of its client, after all tests
	return ended, strings.Count(log.String(), `msg="counter drifted"`)
}

// Two reconcilers that repair at the same time journal what each has repaired.
func TestTwoReconcilersJournalEachRepairOnce(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(c *config.Config) { c.Reconciler.HoldMinKeys = 1000 })
	const keys = 120 // several transactions
	want := map[any]int64{}
	for i := range keys {
		f.comment(i, 1)
		want[i] = 5
	}
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.emptyJournal()
	for i := range keys {
		f.plant(i, 5)
	}
	var both, runs sync.WaitGroup
	both.Add(2)
	var repaired atomic.Int64
	for range 2 {
		r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() {
			both.Done()
			both.Wait()
		})})
		runs.Go(func() {
			report, err := r.RunOnce(t.Context(), Options{Full: true})
			if err != nil {
				t.Error(err)
				return
			}
			repaired.Add(report.Counters[0].Repaired)
		})
	}
	runs.Wait()
	if repaired.Load() != keys {
		t.Errorf("repaired %d keys, want %d", repaired.Load(), keys)
	}
	f.wantJournalled(want)
	f.wantExact()
}

// Keys that increments come to all the time are repaired, whatever conflicts there are, and the increments survive.
func TestHotKeysAreRepairedUnderLoad(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(c *config.Config) { c.Reconciler.JudgeTimeout = patience })
	const keys = 60
	want := map[any]int64{}
	for i := range keys {
		f.comment(i, 1)
		want[i] = 5
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.emptyJournal()
	for i := range keys {
		f.plant(i, 5)
	}
	stop := f.pace(1500, func(ctx context.Context, n int) error {
		_, err := f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: n % keys}})
		return err
	})
	report := f.run(r, Options{Full: true})
	wantDrift(t, report, want)
	t.Logf("%d rows beside", stop())
	if c := only(t, report); c.Repaired != keys {
		t.Errorf("want every key repaired: %+v", *c)
	}
	f.wantJournalled(want)
	f.wantExact()
}

// A document that somebody else's transaction holds is left for the next run, and the others are repaired.
func TestADocumentThatIsHeldForLongIsLeftAndTheOthersAreRepaired(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 5 {
		f.comment(i, 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	for i := range 5 {
		f.plant(i, 5)
	}
	session := must(f.client.StartSession())(t)
	defer session.EndSession(t.Context())
	f.check(session.StartTransaction())
	ctx := mongo.NewSessionContext(t.Context(), session)
	must(f.targets.UpdateByID(ctx, 2, set("other", 1)))(t)
	if c := only(t, f.run(r, Options{Full: true})); c.Repaired != 4 || c.Skipped[skipBusy] != 1 || c.Drift.Keys != 5 {
		t.Errorf("want the four others repaired: %+v", *c)
	}
	f.check(session.CommitTransaction(ctx))
	wantDrift(t, f.run(r, Options{}), map[any]int64{2: 5}) // it was marked for the next run
	f.wantExact()
}

// What was set apart for a key goes with its repair, in the same transaction.
func TestDeadLettersOfARepairedKeyGoWithTheRepair(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.emptyJournal()
	f.edit("a", set("live_delta", "text"))
	f.comment("a", 2)
	f.catchUp()
	f.edit("a", set("live_delta", int64(1)))
	f.edit("a", set("base_count", int64(0)))
	letters := func() int64 {
		return must(f.state.Collection(counter.DeadLettersCollection).CountDocuments(t.Context(), bson.D{}))(t)
	}
	if letters() != 1 {
		t.Fatalf("%d dead letters, want 1", letters())
	}
	r := f.reconciler(equipment{started: once(func(e *event.CommandStartedEvent) bool { return e.CommandName == "commitTransaction" }, func() {
		if letters() != 1 {
			t.Error("the dead letter went before the repair")
		}
	})})
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": -2})
	if _, state := f.marks(); letters() != 0 || state != 0 || len(f.journal()) != 1 {
		t.Errorf("%d dead letters, %d marks, %d entries", letters(), state, len(f.journal()))
	}
	f.wantExact()
}

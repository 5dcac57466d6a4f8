package reconciler

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// guarded makes a fixture of so many posts whose counters are right, and the guard begins with ten keys.
func guarded(t *testing.T, posts int, edits ...func(*config.Config)) (*fixture, *Reconciler) {
	t.Helper()
	f := setUp(t, append(edits, func(c *config.Config) { c.Reconciler.HoldMinKeys, c.Reconciler.BatchKeys = 10, 7 })...)
	for i := range posts {
		must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}))(t)
	}
	f.posts(posts)
	f.start()
	r := f.reconciler(equipment{})
	r.rowsPerRange = 4
	f.activate(r)
	f.emptyJournal()
	return f, r
}

// spoil makes the first n posts wrong by one.
func (f *fixture) spoil(n int) {
	f.t.Helper()
	must(f.targets.UpdateMany(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: n}}}}, inc("base_count", int64(1))))(f.t)
}

// wantHeld fails unless a run held so many keys, and repaired none.
func wantHeld(t *testing.T, report *Report, keys int64) {
	t.Helper()
	if c := only(t, report); report.Result != ResultHeld || c.Skipped[skipHeld] != keys || c.Drift.Keys != keys || c.Repaired != 0 {
		t.Errorf("want %d keys held: %s", keys, show(report))
	}
}

func TestTooManyDriftedKeysAreHeldUntilApproved(t *testing.T) {
	t.Parallel()
	for name, noUpserts := range map[string][]func(*config.Config){"marked in their documents": nil, "marked in the state database": {noUpsert}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, r := guarded(t, 40, noUpserts...)
			f.spoil(9)
			before := f.hashTargets()
			report := f.run(r, Options{Full: true})
			wantHeld(t, report, 9)
			if f.stateOf(counterName).Held != report.Run {
				t.Errorf("the state does not say who held it: %+v", f.stateOf(counterName))
			}
			if f.hashTargets() != before || len(f.journal()) != 0 {
				t.Error("a run that held the repairs changed a document")
			}
			// The next run looks at them again, also among others that are right, and holds them still.
			wantHeld(t, f.run(r, Options{}), 9)
			if run, err := r.history.Run(t.Context(), report.Run); err != nil || run.Result != ResultHeld || len(run.Held) != 1 || !run.Full {
				t.Errorf("the record of the run: %+v, %v", run, err)
			}

			report = f.run(r, Options{Approved: []string{counterName}})
			if c := only(t, report); report.Result != ResultOK || c.Repaired != 9 {
				t.Errorf("after the approval: %s", show(report))
			}
			if f.stateOf(counterName).Held != "" {
				t.Error("it is held still")
			}
			wantDrift(t, f.run(r, Options{Full: true}), nil)
			f.spoil(9)
			wantHeld(t, f.run(r, Options{Full: true}), 9) // approved was one run
		})
	}
}

// hashTargets stands for the counter documents.
func (f *fixture) hashTargets() string {
	f.t.Helper()
	reply := must(f.client.Database(f.rows.Database().Name()).RunCommand(f.t.Context(),
		bson.D{{Key: "dbHash", Value: 1}, {Key: "collections", Value: bson.A{f.targets.Name()}}}).Raw())(f.t)
	return reply.Lookup("md5").StringValue()
}

func TestTheGuardLeavesAloneWhatIsNoSignOfAWrongRecount(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		posts  int
		edit   func(*config.Config)
		do     func(*fixture)
		o      Options
		repair int64
	}{
		"a share at the limit": {40, nil, func(f *fixture) { f.spoil(8) }, Options{Full: true}, 8},
		"few keys checked":     {9, nil, func(f *fixture) { f.spoil(9) }, Options{Full: true}, 9},
		"the guard is off":     {40, func(c *config.Config) { c.Reconciler.HoldWhenDriftedShare = 1 }, func(f *fixture) { f.spoil(40) }, Options{Full: true}, 40},
		"one key":              {1, func(c *config.Config) { c.Reconciler.HoldMinKeys = 0 }, func(f *fixture) { f.spoil(1) }, Options{Key: raw(0)}, 1},
		"documents are gone": {40, nil, func(f *fixture) {
			must(f.targets.DeleteMany(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 15}}}}))(f.t)
		}, Options{Full: true}, 15},
		"the recount has a reason": {40, nil, func(f *fixture) {
			f.spoil(40)
			f.check(f.states.Mark(f.t.Context(), f.definitions[0], counter.ReasonGap))
		}, Options{}, 40},
		"the target was emptied": {40, nil, func(f *fixture) {
			must(f.targets.DeleteMany(f.t.Context(), bson.D{}))(f.t)
		}, Options{}, 40},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, r := guarded(t, tt.posts)
			if tt.edit != nil {
				tt.edit(f.config)
				r = f.reconciler(equipment{})
			}
			tt.do(f)
			report := f.run(r, tt.o)
			if c := only(t, report); report.Result != ResultOK || c.Repaired != tt.repair {
				t.Errorf("want %d keys repaired: %s", tt.repair, show(report))
			}
			f.wantExact()
		})
	}
}

// A counter whose held keys turn out to be right, because somebody has mended them, is held no more.
func TestAHoldEndsWhenNothingIsWrongAnyMore(t *testing.T) {
	t.Parallel()
	f, r := guarded(t, 40)
	f.spoil(20)
	wantHeld(t, f.run(r, Options{Full: true}), 20)
	must(f.targets.UpdateMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 20}}}}, inc("base_count", int64(-1))))(t)
	wantDrift(t, f.run(r, Options{}), nil)
	if held := f.stateOf(counterName).Held; held != "" {
		t.Errorf("held by %s", held)
	}
	f.spoil(1)
	wantDrift(t, f.run(r, Options{Full: true}), map[any]int64{0: 1})
	f.wantExact()
}

// Each run says what it came to, in the order of their beginning; one that was cut off, what it has repaired.
func TestRunsAreRecorded(t *testing.T) {
	t.Parallel()
	f, r := guarded(t, 12)
	f.plant(1, 5)
	f.plant(2, -3)
	first := f.run(r, Options{Full: true})
	f.run(r, Options{Full: true, DryRun: true}) // writes nothing
	last := f.run(r, Options{})
	runs := must(r.history.Last(t.Context(), 2))(t)
	if len(runs) != 2 || runs[0].ID != last.Run || runs[1].ID != first.Run {
		t.Fatalf("runs %+v", runs)
	}
	run := runs[1]
	c := run.Counters[0]
	if run.Result != ResultOK || !run.Full || run.Finished.Before(run.Started) || c.Checked != 12 || c.Repaired != 2 ||
		c.Drift.Over != 5 || c.Drift.Under != 3 || c.Drift.Keys != 2 || c.Drift.Max != 5 || c.VerifiedThrough.IsZero() ||
		len(c.Drifted) != 2 || c.Drifted[0] != (RunDrift{"1", 7, 2, 5, string(CauseEdited)}) {
		t.Errorf("the record %+v of %s", run, show(first))
	}
	must(f.state.Collection(counter.RunsCollection).UpdateByID(t.Context(), first.Run, bson.D{
		{Key: "$set", Value: bson.D{{Key: "result", Value: ResultUnfinished}, {Key: "counters", Value: bson.A{}}}},
	}))(t)
	cut := must(r.history.Last(t.Context(), 2))(t)[1].Counters
	if len(cut) != 1 || cut[0].Repaired != 2 || cut[0].Drift.Over != 5 || cut[0].Drift.Under != 3 || len(cut[0].Drifted) != 2 || cut[0].Drifted[0] != c.Drifted[0] {
		t.Errorf("what the journal says of a run that was cut off: %+v", cut)
	}
}

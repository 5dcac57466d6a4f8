package reconciler

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// impatient makes a run give up soon.
func impatient(c *config.Config) { c.Reconciler.JudgeTimeout = 300 * time.Millisecond }

// wantNotJudged fails unless the run could not judge its one counter, and says why.
func wantNotJudged(t *testing.T, r *Report, reason, words string) {
	t.Helper()
	c := only(t, r)
	if r.Result != ResultSkipped || c.Skipped[reason] != 1 || len(c.Skipped) != 1 || !strings.Contains(c.Why, words) || c.Drift.Keys != 0 {
		t.Errorf("want it skipped as %s, with %q: %s", reason, words, show(r))
	}
	if !c.VerifiedThrough.IsZero() {
		t.Error("verified through a position that was not judged")
	}
}

func TestNothingIsJudgedWithoutAnIncrementer(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.comment("a", 1)
	for _, o := range []Options{{}, {Full: true}, {Key: raw("a")}, {DryRun: true}} {
		wantNotJudged(t, f.run(f.reconciler(equipment{}), o), skipNoCheckpoint, "incrementer run")
	}
	if f.document("a") != nil {
		t.Error("a counter document was written")
	}
}

func TestNothingIsJudgedByAnotherDefinition(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient, twoCounters)
	f.comment("a", 1)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.config.Counters[0].SoftDelete = "" // the incrementer knows nothing of it
	definitions := must(counter.DefineAll(f.config.Counters))(t)
	f.definitions = definitions
	r := f.reconciler(equipment{})

	wantNotJudged(t, f.run(r, Options{Counter: counterName, Full: true}), skipDefinition, "another definition")
	report := f.run(r, Options{Full: true})
	if report.Result != ResultPartial || report.Counters[1].Checked != 1 || len(report.Counters[1].Skipped) != 0 {
		t.Errorf("want the other counter judged: %s", show(report))
	}
	f.wantExact()
}

func TestStalePositionIsNotJudgedUntilTheIncrementerIsBack(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{OplogMB: 64, CacheGB: 0.25, Params: map[string]string{"minSnapshotHistoryWindowInSeconds": "4"}})
	f := setUpOn(t, server.URI(), impatient)
	f.comment("a", 2)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.stop()
	f.plant("a", 3)

	realtest.Eventually(t, patience, "the snapshot of the position to go", func() bool {
		f.now() // writes move the window
		return f.run(r, Options{Full: true, DryRun: true}).Result != ResultOK
	})
	report := f.run(r, Options{Full: true})
	wantNotJudged(t, report, skipStale, "is the incrementer running?")
	f.wantShown("a", 5) // never recounted against a stale position

	// The run waits, and the incrementer comes back meanwhile.
	f.config.Reconciler.JudgeTimeout = patience
	waiting := make(chan struct{})
	r = f.reconciler(equipment{started: onCommand("aggregate", func() { closeOnce(waiting) })})
	reports := make(chan *Report, 1)
	go func() {
		report, err := r.RunOnce(t.Context(), Options{Full: true})
		if err != nil {
			t.Error(err)
		}
		reports <- report
	}()
	<-waiting
	f.start()
	wantDrift(t, <-reports, map[any]int64{"a": 3})
	f.wantExact()
}

func TestInterruptedCountIsTakenInSmallerBatches(t *testing.T) {
	t.Parallel()
	const posts = 20
	f := setUp(t)
	for i := range posts {
		f.comment(i, 1)
	}
	f.start()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	f.activate(r)
	for name, failure := range map[string]realtest.Failure{
		"killed":            {Code: 11601, Times: 3},
		"out of time":       {Code: 50, Times: 3},
		"cursor gone":       {Code: 43, Times: 3},
		"out of memory":     {Code: 292, Times: 3},
		"snapshot gone":     {Code: 246, Times: 2},
		"snapshot too old":  {Code: 239, Times: 2},
		"failover":          {Code: 11602, Times: 3},
		"connection closed": {CloseConnection: true, Times: 3},
	} {
		for _, full := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, full %v", name, full), func(t *testing.T) {
				want := map[any]int64{}
				for i := range posts {
					f.touch(i)
					if i%4 == 0 {
						want[i] = 2
						f.plant(i, 2)
					}
				}
				failure.AppName, failure.Commands = app, []string{"aggregate"}
				fail := realtest.FailCommand(t, f.client, failure)
				report := f.run(r, Options{Full: full})
				if n := must(fail.TimesEntered(t.Context()))(t); n != failure.Times {
					t.Errorf("the fail point was entered %d times, want %d", n, failure.Times)
				}
				fail.Off()
				wantDrift(t, report, want)
				if c := report.Counters[0]; c.Checked != posts || c.Repaired != int64(len(want)) {
					t.Errorf("checked %d keys and repaired %d, want %d and %d", c.Checked, c.Repaired, posts, len(want))
				}
			})
		}
	}
	f.wantExact()
}

// appName is a short name that no other test has.
func appName(t *testing.T) string {
	return fmt.Sprintf("app-%x", t.Name()[len(t.Name())-min(40, len(t.Name())):])
}

func TestCursorLostInTheMiddleOfACountIsCountedAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	const posts = 11000 // more than one answer holds
	rows := make([]any, posts)
	for i := range rows {
		rows[i] = bson.D{{Key: "post_id", Value: i}}
	}
	must(f.rows.InsertMany(t.Context(), rows))(t)
	f.start()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	fail := realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"getMore"}, AppName: app, Code: 43, Times: 1})
	report := f.run(r, Options{})
	if n := must(fail.TimesEntered(t.Context()))(t); n != 1 {
		t.Errorf("the fail point was entered %d times, want once", n)
	}
	if c := only(t, report); report.Result != ResultOK || c.Checked != posts || c.Rebased != posts || c.Drift.Keys != 0 {
		t.Errorf("want every key rebased once: %s", show(report))
	}
	f.wantExact()
}

func TestKeysThatCannotBeCountedAreLeftOutAndKeepTheirMarks(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 8 {
		f.comment(i, 1)
	}
	f.start()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	f.activate(r)
	f.comment(1, 1)
	f.comment(2, 1)
	f.catchUp()
	f.plant(1, 5)
	fail := realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: app, Code: 11601, Times: -1})
	report := f.run(r, Options{})
	if c := only(t, report); report.Result != ResultSkipped || c.Skipped[skipInterrupted] != 2 || c.Checked != 0 {
		t.Errorf("want 2 keys interrupted: %s", show(report))
	}
	fail.Off()
	report = f.run(r, Options{})
	if wantDrift(t, report, map[any]int64{1: 5}); report.Counters[0].Checked != 2 {
		t.Errorf("checked %d keys, want the 2 that were left out", report.Counters[0].Checked)
	}
	f.wantExact()
}

func TestRangeThatCannotBeCountedLeavesItsCounterRebasing(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.comment("a", 2)
	f.start()
	f.catchUp()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	fail := realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: app, Code: 11601, Times: -1})
	report := f.run(r, Options{})
	if c := only(t, report); c.Skipped[skipInterrupted] == 0 {
		t.Errorf("want ranges interrupted: %s", show(report))
	}
	if state := f.stateOf(counterName); state.State != counter.Rebasing {
		t.Errorf("the counter is %s, want %s", state.State, counter.Rebasing)
	}
	fail.Off()
	f.activate(r)
	f.wantExact()
}

func TestRowThatCannotBeCountedDoesNotHideTheOthers(t *testing.T) {
	t.Parallel()
	// The row was there before the incrementer, so that only a recount meets it.
	f := setUp(t, func(c *config.Config) {
		c.Counters[0].CountIf = raw(bson.D{{Key: "$gte", Value: bson.A{bson.D{{Key: "$size", Value: "$tags"}}, 0}}})
	})
	var rows []any
	for i := range 60 {
		rows = append(rows, bson.D{{Key: "post_id", Value: i}, {Key: "tags", Value: bson.A{}}})
	}
	rows = append(rows, bson.D{{Key: "post_id", Value: 30}}, bson.D{{Key: "post_id", Value: "text"}})
	must(f.rows.InsertMany(t.Context(), rows))(t)
	f.start()
	r := f.reconciler(equipment{})
	r.rowsPerRange = 15
	report := f.run(r, Options{})
	if c := only(t, report); report.Result != ResultPartial || c.Skipped[skipBroken] != 2 || len(c.Skipped) != 1 || c.Checked != 59 {
		t.Errorf("want two keys left out and the others judged: %s", show(report))
	}
	if state := f.stateOf(counterName); state.State != counter.Rebasing {
		t.Errorf("the counter is %s, want %s", state.State, counter.Rebasing)
	}
	for i := range 60 {
		if i != 30 {
			f.wantShown(i, 1)
		}
	}
}

func TestRepairThatFailsIsNotReportedTwice(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.comment("b", 1)
	f.start()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	f.activate(r)
	f.comment("a", 1)
	f.comment("b", 1)
	f.catchUp()
	f.plant("a", 5)
	fail := realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"update"}, AppName: app, Code: 2, Times: -1})
	report, err := r.RunOnce(t.Context(), Options{})
	if err == nil || report.Result != ResultFailed {
		t.Errorf("a repair that failed: result %s, error %v", report.Result, err)
	}
	if c := only(t, report); c.Drift.Keys != 1 || c.Drift.Over != 5 || len(c.Drifted) != 1 || c.Repaired != 0 || c.Checked != 2 {
		t.Errorf("want the drift once, and not repaired: %s", show(report))
	}
	fail.Off()
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": 5})
	f.wantExact()
}

func TestRefusedRepairIsReportedAndLookedAtAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.comment("b", 1)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.plant("a", 5)
	f.plant("b", 5)
	validate := func(validator bson.D) {
		f.check(f.targets.Database().RunCommand(t.Context(), bson.D{{Key: "collMod", Value: targetName}, {Key: "validator", Value: validator}}).Err())
	}
	f.edit("a", set("frozen", true))
	validate(bson.D{{Key: "frozen", Value: bson.D{{Key: "$ne", Value: true}}}})

	for _, o := range []Options{{Full: true}, {}} {
		c := only(t, f.run(r, o))
		if c.Skipped[skipRefused] != 1 || len(c.Skipped) != 1 {
			t.Errorf("%+v: skipped %v, want one %s", o, c.Skipped, skipRefused)
		}
		if o.Full && c.Repaired != 1 || !o.Full && c.Repaired != 0 {
			t.Errorf("%+v: repaired %d keys", o, c.Repaired)
		}
	}
	validate(bson.D{})
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": 5})
	f.wantExact()
}

func TestSnapshotThatGoesDuringACountIsTakenInSmallerBatches(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 4 {
		f.comment(i, 1)
	}
	f.start()
	app := appName(t)
	f.activate(f.reconciler(equipment{}))
	for i := range 4 {
		f.touch(i)
	}
	f.config.Reconciler.JudgeTimeout = 100 * time.Millisecond
	batches := 0
	r := f.reconciler(equipment{app: app, started: func(e *event.CommandStartedEvent) {
		if isOn(e, "aggregate", f.rows.Name()) {
			batches++
		}
	}})
	realtest.FailCommand(t, f.client, realtest.Failure{
		Commands: []string{"aggregate"}, AppName: app, Code: 239, Times: 1, Block: 200 * time.Millisecond,
	})
	report := f.run(r, Options{})
	if wantDrift(t, report, nil); report.Counters[0].Checked != 4 || batches != 3 {
		t.Errorf("checked %d keys in %d counts, want 4 in one and its two halves", report.Counters[0].Checked, batches)
	}
}

func TestUnreachableServerFailsTheRun(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.comment("a", 1)
	f.start()
	f.catchUp()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: app, CloseConnection: true, Times: -1})
	report, err := r.RunOnce(t.Context(), Options{})
	if err == nil || report.Result != ResultFailed {
		t.Errorf("result %s, skipped %v, error %v; want the run to fail", report.Result, report.Counters[0].Skipped, err)
	}
	if state := f.stateOf(counterName); state.State != counter.Rebasing {
		t.Errorf("the counter is %s, want %s", state.State, counter.Rebasing)
	}
}

package reconciler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// losses are what may happen to a target collection that no event of the rows tells of.
var losses = map[string]func(*fixture) error{
	"dropped": func(f *fixture) error { return f.targets.Drop(f.t.Context()) },
	"dropped and made again without our index": func(f *fixture) error {
		if err := f.targets.Drop(f.t.Context()); err != nil {
			return err
		}
		_, err := f.targets.InsertOne(f.t.Context(), bson.D{{Key: "_id", Value: "of the application"}})
		return err
	},
	"renamed away": func(f *fixture) error {
		database := f.targets.Database().Name() + "."
		return f.client.Database("admin").RunCommand(f.t.Context(), bson.D{
			{Key: "renameCollection", Value: database + f.targets.Name()}, {Key: "to", Value: database + "elsewhere"},
		}).Err()
	},
	"wiped": func(f *fixture) error {
		_, err := f.targets.DeleteMany(f.t.Context(), bson.D{})
		return err
	},
	"for the most part deleted": func(f *fixture) error {
		_, err := f.targets.DeleteMany(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: 15}}}})
		return err
	},
}

// posts comments on so many posts, one to three times on each.
func (f *fixture) posts(n int) {
	f.t.Helper()
	var rows []any
	for i := range n {
		for range 1 + i%3 {
			rows = append(rows, bson.D{{Key: "post_id", Value: i}})
		}
	}
	must(f.rows.InsertMany(f.t.Context(), rows))(f.t)
}

// wantRecounted fails unless the run found every post without its document, and nothing else, by its cause.
func (f *fixture) wantRecounted(report *Report, left map[any]bool) {
	f.t.Helper()
	want := map[any]int64{}
	for key, n := range f.plainCount() {
		if !left[key] {
			want[key] = -n
		}
	}
	c := only(f.t, report)
	got := map[any]int64{}
	for _, d := range c.Drifted {
		got[counter.Canonical(d.Key.RawValue)] = d.Drift
		if d.Cause != CauseTarget {
			f.t.Errorf("%s drifted by the cause %q, want %q", d.Key, d.Cause, CauseTarget)
		}
	}
	if report.Result != ResultOK || !maps.Equal(got, want) || len(want) == 0 {
		f.t.Errorf("drift %v, want %v: %s", got, want, show(report))
	}
}

// displaying are the canonical keys that have a document.
func (f *fixture) displaying() map[any]bool {
	f.t.Helper()
	var ids []bson.RawValue
	f.check(f.targets.Distinct(f.t.Context(), "_id", bson.D{}).Decode(&ids))
	keys := map[any]bool{}
	for _, id := range ids {
		keys[counter.Canonical(id)] = true
	}
	return keys
}

func TestCountersWhoseDocumentsAreGoneAreCountedAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range losses {
		for _, stopped := range []bool{false, true} {
			if stopped && !strings.HasPrefix(name, "dropped") {
				continue // the same to the reconciler
			}
			t.Run(fmt.Sprintf("%s, stopped %v", name, stopped), func(t *testing.T) {
				t.Parallel()
				f := setUp(t)
				f.posts(40)
				f.start()
				r := f.reconciler(equipment{})
				f.activate(r)
				f.comment(39, 1) // a mark that is lost with its document
				f.catchUp()
				if stopped {
					f.stop()
				}
				f.check(lose(f))
				left := f.displaying()

				// What only looks tells the same and changes nothing.
				before := f.hash()
				f.wantRecounted(f.run(r, Options{DryRun: true}), left)
				if stopped && f.hash() != before {
					t.Error("a dry run changed the database")
				}
				if stopped {
					f.start()
					f.catchUp()
				}
				f.wantRecounted(f.run(r, Options{}), left)
				if state := f.stateOf(counterName); state.State != counter.Active {
					t.Errorf("after the recount: %+v", state)
				}
				f.wantExact()

				// It costs one recount, and touched keys are listed as before.
				f.comment(7, 2)
				f.catchUp()
				f.plant(7, 1)
				report := f.run(r, Options{})
				if wantDrift(t, report, map[any]int64{7: 1}); only(t, report).Checked != 1 {
					t.Errorf("want the touched key alone: %s", show(report))
				}
				f.wantExact()
			})
		}
	}
}

// The incrementer goes on while its target is lost under it, and the reconciler beside it brings everything back.
func TestTargetLostUnderLoadIsCountedAgain(t *testing.T) {
	t.Parallel()
	for name, lose := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const posts = 200
			f := setUp(t)
			f.posts(posts)
			f.start()
			r := f.reconciler(equipment{})
			r.rowsPerRange = 50
			f.activate(r)
			stop := f.pace(200, f.mixed(posts))
			runs := func(until func(*Report) bool) {
				t.Helper()
				realtest.Eventually(t, patience, "the run", func() bool { return until(f.run(r, Options{})) })
			}
			runs(func(report *Report) bool { return report.Result == ResultOK })
			f.check(lose(f))
			runs(func(report *Report) bool {
				return slices.ContainsFunc(only(t, report).Drifted, func(d Drifted) bool { return d.Cause == CauseTarget })
			})
			runs(func(report *Report) bool { return report.Result == ResultOK && !report.Drifted() })
			stop()
			f.catchUp()
			runs(func(report *Report) bool { return report.Result == ResultOK })
			f.wantExact()
			wantDrift(t, f.run(r, Options{Full: true}), nil)
		})
	}
}

// Increments make documents anew that hold nothing but themselves: so many of them tell that others are gone as well.
func TestWipedTargetIsMissedThoughIncrementsFillItAgain(t *testing.T) {
	t.Parallel()
	const posts, back = 40, 30
	f := setUp(t)
	f.posts(posts)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.check(losses["wiped"](f))
	for i := range back {
		f.comment(i, 1)
	}
	f.catchUp()
	if c := only(t, f.run(r, Options{})); c.Checked != back || c.Repaired != back {
		t.Errorf("want %d touched keys repaired: %+v", back, *c)
	}
	c := only(t, f.run(r, Options{}))
	if c.Checked != posts || c.Repaired != posts-back || c.Drifted[0].Cause != CauseTarget {
		t.Errorf("want all keys compared, and %d repaired: %+v", posts-back, *c)
	}
	f.wantExact()
	if c := only(t, f.run(r, Options{})); c.Checked != 0 {
		t.Errorf("want one recount: %+v", *c)
	}

	// New posts are made by increments as well, and hold all they should; a few documents that somebody deletes are his affair.
	for i := range back {
		f.comment(posts+i, 1)
	}
	must(f.targets.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: 15}}}}))(t)
	for i := range 15 {
		f.comment(i, 1)
	}
	f.catchUp()
	if c := only(t, f.run(r, Options{})); c.Checked != back+15 || c.Drift.Keys != 15 {
		t.Errorf("want the 15 deleted ones repaired: %+v", *c)
	}
	if c := only(t, f.run(r, Options{})); c.Checked != 0 {
		t.Errorf("want no recount for a few: %+v", *c)
	}
	f.wantExact()
}

// Documents that nobody can make are missing in every run: that is no reason to count all others each time.
func TestDocumentsThatCannotBeMadeCostNoRecount(t *testing.T) {
	t.Parallel()
	const posts, refused = 20, 12
	f := setUp(t)
	f.posts(posts)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.check(f.targets.Database().RunCommand(t.Context(), bson.D{
		{Key: "collMod", Value: targetName}, {Key: "validator", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: posts}}}}},
	}).Err())
	for i := range refused {
		f.comment(posts+i, 1)
	}
	f.catchUp()
	for range 3 {
		if c := only(t, f.run(r, Options{})); c.Checked != refused || c.Skipped[skipRefused] != refused {
			t.Errorf("want the %d marked keys alone: %+v", refused, *c)
		}
	}
	if state := f.stateOf(counterName); state.State != counter.Active {
		t.Errorf("the counter waits for a recount: %+v", state)
	}
}

// A recount makes documents again, so that the next counter of the same collection would not miss its own.
func TestEveryCounterOfALostTargetIsCountedAgain(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]Options{"in one run": {}, "one after the other": {Counter: counterName}} {
		for _, loss := range []string{"dropped", "wiped"} {
			lose := losses[loss]
			t.Run(name+", "+loss, func(t *testing.T) {
				t.Parallel()
				f := setUp(t, twoCounters)
				f.posts(30)
				f.start()
				r := f.reconciler(equipment{})
				f.activate(r)
				f.check(lose(f))
				const lost = 30
				reports := f.run(r, first).Counters
				if first.Counter != "" {
					reports = append(reports, f.run(r, Options{}).Counters[1])
				}
				for _, c := range reports {
					if c.Drift.Keys != lost || c.Repaired != lost {
						t.Errorf("%s: want %d keys found and repaired: %+v", c.Counter, lost, *c)
					}
				}
				f.wantExact()
				if report := f.run(r, Options{Full: true}); report.Drifted() || report.Result != ResultOK {
					t.Errorf("after the recounts: %s", show(report))
				}
			})
		}
	}
}

// The documents belong to the application, which deletes most of them with or without their rows: one recount, and what is
// not displayed is not wrong.
func TestLargeDeleteByTheApplicationCostsOneRecountAndIsNoDrift(t *testing.T) {
	t.Parallel()
	for name, withRows := range map[string]bool{"with its rows": true, "and leaves the rows": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, noUpsert)
			for i := range 40 {
				must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}, {Key: "title", Value: "post"}}))(t)
			}
			f.posts(40)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			old := func(path string) bson.D { return bson.D{{Key: path, Value: bson.D{{Key: "$lt", Value: 30}}}} }
			must(f.targets.DeleteMany(t.Context(), old("_id")))(t)
			if withRows {
				must(f.rows.DeleteMany(t.Context(), old("post_id")))(t)
			}
			f.catchUp()
			report := f.run(r, Options{})
			if wantDrift(t, report, nil); only(t, report).Checked < 10 {
				t.Errorf("want every document left compared: %s", show(report))
			}
			f.comment(35, 1)
			f.catchUp()
			report = f.run(r, Options{})
			if wantDrift(t, report, nil); only(t, report).Checked != 1 {
				t.Errorf("want the touched key alone: %s", show(report))
			}
			for i := 30; i < 40; i++ {
				f.wantShown(i, f.plainCount()[counter.Canonical(raw(i))])
			}
			if n := must(f.targets.EstimatedDocumentCount(t.Context()))(t); n != 10 {
				t.Errorf("%d documents, want the 10 that the application has left", n)
			}
		})
	}
}

// A target of the application that is gone is nobody else's to make. Nothing is displayed meanwhile, and once it is restored
// from an older copy every key is counted again.
func TestTargetOfTheApplicationIsCountedAgainOnceItIsRestored(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	for i := range 12 {
		must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: i}}))(t)
	}
	f.posts(12)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	var copied []bson.Raw
	f.check(must(f.targets.Find(t.Context(), bson.D{}))(t).All(t.Context(), &copied))
	f.comment(3, 4)
	f.catchUp()
	wantDrift(t, f.run(r, Options{}), nil)

	f.check(f.targets.Drop(t.Context()))
	f.comment(5, 1)
	f.catchUp()
	for _, o := range []Options{{DryRun: true}, {}, {Full: true}, {}} {
		report := f.run(r, o)
		if c := only(t, report); report.Drifted() || c.Skipped[skipNoTarget] != 1 || report.Result != ResultSkipped || c.Why == "" {
			t.Errorf("%+v: want it not judged: %s", o, show(report))
		}
	}
	if names := must(f.targets.Database().ListCollectionNames(t.Context(), bson.D{{Key: "name", Value: f.targets.Name()}}))(t); len(names) != 0 {
		t.Error("the application's collection was made")
	}
	must(f.targets.InsertMany(t.Context(), copied))(t)
	report := f.run(r, Options{})
	wantDrift(t, report, map[any]int64{3: -4, 5: -1})
	for _, d := range only(t, report).Drifted {
		if d.Cause != CauseTarget {
			t.Errorf("cause %q", d.Cause)
		}
	}
	f.wantExact()
}

// A pass that ends early, or only looks, has not seen that every key is right: what it saw is nothing to compare with.
func TestOnlyCompletePassesRecordTheTarget(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.posts(40)
	f.start()
	app := appName(t)
	r := f.reconciler(equipment{app: app})
	f.activate(r)
	recorded := func() counter.Sighting {
		t.Helper()
		state := f.stateOf(counterName)
		if state.Target == nil {
			t.Fatal("no target on record")
		}
		return *state.Target
	}
	before := recorded()
	if before.Documents != 40 || before.Collection == "" {
		t.Fatalf("on record: %+v", before)
	}
	f.check(f.targets.Drop(t.Context()))
	fail := realtest.FailCommand(t, f.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: app, Code: 11601, Times: -1})
	f.run(r, Options{})
	fail.Off()
	ctx, cancel := context.WithCancel(t.Context())
	broken := f.reconciler(equipment{started: onCommand("aggregate", cancel)})
	if _, err := broken.RunOnce(ctx, Options{}); err == nil {
		t.Error("the run was not broken off")
	}
	f.run(r, Options{DryRun: true})
	f.run(r, Options{Key: raw(3)})
	if now := recorded(); now != before {
		t.Errorf("on record: %+v, want %+v", now, before)
	}
	if state := f.stateOf(counterName); state.State != counter.Rebasing || state.Reason != counter.ReasonTarget {
		t.Errorf("the counter waits for %+v", state)
	}
	f.activate(r)
	if now := recorded(); now.Collection == before.Collection || now.Documents != 40 {
		t.Errorf("on record: %+v", now)
	}
	f.wantExact()

	// Touched keys alone tell of more documents, never of fewer.
	below := func(n int) bson.D { return bson.D{{Key: "_id", Value: bson.D{{Key: "$lt", Value: n}}}} }
	f.comment(100, 1)
	f.catchUp()
	f.run(r, Options{})
	must(f.targets.DeleteMany(t.Context(), below(12)))(t)
	f.run(r, Options{})
	if now := recorded(); now.Documents != 41 {
		t.Errorf("on record: %+v, want 41 documents", now)
	}
	must(f.targets.DeleteMany(t.Context(), below(22)))(t)
	if report := f.run(r, Options{}); only(t, report).Repaired != 22 {
		t.Errorf("documents that went little by little are not missed: %s", show(report))
	}
	f.wantExact()
}

func TestTargetReplacedDuringARunIsCountedAgainByTheNext(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.posts(30)
	f.start()
	f.activate(f.reconciler(equipment{}))
	r := f.reconciler(equipment{started: once(isOnRows(f), func() { f.check(f.targets.Drop(t.Context())) })})
	report := f.run(r, Options{Full: true})
	if c := only(t, report); c.Skipped[skipNoTarget] != 1 || report.Result == ResultOK || !c.VerifiedThrough.IsZero() {
		t.Errorf("want the run not to vouch for it: %s", show(report))
	}
	f.run(r, Options{})
	f.wantExact()
	wantDrift(t, f.run(r, Options{}), nil)
}

func isOnRows(f *fixture) func(*event.CommandStartedEvent) bool {
	return func(e *event.CommandStartedEvent) bool { return isOn(e, "aggregate", f.rows.Name()) }
}

// An index that is gone takes no mark with it. The reconciler makes it; one that only looks says what is missing, and the
// other counters go on.
func TestTouchedIndexThatIsGoneIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t, twoCounters, impatient)
	f.posts(3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.comment(1, 1)
	f.catchUp()
	f.plant(1, 5)
	f.check(f.targets.Indexes().DropOne(t.Context(), f.definitions[0].TouchedIndex().Name))
	report := f.run(r, Options{DryRun: true})
	if c := report.Counters[0]; report.Result != ResultPartial || c.Skipped[skipNoIndex] != 1 || report.Counters[1].Checked != 1 {
		t.Errorf("want one counter not judged and the other compared: %s", show(report))
	}
	report = f.run(r, Options{})
	if c := report.Counters[0]; report.Result != ResultOK || c.Checked != 1 || c.Drift.Over != 5 {
		t.Errorf("want the touched key compared: %s", show(report))
	}
	f.wantExact()
}

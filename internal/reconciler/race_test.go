package reconciler

import (
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

func TestTwoReconcilersAtOnePositionRepairOnce(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("high", 3)
	f.comment("gone", 2)
	f.comment("right", 1)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("high", 5)
	must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "gone"}}))(t)

	// Both have read before either repairs.
	var both, runs sync.WaitGroup
	both.Add(2)
	reports := make([]*Report, 2)
	for i := range reports {
		r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() {
			both.Done()
			both.Wait()
		})})
		runs.Go(func() {
			report, err := r.RunOnce(t.Context(), Options{Full: true})
			if err != nil {
				t.Error(err)
			}
			reports[i] = report
		})
	}
	runs.Wait()
	repaired, raced := int64(0), int64(0)
	for _, report := range reports {
		c := only(t, report)
		if c.Drift != (Drift{Over: 5, Under: 2, Keys: 2, Max: 5, overKeys: 1, underKeys: 1}) {
			t.Errorf("drift %+v, want both keys", c.Drift)
		}
		repaired, raced = repaired+c.Repaired, raced+c.Skipped[skipRaced]
	}
	if repaired != 2 || raced != 2 {
		t.Errorf("repaired %d keys and gave up %d, want each key repaired by one of the two", repaired, raced)
	}
	f.wantExact()
	wantDrift(t, f.run(f.reconciler(equipment{}), Options{Full: true}), nil)
}

func TestKeyThatAnotherRepairedFromAnOlderReadingKeepsItsMark(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
	f.comment("a", 1)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("a", 5)

	olderRead, newerRead, olderDone := make(chan struct{}), make(chan struct{}), make(chan struct{})
	older := f.reconciler(equipment{started: once(isUpdateOf(f.targets.Name()), func() {
		close(olderRead)
		<-newerRead
	})})
	newer := f.reconciler(equipment{started: once(isUpdateOf(f.targets.Name()), func() {
		close(newerRead)
		<-olderDone
	})})
	go func() {
		defer close(olderDone)
		if _, err := older.RunOnce(t.Context(), Options{Full: true}); err != nil {
			t.Error(err)
		}
	}()
	<-olderRead
	f.comment("a", 1)
	f.catchUp()
	if c := only(t, f.run(newer, Options{})); c.Skipped[skipRaced] != 1 || c.Repaired != 0 {
		t.Errorf("want the key raced: %+v", *c)
	}
	// The other knew nothing of the touch: nobody has compared it.
	if _, state := f.marks(); state != 1 {
		t.Errorf("%d marks, want the one", state)
	}
	report := f.run(newer, Options{})
	if wantDrift(t, report, nil); report.Counters[0].Checked != 1 {
		t.Errorf("checked %d keys, want the touched one", report.Counters[0].Checked)
	}
	f.wantExact()
}

func TestRepairOfOneReadingAppliesOnce(t *testing.T) {
	t.Parallel()
	for name, repair := range map[string]func(*fixture, []counter.Repair) ([]counter.Outcome, error){
		"without the journal": func(f *fixture, repairs []counter.Repair) ([]counter.Outcome, error) {
			return f.definitions[0].Rebase(f.t.Context(), f.client, f.states, repairs)
		},
		"with the journal": func(f *fixture, repairs []counter.Repair) ([]counter.Outcome, error) {
			return counter.NewJournal(f.client, f.checkpoints, f.states).Repair(f.t.Context(), f.definitions[0], repairs)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.comment("a", 3)
			f.comment("b", 3)
			f.comment("c", 3)
			f.start()
			f.activate(f.reconciler(equipment{}))
			f.emptyJournal()
			d := f.definitions[0]
			documents := must(d.Documents(t.Context(), f.client, counter.Listed([]bson.RawValue{raw("a"), raw("b"), raw("c")})))(t)
			want := func(keys []string, want ...counter.Outcome) {
				t.Helper()
				var repairs []counter.Repair
				for _, key := range keys {
					repairs = append(repairs, counter.Repair{Read: documents[counter.Canonical(raw(key))], Base: 10})
				}
				if got := must(repair(f, repairs))(t); !slices.Equal(got, want) {
					t.Errorf("outcomes %+v, want %+v", got, want)
				}
			}
			applied, raced, gone := counter.Outcome{Applied: true}, counter.Outcome{}, counter.Outcome{Gone: true}

			want([]string{"a"}, applied)
			want([]string{"a"}, raced)
			must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "c"}}))(t)
			want([]string{"a", "b", "c"}, raced, applied, gone)
			f.wantShown("a", 13)
			f.wantShown("b", 13)
			if f.document("c") != nil {
				t.Error("a repair of a document that was read made a new one")
			}
			entries := map[string]int{"without the journal": 0, "with the journal": 2}[name]
			if n := len(f.journal()); n != entries {
				t.Errorf("%d entries in the journal, want %d", n, entries)
			}
		})
	}
}

func TestEditBetweenReadAndRepairSurvivesAndIsFoundByTheNextFullRun(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"base_count", "live_delta"} {
		t.Run(field, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.comment("a", 3)
			f.start()
			f.activate(f.reconciler(equipment{}))
			f.plant("a", 5)
			r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() { f.edit("a", inc(field, 7)) })})

			wantDrift(t, f.run(r, Options{Full: true}), map[any]int64{"a": 5})
			f.wantShown("a", 10)
			wantDrift(t, f.run(r, Options{}), nil) // nothing has been touched
			report := f.run(r, Options{Full: true})
			wantDrift(t, report, map[any]int64{"a": 7})
			if cause := report.Counters[0].Drifted[0].Cause; cause != CauseEdited {
				t.Errorf("cause %q, want %q", cause, CauseEdited)
			}
			f.wantExact()
		})
	}
}

func TestTouchBetweenReadAndRepairSurvivesToTheNextRun(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]func(*config.Config){
		"marked in its document":       nil,
		"marked in the state database": {noUpsert},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, edits...)
			must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
			f.start()
			f.activate(f.reconciler(equipment{}))
			f.comment("a", 1)
			f.catchUp()
			r := f.reconciler(equipment{started: once(isUpdateOf(f.targets.Name()), func() {
				f.comment("a", 2)
				f.catchUp()
			})})

			wantDrift(t, f.run(r, Options{}), nil)
			f.wantShown("a", 3)
			if documents, state := f.marks(); documents+state != 1 {
				t.Errorf("%d + %d marks, want the later one", documents, state)
			}
			report := f.run(r, Options{})
			if wantDrift(t, report, nil); report.Counters[0].Checked != 1 {
				t.Errorf("checked %d keys, want the touched one", report.Counters[0].Checked)
			}
			if documents, state := f.marks(); documents+state != 0 {
				t.Errorf("%d + %d marks left", documents, state)
			}
			f.wantExact()
		})
	}
}

func TestDocumentDeletedBetweenReadAndRepairIsLookedAtAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("a", 5)
	r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() {
		must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
	})})
	if c := only(t, f.run(r, Options{Full: true})); c.Repaired != 0 || c.Skipped[skipRaced] != 1 {
		t.Errorf("want one key raced: %+v", *c)
	}
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": -3})
	f.wantExact()
}

func TestDocumentMadeWhileARepairMakesItIsRepairedToo(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{OplogMB: 64, CacheGB: 0.25})
	f := setUpOn(t, server.URI())
	f.comment("a", 3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.stop()
	must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)

	// The repair has looked and found no document; then one is there.
	const point = "hangBeforeUpsertPerformsInsert"
	admin := f.client.Database("admin")
	command := func(command ...bson.E) { t.Helper(); f.check(admin.RunCommand(t.Context(), bson.D(command)).Err()) }
	command(bson.E{Key: "configureFailPoint", Value: point}, bson.E{Key: "mode", Value: "alwaysOn"})
	reports := make(chan *Report, 1)
	go func() {
		report, err := r.RunOnce(t.Context(), Options{Full: true})
		if err != nil {
			t.Error(err)
		}
		reports <- report
	}()
	command(bson.E{Key: "waitForFailPoint", Value: point}, bson.E{Key: "timesEntered", Value: 1}, bson.E{Key: "maxTimeMS", Value: patience.Milliseconds()})
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
	command(bson.E{Key: "configureFailPoint", Value: point}, bson.E{Key: "mode", Value: "off"})

	report := <-reports
	if wantDrift(t, report, map[any]int64{"a": -3}); report.Counters[0].Repaired != 1 {
		t.Errorf("want it repaired: %s", show(report))
	}
	f.start()
	f.wantExact()
}

func TestKeyWhoseChangesCancelOutIsCompared(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.stop()
	f.comment("a", 2)
	must(f.rows.DeleteMany(t.Context(), bson.D{{Key: "post_id", Value: "a"}}))(t)
	f.comment("a", 3)
	f.plant("a", 4)
	wantDrift(t, f.run(r, Options{}), nil) // the plant alone touches nothing
	f.start()
	f.catchUp()
	if live := f.document("a").Lookup("live_delta").AsInt64(); live != 0 {
		t.Fatalf("live_delta %d, want 0", live)
	}
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": 4})
	f.wantExact()
}

func TestMarkOfAKeyThatIsNowhereGoes(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.comment("a", 2)
	must(f.rows.DeleteMany(t.Context(), bson.D{}))(t)
	f.catchUp()
	if _, state := f.marks(); state != 1 {
		t.Fatalf("%d marks, want 1", state)
	}
	report := f.run(r, Options{})
	if wantDrift(t, report, nil); report.Counters[0].Checked != 1 {
		t.Errorf("checked %d keys, want 1", report.Counters[0].Checked)
	}
	if _, state := f.marks(); state != 0 {
		t.Errorf("%d marks left", state)
	}
}

func TestFullRunReportsAKeyOnceThatIsMarkedApart(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.comment("a", 2)
	f.catchUp()
	f.plant("a", 5)
	for _, o := range []Options{{Full: true, DryRun: true}, {Full: true}} {
		report := f.run(r, o)
		if wantDrift(t, report, map[any]int64{"a": 5}); report.Counters[0].Checked != 1 {
			t.Errorf("%+v: checked %d keys, want 1", o, report.Counters[0].Checked)
		}
	}
	if _, state := f.marks(); state != 0 {
		t.Errorf("%d marks left", state)
	}
}

func TestDryRunWritesNothingAtAll(t *testing.T) {
	t.Parallel()
	for name, active := range map[string]bool{"active": true, "before the first recount": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			for _, post := range []string{"right", "high", "gone", "bad", "apart"} {
				f.comment(post, 2)
			}
			f.start()
			f.catchUp()
			r := f.reconciler(equipment{})
			if active {
				f.activate(r)
			}
			f.plant("high", 5)
			f.edit("apart", set("live_delta", "text"))
			f.comment("apart", 1) // a mark in the state database
			f.comment("right", 1) // a mark in the document
			f.catchUp()
			f.edit("bad", set("base_count", 2.5))
			f.edit("apart", set("live_delta", int64(2)))
			must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "gone"}}))(t)
			f.stop()

			before := f.hash()
			for _, o := range []Options{{DryRun: true}, {DryRun: true, Full: true}, {DryRun: true, Key: raw("high")}, {DryRun: true, Key: raw("gone")}} {
				c := only(t, f.run(r, o))
				if c.Repaired != 0 {
					t.Errorf("%+v: repaired %d keys", o, c.Repaired)
				}
				if o.Full && active && c.Drift.Keys != 3 {
					t.Errorf("%+v: %d keys drifted, want 3: %+v", o, c.Drift.Keys, c.Drifted)
				}
			}
			if after := f.hash(); after != before {
				t.Error("a dry run changed the database")
			}
		})
	}
}

// hash stands for everything in the fixture's databases.
func (f *fixture) hash() string {
	f.t.Helper()
	text := ""
	for _, name := range []string{f.rows.Database().Name(), f.state.Name()} {
		reply := must(f.client.Database(name).RunCommand(f.t.Context(), bson.D{{Key: "dbHash", Value: 1}}).Raw())(f.t)
		text += reply.Lookup("md5").StringValue()
	}
	return text
}

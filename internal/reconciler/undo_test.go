package reconciler

import (
	"context"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
)

// undo takes a run back, on a journal of its own.
func (f *fixture) undo(run string) *counter.Undone {
	f.t.Helper()
	all := must(counter.NewJournal(f.client, f.checkpoints, f.states).Undo(f.t.Context(), run, f.definitions))(f.t)
	switch len(all) {
	case 0:
		return &counter.Undone{}
	case 1:
		return all[0]
	default:
		f.t.Fatalf("undone %+v of one counter", all)
		return nil
	}
}

func (f *fixture) release(run string) int64 {
	f.t.Helper()
	return must(counter.NewJournal(f.client, f.checkpoints, f.states).Release(f.t.Context(), run))(f.t)
}

func TestUndoTakesARunBackOnceAndKeepsItsKeysUntilReleased(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string][]func(*config.Config){"upsert": nil, "no upsert": {noUpsert}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, edits...)
			for _, post := range []any{"high", "low", "right"} {
				must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: post}}))(t)
				f.comment(post, 3)
			}
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.plant("high", 5)
			f.edit("low", inc("live_delta", int64(-2)))
			repaired := f.run(r, Options{Full: true})
			f.comment("high", 1)
			f.catchUp()
			f.run(r, Options{}) // rebases: what it moves from live to base stays

			if u := f.undo(repaired.Run); u.Undone != 2 || u.Gone+u.Left != 0 || u.Counter != counterName {
				t.Errorf("undone: %+v", *u)
			}
			f.wantShown("high", 4+5)
			f.wantShown("low", 3-2)
			if u := f.undo(repaired.Run); *u != (counter.Undone{}) {
				t.Errorf("undone twice: %+v", *u)
			}
			f.wantShown("high", 4+5)
			for _, o := range []Options{{DryRun: true}, {}, {Full: true}, {Key: raw("high")}} {
				report := f.run(r, o)
				want := int64(2)
				if !o.Key.IsZero() {
					want = 1
				}
				drifted := int64(0)
				if o.DryRun { // whoever only looks is told that they are wrong
					drifted = want
				}
				if c := only(t, report); report.Result == ResultOK || c.Skipped[skipUndone] != want || c.Repaired != 0 || c.Drift.Keys != drifted {
					t.Errorf("%+v: want %d keys left: %s", o, want, show(report))
				}
			}
			if n := f.release(repaired.Run); n != 2 {
				t.Errorf("released %d keys", n)
			}
			wantDrift(t, f.run(r, Options{}), map[any]int64{"high": 5, "low": -2}) // they were marked
			f.wantExact()
			for _, e := range f.journal() {
				if e.Run == repaired.Run && (e.Undo.IsZero() || e.Kept || e.ExpiresAt.IsZero()) {
					t.Errorf("a released entry expires, and cannot be taken back again: %+v", e)
				}
			}
			if u := f.undo(repaired.Run); *u != (counter.Undone{}) || f.release(repaired.Run) != 0 {
				t.Errorf("undone again after the release: %+v", *u)
			}
		})
	}
}

// Entries that are kept must not expire, or nobody would know why their keys are wrong.
func TestUndoGivesAnApplicationsFieldsBackWhatTheyHad(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*config.Config){"one field": func(*config.Config) {}, "two fields": splitFields} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := kept(t, edit)
			path := "comment_count"
			if name == "two fields" {
				path = "base_count"
			}
			f.comment("high", 3)
			f.post("high", bson.E{Key: path, Value: int32(8)})
			r := f.reconciler(equipment{})
			repaired := f.run(r, Options{Wait: true})
			wantDrift(t, repaired, map[any]int64{"high": 5})
			f.edit("high", inc(path, int32(1))) // the application's, with a row
			f.comment("high", 1)

			if u := f.undo(repaired.Run); u.Undone != 1 || u.Gone+u.Left != 0 {
				t.Errorf("undone: %+v", *u)
			}
			f.wantField("high", path, int32(9))
			if document := f.document("high"); document.Lookup("driftless").Type != 0 {
				t.Errorf("the application's document has fields of ours: %v", document)
			}
			if u := f.undo(repaired.Run); *u != (counter.Undone{}) {
				t.Errorf("undone twice: %+v", *u)
			}
			report := f.run(r, Options{Wait: true})
			if c := only(t, report); c.Skipped[skipUndone] != 1 || c.Repaired != 0 {
				t.Errorf("a kept key: %s", show(report))
			}
			f.wantField("high", path, int32(9))
			if n := f.release(repaired.Run); n != 1 {
				t.Errorf("%d released", n)
			}
			wantDrift(t, f.run(r, Options{Wait: true}), map[any]int64{"high": 5})
			f.wantField("high", path, int32(4))
		})
	}
}

func TestAKeptEntryDoesNotExpire(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.emptyJournal()
	f.plant("a", 5)
	run := f.run(r, Options{Full: true}).Run
	f.undo(run)
	if e := f.journal()[0]; !e.Kept || !e.ExpiresAt.IsZero() {
		t.Errorf("entry %+v", e)
	}
}

func TestUndoOfWhatIsNotThereAnyMore(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for _, post := range []any{"made", "gone", "text"} {
		f.comment(post, 2)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.emptyJournal()
	must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "made"}}))(t)
	f.plant("gone", 5)
	f.plant("text", 5)
	run := f.run(r, Options{Full: true}).Run
	f.comment("made", 1) // on top of what the repair made
	f.catchUp()
	must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "gone"}}))(t)
	f.edit("text", set("base_count", "text"))

	if u := f.undo(run); u.Undone != 1 || u.Gone != 1 || u.Left != 1 || u.Why == "" {
		t.Errorf("undone %+v", *u)
	}
	f.wantShown("made", 1)
	if f.document("gone") != nil {
		t.Error("a document that somebody has deleted was made again")
	}
	f.edit("text", set("base_count", int64(2)))
	if u := f.undo(run); u.Undone != 1 || u.Gone+u.Left != 0 {
		t.Errorf("undone once it was mended: %+v", *u)
	}
	f.wantShown("text", 7)
	changed := f.definitions[0].Counter
	changed.SoftDelete = "removed_at"
	other := must(counter.Define(changed))(t)
	f.plant("made", 5)
	f.release(run)
	run = f.run(r, Options{Full: true}).Run
	all := must(counter.NewJournal(f.client, f.checkpoints, f.states).Undo(t.Context(), run, []*counter.Definition{other}))(t)
	if len(all) != 1 || all[0].Undone != 0 || all[0].Left == 0 {
		t.Errorf("undone by another definition: %+v", all)
	}
}

// While increments go on, several undos at once take each repair back exactly once.
func TestUndoUnderLoadIsExact(t *testing.T) {
	t.Parallel()
	f := setUp(t, func(c *config.Config) { c.Reconciler.JudgeTimeout, c.Reconciler.HoldWhenDriftedShare = patience, 1 })
	const keys = 120
	for i := range keys {
		f.comment(i, 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.emptyJournal()
	for i := range keys {
		f.plant(i, int64(i%7)-3)
	}
	run := f.run(r, Options{Full: true}).Run
	stop := f.pace(500, func(ctx context.Context, n int) error {
		_, err := f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: n % keys}})
		return err
	})
	undone := make([]int64, 3)
	var running sync.WaitGroup
	for i := range undone {
		running.Go(func() {
			journal := counter.NewJournal(f.client, checkpoint.NewStore(f.client, f.state.Name()), f.states) // as in a process of its own
			for range 3 {                                                                                    // one may leave a document to another that holds it
				all, err := journal.Undo(t.Context(), run, f.definitions)
				if err != nil {
					t.Error(err)
				}
				for _, u := range all {
					undone[i] += u.Undone
				}
			}
		})
	}
	running.Wait()
	t.Logf("%d rows beside, undone %v", stop(), undone)
	entries := len(f.journal())
	if n := undone[0] + undone[1] + undone[2]; n != int64(entries) {
		t.Errorf("undone %d of %d", n, entries)
	}
	f.catchUp()
	want := f.plainCount()
	for i := range keys {
		f.wantShown(i, want[counter.Canonical(raw(i))]+int64(i%7)-3)
	}
	f.release(run)
	if report := f.run(r, Options{}); report.Result != ResultOK || only(t, report).Drift.Keys != int64(entries) {
		t.Errorf("after the release: %s", show(report))
	}
	f.wantExact()
}

// A run that has read a key before its repair was taken back does not repair it after.
func TestARepairOfAReadingFromBeforeAnUndoIsGivenUp(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("a", 5)
	run := f.run(f.reconciler(equipment{}), Options{Full: true}).Run
	f.plant("a", 2)
	r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() { f.undo(run) })})
	if c := only(t, f.run(r, Options{Full: true})); c.Repaired != 0 || c.Skipped[skipRaced] != 1 {
		t.Errorf("want it given up: %+v", *c)
	}
	f.wantShown("a", 1+5+2)
}

package reconciler

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// explain asks about a key of the fixture's first counter, and fails when anything but what is asked for changed.
func (f *fixture) explain(r *Reconciler, post any) *Explanation {
	f.t.Helper()
	return must(r.Explain(f.t.Context(), Question{
		Counter: f.definitions[0], Key: raw(post), Since: 10 * time.Minute, Reading: patience,
	}))(f.t)
}

// explainNothingElse is explain with the lanes at rest, and fails when the documents or the state database change by it.
func (f *fixture) explainNothingElse(r *Reconciler, post any) *Explanation {
	f.t.Helper()
	before := f.everything()
	e := f.explain(r, post)
	if after := f.everything(); after != before {
		f.t.Errorf("explaining has changed something: %s, then %s", before, after)
	}
	return e
}

// onlyReads fails the test at a command that writes.
func onlyReads(t *testing.T) func(*event.CommandStartedEvent) {
	return func(e *event.CommandStartedEvent) {
		if slices.Contains([]string{"insert", "update", "delete", "findAndModify", "bulkWrite", "create", "createIndexes", "commitTransaction"}, e.CommandName) {
			t.Errorf("explaining writes: %v", e.Command)
		}
	}
}

// everything stands for the documents and the whole state database but for the checkpoints and leases, which lanes move.
func (f *fixture) everything() string {
	f.t.Helper()
	text := f.hashTargets()
	for _, name := range []string{counter.StatesCollection, counter.TouchedCollection, counter.DeadLettersCollection, counter.GapsCollection,
		counter.SweepsCollection, counter.RepairsCollection, counter.RunsCollection} {
		reply := must(f.state.RunCommand(f.t.Context(), bson.D{{Key: "dbHash", Value: 1}, {Key: "collections", Value: bson.A{name}}}).Raw())(f.t)
		text += " " + reply.Lookup("md5").StringValue()
	}
	return text
}

// wantStanding fails unless the verdict is of that standing, with that command and a text of these words.
func wantStanding(t *testing.T, e *Explanation, standing, command string, words ...string) {
	t.Helper()
	if v := e.Verdict; v.Standing != standing || v.Command != command {
		t.Errorf("%s with %q, want %s with %q: %+v", v.Standing, v.Command, standing, command, v)
	}
	for _, word := range words {
		if !strings.Contains(e.Verdict.Text+" "+e.Verdict.Hint, word) {
			t.Errorf("the verdict lacks %q: %+v", word, e.Verdict)
		}
	}
	if len(e.Unread) != 0 {
		t.Errorf("not read: %+v", e.Unread)
	}
}

const onceKey = "reconciler run --once --counter " + counterName + " --key "

func TestExplainTellsOfOneKeyWhatARunWouldFind(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	r := f.reconciler(equipment{})
	wantStanding(t, f.explainNothingElse(r, "a"), KeyUnjudged, "incrementer run", "no incrementer has followed")

	for _, post := range []any{"a", 7} {
		f.comment(post, 3)
	}
	f.start()
	f.catchUp()
	const rebase = "reconciler run --once --counter " + counterName
	wantStanding(t, f.explainNothingElse(r, 7), KeyRebasing, rebase, "shows 0 and should show 3", "new")
	f.activate(r)

	e := f.explainNothingElse(r, 7)
	wantStanding(t, e, KeyRight, "", "shows 3, and its rows come to 3")
	if c := e.Recount; c.Truth != 3 || c.Rows != 3 || c.Drift != 0 || c.Position.IsZero() || e.Now.Truth != 3 {
		t.Errorf("%+v", c)
	}
	if s := e.Shown; !s.Document || s.Displayed != 3 || *s.Base != 3 || *s.Live != 0 || *s.Total != 3 || !s.TotalAgrees || time.Since(s.ReconciledAt) > time.Minute {
		t.Errorf("%+v", s)
	}
	if e.Marks != (Marks{}) || len(e.Repairs) != 1 || !e.Repairs[0].Rebased || e.State.State != counter.Active || e.State.Gap != nil {
		t.Errorf("%+v, %+v, %+v", e.Marks, e.Repairs, e.State)
	}
	if l := e.Lane; l.Lane != sourceName || l.Lanes != 1 || l.Behind > 10 || l.Position.IsZero() {
		t.Errorf("%+v", l)
	}

	f.comment(7, 1) // touched, and not compared yet
	f.catchUp()
	e = f.explainNothingElse(r, 7)
	wantStanding(t, e, KeyRight, "", "shows 4", "the next run compares it")
	if !e.Marks.Touched || time.Since(e.Marks.TouchedAt) > time.Minute || *e.Shown.Base != 3 || *e.Shown.Live != 1 {
		t.Errorf("%+v, %+v", e.Marks, e.Shown)
	}

	f.plant(7, 5)
	e = f.explainNothingElse(r, 7)
	wantStanding(t, e, KeyDrifted, onceKey+"7", "too high by 5", "shows 9, and its rows come to 4", "edited")
	if c := e.Recount; c.Drift != 5 || c.Direction != "over" || c.Cause != CauseEdited || c.Displayed != 9 || e.Shown.TotalAgrees {
		t.Errorf("%+v, %+v", c, e.Shown)
	}
	wantDrift(t, f.run(r, Options{Key: raw(7)}), map[any]int64{7: 5}) // the command that the verdict names
	e = f.explainNothingElse(r, 7)
	wantStanding(t, e, KeyRight, "")
	if last := e.Repairs[0]; len(e.Repairs) != 2 || last.Before != 9 || last.After != 4 || last.Drift != 5 || last.Cause != CauseEdited ||
		last.Undone || time.Since(last.At) > time.Minute || last.Position.IsZero() || last.Run == "" {
		t.Errorf("%+v", e.Repairs)
	}

	f.edit(7, set("base_count", "many"))
	e = f.explainNothingElse(f.reconciler(equipment{started: onlyReads(t)}), 7)
	wantStanding(t, e, KeyUnjudged, "", "field base_count is of type string")
	if !strings.Contains(e.Shown.Bad, "base_count") {
		t.Errorf("%+v", e.Shown)
	}
}

func TestExplainTellsWhatADocumentCouldNotTake(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.catchUp()
	f.check(f.targets.Database().RunCommand(t.Context(), bson.D{
		{Key: "collMod", Value: targetName}, {Key: "validator", Value: bson.D{{Key: "live_delta", Value: bson.D{{Key: "$lt", Value: 1}}}}},
	}).Err())
	f.comment("a", 2)
	f.catchUp()
	e := f.explainNothingElse(f.reconciler(equipment{started: onlyReads(t)}), "a")
	wantStanding(t, e, KeyDrifted, onceKey+"a", "too low by 2", string(CauseSetApart))
	if l := e.Marks.DeadLetter; l == nil || l.Delta != 2 || l.Times == 0 || l.Reason == "" || time.Since(l.LastAt) > time.Minute {
		t.Errorf("%+v", l)
	}
	if m := e.Marks.Mark; m == nil || time.Since(m.At) > time.Minute || m.Reason != "" || m.After != nil {
		t.Errorf("%+v", m)
	}
}

func TestExplainOfACounterWhoseDocumentsAreNotOurs(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	for _, post := range []any{"a", "bare"} {
		f.comment(post, 2)
	}
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.comment("a", 1)
	f.catchUp()
	e := f.explainNothingElse(r, "a")
	wantStanding(t, e, KeyRight, "", "shows 3", "the next run compares it")
	if m := e.Marks; m.Touched || m.Mark == nil || time.Since(m.Mark.At) > time.Minute {
		t.Errorf("%+v", m)
	}
	e = f.explainNothingElse(r, "bare")
	wantStanding(t, e, KeyBare, "", "rows come to 2", "upsert is off")
	if !e.Recount.NoDocument || e.Recount.Truth != 2 || e.Shown.Document {
		t.Errorf("%+v, %+v", e.Recount, e.Shown)
	}
}

func TestExplainTellsOfAnUndoneRepairAndOfAHeldCounter(t *testing.T) {
	t.Parallel()
	f, r := guarded(t, 40)
	f.plant(39, 3)
	repaired := f.run(r, Options{Full: true})
	f.undo(repaired.Run)
	e := f.explainNothingElse(r, 39)
	wantStanding(t, e, KeyUndone, "reconciler undo "+repaired.Run+" --release", "too high by 3", repaired.Run)
	if last := e.Repairs[0]; !last.Undone || !last.Kept || time.Since(last.UndoneAt) > time.Minute || e.Marks.Undone != repaired.Run {
		t.Errorf("%+v, %+v", last, e.Marks)
	}
	f.release(repaired.Run)
	wantStanding(t, f.explainNothingElse(r, 39), KeyDrifted, onceKey+"39")

	f.spoil(9)
	held := f.run(r, Options{Full: true})
	e = f.explainNothingElse(r, 0)
	wantStanding(t, e, KeyHeld, "reconciler approve "+held.Run, "too high by 1", "held by run")
	wantStanding(t, f.explainNothingElse(r, 20), KeyRight, "") // nothing is wrong with it
}

func TestExplainTellsWhyTheCounterIsRebasing(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 2)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.catchUp()
	f.check(f.states.RecordGap(t.Context(), counter.Gap{ID: bson.NewObjectID(), Lane: sourceName, Reason: "position lost", To: f.now(), At: time.Now()}))
	f.check(f.states.Mark(t.Context(), f.definitions[0], counter.ReasonGap))
	e := f.explainNothingElse(r, "a")
	wantStanding(t, e, KeyRight, "reconciler run --once --counter "+counterName, "waits for a recount (gap)")
	if g := e.State.Gap; g == nil || g.Healed || g.Reason != "position lost" || e.State.Reason != counter.ReasonGap {
		t.Errorf("%+v", e.State)
	}
	f.plant("a", -1)
	wantStanding(t, f.explainNothingElse(r, "a"), KeyRebasing, "reconciler run --once --counter "+counterName, "(gap)")
	f.run(r, Options{})
	if e := f.explainNothingElse(r, "a"); !e.State.Gap.Healed || e.Repairs[0].Cause != CauseEdited && e.Repairs[0].Cause != CauseGap {
		t.Errorf("%+v, %+v", e.State, e.Repairs)
	}
}

func TestExplainFindsTheKeyThatWasMeant(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	id := bson.NewObjectID()
	for _, post := range []any{"42", id, "right"} {
		f.comment(post, 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	wantStanding(t, f.explainNothingElse(r, 42), KeyNothing, "", `there is a key of another type: --key '"42"'`)
	wantStanding(t, f.explainNothingElse(r, id.Hex()), KeyNothing, "", "--key "+id.Hex())
	e := f.explainNothingElse(r, "nobody")
	wantStanding(t, e, KeyNothing, "", "there are no rows of it and no counter document", `--key '{"$oid": "`)
	if e.Shown.Document || e.Recount.Rows != 0 || len(e.Others) != 0 {
		t.Errorf("%+v", e)
	}
	must(f.rows.UpdateMany(t.Context(), bson.D{{Key: "post_id", Value: "right"}}, set("deleted_at", time.Now())))(t)
	f.catchUp()
	wantStanding(t, f.explainNothingElse(r, "right"), KeyRight, "", "shows 0, and its rows come to 0") // one row, which does not count
}

// eventLines is the change of a key by its events.
func eventLines(e *Explanation) (lines []string) {
	side := func(c *Counted) string {
		if c == nil {
			return "-"
		}
		return fmt.Sprintf("%d of %s", c.Weight, c.Key)
	}
	for _, c := range e.Events.List {
		lines = append(lines, fmt.Sprintf("%s row %s: %s to %s, %+d", c.Operation, c.Row, side(c.Before), side(c.After), c.Change))
	}
	return lines
}

func TestExplainListsTheEventsOfTheKeyOnBothSides(t *testing.T) {
	t.Parallel()
	for _, lanes := range []int{1, 2} {
		t.Run(fmt.Sprint(lanes, " lanes"), func(t *testing.T) {
			t.Parallel()
			f := setUp(t, divided(lanes))
			ctx := t.Context()
			row := func(id, post any) {
				must(f.rows.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "post_id", Value: post}}))(t)
			}
			change := func(id any, update bson.D) { must(f.rows.UpdateByID(ctx, id, update))(t) }
			for post := range 8 { // of both lanes
				row(fmt.Sprint("of ", post), post)
			}
			row(1, 1)
			change(1, set("text", "edited"))
			change(1, set("deleted_at", time.Now()))
			change(1, bson.D{{Key: "$unset", Value: bson.D{{Key: "deleted_at", Value: ""}}}})
			change(1, set("post_id", 2))
			change(1, set("post_id", 1))
			must(f.rows.DeleteOne(ctx, bson.D{{Key: "_id", Value: 1}}))(t)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.catchUp()
			e := f.explain(r, 1)
			want := []string{
				`insert row "of 1": - to 1 of 1, +1`, "insert row 1: - to 1 of 1, +1", "update row 1: 1 of 1 to -, -1", "update row 1: - to 1 of 1, +1",
				"update row 1: 1 of 1 to 1 of 2, -1", "update row 1: 1 of 2 to 1 of 1, +1", "delete row 1: 1 of 1 to -, -1",
			}
			if got := eventLines(e); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("events of 1:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			if x := e.Events; x.Found != 7 || x.Unknown != 0 || x.Note != "" || x.Since.IsZero() || x.Through.IsZero() || x.List[6].Beyond {
				t.Errorf("%+v", x)
			}
			want = []string{`insert row "of 2": - to 1 of 2, +1`, "update row 1: 1 of 1 to 1 of 2, +1", "update row 1: 1 of 2 to 1 of 1, -1"}
			if got := eventLines(f.explain(r, 2)); strings.Join(got, "\n") != strings.Join(want, "\n") {
				t.Errorf("events of 2:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
			}
			f.stop()
			f.comment(1, maxKeyEvents+5)
			e = f.explain(r, 1)
			if x := e.Events; x.Found != 7+maxKeyEvents+5 || len(x.List) != maxKeyEvents || !x.List[0].Beyond || x.List[0].Operation != "insert" {
				t.Errorf("found %d, listed %d: %+v", x.Found, len(x.List), x.List[0])
			}
			wantStanding(t, e, KeyRight, "", "shows 1")
			if e.Now.Truth != 1+maxKeyEvents+5 || e.Recount.Truth != 1 {
				t.Errorf("now %+v, where the lane is %+v", e.Now, e.Recount)
			}
		})
	}
}

func TestExplainJudgesAKeyOfADividedSourceByItsOwnLane(t *testing.T) {
	t.Parallel()
	f, r, lanes := atDifferentPositions(t) // the middle one is held back
	for i, keys := range lanes {
		at := must(f.checkpoints.Load(t.Context(), f.laneIDs()[i].String()))(t)
		f.plant(keys[0], 2)
		e := f.explain(r, keys[0])
		wantStanding(t, e, KeyDrifted, onceKey+fmt.Sprint(keys[0]), "too high by 2")
		if e.Lane.Lane != f.laneIDs()[i].String() || e.Lane.Lanes != 3 || i == 1 && e.Lane.Position != momentOf(at.Position) || e.Recount.Position != e.Lane.Position {
			t.Errorf("lane %+v, judged at %+v", e.Lane, e.Recount.Position)
		}
	}
	other := f.config.Counters[0]
	other.SoftDelete = "" // a definition that no lane counts by
	definition := must(counter.Define(other))(t)
	r.settings.JudgeTimeout = time.Millisecond
	for i, keys := range lanes {
		e := must(r.Explain(t.Context(), Question{Counter: definition, Key: raw(keys[0])}))(t)
		if e.Unjudged == nil || e.Unjudged.Reason != skipDefinition || e.Lane.Lane != f.laneIDs()[i].String() || e.State.State != "unknown" {
			t.Errorf("%+v, lane %+v, state %+v", e.Unjudged, e.Lane, e.State)
		}
	}
	r.settings.JudgeTimeout = patience
	if e := f.explain(r, "nobody"); e.Lane.Lane != "" || e.Lane.Lanes != 3 || e.Verdict.Standing != KeyNothing {
		t.Errorf("a key of no lane: %+v, %+v", e.Lane, e.Verdict)
	}
}

func TestExplainOfAKeyThatIsWrittenToIsOfOneCut(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("hot", 10)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	stop := f.pace(200, func(ctx context.Context, n int) error {
		if n%3 == 2 {
			_, err := f.rows.DeleteOne(ctx, bson.D{{Key: "post_id", Value: "hot"}})
			return err
		}
		_, err := f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: "hot"}})
		return err
	})
	for range 10 {
		e := f.explain(r, "hot")
		wantStanding(t, e, KeyRight, "")
		if c := e.Recount; c == nil || c.Drift != 0 || c.Displayed+c.Tail != e.Shown.Displayed || !e.Shown.TotalAgrees || e.Events.Note != "" {
			t.Errorf("%+v, %+v, %s", c, e.Shown, e.Events.Note)
		}
	}
	stop()
	f.wantExact()
}

func TestExplainCountsTheRowsWhereTheLaneIsTooOldToJudge(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{OplogMB: 64, CacheGB: 0.25, Params: map[string]string{"minSnapshotHistoryWindowInSeconds": "1"}})
	f := setUpOn(t, server.URI(), impatient)
	f.comment("a", 2)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.catchUp()
	f.stop()
	f.comment("a", 1)
	var e *Explanation
	realtest.Eventually(t, patience, "the snapshot of the position to go", func() bool {
		f.now() // writes move the window
		e = f.explain(r, "a")
		return e.Unjudged != nil
	})
	wantStanding(t, e, KeyUnjudged, "incrementer run", "is the incrementer running?")
	if e.Unjudged.Reason != skipStale || e.Recount != nil || e.Now.Truth != 3 || e.Shown.Displayed != 2 || e.Lane.Owner != "" || e.Lane.Behind == 0 ||
		e.Events.Found != 3 || !e.Events.List[2].Beyond {
		t.Errorf("%+v, now %+v, lane %+v, events %+v", e.Unjudged, e.Now, e.Lane, e.Events)
	}
}

func TestExplainSaysWhatOfTheEventsCouldNotBeRead(t *testing.T) {
	t.Parallel()
	t.Run("time is over", func(t *testing.T) {
		t.Parallel()
		f := setUp(t)
		f.comment("a", 2)
		f.start()
		r := f.reconciler(equipment{})
		f.activate(r)
		e := must(r.Explain(t.Context(), Question{Counter: f.definitions[0], Key: raw("a"), Since: time.Minute, Reading: time.Nanosecond}))(t)
		if wantStanding(t, e, KeyRight, ""); !strings.Contains(e.Events.Note, "time is over after 1ns") || len(e.Events.List) != 0 {
			t.Errorf("%+v", e.Events)
		}
	})
	t.Run("images were never on", func(t *testing.T) {
		t.Parallel()
		f := setUp(t)
		f.check(f.client.Database(f.rows.Database().Name()).RunCommand(t.Context(), bson.D{
			{Key: "collMod", Value: f.rows.Name()}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}},
		}).Err())
		f.start()
		r := f.reconciler(equipment{})
		f.activate(r)
		f.comment("a", 2)
		must(f.rows.UpdateMany(t.Context(), bson.D{}, set("text", "free")))(t)
		must(f.rows.UpdateMany(t.Context(), bson.D{}, set("deleted_at", time.Now())))(t)
		e := f.explain(r, "a")
		if e.Events.Found != 2 || e.Events.Unknown != 2 {
			t.Errorf("%+v", e.Events)
		}
	})
	t.Run("the oplog is short", func(t *testing.T) {
		t.Parallel()
		server := realtest.Private(t, realtest.Options{OplogMB: 1, SyncDelay: time.Second, CacheGB: 0.25})
		f := setUpOn(t, server.URI())
		f.start()
		r := f.reconciler(equipment{})
		f.activate(r)
		filler := f.rows.Database().Collection("filler", options.Collection())
		text := strings.Repeat("x", 1<<20)
		var e *Explanation
		realtest.Eventually(t, 2*patience, "the oplog to roll over", func() bool {
			must(filler.InsertMany(t.Context(), []any{bson.D{{Key: "text", Value: text}}, bson.D{{Key: "text", Value: text}}}))(t)
			f.comment("a", 1)
			f.catchUp()
			e = f.explain(r, "a")
			return e.Events.Note != ""
		})
		wantStanding(t, e, KeyRight, "")
		if !strings.Contains(e.Events.Note, "does not reach back 10m0s") && !strings.Contains(e.Events.Note, "keeps no history") {
			t.Errorf("%+v", e.Events)
		}
	})
	t.Run("the collection was dropped", func(t *testing.T) {
		t.Parallel()
		f := setUp(t)
		f.comment("a", 2)
		f.start()
		r := f.reconciler(equipment{})
		f.activate(r)
		f.check(f.rows.Drop(t.Context()))
		if e := f.explain(r, "a"); !strings.Contains(e.Events.Note, "had a drop at") || e.Events.Found != 2 {
			t.Errorf("%+v", e.Events)
		}
	})
}

func TestExplainJudgesWhatTheApplicationKeeps(t *testing.T) {
	t.Parallel()
	f := kept(t)
	f.comment("right", 3)
	f.comment("wrong", 3)
	f.comment("bare", 2)
	f.post("right", count(3))
	f.post("wrong", count(1))
	f.post("text", count("1"))
	r := f.reconciler(equipment{})
	e := f.explainNothingElse(r, "wrong")
	wantStanding(t, e, KeyDrifted, onceKey+"wrong", "too low by 2")
	if e.Lane != nil || e.State != nil || e.Marks != (Marks{}) || e.Shown.Base != nil || e.Shown.Displayed != 1 || e.Recount.Truth != 3 || e.Recount.Direction != "under" || e.Events.Found != 3 {
		t.Errorf("%+v", e)
	}
	wantStanding(t, f.explainNothingElse(r, "right"), KeyRight, "")
	wantStanding(t, f.explainNothingElse(r, "bare"), KeyBare, "", "rows come to 2")
	wantStanding(t, f.explainNothingElse(r, "text"), KeyUnjudged, "", "of type string")
	wantStanding(t, f.explainNothingElse(r, "nobody"), KeyNothing, "")
	wantDrift(t, f.run(r, Options{Key: raw("wrong"), Wait: true}), map[any]int64{"wrong": -2})
	e = f.explainNothingElse(r, "wrong")
	if wantStanding(t, e, KeyRight, ""); len(e.Repairs) != 1 || e.Repairs[0].Before != 1 || e.Repairs[0].After != 3 {
		t.Errorf("%+v", e.Repairs)
	}
	f.undo(e.Repairs[0].Run)
	wantStanding(t, f.explainNothingElse(r, "wrong"), KeyUndone, "reconciler undo "+e.Repairs[0].Run+" --release")
}

func TestExplainTellsThatACounterOfTheApplicationIsHeld(t *testing.T) {
	t.Parallel()
	f := keptPosts(t, 200, 60)
	r := f.reconciler(equipment{})
	wantStanding(t, f.explainNothingElse(r, 0), KeyDrifted, onceKey+"0", "too high by 1") // before there is a record of it
	held := f.run(r, Options{Wait: true})
	wantHeld(t, held, 60)
	wantStanding(t, f.explainNothingElse(r, 0), KeyHeld, "reconciler approve "+held.Run, "too high by 1", "held by run")
	wantStanding(t, f.explainNothingElse(r, 150), KeyRight, "")
}

func TestExplainLeavesABusyKeyOfTheApplicationUnjudged(t *testing.T) {
	t.Parallel()
	f := kept(t, func(c *config.Config) { c.Counters[0].Rows.CreatedAt = "" })
	f.comment("busy", 3)
	f.post("busy", count(100))
	r := f.reconciler(equipment{})
	told := 0
	e := must(r.Explain(t.Context(), Question{Counter: f.definitions[0], Key: raw("busy"), Tell: func(string) {
		told++
		f.edit("busy", inc("comment_count", 1)) // while it is waited for
	}}))(t)
	if told != 1 || e.Unjudged == nil || e.Unjudged.Reason != skipBusy || e.Events.Note != "not looked for" {
		t.Errorf("told %d times: %+v", told, e)
	}
}

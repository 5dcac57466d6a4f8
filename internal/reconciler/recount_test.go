package reconciler

import (
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
)

func TestFirstStartCountsTheRowsThatAreThere(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.comment(int32(7), 2)
	f.comment(nil, 1) // counts for nobody
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "gone"}, {Key: "base_count", Value: 9}, {Key: "title", Value: "kept"}}))(t)
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "base_count", Value: int64(-2)}, {Key: "live_delta", Value: int32(1)}}))(t)
	f.start()
	r := f.reconciler(equipment{})

	report := f.run(r, Options{})
	c := only(t, report)
	if report.Result != ResultOK || c.Rebased != 3 || c.Repaired != 3 || c.Checked != 3 || c.Drift != (Drift{}) || len(c.Drifted) != 0 {
		t.Errorf("want 3 keys rebased and no drift: %s", show(report))
	}
	if state := f.stateOf(counterName); state.State != counter.Active || state.Reason != "" || state.VerifiedThrough.IsZero() {
		t.Errorf("state %+v, want active and verified", state)
	}
	f.wantShown("a", 3)
	f.wantShown(int32(7), 2)
	f.wantShown("gone", 0)
	if title := f.document("gone").Lookup("title").StringValue(); title != "kept" {
		t.Errorf("title %q: a repair must not touch the fields of others", title)
	}
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true, DryRun: true}), nil)
}

func TestFirstRunBesideTheFirstStartRebases(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	// The reconciler is there first and waits for the incrementer, whose rows then come as touched keys.
	waiting := make(chan struct{})
	r := f.reconciler(equipment{started: onCommand("find", func() { closeOnce(waiting) })})
	reports := make(chan *Report, 1)
	go func() {
		report, err := r.RunOnce(t.Context(), Options{})
		if err != nil {
			t.Error(err)
		}
		reports <- report
	}()
	<-waiting
	f.start()
	c := only(t, <-reports)
	if c.Drift.Keys != 0 || c.Rebased != 1 || len(c.Skipped) != 0 {
		t.Errorf("want 1 key rebased: %+v", *c)
	}
	f.wantShown("a", 3)
}

func TestChangedDefinitionIsRebasedAndLeavesTheOthersAlone(t *testing.T) {
	t.Parallel()
	f := setUp(t, twoCounters)
	f.comment("a", 3)
	must(f.rows.InsertOne(t.Context(), bson.D{{Key: "post_id", Value: "a"}, {Key: "deleted_at", Value: time.Now()}}))(t)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("a", 10) // drift of the one, which the other's recount must not take for its own
	before := f.document("a")

	f.stop()
	f.config.Counters[1].SoftDelete = ""
	f.install()
	// Again the reconciler comes first. It knows the counter as active, by its former definition.
	waiting := make(chan struct{})
	r := f.reconciler(equipment{started: onCommand("find", func() { closeOnce(waiting) })})
	reports := make(chan *Report, 1)
	go func() {
		report, err := r.RunOnce(t.Context(), Options{Counter: "all_per_post"})
		if err != nil {
			t.Error(err)
		}
		reports <- report
	}()
	<-waiting
	f.start()
	c := only(t, <-reports)
	if c.Rebased != 1 || c.Drift.Keys != 0 || c.Repaired != 1 {
		t.Errorf("want 1 key rebased and no drift: %+v", *c)
	}
	after := f.document("a")
	if n := shown(after, "all_base", "all_live"); n != 4 {
		t.Errorf("displays %d, want 4: the deleted row counts now", n)
	}
	for _, field := range []string{"base_count", "live_delta", "reconciled_at", "driftless." + counterName} {
		if !lookup(before, field).Equal(lookup(after, field)) {
			t.Errorf("%s of the other counter changed: %v, was %v", field, lookup(after, field), lookup(before, field))
		}
	}
	if state := f.stateOf(counterName); state.State != counter.Active {
		t.Errorf("the other counter is %s, want active", state.State)
	}
	wantDrift(t, f.run(r, Options{Counter: counterName, Full: true}), map[any]int64{"a": 10})
}

func TestCountersOfOneDocumentDriftApart(t *testing.T) {
	t.Parallel()
	f := setUp(t, twoCounters)
	f.comment("a", 3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.edit("a", inc("base_count", 5))
	f.edit("a", inc("all_live", -2))

	report := f.run(r, Options{Full: true})
	for i, want := range []int64{5, -2} {
		if c := report.Counters[i]; len(c.Drifted) != 1 || c.Drifted[0].Drift != want {
			t.Errorf("%s: drifted %v, want %d", c.Counter, c.Drifted, want)
		}
	}
	if n := shown(f.document("a"), "all_base", "all_live"); n != 3 {
		t.Errorf("all_per_post displays %d, want 3", n)
	}
	f.wantExact()
}

// twoCounters declares a second counter in the same documents.
func twoCounters(c *config.Config) {
	second := declared(c.Sources[0].ChangeStream.Database, "all_per_post", "all_base", "all_live")
	second.Target.ReconciledAt = "all_reconciled_at"
	c.Counters = append(c.Counters, second)
}

func TestDeletedCounterDocumentIsFoundAndMadeAgain(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		later int // comments after it was deleted
		full  bool
	}{
		"by a full run":                       {0, true},
		"by the next touch":                   {2, false},
		"by a full run that sees a touch too": {2, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.comment("a", 3)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "a"}}))(t)
			f.comment("a", tt.later)
			f.catchUp()

			report := f.run(r, Options{Full: tt.full})
			wantDrift(t, report, map[any]int64{"a": -3})
			f.wantExact()
			wantDrift(t, f.run(r, Options{Full: true}), nil)
		})
	}
}

func TestLargeDriftAndNarrowFields(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("wide", 1)
	f.comment("narrow", 3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	const wide = 1 << 33
	f.plant("wide", wide)
	f.edit("narrow", set("base_count", int32(math.MaxInt32)))

	wantDrift(t, f.run(r, Options{Full: true}), map[any]int64{"wide": wide, "narrow": math.MaxInt32 - 3})
	for _, post := range []string{"wide", "narrow"} {
		for _, field := range []string{"base_count", "live_delta"} {
			if v := f.document(post).Lookup(field); v.Type != bson.TypeInt64 {
				t.Errorf("%s of %s is of type %s, want a long", field, post, v.Type)
			}
		}
	}
	f.wantExact()
}

func TestUnusableFieldIsSetApartUntilItIsMended(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	bad := map[string]any{
		"double": 5.0, "text": "5", "null": nil, "document": bson.D{{Key: "n", Value: 5}}, "decimal": decimal(t, "5"),
		"near the end of its range": int64(math.MaxInt64 - 2),
	}
	fields := []string{"base_count", "live_delta", "driftless." + counterName + ".total"}
	f.comment("good", 1)
	for name := range bad {
		for _, field := range fields {
			f.comment(name+" in "+field, 2)
		}
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.plant("good", 1)
	for name, value := range bad {
		for _, field := range fields {
			f.edit(name+" in "+field, set(field, value))
		}
	}

	all := int64(len(bad) * len(fields))
	for _, o := range []Options{{Full: true}, {}, {Full: true, DryRun: true}} {
		c := only(t, f.run(r, o))
		if len(c.Skipped) != 1 || c.Skipped[skipBadField] != all {
			t.Errorf("%+v: skipped %v, want %d times %s", o, c.Skipped, all, skipBadField)
		}
		if drifted := c.Drift.Keys; drifted > 1 || (drifted == 1) != (o.Full && !o.DryRun) {
			t.Errorf("%+v: drifted %v, want the good one, once", o, c.Drifted)
		}
	}
	f.wantShown("good", 1)
	for name, value := range bad {
		for _, field := range fields {
			key := name + " in " + field
			if kept := lookup(f.document(key), field); !kept.Equal(raw(value)) {
				t.Errorf("%s is now %v: a repair overwrote it", key, kept)
			}
			f.edit(key, set(field, int64(7)))
		}
	}
	report := f.run(r, Options{})
	if report.Result != ResultOK || report.Counters[0].Checked != all {
		t.Errorf("after mending: %s", show(report))
	}
	f.wantExact()
	if documents, state := f.marks(); documents+state != 0 {
		t.Errorf("%d + %d marks left", documents, state)
	}
}

func decimal(t *testing.T, text string) bson.Decimal128 {
	return must(bson.ParseDecimal128(text))(t)
}

func TestUnusableFieldDoesNotKeepItsCounterFromBecomingActive(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 2)
	f.comment("b", 1)
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "a"}, {Key: "base_count", Value: "two"}}))(t)
	f.start()
	r := f.reconciler(equipment{})
	report := f.run(r, Options{})
	if c := only(t, report); report.Result != ResultPartial || c.Skipped[skipBadField] != 1 {
		t.Errorf("want one key set apart: %s", show(report))
	}
	// Otherwise every later run would recount everything, as long as one document is bad.
	if state := f.stateOf(counterName); state.State != counter.Active {
		t.Errorf("the counter is %s, want active", state.State)
	}
	if c := only(t, f.run(r, Options{})); c.Checked != 0 || c.Skipped[skipBadField] != 1 {
		t.Errorf("want the bad key looked at again, and nothing else: %+v", *c)
	}
}

func TestKeyWithoutDocumentIsLeftOutUntilThereIsOne(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	posts := f.targets
	must(posts.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "there"}}))(t)
	f.comment("there", 1)
	f.comment("late", 2)
	f.start()
	r := f.reconciler(equipment{})

	c := only(t, f.run(r, Options{}))
	if c.Skipped[skipNoDocument] != 1 || c.Rebased != 1 {
		t.Errorf("first run: %+v", *c)
	}
	if state := f.stateOf(counterName); state.State != counter.Active {
		t.Errorf("the counter is %s, want active", state.State)
	}
	f.comment("late", 1)
	f.comment("later", 1) // touched by an increment, not found by a full pass
	f.catchUp()
	for range 2 {
		report := f.run(r, Options{})
		if c := only(t, report); c.Skipped[skipNoDocument] != 2 || c.Checked != 0 || report.Result != ResultOK || c.VerifiedThrough.IsZero() {
			t.Errorf("while there is none, want a whole run that judged what there is: %s, %+v", report.Result, *c)
		}
	}
	must(posts.InsertMany(t.Context(), []any{bson.D{{Key: "_id", Value: "late"}}, bson.D{{Key: "_id", Value: "later"}}}))(t)
	wantDrift(t, f.run(r, Options{}), map[any]int64{"late": -3, "later": -1})
	f.wantShown("late", 3)
	f.wantShown("later", 1)
	f.comment("late", 1)
	f.catchUp()
	wantDrift(t, f.run(r, Options{}), nil)
	f.wantExact()
	if _, state := f.marks(); state != 0 {
		t.Errorf("%d marks left", state)
	}
}

// noUpsert keeps the counter in documents that somebody else makes.
func noUpsert(c *config.Config) {
	c.Counters[0].Target.Upsert, c.Counters[0].Target.Collection = false, "posts"
}

// lookup is a value at a dotted path, zero when there is none.
func lookup(document bson.Raw, path string) bson.RawValue {
	v, err := document.LookupErr(splitPath(path)...)
	if err != nil {
		return bson.RawValue{}
	}
	return v
}

// Readers show and sort by total, so it is part of what a recount answers for.
func TestTotalIsMadeRightWhereItIsNamedAnewOrEdited(t *testing.T) {
	t.Parallel()
	f := setUp(t, twoCounters)
	for _, post := range []string{"a", "b", "c"} {
		f.comment(post, 3)
	}
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.stop()
	f.config.Counters[0].Target.Total = "comments"
	f.install()
	f.start()
	f.catchUp()
	r := f.reconciler(equipment{})
	if c := only(t, f.run(r, Options{Counter: counterName})); c.Rebased != 3 || c.Drift.Keys != 0 {
		t.Errorf("want 3 keys rebased and no drift: %+v", *c)
	}
	for _, post := range []string{"a", "b", "c"} {
		if n := lookup(f.document(post), "comments").AsInt64(); n != 3 {
			t.Errorf("total of %s is %d, want 3", post, n)
		}
	}
	f.edit("b", bson.D{{Key: "$inc", Value: bson.D{{Key: "comments", Value: 100}}}})
	c := only(t, f.run(r, Options{Counter: counterName, Full: true}))
	if c.Drift.Over != 100 || c.Drift.Keys != 1 || c.Repaired != 1 || c.Drifted[0].Cause != CauseEdited {
		t.Errorf("want a drift of 100, edited and repaired: %+v", *c)
	}
	if c := only(t, f.run(r, Options{Counter: counterName, Full: true})); c.Drift.Keys != 0 {
		t.Errorf("want no drift after the repair: %+v", *c)
	}
}

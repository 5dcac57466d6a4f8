package reconciler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// images turns the images of the rows' collection on or off.
func (f *fixture) images(on bool) {
	f.t.Helper()
	f.check(f.rows.Database().RunCommand(f.t.Context(), bson.D{
		{Key: "collMod", Value: f.rows.Name()}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: on}}},
	}).Err())
}

func (f *fixture) hasImages() bool {
	f.t.Helper()
	found, err := f.rows.Database().ListCollectionSpecifications(f.t.Context(), bson.D{{Key: "name", Value: f.rows.Name()}})
	f.check(err)
	on, _ := found[0].Options.Lookup("changeStreamPreAndPostImages", "enabled").BooleanOK()
	return on
}

// numbered inserts n rows of a post, with an _id each: post, "/" and its number.
func (f *fixture) numbered(post string, n int) {
	f.t.Helper()
	rows := make([]any, n)
	for i := range rows {
		rows[i] = bson.D{{Key: "_id", Value: fmt.Sprint(post, "/", i)}, {Key: "post_id", Value: post}, {Key: "score", Value: 1}}
	}
	_, err := f.rows.InsertMany(f.t.Context(), rows)
	f.check(err)
}

func (f *fixture) change(id string, update any) {
	f.t.Helper()
	_, err := f.rows.UpdateByID(f.t.Context(), id, update)
	f.check(err)
}

func (f *fixture) remove(id string) {
	f.t.Helper()
	_, err := f.rows.DeleteOne(f.t.Context(), bson.D{{Key: "_id", Value: id}})
	f.check(err)
}

var gone = set("deleted_at", time.Unix(1, 0))

// wantOneRun runs the reconciler once and holds what it found of the first counter, and the counters after it.
func (f *fixture) wantOneRun(r *Reconciler, cause Cause, drift map[string]int64) {
	f.t.Helper()
	f.catchUp()
	report := f.run(r, Options{})
	if report.Result != ResultOK {
		f.t.Errorf("the run is %s", show(report))
	}
	got := map[string]int64{}
	for _, d := range report.Counters[0].Drifted {
		got[d.Key.StringValue()] = d.Drift
		if d.Cause != cause {
			f.t.Errorf("drift of %s has cause %q, want %q", d.Key, d.Cause, cause)
		}
	}
	if !maps.Equal(got, drift) {
		f.t.Errorf("drift is %v, want %v", got, drift)
	}
	f.wantExact()
	for _, d := range f.definitions {
		if s := f.stateOf(d.Name); s.State != counter.Active {
			f.t.Errorf("after the run %s is %+v", d.Name, s)
		}
	}
	if documents, state := f.marks(); documents != 0 || state != 0 {
		f.t.Errorf("after the run %d and %d marks are left", documents, state)
	}
}

func (f *fixture) wantState(name, state string) {
	f.t.Helper()
	f.catchUp()
	if s := f.stateOf(name); s.State != state {
		f.t.Errorf("%s is %+v, want %s", name, s, state)
	}
}

func TestImagesTurnedOffAndOnAgainWhileTheLaneRuns(t *testing.T) {
	t.Parallel()
	f := setUp(t, withScore)
	for _, post := range []string{"a", "b", "c"} {
		f.numbered(post, 5)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.images(false)

	// What no counter looks at is free, and an insert says it all by itself.
	f.change("a/0", set("text", "other"))
	f.numbered("new", 2)
	f.wantState(counterName, counter.Active)
	f.wantShown("new", 2)
	f.wantOneRun(r, "", nil)

	// What leaves the key costs a recount of the key, of the counter that looks at it.
	f.change("a/1", gone)
	f.change("b/1", inc("score", 5))
	f.wantState(counterName, counter.Active)
	f.wantState(scoreName, counter.Active)
	f.wantShown("a", 5) // nothing was guessed
	if _, marks := f.marks(); marks != 3 {
		t.Errorf("%d keys are marked, want a of both counters and b of one", marks)
	}
	f.wantOneRun(r, CauseMissingImage, map[string]int64{"a": 1})

	// What changes the key, or may, costs a full recount.
	f.change("a/2", set("post_id", "c"))
	f.remove("b/2")
	f.wantState(counterName, counter.Rebasing)
	f.wantShown("c", 5)
	f.wantOneRun(r, CauseMissingImage, map[string]int64{"a": 1, "b": 1, "c": -1})

	f.images(true)
	f.change("a/3", set("post_id", "c"))
	f.remove("b/3")
	f.change("c/3", gone)
	f.wantState(counterName, counter.Active)
	f.wantExact()
	f.wantOneRun(r, "", nil)
}

// TestImagesThatExpiredBeforeTheyWereRead: the lane was away for longer than the server keeps them.
func TestImagesThatExpiredBeforeTheyWereRead(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{Params: map[string]string{"expiredChangeStreamPreImageRemovalJobSleepSecs": "1"}})
	f := setUpOn(t, server.URI())
	f.numbered("a", 5)
	f.numbered("b", 5)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.stop()

	f.change("a/0", gone)
	f.expire()
	f.start()
	f.wantState(counterName, counter.Active)
	f.wantOneRun(r, CauseMissingImage, map[string]int64{"a": 1})

	f.stop()
	f.change("a/1", set("post_id", "b"))
	f.remove("b/1")
	f.expire()
	f.start()
	f.wantState(counterName, counter.Rebasing)
	f.wantOneRun(r, CauseMissingImage, map[string]int64{"a": 1})
}

// expire has the server drop all images.
func (f *fixture) expire() {
	f.t.Helper()
	admin := f.client.Database("admin")
	f.check(admin.RunCommand(f.t.Context(), bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: "changeStreamOptions", Value: bson.D{
		{Key: "preAndPostImages", Value: bson.D{{Key: "expireAfterSeconds", Value: int64(1)}}},
	}}}}}).Err())
	realtest.Eventually(f.t, patience, "the images to expire", func() bool {
		n, err := f.client.Database("config").Collection("system.preimages").CountDocuments(f.t.Context(), bson.D{})
		return err == nil && n == 0
	})
}

func TestAResumePointOlderThanTheImages(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.images(false)
	f.numbered("a", 5)
	f.numbered("b", 5)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.stop()
	f.change("a/0", gone)
	f.change("a/1", set("text", "other"))
	f.images(true)
	f.change("a/0", set("post_id", "b")) // of a row that the key was a's of
	f.change("b/0", gone)
	f.start()
	f.wantState(counterName, counter.Active)
	f.wantOneRun(r, CauseMissingImage, map[string]int64{"a": 1})
}

// TestImagesThatAreNeverOn: inserts are exact, what no counter looks at is free, and all else costs one full recount a
// run, however much of it there is, and at most one mark of the counter a transaction.
func TestImagesThatAreNeverOn(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.images(false)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	marked := must(f.state.Collection(counter.StatesCollection).Watch(t.Context(), mongo.Pipeline{
		{{Key: "$match", Value: bson.D{{Key: "$or", Value: bson.A{
			bson.D{{Key: "operationType", Value: "insert"}},
			bson.D{{Key: "updateDescription.updatedFields.epoch", Value: bson.D{{Key: "$exists", Value: true}}}},
		}}}}},
	}))(t)
	defer func() { _ = marked.Close(context.WithoutCancel(t.Context())) }()
	for round := range 3 {
		post := fmt.Sprint("post ", round)
		f.numbered(post, 300)
		_, err := f.rows.UpdateMany(t.Context(), bson.D{}, set("text", round))
		f.check(err)
		f.wantState(counterName, counter.Active)
		f.wantShown(post, 300)
		f.wantExact()

		before := must(f.checkpoints.Load(t.Context(), sourceName))(t)
		_, err = f.rows.UpdateMany(t.Context(), bson.D{{Key: "_id", Value: bson.Regex{Pattern: "[05]$"}}}, gone) // too many to look at each
		f.check(err)
		_, err = f.rows.DeleteMany(t.Context(), bson.D{{Key: "_id", Value: bson.Regex{Pattern: "[1]$"}}})
		f.check(err)
		f.wantState(counterName, counter.Rebasing)
		moves := must(f.checkpoints.Load(t.Context(), sourceName))(t).Seq - before.Seq
		f.wantOneRun(r, CauseMissingImage, map[string]int64{post: 90})
		end := fmt.Sprint("end of round ", round)
		_, err = f.state.Collection(counter.StatesCollection).InsertOne(t.Context(), bson.D{{Key: "_id", Value: end}})
		f.check(err)
		marks := int64(0)
		for marked.Next(t.Context()) && marked.Current.Lookup("documentKey", "_id").StringValue() != end {
			marks++
		}
		f.check(marked.Err())
		if marks == 0 || marks > moves {
			t.Errorf("the counter was marked %d times in %d transactions", marks, moves)
		}
	}
}

// TestADocumentOf15MBIsCountedByItsImages: the two images together are beyond what the server can send.
func TestADocumentOf15MBIsCountedByItsImages(t *testing.T) {
	t.Parallel()
	f := setUp(t, withScore)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	for _, body := range []string{strings.Repeat("x", 15<<20), strings.Repeat("y", 15<<20)} {
		_, err := f.rows.InsertOne(t.Context(), bson.D{{Key: "_id", Value: body[:1]}, {Key: "post_id", Value: "a"}, {Key: "score", Value: 3}, {Key: "body", Value: body}})
		f.check(err)
	}
	f.change("x", set("body", strings.Repeat("z", 15<<20)))
	f.change("x", set("post_id", "b"))
	f.change("x", inc("score", 4))
	f.change("y", gone)
	_, err := f.rows.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: "x"}}, bson.D{{Key: "post_id", Value: "c"}, {Key: "body", Value: strings.Repeat("r", 15<<20)}})
	f.check(err)
	f.wantState(counterName, counter.Active)
	f.wantExact()
	f.wantShown("c", 1)
	f.remove("x")
	f.wantExact()
	f.wantOneRun(r, "", nil)
}

// TestACollectionTakesThePlaceOfTheRows: by a rename it has no images, and by $out of some servers.
func TestACollectionTakesThePlaceOfTheRows(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(*fixture) error{
		"out": func(f *fixture) error {
			_, err := f.rows.Aggregate(f.t.Context(), bson.A{
				bson.D{{Key: "$match", Value: bson.D{{Key: "post_id", Value: "b"}}}}, bson.D{{Key: "$out", Value: f.rows.Name()}},
			})
			return err
		},
		"rename": func(f *fixture) error {
			staging := f.rows.Database().Collection("staging")
			if _, err := f.rows.Aggregate(f.t.Context(), bson.A{
				bson.D{{Key: "$match", Value: bson.D{{Key: "post_id", Value: "b"}}}}, bson.D{{Key: "$out", Value: "staging"}},
			}); err != nil {
				return err
			}
			return f.client.Database("admin").RunCommand(f.t.Context(), bson.D{
				{Key: "renameCollection", Value: f.rows.Database().Name() + "." + staging.Name()},
				{Key: "to", Value: f.rows.Database().Name() + "." + f.rows.Name()}, {Key: "dropTarget", Value: true},
			}).Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.numbered("a", 5)
			f.numbered("b", 5)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.check(replace(f))
			f.catchUp()
			f.wantOneRun(r, CauseGap, map[string]int64{"a": 5})
			without := func(drift map[string]int64) map[string]int64 {
				if name == "out" && f.hasImages() { // MongoDB 6.0.5 keeps the option
					return nil
				}
				return drift
			}

			f.change("b/0", set("text", "other"))
			f.numbered("c", 3)
			f.wantState(counterName, counter.Active)
			f.change("b/1", gone)
			f.wantState(counterName, counter.Active)
			f.wantOneRun(r, CauseMissingImage, without(map[string]int64{"b": 1}))
			f.change("b/2", set("post_id", "c"))
			f.remove("b/3")
			f.wantOneRun(r, CauseMissingImage, without(map[string]int64{"b": 2, "c": -1}))

			f.images(true)
			f.change("b/4", set("post_id", "c"))
			f.wantExact()
			f.wantOneRun(r, "", nil)
		})
	}
}

// TestARunBetweenAChangeAndItsTimeLeavesItsMarks: the lane stands still with the change, at the position just before it.
func TestARunBetweenAChangeAndItsTimeLeavesItsMarks(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*fixture){
		"of a key":     func(f *fixture) { f.change("a/0", gone) },
		"of a counter": func(f *fixture) { f.remove("a/0") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.numbered("a", 5)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.images(false)
			f.config.Incrementer.IdleCheckpoint = time.Hour
			f.stop()
			before := must(f.checkpoints.Load(t.Context(), sourceName))(t)
			change(f)
			f.start()
			realtest.Eventually(t, patience, "the lane to see the change", func() bool {
				at, err := f.checkpoints.Load(t.Context(), sourceName)
				return err == nil && at.Seq > before.Seq
			})
			f.run(r, Options{})
			f.numbered("later", 1)
			f.catchUpWith("later", 1)
			f.run(r, Options{})
			f.wantShown("a", 4)
		})
	}
}

// catchUpWith waits until a post displays n, and so everything before is applied.
func (f *fixture) catchUpWith(post string, n int64) {
	f.t.Helper()
	realtest.Eventually(f.t, patience, post+" to be counted", func() bool {
		return shown(f.document(post), "base_count", "live_delta") == n
	})
}

// TestARecountThatBeganBeforeItsChangeIsMadeAgain: what a counter was marked for lies beyond the run's position.
func TestARecountThatBeganBeforeItsChangeIsMadeAgain(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.check(f.states.Mark(t.Context(), f.definitions[0], counter.ReasonMissingImage))
	after := func(at bson.Timestamp) {
		_, err := f.state.Collection(counter.StatesCollection).UpdateByID(t.Context(), counterName, set("after", at))
		f.check(err)
	}
	now := f.now()
	after(bson.Timestamp{T: now.T + 3600})
	f.plant("a", 1)
	wantDrift(t, f.run(r, Options{}), map[any]int64{"a": 1})
	f.wantState(counterName, counter.Rebasing)
	after(now)
	f.wantOneRun(r, "", nil)
	if s := f.stateOf(counterName); !s.After.IsZero() {
		t.Errorf("active, and waits for %v", s.After)
	}
}

// TestImagesThatComeAndGo (I6): whatever rows and images do, a change without images changes no counter, and a key that
// is wrong by it is marked, so that one run, not a full one, makes all right.
func TestImagesThatComeAndGo(t *testing.T) {
	checks, steps := "2", "14"
	if soak() {
		checks, steps = "60", "40"
	}
	setFlag(t, "rapid.checks", checks)
	setFlag(t, "rapid.steps", steps)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		h := newHistory(t, 1+n%2) // one lane, or two that both see what has no image
		defer h.close()
		changes := func(t *rapid.T) { h.do(h.f.t.Context(), h.drawChanges(t, 1, 12)) }
		rt.Repeat(map[string]func(*rapid.T){
			"changes":      changes,
			"more changes": changes,
			"transaction": func(t *rapid.T) {
				drawn := h.drawChanges(t, 2, 15)
				h.f.transaction(func(ctx context.Context) { h.do(ctx, drawn) })
			},
			"images on":     func(*rapid.T) { h.f.images(true) },
			"images off":    func(*rapid.T) { h.f.images(false) },
			"blind changes": h.blindChanges,
			"blind edits":   h.blindEdits,
			"away": func(t *rapid.T) { // the lane sees all of it at once, when much of it is over
				h.f.stop()
				for range rapid.IntRange(1, 4).Draw(t, "turns") {
					changes(t)
					h.f.images(rapid.Bool().Draw(t, "images"))
				}
				h.start()
			},
			"look": h.everyWrongKeyIsMarked,
			"run": func(t *rapid.T) {
				if report, err := h.beside(h.f.t.Context(), Options{}, h.drawChanges(t, 0, 10)); err != nil || report.Result != ResultOK {
					t.Fatalf("run: %v, %s", err, show(report))
				}
			},
		})
		h.everyWrongKeyIsMarked(rt)
		report, err := h.r.RunOnce(h.f.t.Context(), Options{})
		if err != nil || report.Result != ResultOK {
			rt.Fatalf("run: %v, %s", err, show(report))
		}
		for _, c := range report.Counters {
			for _, d := range c.Drifted {
				if d.Cause != CauseMissingImage {
					rt.Errorf("%s of %s is wrong by %d because of %q", c.Counter, d.Key, d.Drift, d.Cause)
				}
			}
		}
		for name, wrong := range h.wrong() {
			if len(wrong) > 0 {
				rt.Errorf("after the run, %s is wrong by %v", name, wrong)
			}
		}
	})
}

// blindChanges makes changes without images and holds the counters to what they displayed before, plus the inserts:
// these alone say what they are.
func (h *history) blindChanges(t *rapid.T) {
	h.f.catchUp()
	before := h.displayed()
	first := h.next
	h.f.images(false)
	for range rapid.IntRange(1, 8).Draw(t, "changes") {
		n := h.next
		change := h.drawChange(t)
		if h.next > n {
			h.f.check(change(h.f.t.Context()))
			r := h.rows[n]
			h.add(before, r, 1)
			continue
		}
		h.f.check(change(h.f.t.Context()))
	}
	h.f.catchUp()
	for name, counts := range h.displayed() {
		for key := range union(counts, before[name]) {
			if counts[key] != before[name][key] {
				t.Fatalf("%s of %q displays %d, want %d: something was guessed (rows from %d on are new)", name, key, counts[key], before[name][key], first)
			}
		}
	}
	if rapid.Bool().Draw(t, "images on again") {
		h.f.images(true)
	}
}

// blindEdits changes rows without images and leaves their keys alone, right after a run: neither a full recount nor an
// older mark hides one that is not made.
func (h *history) blindEdits(t *rapid.T) {
	h.f.catchUp()
	if report, err := h.r.RunOnce(h.f.t.Context(), Options{}); err != nil || report.Result != ResultOK {
		t.Fatalf("run: %v, %s", err, show(report))
	}
	h.f.images(false)
	for range rapid.IntRange(1, 4).Draw(t, "edits") {
		n := h.drawRow(t)
		r := h.rows[n]
		change := set("score", r.score+1)
		if r.score++; rapid.Bool().Draw(t, "soft delete or undelete") {
			r.score--
			r.deleted = !r.deleted
			change = set("deleted_at", nil)
			if r.deleted {
				change = gone
			}
		}
		h.rows[n] = r
		_, err := h.f.rows.UpdateOne(h.f.t.Context(), bson.D{{Key: "_id", Value: n}}, change)
		h.f.check(err)
	}
	h.f.images(true)
	h.everyWrongKeyIsMarked(t)
}

func union(a, b map[string]int64) map[string]int64 {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// add brings a row of the model into counts, by counter and canonical key.
func (h *history) add(counts map[string]map[string]int64, r row, times int64) {
	if key := raw(r.key); !r.deleted && isBound(key) {
		counts[counterName][counter.Canonical(key)] += times
		counts[scoreName][counter.Canonical(key)] += times * r.score
	}
}

// displayed is what the two counters display, by counter and canonical key.
func (h *history) displayed() map[string]map[string]int64 {
	h.f.t.Helper()
	counts := map[string]map[string]int64{counterName: {}, scoreName: {}}
	var documents []bson.Raw
	h.f.check(must(h.f.targets.Find(h.f.t.Context(), bson.D{}, options.Find()))(h.f.t).All(h.f.t.Context(), &documents))
	for _, d := range documents {
		key := counter.Canonical(d.Lookup("_id"))
		counts[counterName][key] = shown(d, "base_count", "live_delta")
		counts[scoreName][key] = shown(d, "score_base", "score_live")
	}
	return counts
}

// wrong is how far each counter is from the model, by counter and canonical key.
func (h *history) wrong() map[string]map[string]int64 {
	h.f.t.Helper()
	h.f.catchUp()
	off := h.displayed()
	for _, r := range h.rows {
		h.add(off, r, -1)
	}
	for _, counts := range off {
		maps.DeleteFunc(counts, func(_ string, n int64) bool { return n == 0 })
	}
	return off
}

// everyWrongKeyIsMarked holds what is wrong to what the next run will look at.
func (h *history) everyWrongKeyIsMarked(t *rapid.T) {
	wrong := h.wrong()
	for _, d := range h.f.definitions {
		if h.f.stateOf(d.Name).State == counter.Rebasing {
			continue
		}
		marked := map[string]bool{}
		list := d.Touched(h.f.client, h.f.states, 100)
		for page := must(list.Next(h.f.t.Context()))(h.f.t); len(page) > 0; page = must(list.Next(h.f.t.Context()))(h.f.t) {
			for _, mark := range page {
				marked[counter.Canonical(mark.Key)] = true
			}
		}
		for _, key := range slices.Sorted(maps.Keys(wrong[d.Name])) {
			if !marked[key] {
				t.Fatalf("%s of %q is wrong by %d, and not marked", d.Name, key, wrong[d.Name][key])
			}
		}
	}
}

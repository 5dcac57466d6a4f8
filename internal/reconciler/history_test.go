package reconciler

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// scoreName is a counter that adds up a field of the same rows, in the same documents.
const scoreName = "score_per_post"

func withScore(c *config.Config) {
	score := declared(c.Sources[0].ChangeStream.Database, scoreName, "score_base", "score_live")
	score.Sum, score.Target.ReconciledAt, score.Target.Total = "score", "score_reconciled_at", "score"
	c.Counters = append(c.Counters, score)
	c.Incrementer.MaxBatchEvents = 5 // transactions end within several batches
	c.Reconciler.JudgeTimeout, c.Reconciler.BatchKeys = patience, 3
}

// TestEveryReportedDriftIsThePlantedOne runs random histories against a model: whatever happens to rows, incrementer and
// reconciler, each drift that a run reports is exactly what was planted, and a full run leaves every counter right.
func TestEveryReportedDriftIsThePlantedOne(t *testing.T) {
	checks, steps := "2", "20"
	if soak() {
		checks, steps = "60", "30"
	}
	setFlag(t, "rapid.checks", checks)
	setFlag(t, "rapid.steps", steps)
	for _, lanes := range []int{1, 3} {
		t.Run(fmt.Sprint("lanes ", lanes), func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				h := newHistory(t, lanes)
				defer h.close()
				rt.Repeat(h.actions())
				h.finish(rt)
			})
		})
	}
}

// setFlag sets a flag of the test binary until the test ends. Such a test is not parallel to others.
func setFlag(t *testing.T, name, value string) {
	t.Helper()
	f := flag.Lookup(name)
	before := f.Value.String()
	if err := f.Value.Set(value); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Value.Set(before) })
}

// row is what the model knows of one.
type row struct {
	key     any
	score   int64
	deleted bool
}

// history is a fixture with the model of what has been done to it.
type history struct {
	f       *fixture
	r       *Reconciler
	rows    map[int]row
	next    int
	running bool
	planted map[string]map[string]int64 // by counter and canonical key: how wrong it is
	late    map[string]bool             // keys that a full run may find only at the next position
	cutAt   atomic.Int64                // commands until the run is cut, none when negative
	cut     context.CancelFunc
	runs    map[string]int
}

func newHistory(t *testing.T, lanes int) *history {
	f := setUp(t, withScore, divided(lanes))
	h := &history{
		f: f, rows: map[int]row{}, planted: map[string]map[string]int64{counterName: {}, scoreName: {}}, late: map[string]bool{},
		runs: map[string]int{},
	}
	h.r = f.reconciler(equipment{started: func(*event.CommandStartedEvent) {
		if h.cutAt.Add(-1) == 0 {
			h.cut()
		}
	}})
	h.r.rowsPerRange = 4
	h.start()
	f.activate(h.r)
	return h
}

func (h *history) start() {
	h.f.start()
	h.running = true
}

func (h *history) close() {
	h.f.stop()
	for _, db := range []*mongo.Database{h.f.rows.Database(), h.f.state} {
		h.f.check(db.Drop(h.f.t.Context()))
	}
}

// keys include one key in three forms, and two that are none.
var keys = []any{"a", "b", int32(1), 1.0, int64(1), 1.5, bson.D{{Key: "x", Value: int32(1)}}, true, bson.MinKey{}, bson.JavaScript("a"), nil, bson.A{"a"}}

func (h *history) drawKey(t *rapid.T) any { return rapid.SampledFrom(keys).Draw(t, "key") }

func (h *history) drawRow(t *rapid.T) int {
	if len(h.rows) == 0 {
		t.Skip("no rows")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(h.rows))).Draw(t, "row")
}

// drawChange draws one change of one row and returns what does it.
func (h *history) drawChange(t *rapid.T) func(context.Context) error {
	rows := h.f.rows
	id := func(n int) bson.D { return bson.D{{Key: "_id", Value: n}} }
	update := func(n int, r row, change bson.D) func(context.Context) error {
		h.rows[n] = r
		return func(ctx context.Context) error { _, err := rows.UpdateOne(ctx, id(n), change); return err }
	}
	what := rapid.SampledFrom([]string{"insert", "insert", "insert", "delete softly", "undelete", "move", "score", "delete", "replace", "edit"}).Draw(t, "change")
	if what == "insert" || len(h.rows) == 0 {
		n, r := h.next, row{key: h.drawKey(t), score: rapid.Int64Range(-3, 9).Draw(t, "score"), deleted: rapid.Float64().Draw(t, "born deleted") < 0.1}
		h.next++
		h.rows[n] = r
		return func(ctx context.Context) error { _, err := rows.InsertOne(ctx, document(n, r)); return err }
	}
	n := h.drawRow(t)
	r := h.rows[n]
	switch what {
	case "delete softly":
		r.deleted = true
		return update(n, r, set("deleted_at", time.Now()))
	case "undelete":
		r.deleted = false
		return update(n, r, set("deleted_at", nil))
	case "move":
		r.key = h.drawKey(t)
		return update(n, r, set("post_id", r.key))
	case "score":
		r.score = rapid.Int64Range(-3, 9).Draw(t, "score")
		return update(n, r, set("score", r.score))
	case "edit":
		return update(n, r, set("text", rapid.Int().Draw(t, "text")))
	case "replace":
		r = row{key: h.drawKey(t), score: 2}
		h.rows[n] = r
		return func(ctx context.Context) error { _, err := rows.ReplaceOne(ctx, id(n), document(n, r)); return err }
	default:
		delete(h.rows, n)
		return func(ctx context.Context) error { _, err := rows.DeleteOne(ctx, id(n)); return err }
	}
}

func document(n int, r row) bson.D {
	d := bson.D{{Key: "_id", Value: n}, {Key: "post_id", Value: r.key}, {Key: "score", Value: r.score}}
	if r.deleted {
		d = append(d, bson.E{Key: "deleted_at", Value: time.Now()})
	}
	return d
}

func (h *history) drawChanges(t *rapid.T, atLeast, atMost int) []func(context.Context) error {
	changes := make([]func(context.Context) error, rapid.IntRange(atLeast, atMost).Draw(t, "changes"))
	for i := range changes {
		changes[i] = h.drawChange(t)
	}
	return changes
}

func (h *history) do(ctx context.Context, changes []func(context.Context) error) {
	for _, change := range changes {
		h.f.check(change(ctx))
	}
}

// actions are the steps of a history, by name. Runs stand twice, to come more often.
func (h *history) actions() map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"changes":      func(t *rapid.T) { h.do(h.f.t.Context(), h.drawChanges(t, 1, 8)) },
		"more changes": func(t *rapid.T) { h.do(h.f.t.Context(), h.drawChanges(t, 5, 20)) },
		"transaction": func(t *rapid.T) {
			changes := h.drawChanges(t, 2, 20)
			h.f.transaction(func(ctx context.Context) { h.do(ctx, changes) })
		},
		"crash": func(t *rapid.T) {
			if h.running {
				h.f.stop()
			}
			h.running = false
			if rapid.Bool().Draw(t, "restarts at once") {
				h.start()
			}
		},
		"hold a lane back": func(t *rapid.T) {
			if !h.running || len(h.f.laneIDs()) == 1 {
				t.Skip("it is not running, or has one lane")
			}
			h.f.stopLane(rapid.IntRange(0, len(h.f.laneIDs())-1).Draw(t, "lane"))
		},
		"let all lanes go": func(t *rapid.T) {
			if !h.running {
				t.Skip("it is not running")
			}
			h.start()
		},
		"restart": func(t *rapid.T) {
			if h.running {
				t.Skip("it is running")
			}
			h.start()
		},
		"catch up": func(t *rapid.T) {
			if !h.running {
				t.Skip("it is not running")
			}
			h.f.catchUp()
		},
		"plant":           h.plant,
		"lose a document": h.loseDocument,
		"run":             func(t *rapid.T) { h.run(t, Options{}) },
		"run once more":   func(t *rapid.T) { h.run(t, Options{}) },
		"full run":        func(t *rapid.T) { h.run(t, Options{Full: true}) },
		"dry run":         func(t *rapid.T) { h.run(t, Options{DryRun: true, Full: rapid.Bool().Draw(t, "full")}) },
		"run of one key":  func(t *rapid.T) { h.run(t, Options{Key: raw(h.drawKey(t))}) },
		"run that is cut": h.cutRun,
		"full once more":  func(t *rapid.T) { h.run(t, Options{Full: true}) },
	}
}

// plant makes a counter wrong in one of its two parts.
func (h *history) plant(t *rapid.T) {
	name := rapid.SampledFrom([]string{counterName, scoreName}).Draw(t, "counter")
	fields := map[string][]string{counterName: {"base_count", "live_delta"}, scoreName: {"score_base", "score_live"}}
	key, n := h.drawKey(t), rapid.Int64Range(-9, 9).Draw(t, "size")
	result := must(h.f.targets.UpdateOne(h.f.t.Context(), equals(key), inc(rapid.SampledFrom(fields[name]).Draw(t, "field"), n)))(h.f.t)
	if result.MatchedCount == 1 {
		h.planted[name][counter.Canonical(raw(key))] += n
	}
}

// loseDocument deletes a counter document: from then on, what it displayed rightly is missing.
func (h *history) loseDocument(t *rapid.T) {
	key := h.drawKey(t)
	lost, err := h.f.targets.FindOneAndDelete(h.f.t.Context(), equals(key)).Raw()
	if errors.Is(err, mongo.ErrNoDocuments) {
		t.Skip("there is none")
	}
	h.f.check(err)
	h.planted[counterName][counter.Canonical(raw(key))] -= shown(lost, "base_count", "live_delta")
	h.planted[scoreName][counter.Canonical(raw(key))] -= shown(lost, "score_base", "score_live")
	// A document that held nothing but what lies beyond the position, and is gone, has left no trace at the position.
	for _, at := range must(h.f.checkpoints.All(h.f.t.Context()))(h.f.t) {
		for _, d := range at.Tail.Deltas {
			h.late[counter.Canonical(d.Key)] = true
		}
	}
}

// run reconciles while rows change, and holds the report to the model.
func (h *history) run(t *rapid.T, o Options) {
	changes := h.drawChanges(t, 0, 10)
	report, err := h.beside(h.f.t.Context(), o, changes)
	if err != nil {
		t.Fatalf("run: %v", err)
	}
	if report.Result != ResultOK {
		t.Fatalf("%+v: not everything was judged: %s", o, show(report))
	}
	h.runs[fmt.Sprintf("full %v dry %v", o.Full, o.DryRun)]++
	found := h.found(t, report, o)
	for name, planted := range h.planted {
		for key, n := range planted {
			if _, reported := found[name][key]; o.Full && n != 0 && !reported && !h.late[key] {
				t.Fatalf("%+v: %s of key %q is wrong by %d, and a full run did not report it: %s", o, name, key, n, show(report))
			}
		}
		if !o.DryRun {
			for key := range found[name] {
				delete(planted, key)
			}
		}
	}
}

func (h *history) beside(ctx context.Context, o Options, changes []func(context.Context) error) (report *Report, err error) {
	var running sync.WaitGroup
	running.Go(func() { report, err = h.r.RunOnce(ctx, o) })
	h.do(h.f.t.Context(), changes)
	running.Wait()
	return report, err
}

// found is what a run reported, each drift of which must be the planted one.
func (h *history) found(t *rapid.T, report *Report, o Options) map[string]map[string]int64 {
	found := map[string]map[string]int64{}
	for _, c := range report.Counters {
		found[c.Counter] = map[string]int64{}
		for _, d := range c.Drifted {
			key := counter.Canonical(d.Key.RawValue)
			if want := h.planted[c.Counter][key]; d.Drift != want {
				t.Fatalf("%+v: %s of %s: reported a drift of %d, planted was %d: %s", o, c.Counter, d.Key, d.Drift, want, show(report))
			}
			if _, twice := found[c.Counter][key]; twice {
				t.Fatalf("%+v: %s of %s is reported twice: %s", o, c.Counter, d.Key, show(report))
			}
			found[c.Counter][key] = d.Drift
		}
		if c.Rebased != 0 {
			t.Fatalf("%+v: %s is active, and %d keys were rebased", o, c.Counter, c.Rebased)
		}
	}
	return found
}

// cutRun stops a run at some command. What it reported it may have repaired or not: a look tells, and both are right.
func (h *history) cutRun(t *rapid.T) {
	ctx, cancel := context.WithCancel(h.f.t.Context())
	defer cancel()
	h.cut = cancel
	h.cutAt.Store(rapid.Int64Range(1, 60).Draw(t, "commands"))
	o := Options{Full: rapid.Bool().Draw(t, "full")}
	report, err := h.beside(ctx, o, h.drawChanges(t, 0, 10))
	h.cutAt.Store(-1)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatalf("run: %v", err)
	}
	reported := h.found(t, report, o)
	look, err := h.r.RunOnce(h.f.t.Context(), Options{Full: true, DryRun: true})
	if err != nil || look.Result != ResultOK {
		t.Fatalf("look after a run that was cut: %v, %s", err, show(look))
	}
	still := h.found(t, look, Options{Full: true, DryRun: true})
	for name, planted := range h.planted {
		for key, n := range planted {
			_, was := reported[name][key]
			_, is := still[name][key]
			switch {
			case n == 0, is:
			case was:
				delete(planted, key)
			case h.late[key]:
			default:
				t.Fatalf("%s of key %q was wrong by %d, is not any more, and was never reported", name, key, n)
			}
		}
	}
}

// finish makes all right and compares it with the model.
func (h *history) finish(t *rapid.T) {
	h.start()
	h.f.catchUp()
	clear(h.late)
	h.run(t, Options{Full: true})
	h.f.catchUp()
	want := map[string]map[string]int64{counterName: {}, scoreName: {}}
	for _, r := range h.rows {
		if key := raw(r.key); !r.deleted && isBound(key) {
			want[counterName][counter.Canonical(key)]++
			want[scoreName][counter.Canonical(key)] += r.score
		}
	}
	for _, key := range keys {
		d := h.f.document(key)
		name := counter.Canonical(raw(key))
		if n := shown(d, "base_count", "live_delta"); n != want[counterName][name] {
			t.Fatalf("post %v displays %d comments, want %d: %v", key, n, want[counterName][name], d)
		}
		if n := shown(d, "score_base", "score_live"); n != want[scoreName][name] || shown(d, "score", "") != n {
			t.Fatalf("post %v displays a score of %d, want %d: %v", key, n, want[scoreName][name], d)
		}
	}
	report, err := h.beside(h.f.t.Context(), Options{Full: true, DryRun: true}, nil)
	if err != nil || report.Result != ResultOK || report.Drifted() {
		t.Fatalf("after a full run: %v, %s", err, show(report))
	}
	t.Logf("%d rows, runs %v", len(h.rows), h.runs)
}

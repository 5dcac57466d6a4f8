package reconciler

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// keysOfLanes are the posts that have rows, by the lane that they belong to.
func (f *fixture) keysOfLanes() [][]any {
	f.t.Helper()
	var lanes [][]any
	for _, id := range f.laneIDs() {
		keys := must(f.definitions[0].Keys(f.t.Context(), f.client, counter.Selection{{Key: "$nin", Value: bson.A{}}}, id))(f.t)
		if len(keys) < 2 {
			f.t.Fatalf("%d keys in lane %s: the test needs more", len(keys), id)
		}
		var posts []any
		for _, key := range keys {
			posts = append(posts, key.Int32())
		}
		lanes = append(lanes, posts)
	}
	return lanes
}

// atDifferentPositions is a fixture of three lanes, of which the middle one is held back: there are changes that it has not
// applied, in every lane, and moves from each lane's keys to another's.
func atDifferentPositions(t *testing.T, edits ...func(*config.Config)) (f *fixture, r *Reconciler, lanes [][]any) {
	f = setUp(t, append(edits, divided(3))...)
	const posts = 30
	for i := range posts {
		f.comment(i, 3)
	}
	f.start()
	r = f.reconciler(equipment{})
	f.activate(r)
	lanes = f.keysOfLanes()
	f.stopLane(1)
	for i, keys := range lanes {
		for _, key := range keys {
			f.comment(key, 2)
		}
		to := lanes[(i+1)%len(lanes)]
		must(f.rows.UpdateOne(t.Context(), bson.D{{Key: "post_id", Value: keys[0]}}, set("post_id", to[0])))(t)
		must(f.rows.DeleteOne(t.Context(), bson.D{{Key: "post_id", Value: keys[1]}}))(t)
	}
	f.catchUp()
	return f, r, lanes
}

func TestLanesAtDifferentPositionsAreEachJudgedAtTheirOwn(t *testing.T) {
	t.Parallel()
	f, r, lanes := atDifferentPositions(t)
	behind := must(f.checkpoints.Load(t.Context(), f.laneIDs()[1].String()))(t).Position
	for _, o := range []Options{{DryRun: true}, {DryRun: true, Full: true}, {}, {Full: true}} {
		report := f.run(r, o)
		if wantDrift(t, report, nil); !report.Counters[0].VerifiedThrough.Equal(time.Unix(int64(behind.T), 0)) {
			t.Errorf("%+v: verified through %v, want the position of the lane that is behind, %v", o, report.Counters[0].VerifiedThrough, behind)
		}
	}
	if through := f.stateOf(counterName).VerifiedThrough; through != behind {
		t.Errorf("verified through %v, want %v", through, behind)
	}

	want := map[any]int64{}
	for i, keys := range lanes {
		f.plant(keys[0], int64(i+1))
		want[keys[0]] = int64(i + 1)
		must(f.targets.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: keys[1]}}))(t)
		want[keys[1]] = -4 // 5 comments less one, where the lane knows of it
	}
	want[lanes[1][1]] = -3
	wantDrift(t, f.run(r, Options{DryRun: true, Full: true}), want)
	for _, keys := range lanes {
		report := f.run(r, Options{Key: raw(keys[0])})
		wantDrift(t, report, map[any]int64{keys[0]: want[keys[0]]})
		delete(want, keys[0])
	}
	var log bytes.Buffer
	with := f.reconciler(equipment{log: slog.NewTextHandler(&log, nil)})
	wantDrift(t, f.run(with, Options{Full: true}), want)
	for i, id := range f.laneIDs() {
		at := must(f.checkpoints.Load(t.Context(), id.String()))(t)
		said := false
		for _, line := range strings.Split(log.String(), "\n") {
			if strings.Contains(line, "key="+ExtendedJSON{raw(lanes[i][1])}.String()+" ") {
				said = strings.Contains(line, "position="+positionInWords(at.Position)) || i != 1 // the others move on
			}
		}
		if !said {
			t.Errorf("key %v of lane %s was not told with its position %s:\n%s", lanes[i][1], id, positionInWords(at.Position), log.String())
		}
	}
	f.startLane(1)
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	wantDrift(t, f.run(r, Options{}), nil)
}

// TestKeyWhoseRowsGoWhileItsLaneIsBehindIsCountedInAFirstRecount: at its lane's position it has rows, now it has none, and
// no document. Left out, its counter would be negative once the lane comes to their end, and that would look like drift.
func TestKeyWhoseRowsGoWhileItsLaneIsBehindIsCountedInAFirstRecount(t *testing.T) {
	t.Parallel()
	f := setUp(t, divided(2))
	const posts = 20
	for i := range posts {
		f.comment(i, 3)
	}
	f.start()
	f.catchUp()
	lanes := f.keysOfLanes()
	f.stopLane(0)
	must(f.rows.DeleteMany(t.Context(), bson.D{{Key: "post_id", Value: bson.D{{Key: "$in", Value: lanes[0]}}}}))(t)
	f.catchUp()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.startLane(0)
	f.wantExact()
	for _, o := range []Options{{}, {Full: true}} {
		wantDrift(t, f.run(r, o), nil)
	}
}

func TestPartitionedFullRunComparesKeysOfEveryType(t *testing.T) {
	t.Parallel()
	f := setUp(t, divided(3))
	keys := append(keysOfEveryType(t), 0.5, 2.5, decimal(t, "2.5"), float64(1<<63), decimal(t, "9223372036854775808"), bson.D{{Key: "n", Value: 2.5}}, bson.D{{Key: "n", Value: decimal(t, "2.5")}})
	for _, key := range keys {
		f.comment(key, 2)
	}
	for _, key := range []any{nil, bson.A{}, bson.A{"a", int32(-5)}, bson.Regex{Pattern: "a"}, bson.D{{Key: "$a", Value: 1}}} {
		f.comment(key, 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	r.rowsPerRange = 4
	f.activate(r)
	f.wantExact()
	for _, key := range keys {
		f.comment(key, 1)
	}
	f.catchUp()
	want := map[string]int64{}
	for i, key := range keys {
		name := counter.Canonical(raw(key))
		switch i % 3 {
		case 0:
			f.plantRaw(key, 3)
			want[name] += 3
		case 1:
			if _, twice := want[name]; !twice {
				want[name] = -shown(f.document(key), "base_count", "live_delta")
				must(f.targets.DeleteOne(t.Context(), equals(key)))(t)
			}
		}
	}
	must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "no rows"}, {Key: "base_count", Value: int64(7)}, {Key: "live_delta", Value: int64(0)}}))(t)
	want[counter.Canonical(raw("no rows"))] = 7
	for _, o := range []Options{{Full: true, DryRun: true}, {Full: true}} {
		c := only(t, f.run(r, o))
		got := map[string]int64{}
		for _, d := range c.Drifted {
			got[counter.Canonical(d.Key.RawValue)] += d.Drift
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || c.Drift.Keys != int64(len(want)) {
			t.Errorf("%+v: drift %v, want %v", o, got, want)
		}
	}
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	wantDrift(t, f.run(r, Options{}), nil)
}

// TestSourceThatIsDividedAnewIsExactAfterOneRun, however many lanes it had, while rows change and events are lost.
func TestSourceThatIsDividedAnewIsExactAfterOneRun(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after int }{{1, 3}, {3, 2}, {3, 1}} {
		t.Run(fmt.Sprint(c.before, " to ", c.after), func(t *testing.T) {
			t.Parallel()
			f := setUp(t, divided(c.before))
			const posts = 20
			for i := range posts {
				f.comment(i, 3)
			}
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.catchUp()
			f.stop()
			lost := map[any]int64{} // what nobody follows
			for i := range posts / 2 {
				f.comment(i, 2)
				lost[int32(i)] = -2
			}
			divided(c.after)(f.config)
			stop := f.pace(100, f.mixed(posts))
			f.start()
			realtest.Eventually(t, patience, "the new lanes to start", func() bool {
				set, err := f.checkpoints.Set(t.Context(), sourceName)
				return err == nil && len(set) == c.after
			})
			if state := f.stateOf(counterName); state.State != counter.Rebasing || state.Reason != counter.ReasonPartitions {
				t.Errorf("state %+v, want it to wait for a recount for its partitions", state)
			}
			report := f.run(r, Options{})
			stop()
			if report.Result != ResultOK || f.stateOf(counterName).State != counter.Active {
				t.Errorf("one run did not make it active: %s", show(report))
			}
			for _, d := range only(t, report).Drifted {
				if d.Cause != CausePartitions {
					t.Errorf("cause of %s is %q, want %q", d.Key, d.Cause, CausePartitions)
				}
			}
			f.wantExact()
			wantDrift(t, f.run(r, Options{}), nil)
			wantDrift(t, f.run(r, Options{Full: true}), nil)
		})
	}
}

// TestLaneThatCannotBeJudgedKeepsTheCounterFromIt, and the run says why.
func TestLaneThatCannotBeJudgedKeepsTheCounterFromIt(t *testing.T) {
	t.Parallel()
	lane := func(f *fixture, change bson.D) {
		must(f.state.Collection(checkpoint.Collection).UpdateByID(f.t.Context(), f.laneIDs()[1].String(), change))(f.t)
	}
	path := "counters." + counterName + "."
	for name, c := range map[string]struct {
		spoil  func(*fixture)
		reason string
		words  string
	}{
		"missing": {func(f *fixture) {
			must(f.state.Collection(checkpoint.Collection).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: f.laneIDs()[1].String()}}))(t)
		}, skipNoCheckpoint, "lane comments/1: no checkpoint"},
		"another division":   {func(f *fixture) { lane(f, set("partitions", 3)) }, skipNoCheckpoint, "lane comments/1: no checkpoint"},
		"another definition": {func(f *fixture) { lane(f, set(path+"hash", "other")) }, skipDefinition, "another definition"},
		"another version":    {func(f *fixture) { lane(f, set("version", 99)) }, skipDefinition, "newer version"},
		"broken":             {func(f *fixture) { lane(f, set(path+"broken", "boom")) }, skipBroken, "boom"},
		"just taken up":      {func(f *fixture) { lane(f, set(path+"since", bson.Timestamp{T: 1 << 31})) }, skipPosition, "waiting for a later position"},
		"a large tail":       {func(f *fixture) { lane(f, set("tail", bson.D{{Key: "too_large", Value: true}})) }, skipTail, "large transaction"},
		"stale": {func(f *fixture) {
			old := bson.Timestamp{T: 1, I: 1}
			lane(f, bson.D{{Key: "$set", Value: bson.D{{Key: "position", Value: old}, {Key: path + "since", Value: old}}}})
		}, skipStale, "is the incrementer running?"},
		"other rows": {func(f *fixture) { lane(f, set("identity.collection", "other")) }, skipNoRows, "incrementer to notice"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, divided(2))
			for i := range 20 {
				f.comment(i, 2)
			}
			f.start()
			f.activate(f.reconciler(equipment{}))
			f.catchUp()
			f.stop()
			keys := f.keysOfLanes()[1]
			f.plant(keys[0], 5)
			f.touch(keys[0])
			c.spoil(f)
			f.config.Reconciler.JudgeTimeout = 300 * time.Millisecond
			r := f.reconciler(equipment{})
			for _, o := range []Options{{}, {Full: true}, {Key: raw(keys[0])}} {
				wantNotJudged(t, f.run(r, o), c.reason, c.words)
			}
			if documents, _ := f.marks(); documents != 1 {
				t.Errorf("%d marks, want the one", documents)
			}
		})
	}
}

// TestTransactionOfManyKeysInSeveralLanesIsNoDrift: it is cut into batches by each lane for itself, so that several have
// tails at once.
func TestTransactionOfManyKeysInSeveralLanesIsNoDrift(t *testing.T) {
	const rows, keys = 4000, 300
	f := setUp(t, smallBatches, divided(3))
	f.config.Incrementer.MaxBatchEvents = 100
	f.start()
	var tails atomic.Int64
	r := f.reconciler(equipment{tails: &tails})
	f.activate(r)
	insert := func(ctx context.Context) {
		documents := make([]any, rows)
		for i := range documents {
			documents[i] = bson.D{{Key: "post_id", Value: i % keys}, {Key: "n", Value: i}}
		}
		must(f.rows.InsertMany(ctx, documents))(t)
	}
	move := func(ctx context.Context) {
		for i := range keys / 10 {
			must(f.rows.UpdateMany(ctx, bson.D{{Key: "post_id", Value: i}}, set("post_id", i+keys/2)))(t)
		}
	}
	remove := func(ctx context.Context) {
		must(f.rows.DeleteMany(ctx, bson.D{{Key: "n", Value: bson.D{{Key: "$gte", Value: rows / 4}}}}))(t)
	}
	runs := f.watch(r, func() {
		for range 2 {
			f.transaction(insert)
			f.transaction(func(ctx context.Context) { move(ctx); remove(ctx) })
			f.catchUp()
		}
	})
	t.Logf("%d runs, %d readings in the middle of a group", runs, tails.Load())
	if tails.Load() == 0 {
		t.Error("no run met a transaction half applied: the test proves nothing")
	}
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

// TestLanesUnderLoadShowNoDrift: rows are made, moved and deleted all the while, and one lane after the other is held back.
func TestLanesUnderLoadShowNoDrift(t *testing.T) {
	const perSecond, posts = 500, 100
	f := setUp(t, divided(3))
	f.start()
	r := f.reconciler(equipment{})
	r.rowsPerRange = 50
	f.activate(r)
	stop := f.pace(perSecond, f.mixed(posts))
	runs := f.watch(r, func() {
		for _, id := range f.laneIDs() {
			f.stopLane(id.Partition)
			f.catchUp()
			f.startLane(id.Partition)
			f.catchUp()
		}
	})
	writes := stop()
	t.Logf("%d runs beside %d writes", runs, writes)
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

// TestRowsOfALaneAreCountedOnceAndNotOncePerLane: what a lane costs a full run is a list of keys.
func TestRowsOfALaneAreCountedOnceAndNotOncePerLane(t *testing.T) {
	t.Parallel()
	f := setUp(t, divided(3))
	const posts, each = 20, 30
	for i := range posts {
		f.comment(i, each)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.catchUp()
	report := f.run(r, Options{Full: true})
	if wantDrift(t, report, nil); only(t, report).rows != posts*each {
		t.Errorf("%d rows counted, want each of %d once", only(t, report).rows, posts*each)
	}
}

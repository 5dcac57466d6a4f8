package reconciler

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/counter"
)

// keysOfEveryType are usable keys, with several of a type where that matters.
func keysOfEveryType(t *testing.T) []any {
	return []any{
		"", "a", "$a", "z", bson.Symbol("symbol"), int32(-5), int64(math.MaxInt64), 1.5, 7.0, math.NaN(), math.Inf(1), math.Inf(-1),
		decimal(t, "2.25"), bson.NewObjectID(), true, false, time.UnixMilli(1700000000000).UTC(), bson.Timestamp{T: 1, I: 2},
		bson.Binary{Data: []byte{1, 2}}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.D{{Key: "a", Value: 1}},
		bson.D{{Key: "b", Value: bson.D{{Key: "c", Value: "x"}}}}, bson.D{}, bson.JavaScript("f()"), bson.MinKey{}, bson.MaxKey{},
		bson.DBPointer{DB: "d", Pointer: bson.NewObjectID()},
	}
}

func TestFullRunComparesKeysOfEveryType(t *testing.T) {
	t.Parallel()
	for name, perRange := range map[string]int64{"one range a type": 20000, "small ranges": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			keys := keysOfEveryType(t)
			for _, key := range keys {
				f.comment(key, 2)
			}
			// What is no key: nobody counts it, and nothing fails by it.
			unusable := []any{nil, bson.A{}, bson.A{"a", int32(-5)}, bson.Regex{Pattern: "a"}, bson.D{{Key: "$a", Value: 1}}}
			for _, key := range unusable {
				f.comment(key, 1)
			}
			must(f.rows.InsertOne(t.Context(), bson.D{{Key: "no", Value: "key"}}))(t)
			f.start()
			r := f.reconciler(equipment{})
			r.rowsPerRange = perRange
			f.activate(r)

			// Every third is too high, every third has lost its document.
			want := map[string]int64{}
			for i, key := range keys {
				switch i % 3 {
				case 0:
					f.plantRaw(key, 3)
					want[counter.Canonical(raw(key))] = 3
				case 1:
					result := must(f.targets.DeleteOne(t.Context(), equals(key)))(t)
					if result.DeletedCount != 1 {
						t.Fatalf("no counter document for %v", key)
					}
					want[counter.Canonical(raw(key))] = -2
				}
			}
			report := f.run(r, Options{Full: true})
			c := only(t, report)
			if report.Result != ResultOK || c.Checked != int64(len(keys)) || c.Drift.Keys != int64(len(want)) || c.Repaired != int64(len(want)) {
				t.Errorf("want %d keys checked, %d drifted: %s", len(keys), len(want), show(report))
			}
			for _, d := range c.Drifted {
				if key := counter.Canonical(d.Key.RawValue); want[key] != d.Drift {
					t.Errorf("%s drifted by %d, want %d", d.Key, d.Drift, want[key])
				}
			}
			f.wantExact()
			wantDrift(t, f.run(r, Options{Full: true, DryRun: true}), nil)
		})
	}
}

func equals(key any) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: key}}}}
}

// plantRaw is plant for keys that cannot stand in a filter as they are.
func (f *fixture) plantRaw(key any, n int64) {
	f.t.Helper()
	if result := must(f.targets.UpdateOne(f.t.Context(), equals(key), inc("base_count", n)))(f.t); result.MatchedCount != 1 {
		f.t.Fatalf("no counter document for %v", key)
	}
}

func TestTouchedRunComparesKeysOfEveryType(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	keys := keysOfEveryType(t)
	f.start()
	f.config.Reconciler.BatchKeys = 4 // pages end within and between types
	r := f.reconciler(equipment{})
	f.activate(r)
	for _, key := range keys {
		f.comment(key, 2)
	}
	f.catchUp()
	for _, key := range keys {
		f.plantRaw(key, 1)
	}
	for _, o := range []Options{{DryRun: true}, {}} {
		report := f.run(r, o)
		if c := only(t, report); report.Result != ResultOK || c.Checked != int64(len(keys)) || c.Drift.Keys != int64(len(keys)) || c.Drift.Over != int64(len(keys)) {
			t.Errorf("%+v: want each of %d keys once, one too high: %s", o, len(keys), show(report))
		}
	}
	f.wantExact()
	if c := only(t, f.run(r, Options{})); c.Checked != 0 {
		t.Errorf("%d keys are still touched", c.Checked)
	}
}

func TestOneKeyOfEveryTypeIsCompared(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	keys := keysOfEveryType(t)
	for _, key := range keys {
		f.comment(key, 2)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	for _, key := range keys {
		f.plantRaw(key, 3)
		report := f.run(r, Options{Key: raw(key)})
		if c := only(t, report); c.Checked != 1 || c.Drift != (Drift{Over: 3, Keys: 1, Max: 3, overKeys: 1}) || c.Repaired != 1 {
			t.Errorf("%v: %s", key, show(report))
		}
	}
	f.wantExact()
}

func TestRangesAreDividedWithoutLosingAKey(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	keys := keysOfEveryType(t)
	for _, key := range keys {
		f.comment(key, 1)
	}
	in := func(s counter.Selection) map[string]int {
		d := f.definitions[0]
		truths, _, err := d.Count(t.Context(), f.client, s)
		f.check(err)
		found := map[string]int{}
		for key := range truths {
			found[key]++
		}
		return found
	}
	ranges := must(f.definitions[0].Ranges(t.Context(), f.client, 20000))(t)
	for _, which := range ranges {
		whole := in(which)
		for _, at := range keys {
			if _, within := whole[counter.Canonical(raw(at))]; !within || !isBound(raw(at)) {
				continue
			}
			parts := map[string]int{}
			for _, part := range divide(which, raw(at)) {
				for key, n := range in(part) {
					parts[key] += n
				}
			}
			for key, n := range parts {
				if n != 1 || whole[key] != 1 {
					t.Errorf("range %v divided at %v: %q is in %d parts", which, at, key, n)
				}
			}
			if len(parts) != len(whole) {
				t.Errorf("range %v divided at %v: %d keys of %d are left", which, at, len(parts), len(whole))
			}
			if key, single := singleKey(divide(which, raw(at))[1]); !single || counter.Canonical(key) != counter.Canonical(raw(at)) {
				t.Errorf("range %v divided at %v: the middle is %v", which, at, key)
			}
		}
	}
}

func TestFullPassBrokenOffMidwayIsFinishedByTheNextRun(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for i := range 40 {
		f.comment(i, 1)
		f.comment(fmt.Sprint(i), 1)
	}
	f.start()
	for broken := range 4 {
		ctx, cancel := context.WithCancel(t.Context())
		counts := 0
		r := f.reconciler(equipment{started: func(e *event.CommandStartedEvent) {
			if isOn(e, "aggregate", f.rows.Name()) {
				if counts++; counts > 2+2*broken {
					cancel()
				}
			}
		}})
		r.rowsPerRange = 10
		report, err := r.RunOnce(ctx, Options{})
		if !errors.Is(err, context.Canceled) || report.Result != ResultFailed {
			t.Fatalf("a run broken off: result %s, error %v", report.Result, err)
		}
		if state := f.stateOf(counterName); state.State != counter.Rebasing || !state.VerifiedThrough.IsZero() {
			t.Errorf("state %+v, want it rebasing", state)
		}
		cancel()
	}
	f.comment(3, 1)
	r := f.reconciler(equipment{})
	r.rowsPerRange = 10
	report := f.run(r, Options{})
	if c := only(t, report); c.Drift.Keys != 0 || c.Rebased == 0 || c.Rebased > 80 {
		t.Errorf("want the rest rebased, and no drift: %s", show(report))
	}
	if state := f.stateOf(counterName); state.State != counter.Active {
		t.Errorf("the counter is %s, want active", state.State)
	}
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

func TestCounterMarkedAgainDuringItsFullPassStaysRebasing(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.start()
	f.catchUp()
	r := f.reconciler(equipment{started: once(isUpdateOf(targetName), func() {
		f.check(f.states.Mark(t.Context(), f.definitions[0], counter.ReasonGap))
	})})
	report := f.run(r, Options{})
	if c := only(t, report); report.Result != ResultOK || c.Rebased != 1 {
		t.Errorf("first run: %s", show(report))
	}
	if state := f.stateOf(counterName); state.State != counter.Rebasing {
		t.Errorf("the counter is %s, want rebasing: it was marked after the pass began", state.State)
	}
	f.activate(r)
	f.wantExact()
}

func TestDriftAfterAGapIsReportedWithItsCause(t *testing.T) {
	t.Parallel()
	for reason, cause := range map[string]Cause{counter.ReasonGap: CauseGap, counter.ReasonMissingImage: CauseMissingImage} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.comment("a", 3)
			f.comment("b", 1)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.plant("a", -1)
			f.edit("a", inc("driftless."+counterName+".total", -1)) // as lost events leave it
			f.check(f.states.Mark(t.Context(), f.definitions[0], reason))
			report := f.run(r, Options{})
			wantDrift(t, report, map[any]int64{"a": -1})
			if d := only(t, report).Drifted; len(d) == 1 && d[0].Cause != cause {
				t.Errorf("cause %q, want %q", d[0].Cause, cause)
			}
			if state := f.stateOf(counterName); state.State != counter.Active {
				t.Errorf("the counter is %s, want active", state.State)
			}
		})
	}
}

func TestTouchedKeysArePagedInFull(t *testing.T) {
	t.Parallel()
	for name, edits := range map[string]func(*fixture){"documents": func(*fixture) {}, "state database": func(f *fixture) { noUpsert(f.config) }} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			edits(f)
			d := *f.definitions[0]
			d.Counter = f.config.Counters[0]
			var want []string
			for i := range 10 {
				want = append(want, fmt.Sprint(i))
				must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: fmt.Sprint(i)}}))(t)
				f.touch(fmt.Sprint(i))
			}
			other := d
			other.Name = "comments_per_pos" // the prefix of another's
			for _, definition := range []*counter.Definition{&d, &other} {
				var keys []bson.RawValue
				for _, key := range want {
					keys = append(keys, raw(key))
				}
				f.check(definition.Touch(t.Context(), f.states, keys))
			}
			times := 1
			if d.Target.Upsert {
				times = 2 // once for each mark
			}
			for _, size := range []int{1, 3, 5, 10, 11} {
				var got []string
				list := d.Touched(f.client, f.states, size)
				for {
					page := must(list.Next(t.Context()))(t)
					if len(page) == 0 {
						break
					}
					if len(page) > size {
						t.Errorf("a page of %d, want at most %d", len(page), size)
					}
					for _, k := range page {
						got = append(got, k.Key.StringValue())
					}
				}
				slices.Sort(got)
				if expected := slices.Sorted(slices.Values(slices.Repeat(want, times))); !slices.Equal(got, expected) {
					t.Errorf("pages of %d: %v, want %v", size, got, expected)
				}
			}
		})
	}
}

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// age makes the counter's sweep as old as if it had begun so long ago.
func (f *fixture) age(by time.Duration) {
	f.t.Helper()
	result := must(f.state.Collection(counter.SweepsCollection).UpdateOne(f.t.Context(), bson.D{{Key: "_id", Value: counterName}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "started_at", Value: time.Now().Add(-by)}}}}))(f.t)
	if result.MatchedCount != 1 {
		f.t.Fatal("no sweep to age")
	}
}

// swept is an active counter of so many posts, with one comment each, in ranges of a few.
func swept(t *testing.T, posts int) (*fixture, *Reconciler) {
	t.Helper()
	f := setUp(t)
	for n := range posts {
		f.comment(fmt.Sprintf("post %02d", n), 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	r.rowsPerRange = 4
	f.activate(r)
	return f, r
}

func TestDriftOnAKeyThatNobodyTouchesIsFoundWithinTheSweep(t *testing.T) {
	t.Parallel()
	const posts = 40
	f, r := swept(t, posts)
	first := f.stateOf(counterName).SweptThrough
	if first.IsZero() {
		t.Error("a full pass is no sweep")
	}
	f.plant("post 39", 5)
	f.plant("post 00", -1)
	wantDrift(t, f.run(r, Options{}), nil) // the full pass has just seen all
	f.catchUp()
	f.age(f.config.Reconciler.Sweep) // the next sweep is due

	found, checked, most := map[any]int64{}, int64(0), int64(0)
	for step := range 9 {
		if step > 0 {
			f.age(f.config.Reconciler.Sweep * time.Duration(step) / 8)
		}
		r = f.reconciler(equipment{}) // it goes on where another one stopped
		r.rowsPerRange = 4
		report := f.run(r, Options{})
		for _, d := range only(t, report).Drifted {
			found[d.Key.StringValue()] += d.Drift
		}
		checked += only(t, report).Checked
		most = max(most, only(t, report).Checked)
	}
	if len(found) != 2 || found["post 39"] != 5 || found["post 00"] != -1 {
		t.Errorf("found %v", found)
	}
	if checked != posts || most > posts/2 {
		t.Errorf("%d of %d keys compared, up to %d in one run", checked, posts, most)
	}
	if through := f.stateOf(counterName).SweptThrough; !first.Before(through) {
		t.Errorf("swept through %v, and before %v", through, first)
	}
	f.wantExact()
}

func TestLookingSweepsNothing(t *testing.T) {
	t.Parallel()
	f, r := swept(t, 8)
	f.plant("post 03", 1)
	f.age(2 * f.config.Reconciler.Sweep)
	if report := f.run(r, Options{DryRun: true}); only(t, report).Checked != 0 {
		t.Errorf("a dry run compared %d untouched keys", only(t, report).Checked)
	}
	wantDrift(t, f.run(r, Options{Full: true}), map[any]int64{"post 03": 1})
	if report := f.run(r, Options{}); only(t, report).Checked != 0 { // the full pass was the sweep
		t.Errorf("%d keys compared twice", only(t, report).Checked)
	}
}

func TestASweepIsSpreadEvenlyAndEndsInTime(t *testing.T) {
	begun := time.Now()
	s := counter.Sweep{Started: begun, Ranges: make([]counter.Selection, 24)}
	for hours, want := range map[int]int{-1: 1, 0: 1, 1: 2, 12: 13, 23: 24, 24: 24, 100: 24} {
		if got := s.Due(begun.Add(time.Duration(hours)*time.Hour), 24*time.Hour); got != want {
			t.Errorf("after %d h %d of 24 ranges are due, want %d", hours, got, want)
		}
	}
}

func TestARunKeepsToItsPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		beats := 0
		for _, c := range []struct {
			pace       pace
			keys, rows int64
			took       time.Duration // of the work itself
			want       time.Duration // of work and wait
		}{
			{pace{}, 1000, 1000, time.Second, time.Second},
			{pace{keysPerSecond: 100}, 1000, 5, time.Second, 10 * time.Second},
			{pace{rowsPerSecond: 100}, 5, 1000, time.Second, 10 * time.Second},
			{pace{keysPerSecond: 100, rowsPerSecond: 50}, 100, 100, 0, 2 * time.Second}, // the slower of the two
			{pace{keysPerSecond: 100}, 100, 5, 3 * time.Second, 3 * time.Second},
		} {
			began := time.Now()
			for range 3 {
				from := time.Now()
				time.Sleep(c.took) //nolint:forbidigo // in a bubble
				if err := c.pace.did(t.Context(), from, c.keys, c.rows, func() { beats++ }); err != nil {
					t.Fatal(err)
				}
			}
			if got := time.Since(began); got != 3*c.want {
				t.Errorf("%+v: %s for %d keys and %d rows three times, want %s", c.pace, got, c.keys, c.rows, 3*c.want)
			}
		}
		if beats == 0 {
			t.Error("a wait of minutes shows no sign of life")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := (&pace{keysPerSecond: 1}).did(ctx, time.Now(), 100, 0, func() {}); !errors.Is(err, context.Canceled) {
			t.Errorf("a run that is stopped waits on: %v", err)
		}
	})
}

func TestARunIsHeldBackToItsLimits(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 30)
	f.config.Reconciler.MaxKeysPerSecond = 20
	r := f.reconciler(equipment{})
	r.rowsPerRange = 4
	began := time.Now()
	if report := f.run(r, Options{Full: true}); only(t, report).Checked != 30 {
		t.Errorf("%d keys compared", only(t, report).Checked)
	}
	if took := time.Since(began); took < time.Second {
		t.Errorf("30 keys at 20 a second took %s", took)
	}
}

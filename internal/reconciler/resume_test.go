package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/counter"
)

// brokenOff does a run that ends, as that of a killed process does, when it has recorded so many ranges of all keys.
func (f *fixture) brokenOff(o Options, ranges int) *CounterReport {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	defer cancel()
	var recorded atomic.Int64
	r := f.reconciler(equipment{started: func(e *event.CommandStartedEvent) {
		if recorded.Load() == int64(ranges) {
			cancel()
		}
		if isUpdateOf(counter.SweepsCollection)(e) {
			recorded.Add(1)
		}
	}})
	r.rowsPerRange, r.recordEvery = 4, 0
	r.settings.Sweep = time.Nanosecond // all is due
	report, err := r.RunOnce(ctx, o)
	if !errors.Is(err, context.Canceled) {
		f.t.Fatalf("the run was to break off: %v, %s", err, show(report))
	}
	return only(f.t, report)
}

// walker is another process's reconciler, which goes by ranges of few keys and records each.
func (f *fixture) walker() *Reconciler {
	r := f.reconciler(equipment{})
	r.rowsPerRange, r.recordEvery = 4, 0
	return r
}

func TestARecountThatIsBrokenOffGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	const posts = 60
	for n := range posts {
		f.comment(fmt.Sprintf("post %02d", n), 1)
	}
	f.start()
	first := f.brokenOff(Options{}, 8)
	if f.stateOf(counterName).State != counter.Rebasing {
		t.Fatal("the recount was to break off")
	}
	f.comment("post 00", 1) // between the two, where the first has been already
	f.catchUp()
	began := must(f.states.Sweep(t.Context(), f.definitions[0], counter.RecountID(f.definitions[0])))(t)

	var progress []Progress
	report := f.run(f.walker(), Options{Progress: func(p Progress) { progress = append(progress, p) }})
	second := only(t, report)
	if first.Checked == 0 || second.Checked == 0 || first.Checked+second.Checked != posts {
		t.Errorf("%d and %d keys compared, of %d", first.Checked, second.Checked, posts)
	}
	if p := progress[0]; p.First != began.Next || p.Done != p.First || progress[len(progress)-1].Done != p.Of {
		t.Errorf("progress from %+v to %+v", p, progress[len(progress)-1])
	}
	state := f.stateOf(counterName)
	if state.State != counter.Active || state.VerifiedThrough != began.From || state.SweptThrough != began.From {
		t.Errorf("verified from the beginning of the recount, %v: %+v", began.From, state)
	}
	f.run(f.walker(), Options{})
	f.wantExact()
}

// What is known to be lost after the beginning of a recount is not behind it.
func TestARecountForAnotherReasonBeginsAnew(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 40)
	f.check(f.states.Mark(t.Context(), f.definitions[0], counter.ReasonGap))
	f.brokenOff(Options{}, 5)
	f.check(f.states.Mark(t.Context(), f.definitions[0], counter.ReasonReset))
	if report := f.run(f.walker(), Options{}); only(t, report).Checked != 40 || f.stateOf(counterName).State != counter.Active {
		t.Errorf("the second recount is another: %s", show(report))
	}
}

func TestAFullRunGoesOnOnlyWhenAsked(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 40)
	first := f.brokenOff(Options{Full: true}, 5)
	if rest := only(t, f.run(f.walker(), Options{Full: true, Resume: true})); rest.Checked != 40-first.Checked || first.Checked == 0 {
		t.Errorf("%d keys compared, then %d", first.Checked, rest.Checked)
	}
	if whole := only(t, f.run(f.walker(), Options{Full: true, Resume: true})); whole.Checked != 40 {
		t.Errorf("a pass that ended does not go on: %d keys compared", whole.Checked)
	}
	f.brokenOff(Options{Full: true}, 5)
	if whole := only(t, f.run(f.walker(), Options{Full: true})); whole.Checked != 40 {
		t.Errorf("nobody asked for the rest alone: %d keys compared", whole.Checked)
	}
}

// Drifted keys wait for the end of their pass before they are repaired. A pass that never comes to it leaves them marked.
func TestDriftFoundBeforeAFullPassIsBrokenOffIsRepairedByTheNextRun(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]Options{"full run": {Full: true}, "sweep": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := swept(t, 40)
			f.plant("post 00", 3)
			f.catchUp()
			f.brokenOff(o, 5)
			if _, marks := f.marks(); marks != 1 {
				t.Errorf("%d keys are marked", marks)
			}
			report := f.run(f.reconciler(equipment{}), Options{})
			if d := only(t, report).Drift; d.Keys != 1 || d.Over != 3 {
				t.Errorf("the next run: %s", show(report))
			}
			f.wantExact()
		})
	}
}

// A range that cannot be counted is told, and the sweep goes on behind it, but has not verified everything at its end.
func TestASweepWithAHoleVerifiesNothing(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 40)
	before := f.stateOf(counterName).SweptThrough
	s := must(f.states.Sweep(t.Context(), f.definitions[0], counter.SweepID(f.definitions[0])))(t)
	s.Next, s.LeftOut = 1, true
	f.check(f.states.BeginSweep(t.Context(), s))
	f.catchUp()
	r := f.walker()
	r.settings.Sweep = 1
	f.run(r, Options{})
	s = must(f.states.Sweep(t.Context(), f.definitions[0], s.ID))(t)
	if !s.Done() || !s.LeftOut || f.stateOf(counterName).SweptThrough != before {
		t.Errorf("sweep %+v, swept through %v, before it %v", s, f.stateOf(counterName).SweptThrough, before)
	}
}

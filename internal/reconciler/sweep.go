package reconciler

import (
	"context"
	"time"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// recordEvery is how often a walk over all keys records how far it is.
const recordEvery = 10 * time.Second

// walk is a sweep or a full pass under way.
type walk struct {
	counter.Sweep
	first    int       // the first range of this run
	recorded time.Time // when it was last recorded how far it is
}

// step compares ranges until so many are done, or enough says so, and records how far it is every so often: a process that
// dies then goes on from there.
func (p *pass) step(ctx context.Context, until int, enough func() bool) error {
	w := p.walk
	for err := range p.inTurn(ctx, w.Ranges[w.Next:max(w.Next, until)]) {
		if err != nil {
			return err
		}
		w.Next++
		p.walked()
		if time.Since(w.recorded) >= p.recordEvery {
			if err := p.recordWalk(ctx); err != nil {
				return err
			}
		}
		if enough() {
			return nil
		}
	}
	return nil
}

// recordWalk records how far the walk is. What waits for the end of the pass before it is repaired is marked: should it
// never come to that end, the next run looks at it.
func (p *pass) recordWalk(ctx context.Context) error {
	if p.walk == nil || p.options.DryRun || p.definition.ByApplication() {
		return nil
	}
	p.walk.recorded, p.walk.LeftOut = time.Now(), p.walk.LeftOut || p.leftOut > 0
	if err := p.markWaiting(ctx); err != nil {
		return err
	}
	return p.states.Swept(ctx, p.walk.Sweep)
}

// sweep compares the slice of all keys that is due, so that each is verified at least once in a sweep's time: a change
// that was lost, or an edit by hand, leaves no touch. It goes on where the last run stopped, also after a crash.
func (p *pass) sweep(ctx context.Context) error {
	s, err := p.states.Sweep(ctx, p.definition, counter.SweepID(p.definition))
	if err != nil {
		return err
	}
	if len(s.Ranges) == 0 || s.Done() && time.Since(s.Started) >= p.settings.Sweep {
		if err := p.beginWalk(ctx, &s); err != nil {
			return err
		}
	}
	began := time.Now()
	p.walk = &walk{Sweep: s, first: s.Next, recorded: began}
	return p.step(ctx, s.Due(began, p.settings.Sweep), func() bool {
		return time.Since(began) > p.settings.Every // behind by much: the touched keys of the next run come first
	})
}

// everyRange compares every key of rows and of counter documents, range by range. A recount that was broken off goes on.
func (p *pass) everyRange(ctx context.Context) error {
	s, err := p.openRecount(ctx)
	if err != nil {
		return err
	}
	p.walk = &walk{Sweep: s, first: s.Next, recorded: time.Now()}
	if s.LeftOut {
		p.leftOut++
	}
	p.walked()
	if err := p.step(ctx, len(s.Ranges), func() bool { return false }); err != nil {
		return err
	}
	p.rowsWithoutKey(ctx)
	return nil
}

// openRecount returns the full pass of the counter that was broken off, where it may go on, or else a new one. It may
// when it is for the very reason that the counter waits for, or somebody asks for it.
func (p *pass) openRecount(ctx context.Context) (counter.Sweep, error) {
	state := p.began.state
	if p.options.DryRun || p.definition.ByApplication() {
		s := counter.Sweep{From: p.began.through()}
		err := p.divideKeys(ctx, &s)
		return s, err
	}
	s, err := p.states.Sweep(ctx, p.definition, counter.RecountID(p.definition))
	if err != nil {
		return s, err
	}
	goesOn := p.options.Resume || state.State == counter.Rebasing
	if goesOn && len(s.Ranges) > 0 && !s.Done() && s.Epoch == state.Epoch {
		p.log.Info("full pass goes on where it was broken off", logkey.Counter, p.definition.Name,
			"done", s.Next, "of", len(s.Ranges), "began", s.Started, logkey.Run, p.run)
		return s, nil
	}
	s.Epoch = state.Epoch
	err = p.beginWalk(ctx, &s)
	return s, err
}

// beginWalk divides all keys anew, and records it.
func (p *pass) beginWalk(ctx context.Context, s *counter.Sweep) error {
	s.Started, s.From, s.Next, s.LeftOut = time.Now().Truncate(time.Millisecond), p.began.through(), 0, false
	if err := p.divideKeys(ctx, s); err != nil {
		return err
	}
	return p.states.BeginSweep(ctx, *s)
}

func (p *pass) divideKeys(ctx context.Context, s *counter.Sweep) error {
	return p.insist(ctx, func() (err error) {
		s.Ranges, err = p.definition.Ranges(ctx, p.client, p.rowsPerRange)
		return err
	})
}

// concludeWalk records, when all that was found is decided, how far the walk is, and what it has verified at its end. A full
// pass is a sweep as well.
func (p *pass) concludeWalk(ctx context.Context) error {
	if err := p.recordWalk(ctx); err != nil || p.walk == nil || !p.walk.Done() || p.walk.LeftOut {
		return err
	}
	through := p.walk.From
	if p.full {
		s := p.walk.Sweep
		s.ID, s.Started = counter.SweepID(p.definition), time.Now().Truncate(time.Millisecond)
		if err := p.states.BeginSweep(ctx, s); err != nil {
			return err
		}
	}
	if err := p.states.SweptThrough(ctx, p.definition, through); err != nil {
		return err
	}
	p.metrics.swept(p.definition.Name, through)
	return nil
}

// walked tells whoever watches a full pass how far it is.
func (p *pass) walked() {
	if p.options.Progress != nil && p.full {
		p.options.Progress(Progress{Counter: p.definition.Name, Done: p.walk.Next, Of: len(p.walk.Ranges), First: p.walk.first})
	}
}

// Progress is how far a full pass over a counter is, in ranges of keys of about the same cost.
type Progress struct {
	Counter         string
	Done, Of, First int // First of them were done before the run
}

package reconciler

import (
	"context"
	"time"

	"driftless/internal/counter"
)

// sweep compares the slice of all keys that is due, so that each is verified at least once in a sweep's time: a change
// that was lost, or an edit by hand, leaves no touch. It goes on where the last run stopped, also after a crash.
func (p *pass) sweep(ctx context.Context) error {
	s, err := p.states.Sweep(ctx, p.definition)
	if err != nil {
		return err
	}
	if len(s.Ranges) == 0 || s.Done() && time.Since(s.Started) >= p.settings.Sweep {
		if s, err = p.beginSweep(ctx); err != nil {
			return err
		}
	}
	began, due := time.Now(), s.Due(time.Now(), p.settings.Sweep)
	for s.Next < due {
		if err := p.within(ctx, s.Ranges[s.Next]); err != nil {
			return err
		}
		s.Next++
		if err := p.states.Swept(ctx, p.definition, s, s.Next); err != nil {
			return err
		}
		if time.Since(began) > p.settings.Every { // behind by much: the touched keys of the next run come first
			break
		}
	}
	if !s.Done() || p.leftOut > 0 {
		return nil
	}
	return p.sweptThrough(ctx, s)
}

// beginSweep divides all keys anew.
func (p *pass) beginSweep(ctx context.Context) (counter.Sweep, error) {
	s := counter.Sweep{Started: time.Now().Truncate(time.Millisecond), From: p.began.through()}
	err := p.insist(ctx, func() (err error) {
		s.Ranges, err = p.definition.Ranges(ctx, p.client, p.rowsPerRange)
		return err
	})
	if err != nil {
		return s, err
	}
	return s, p.states.BeginSweep(ctx, p.definition, s)
}

// sweptWhole notes that a full pass has compared all ranges.
func (p *pass) sweptWhole(ctx context.Context, ranges []counter.Selection) error {
	s := counter.Sweep{Started: time.Now().Truncate(time.Millisecond), From: p.began.through(), Ranges: ranges, Next: len(ranges)}
	if err := p.states.BeginSweep(ctx, p.definition, s); err != nil {
		return err
	}
	return p.sweptThrough(ctx, s)
}

func (p *pass) sweptThrough(ctx context.Context, s counter.Sweep) error {
	if err := p.states.SweptThrough(ctx, p.definition, s.From); err != nil {
		return err
	}
	p.metrics.swept(p.definition.Name, s.From)
	return nil
}

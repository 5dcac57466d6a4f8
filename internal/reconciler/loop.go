package reconciler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"driftless/internal/logkey"
)

// Heart tells whoever watches over the process that the loop is alive.
type Heart interface {
	Beat()
	Waiting()
}

// Run reconciles every so often until ctx ends. A run that fails is logged and counted, and the next one comes. The
// interval varies by a tenth, so that a fleet started together spreads out.
func (r *Reconciler) Run(ctx context.Context, o Options, heart Heart) error {
	r.heart = heart
	if !o.DryRun {
		r.metrics.leader.Set(1)
		defer r.metrics.leader.Set(0)
	}
	for {
		heart.Beat()
		report, err := r.RunOnce(ctx, o)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.log.Error("run failed", logkey.Run, report.Run, logkey.Error, err)
		}
		r.publish(report, err)
		heart.Waiting()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(jitter(r.settings.Every)):
		}
	}
}

// jitter is d, give or take a tenth.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64())) //nolint:gosec // spreads load, guards nothing
}

// Status is what /status shows.
type Status struct {
	Runs       int64     `json:"runs"`
	FinishedAt time.Time `json:"finished_at,omitzero"`
	Last       *Report   `json:"last,omitempty"`
	Error      string    `json:"error,omitempty"`
}

// Problem says why the reconciler is not ready, nil when it is.
func (s Status) Problem() error {
	switch {
	case s.Runs == 0:
		return fmt.Errorf("the first run has not ended yet")
	case s.Error != "":
		return fmt.Errorf("the last run failed: %s", s.Error)
	default:
		return nil
	}
}

// Last returns the last run of the loop.
func (r *Reconciler) Last() Status {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return r.status
}

func (r *Reconciler) publish(report *Report, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.status = Status{Runs: r.status.Runs + 1, FinishedAt: time.Now().UTC(), Last: report}
	if err != nil {
		r.status.Error = err.Error()
	}
}

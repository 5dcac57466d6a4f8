package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// readiness is what /readyz asks for. Its checks read what the loops and the watch publish.
func (p *process) readiness() *daemon.Readiness {
	r := daemon.NewReadiness()
	r.Add("mongodb", func(context.Context) error {
		_, err := p.watch.view()
		return err
	})
	r.Add("schedule", func(context.Context) error { return overdue(p.heart.Silent(), p.settings) })
	r.Add("runs", func(context.Context) error {
		if !p.options.DryRun && !p.leadership.View().Leads {
			return nil // what the others come to is theirs to tell
		}
		return lastRun(p.reconciler.Last())
	})
	if !p.options.DryRun {
		r.Add("leader", func(context.Context) error { return led(p.leadership.View()) })
	}
	return r
}

// lastRun says why the last run failed. Before its end a first run, which may recount everything, is no reason to be
// unready: that the deployment serves was seen before.
func lastRun(s reconciler.Status) error {
	if s.Error == "" {
		return nil
	}
	return errors.New("the last run failed: " + s.Error)
}

// led says why this process neither leads nor stands by.
func led(s reconciler.Standing) error {
	switch {
	case s.Problem != nil:
		return s.Problem
	case s.Leader == "":
		return errors.New("looking who leads")
	default:
		return nil
	}
}

// quiet is how long a run may be at one batch of keys before the next run counts as overdue, unless reconciler.every is
// so long that nobody waits for it.
const quiet = 5 * time.Minute

// overdue says that the loop, which moves with every batch of a run, at its end and while it stands by, has been silent
// for much longer than the pause between two runs, or than a change of the application may be waited for.
func overdue(silent time.Duration, c config.Reconciler) error {
	if silent <= max(quiet, 3*c.Every)+c.Settle {
		return nil
	}
	return fmt.Errorf("a run is overdue: nothing has moved for %s, and reconciler.every is %s", silent.Round(time.Second), c.Every)
}

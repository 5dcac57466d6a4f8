package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/incrementer"
)

// readiness is what /readyz asks for. Its checks read what the lanes and the watch publish.
func (p *process) readiness() *daemon.Readiness {
	r := daemon.NewReadiness()
	r.Add("mongodb", func(context.Context) error {
		_, err := p.watch.view()
		return err
	})
	for _, l := range p.lanes {
		r.Add("lane "+l.Name, func(context.Context) error { return following(l.State.View()) })
		r.Add("position "+l.Name, func(context.Context) error { return p.resumable(l) })
		r.Add("gaps "+l.Name, func(context.Context) error {
			seen, _ := p.watch.view()
			return healed(seen.states, l.Definitions)
		})
	}
	return r
}

// following says why a lane is not followed.
func following(v incrementer.View) error {
	switch {
	case v.Owned:
		return nil
	case v.LastErr != nil:
		return v.LastErr
	default:
		return errors.New("being opened again")
	}
}

// resumable says that the history after a position is gone. The stream that is open may live on; it cannot be opened again.
func (p *process) resumable(l *incrementer.Lane) error {
	if behind := -p.watch.headroom(l.State.View().At.Position); behind > 0 {
		return fmt.Errorf("the history after the checkpoint is gone by %.0f s: the next interruption loses the position", behind)
	}
	return nil
}

// healed says which counters of a lane wait for a recount because events were lost.
func healed(states map[string]counter.State, definitions []*counter.Definition) error {
	var waiting []string
	for _, d := range definitions {
		if s := states[d.Name]; s.State == counter.Rebasing && s.Reason == counter.ReasonGap {
			waiting = append(waiting, d.Name)
		}
	}
	if len(waiting) == 0 {
		return nil
	}
	return fmt.Errorf("events were lost, and %s not recounted since: the next run of the reconciler does it", isAre(waiting))
}

func isAre(names []string) string {
	if len(names) == 1 {
		return names[0] + " is"
	}
	return strings.Join(names, ", ") + " are"
}

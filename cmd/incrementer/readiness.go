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
		name := l.ID.String()
		r.Add("lane "+name, func(context.Context) error { return following(l.State.View()) })
		r.Add("position "+name, func(context.Context) error { return p.resumable(l) })
		r.Add("gaps "+name, func(context.Context) error { return p.watch.healed(name, l.Definitions) })
	}
	for _, t := range p.topics {
		r.Add("topic of "+t.source, func(context.Context) error { return p.topicFollowed(t) })
	}
	return r
}

// topicFollowed says what keeps the partitions that the group gave to this instance from being followed. One that has none
// stands by.
func (p *process) topicFollowed(t *topic) error {
	if err := t.Problem(); err != nil {
		return err
	}
	var problems []error
	for _, l := range t.Lanes() {
		name := l.ID.String()
		if err := errors.Join(following(l.State.View()), p.watch.healed(name, l.Definitions)); err != nil {
			problems = append(problems, fmt.Errorf("lane %s: %w", name, err))
		}
	}
	return errors.Join(problems...)
}

// following says why a lane is neither followed nor stood by for.
func following(v incrementer.View) error {
	switch {
	case v.Owned:
		return nil
	case v.LastErr != nil:
		return v.LastErr
	case v.Standby != "":
		return nil
	default:
		return errors.New("being opened")
	}
}

// resumable says that the history after a position is gone. The stream that is open may live on; it cannot be opened again.
func (p *process) resumable(l *incrementer.Lane) error {
	if behind := -p.watch.headroom(l.State.View()); behind > 0 {
		return fmt.Errorf("the history after the checkpoint is gone by %.0f s: the next interruption loses the position", behind)
	}
	return nil
}

// healed says which counters of a lane wait for a recount because events were lost.
func (w *watch) healed(lane string, definitions []*counter.Definition) error {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.unseen[lane] {
		return errors.New("events were lost a moment ago: the next run of the reconciler recounts what they concern")
	}
	return healed(w.seen.states, definitions)
}

func healed(states map[string]counter.State, definitions []*counter.Definition) error {
	var waiting []string
	for _, d := range definitions {
		if states[d.Name].Lossy() {
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

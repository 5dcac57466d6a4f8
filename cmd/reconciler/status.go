package main

import (
	"driftless/internal/command"
	"driftless/internal/reconciler"
)

// status is what /status shows: the runs of this process, and what the watch saw last.
type status struct {
	Instance string         `json:"instance"`
	Role     string         `json:"role"`             // leader, standby, or dry run
	Leader   string         `json:"leader,omitempty"` // name of the instance that leads, as far as this one knows
	Held     []command.Held `json:"held"`             // counters whose repairs wait for an approval
	reconciler.Status
}

func (p *process) status() status {
	standing := p.leadership.View()
	states, _ := p.watch.view() // that it fails is told by the readiness
	return status{
		Instance: p.instance, Role: p.role(standing), Leader: standing.Leader,
		Held: command.HeldOf(p.definitions, states), Status: p.reconciler.Last(),
	}
}

func (p *process) role(s reconciler.Standing) string {
	switch {
	case p.options.DryRun:
		return "dry run"
	case s.Leads:
		return "leader"
	default:
		return "standby"
	}
}

package reconciler

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/logkey"
)

// maxWaiting is how many drifted keys wait for the end of their pass before it is decided whether they are repaired.
const maxWaiting = 10_000

// hold is the guard rail of a pass: when more than a set share of the checked keys has drifted, what is wrong may well be
// the recount. So drifted keys wait, until the pass is over or very many wait. A held counter stays held until it is
// approved, recounted for a recorded reason, or found right.
type hold struct {
	checked, drifted int64 // keys, those left out that have an excuse
	bounded          bool  // no more keys than those in open may yet be found to have drifted
	open             int64
	waiting          []verdict
	held             bool
	kept             int64 // drifted keys that were not repaired for it
}

// wait keeps a drifted key until it is decided.
func (h *hold) wait(w verdict) {
	h.checked++
	h.drifted++
	h.waiting = append(h.waiting, w)
}

// suspect reports whether a drifted key has to wait. One that has an excuse says nothing about the recount; for one
// key somebody has asked.
func (p *pass) suspect(w verdict) bool {
	return w.drift != 0 && !w.excused && !p.options.DryRun && p.options.Key.IsZero() && len(p.options.Approved) == 0
}

// exceeds reports whether the share so far is beyond the limit.
func (p *pass) exceeds() bool {
	h := &p.hold
	return h.checked >= int64(p.settings.HoldMinKeys) && float64(h.drifted) > p.settings.HoldWhenDriftedShare*float64(h.checked)
}

// safe reports whether the share stays within the limit whatever the rest of the pass finds.
func (p *pass) safe() bool {
	h := &p.hold
	checked := h.checked + h.open
	return h.bounded && (checked < int64(p.settings.HoldMinKeys) ||
		float64(h.drifted+h.open) <= p.settings.HoldWhenDriftedShare*float64(checked))
}

// remembersHold begins a pass over a counter that an earlier run has held.
func (p *pass) remembersHold() {
	p.report.HeldBy = p.began.state.Held
	p.hold.held = p.began.state.Held != "" && len(p.options.Approved) == 0 && p.settings.HoldWhenDriftedShare < 1
}

// decide repairs the keys that wait or lets them be, once that can be said: at the end of the pass, or when so many wait
// that they would fill the memory. Before hold_min_keys were checked, it cannot.
func (p *pass) decide(ctx context.Context, over bool) error {
	h := &p.hold
	enough := len(h.waiting) >= maxWaiting && h.checked >= int64(p.settings.HoldMinKeys)
	if p.options.DryRun || len(h.waiting) == 0 {
		return nil
	}
	if !over && !enough && !h.held && !p.safe() {
		h.linger()
		return nil
	}
	waiting := h.waiting
	h.waiting = nil
	if !h.held && !p.exceeds() {
		return p.repair(ctx, waiting)
	}
	h.held = true
	h.kept += int64(len(waiting))
	return p.letBe(ctx, waiting)
}

// markWaiting has the next run look at what waits, should this one not come to decide.
func (p *pass) markWaiting(ctx context.Context) error {
	var unmarked []bson.RawValue
	for i, v := range p.hold.waiting {
		if !v.marked {
			p.hold.waiting[i].marked = true
			unmarked = append(unmarked, v.key)
		}
	}
	return p.definition.Touch(ctx, p.states, unmarked)
}

// linger notes that time goes by between the look and the repair of what waits.
func (h *hold) linger() {
	for _, v := range h.waiting {
		if v.mend != nil {
			v.mend.Waited = true
		}
	}
}

// letBe leaves held keys as they are, with a mark, so that the next run sees them again. Those beyond the bound of what
// waits are found by the full run that approves them.
func (p *pass) letBe(ctx context.Context, verdicts []verdict) error {
	var unmarked []bson.RawValue
	for _, v := range verdicts {
		p.report.skip(skipHeld)
		if !v.marked && p.hold.kept <= maxWaiting {
			unmarked = append(unmarked, v.key)
		}
	}
	return p.definition.Touch(ctx, p.states, unmarked)
}

// concludeHold records that the counter is held, or is no more, at the end of a pass that could judge it.
func (p *pass) concludeHold(ctx context.Context) error {
	h := &p.hold
	switch state := p.began.state; {
	case h.kept > 0:
		p.log.Warn("repairs held: too many keys have drifted", logkey.Counter, p.definition.Name,
			"drifted", h.drifted, "checked", h.checked, logkey.Action, fmt.Sprintf("look whether its rows and definition are what they should be, "+
				"then repair it: `reconciler approve %s`", p.run), logkey.Run, p.run)
		return p.states.Hold(ctx, state, p.run)
	case state.Held != "" && p.options.Key.IsZero() && (len(p.options.Approved) > 0 || p.foundRight()):
		return p.states.Unhold(ctx, state)
	default:
		return nil
	}
}

// foundRight reports whether a pass that found nothing to hold could say so of every key.
func (p *pass) foundRight() bool { return p.report.Skipped[skipBusy] == 0 && p.leftOut == 0 }

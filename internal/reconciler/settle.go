package reconciler

import (
	"context"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// maxDescribed is how many drifted keys of one counter a run logs one by one.
const maxDescribed = 20

// maxBacklog bounds the count of touched keys: beyond it, the number no longer matters.
const maxBacklog = 1_000_000

// settle reports the verdicts of one batch and, unless the run only looks, repairs what is wrong.
func (p *pass) settle(ctx context.Context, v view, verdicts []verdict) error {
	var repairs []counter.Repair
	var cleared []counter.Touched
	var again []bson.RawValue
	var wrong int64
	for _, verdict := range verdicts {
		if verdict.skip != "" {
			p.report.skip(verdict.skip, 1)
			again = append(again, verdict.key)
			p.log.Warn("counter document set apart", logkey.Counter, p.definition.Name, logkey.Key,
				ExtendedJSON{verdict.key}.String(), logkey.Reason, verdict.skip, logkey.Run, p.run)
			continue
		}
		p.report.Checked++
		if verdict.drift != 0 {
			wrong++
			p.wrong(v, verdict)
		}
		if verdict.repair != nil {
			repairs = append(repairs, *verdict.repair)
		}
		if verdict.clear {
			cleared = append(cleared, counter.Touched{Key: verdict.key})
		}
	}
	if p.options.DryRun {
		return nil
	}
	if err := p.definition.Touch(ctx, p.states, again); err != nil {
		return err
	}
	if err := p.definition.Untouch(ctx, p.states, cleared); err != nil {
		return err
	}
	applied, err := p.definition.Repair(ctx, p.client, p.states, repairs)
	if err != nil {
		return err
	}
	raced := int64(len(repairs)) - applied
	if raced > 0 {
		p.report.skip(skipRaced, raced)
	}
	p.report.Repaired += max(0, wrong-raced)
	return nil
}

// wrong reports one drifted key, before its repair. What the first recount of a counter changes is no drift: nobody
// had promised the value.
func (p *pass) wrong(v view, w verdict) {
	if p.state.Rebased() {
		p.report.Rebased++
		return
	}
	if w.recurring {
		p.report.recurring++
	}
	p.report.Drift.add(w.drift)
	p.metrics.drifted(p.definition.Name, w.drift)
	key := ExtendedJSON{w.key}
	p.report.keepLargest(Drifted{Key: key, Displayed: w.displayed, Truth: w.truth, Drift: w.drift, Cause: w.cause}, p.options.Limit)
	if p.described++; p.described > maxDescribed {
		return
	}
	p.log.Warn("counter drifted", logkey.Counter, p.definition.Name, logkey.Key, key.String(),
		logkey.Displayed, w.displayed, logkey.Truth, w.truth, logkey.Drift, w.drift, logkey.Direction, direction(w.drift),
		logkey.Cause, w.cause, logkey.Position, positionInWords(v.at.Position), logkey.Run, p.run)
}

func direction(drift int64) string {
	if drift > 0 {
		return "over"
	}
	return "under"
}

// positionInWords is a cluster time as a date and its place within that second.
func positionInWords(t bson.Timestamp) string {
	return time.Unix(int64(t.T), 0).UTC().Format(time.RFC3339) + "/" + strconv.FormatUint(uint64(t.I), 10)
}

// conclude finishes the counter's report: how far it is verified, and the summary in the log.
func (p *pass) conclude(ctx context.Context) {
	whole := p.options.Key.IsZero() && p.report.complete
	if !p.through.IsZero() {
		p.report.VerifiedThrough = time.Unix(int64(p.through.T), 0).UTC()
	}
	if whole && !p.options.DryRun && !p.through.IsZero() {
		if err := p.states.Verified(context.WithoutCancel(ctx), p.definition.Name, p.through); err != nil {
			p.log.Warn("verified position not recorded", logkey.Counter, p.definition.Name, logkey.Error, err)
		}
	}
	if p.options.Key.IsZero() {
		p.metrics.passed(p.report, whole)
		p.backlog(ctx, whole)
	}
	if d := p.report.Drift; d.Keys > 0 {
		p.log.Warn("counters drifted", logkey.Counter, p.definition.Name, "keys", d.Keys, "over", d.Over, "under", d.Under,
			"max", d.Max, "repaired", p.report.Repaired, logkey.Run, p.run)
	}
}

// backlog publishes what is left to compare: after a whole run that is only what has been touched since its start.
func (p *pass) backlog(ctx context.Context, whole bool) {
	n, err := p.definition.TouchedBacklog(ctx, p.client, p.states, maxBacklog)
	if err != nil {
		p.log.Warn("touched keys not counted", logkey.Counter, p.definition.Name, logkey.Error, err)
		return
	}
	p.metrics.backlog(p.definition.Name, n)
	switch {
	case n == 0:
		p.metrics.oldest(p.definition.Name, time.Time{})
	case whole:
		p.metrics.oldest(p.definition.Name, p.started)
	}
}

package reconciler

import (
	"context"
	"errors"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream"
)

// maxDescribed is how many drifted keys a run logs one by one.
const maxDescribed = 20

// maxBacklog bounds the count of touched keys: beyond it, the number no longer matters.
const maxBacklog = 1_000_000

// settle reports the verdicts of one batch and, unless the run only looks, repairs what is wrong.
func (p *pass) settle(ctx context.Context, v view, verdicts []verdict) error {
	if err := errors.Join(p.keepUndone(ctx, verdicts), p.askLetters(ctx, verdicts)); err != nil {
		return err
	}
	var repairs []verdict
	var cleared []counter.Touched
	var again []bson.RawValue
	for _, verdict := range verdicts {
		if verdict.skip == skipUndone && p.options.DryRun {
			p.wrong(v, verdict) // a fact, whoever wants it so
		}
		if verdict.skip != "" {
			again = append(again, p.setApart(verdict)...)
			continue
		}
		p.report.Checked++
		if verdict.drift != 0 {
			p.wrong(v, verdict)
			verdict.repair.Record = p.record(v, verdict)
		}
		if p.suspect(verdict) {
			p.hold.wait(verdict)
			continue
		}
		if verdict.drift == 0 {
			p.hold.checked++
		}
		if verdict.repair != nil {
			repairs = append(repairs, verdict)
		}
		if !verdict.clear.Stamp.IsZero() {
			cleared = append(cleared, verdict.clear)
		}
	}
	if p.options.DryRun {
		return nil
	}
	if err := p.definition.Untouch(ctx, p.states, cleared); err != nil {
		return err
	}
	if err := p.definition.Touch(ctx, p.states, again); err != nil {
		return err
	}
	if err := p.repair(ctx, repairs); err != nil {
		return err
	}
	return p.decide(ctx, false)
}

// record is what the journal keeps of a repair.
func (p *pass) record(v view, w verdict) counter.Record {
	return counter.Record{
		Run: p.run, Truth: w.truth, Drift: w.drift, Rebased: v.state.Rebased(), Cause: string(w.cause),
		Position: v.position(counter.Canonical(w.key)),
	}
}

// repair makes the wrong keys right, each with an entry in the journal, and ends the marks of all. What it leaves, the next
// run is told of. What came true is reported, also with an error.
func (p *pass) repair(ctx context.Context, verdicts []verdict) error {
	if p.definition.ByApplication() {
		return p.mend(ctx, verdicts)
	}
	var wrong, right []verdict
	for _, verdict := range verdicts {
		if verdict.drift != 0 {
			wrong = append(wrong, verdict)
		} else {
			right = append(right, verdict)
		}
	}
	outcomes, err := p.definition.Rebase(ctx, p.client, p.states, repairsOf(right))
	if err != nil {
		return err
	}
	again := p.settled(right, outcomes)
	outcomes, err = p.journal.Repair(ctx, p.definition, repairsOf(wrong))
	if err != nil {
		for i, outcome := range outcomes {
			if outcome.Applied { // the others are as they were, with their marks
				p.settled(wrong[i:i+1], outcomes[i:i+1])
			}
		}
		return err
	}
	return p.definition.Touch(ctx, p.states, append(again, p.settled(wrong, outcomes)...))
}

func repairsOf(verdicts []verdict) []counter.Repair {
	repairs := make([]counter.Repair, len(verdicts))
	for i, verdict := range verdicts {
		repairs[i] = *verdict.repair
	}
	return repairs
}

// settled reports what became of repairs. It returns the keys that the next run must be told of.
func (p *pass) settled(verdicts []verdict, outcomes []counter.Outcome) (again []bson.RawValue) {
	for i, outcome := range outcomes {
		verdict := verdicts[i]
		switch {
		case outcome.Applied && verdict.drift != 0:
			p.report.Repaired++
			if verdict.anew {
				p.report.anew++
			}
		case outcome.Applied:
		case outcome.Refused != "":
			verdict.skip, verdict.why = skipRefused, outcome.Refused
			again = append(again, p.setApart(verdict)...)
		case outcome.Busy:
			p.report.skip(skipBusy)
			if !verdict.marked {
				again = append(again, verdict.key)
			}
		default:
			p.report.skip(skipRaced)
			if outcome.Gone { // and its mark with it
				again = append(again, verdict.key)
			}
		}
	}
	return again
}

// setApart reports a key that is left as it is, and returns it when nothing makes the next run look at it.
func (p *pass) setApart(v verdict) []bson.RawValue {
	p.report.skip(v.skip)
	key := ExtendedJSON{v.key}
	if len(p.report.SetApart) < maxSetApart {
		p.report.SetApart = append(p.report.SetApart, SetApart{Key: key, Reason: v.skip, Why: v.why})
	}
	if v.skip == skipUndone { // told once a run
		return unmarked(v)
	}
	p.log.Warn("counter document set apart", logkey.Counter, p.definition.Name, logkey.Key, key.String(),
		logkey.Reason, v.skip, logkey.Error, v.why, logkey.Run, p.run)
	return unmarked(v)
}

// unmarked is the key when nothing makes the next run look at it.
func unmarked(v verdict) []bson.RawValue {
	if v.marked {
		return nil
	}
	return []bson.RawValue{v.key}
}

// wrong reports one drifted key, before its repair. What the first recount of a counter changes is no drift: nobody
// had promised the value.
func (p *pass) wrong(v view, w verdict) {
	if v.state.Rebased() {
		p.report.Rebased++
		return
	}
	p.report.Late += abs(w.late)
	drift := w.unexplained()
	if drift == 0 {
		return
	}
	w.displayed, w.drift = w.displayed-w.late, drift
	if w.recurring {
		p.report.recurring++
	}
	p.report.Drift.add(w.drift)
	p.metrics.drifted(p.definition.Name, w.drift)
	key := ExtendedJSON{w.key}
	p.report.keepLargest(Drifted{Key: key, Displayed: w.displayed, Truth: w.truth, Drift: w.drift, Cause: w.cause}, p.options.Limit)
	if *p.described++; *p.described > maxDescribed {
		return
	}
	p.log.Warn("counter drifted", logkey.Counter, p.definition.Name, logkey.Key, key.String(),
		logkey.Displayed, w.displayed, logkey.Truth, w.truth, logkey.Drift, w.drift, logkey.Direction, direction(w.drift),
		logkey.Cause, w.cause, logkey.Position, positionInWords(v.position(counter.Canonical(w.key))), logkey.Run, p.run)
}

func direction(drift int64) string {
	if drift > 0 {
		return "over"
	}
	return "under"
}

// positionInWords is a cluster time as a date and its place within that second.
func positionInWords(t bson.Timestamp) string {
	return stream.InWords(t) + "/" + strconv.FormatUint(uint64(t.I), 10)
}

// conclude finishes the counter's report: how far it is verified, and the summary in the log. Every key that was
// touched up to the position where the pass began was listed after it, and compared there or later.
func (p *pass) conclude(ctx context.Context) {
	through := p.through()
	kept := p.definition.ByApplication()
	if kept {
		through = p.closer.first
	}
	whole := p.options.Key.IsZero() && p.report.complete
	if p.report.complete && !through.IsZero() {
		p.report.VerifiedThrough = stream.Clock(through)
	}
	if whole && !p.options.DryRun && !through.IsZero() {
		if err := p.states.Verified(context.WithoutCancel(ctx), p.began.state, through); err != nil {
			p.log.Warn("verified position not recorded", logkey.Counter, p.definition.Name, logkey.Error, err)
		}
	}
	if p.options.Key.IsZero() {
		p.metrics.passed(p.report, whole)
		if !kept { // what the application increments has no marks
			p.backlog(ctx, whole)
		}
	}
	p.tellUndone()
	if d := p.report.Drift; d.Keys > 0 {
		p.log.Warn("counters drifted", logkey.Counter, p.definition.Name, "keys", d.Keys, "over", d.Over, "under", d.Under,
			"max", d.Max, "repaired", p.report.Repaired, logkey.Run, p.run)
	}
}

// backlog publishes what is left to compare. Whatever was touched up to the position that the counter is verified
// through has been compared.
func (p *pass) backlog(ctx context.Context, whole bool) {
	n, err := p.definition.TouchedBacklog(ctx, p.client, p.states, maxBacklog)
	if errors.Is(err, counter.ErrNoTouchedIndex) {
		return // told already
	}
	if err != nil {
		p.log.Warn("touched keys not counted", logkey.Counter, p.definition.Name, logkey.Error, err)
		return
	}
	through := p.began.state.VerifiedThrough
	if whole {
		through = p.through()
	}
	p.metrics.backlog(p.definition.Name, n, through)
}

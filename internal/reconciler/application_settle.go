package reconciler

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
)

// conclusions reports what is settled, and keeps what is not in open.
func (p *pass) conclusions(ctx context.Context, found []judged, open map[string]seenAt) error {
	var verdicts []verdict
	for _, f := range found {
		switch f.opinion {
		case right:
			p.report.Checked++
			if f.off() != 0 {
				p.report.Allowed++
			}
			p.hold.checked++
		case unsettled:
			open[counter.Canonical(f.key)] = f.seenAt
		case unfit:
			v := verdict{key: f.key, marked: true}
			v.skip, v.why = fitness(f.document, f.detail.Truth)
			p.setApart(v)
		case wrong:
			v := verdict{key: f.key, displayed: f.displayed(), truth: f.detail.N, drift: f.off(), cause: CauseUnknown, marked: true}
			if !f.document.Exists {
				v.cause, v.excused = CauseNoDocument, true
			}
			f.document.Key = f.key
			v.mend = &counter.Mend{
				Look: bson.NewObjectID(), Read: f.document, Truth: f.detail.N, Run: p.run, Cause: string(v.cause), Position: f.at,
			}
			verdicts = append(verdicts, v)
		}
	}
	p.hold.open -= int64(len(found))
	return p.settleLooks(ctx, verdicts)
}

// settleLooks reports what is wrong and, unless the run only looks, repairs it, or has it wait until it is decided.
func (p *pass) settleLooks(ctx context.Context, verdicts []verdict) error {
	if !p.options.DryRun { // a look may be that of a user who may read nothing of ours
		if err := p.keepUndone(ctx, verdicts); err != nil {
			return err
		}
	}
	var repairs []verdict
	for _, v := range verdicts {
		if v.skip != "" {
			p.setApart(v)
			continue
		}
		p.report.Checked++
		p.wrong(view{standing: standing{lanes: []checkpoint.Checkpoint{{Position: v.mend.Position}}}}, v)
		if p.suspect(v) {
			p.hold.wait(v)
			continue
		}
		repairs = append(repairs, v)
	}
	if p.options.DryRun {
		return nil
	}
	if err := p.repair(ctx, repairs); err != nil {
		return err
	}
	return p.decide(ctx, false)
}

// mend repairs what was found wrong and reports what became of it, also when it breaks off.
func (p *pass) mend(ctx context.Context, verdicts []verdict) error {
	if len(verdicts) == 0 {
		return nil
	}
	mends := make([]counter.Mend, len(verdicts))
	for i, v := range verdicts {
		mends[i] = *v.mend
	}
	outcomes, err := p.definition.Mend(ctx, p.client, p.states, mends)
	for i, outcome := range outcomes {
		switch {
		case outcome.Applied:
			p.report.Repaired++
		case outcome.Refused != "":
			verdicts[i].marked, verdicts[i].skip, verdicts[i].why = true, skipRefused, outcome.Refused
			p.setApart(verdicts[i])
		case err == nil:
			p.report.skip(skipRaced)
		}
	}
	return err
}

// busy reports a key that differs and is written to so often that nobody knows what of it is under way.
func (p *pass) busy(l seenAt) {
	p.setApart(verdict{key: l.key, marked: true, skip: skipBusy, why: fmt.Sprintf(
		"displays %d for %d, and was written to within %s: it may be under way", l.displayed(), l.detail.N, p.settings.Settle)})
}

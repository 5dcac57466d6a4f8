package reconciler

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// judgeKey compares the key as a run does.
func (x *explainer) judgeKey(ctx context.Context) error {
	judge := x.judgeByLane
	if x.Counter.ByApplication() {
		judge = x.judgeByLooks
	}
	err := judge(ctx)
	var unjudged *unjudgedError
	var uncounted *uncountedError
	switch {
	case errors.As(err, &unjudged):
		x.unjudged(unjudged.reason, unjudged.why)
	case errors.As(err, &uncounted):
		x.unjudged(uncounted.reason, "its rows cannot be counted: "+inShort(uncounted.err))
	default:
		return err
	}
	return ctx.Err()
}

func (x *explainer) unjudged(reason, why string) {
	x.out.Unjudged = &Unjudged{Reason: reason, Why: why}
}

// judgeByLane judges at the position of the key's lane (I4).
func (x *explainer) judgeByLane(ctx context.Context) error {
	var v view
	err := x.waitFor(ctx, func() (err error) {
		v, err = x.read(ctx, counter.Listed([]bson.RawValue{x.Key}))
		return err
	})
	if err != nil {
		return err
	}
	mark := x.mark
	mark.Key = x.Key
	canonical := counter.Canonical(x.Key)
	verdicts := x.judge(v, []counter.Touched{mark}) // of the one listed key
	if err := x.askLetters(ctx, verdicts); err != nil {
		return err
	}
	x.shown(v.documents[canonical])
	lane, known := v.laneOf[canonical]
	x.inLane(v.lanes, lane, known)
	return x.judged(ctx, verdicts[0], Recount{Position: momentOf(v.position(canonical)), Rows: v.rows, Tail: v.tail[canonical]})
}

// judged fills in what a comparison came to, unless the key has no numbers to compare.
func (x *explainer) judged(ctx context.Context, w verdict, r Recount) error {
	if w.skip != "" && w.skip != skipNoDocument {
		x.unjudged(w.skip, w.why)
		return nil
	}
	r.NoDocument = w.skip == skipNoDocument
	r.Truth, r.Displayed, r.Drift, r.Cause, r.TotalAlone = w.truth, w.displayed, w.drift, w.cause, w.totalAlone
	if r.Drift != 0 {
		r.Direction = direction(r.Drift)
	}
	x.out.Recount = &r
	return ctx.Err()
}

// judgeByLooks judges a counter that the application keeps: by looks that lie further apart than a change may be under way.
func (x *explainer) judgeByLooks(ctx context.Context) error {
	if err := x.insist(ctx, func() error { return x.present(ctx) }); err != nil {
		return err
	}
	keys := []bson.RawValue{x.Key}
	found, err := x.judgeAt(ctx, keys, nil)
	if err != nil {
		return err
	}
	if found[0].opinion == unsettled && (found[0].document.Exists || x.Counter.Target.Upsert) {
		open := map[string]seenAt{counter.Canonical(x.Key): found[0].seenAt}
		if err := x.waitToSettle(ctx, open); err != nil {
			return err
		}
		if found, err = x.judgeAt(ctx, keys, open); err != nil {
			return err
		}
	}
	return x.ofLooks(ctx, found[0])
}

// ofLooks fills in what looks at the key came to.
func (x *explainer) ofLooks(ctx context.Context, f judged) error {
	x.shown(f.document)
	w := verdict{key: x.Key, displayed: f.displayed(), truth: f.detail.N}
	r := Recount{Position: momentOf(f.at), Rows: f.detail.Rows, Low: f.detail.Low, High: f.detail.High}
	bare := !f.document.Exists && !x.Counter.Target.Upsert && f.off() != 0
	switch {
	case f.opinion == unfit:
		w.skip, w.why = fitness(f.document, f.detail.Truth)
	case bare:
		w.skip = skipNoDocument
	case f.opinion == unsettled:
		w.skip, w.why = skipBusy, fmt.Sprintf("it displays %d for %d, and was written to within %s: it may be under way",
			f.displayed(), f.detail.N, x.settings.Settle)
	case f.opinion == wrong:
		w.drift, w.cause = f.off(), CauseUnknown
		if !f.document.Exists {
			w.cause = CauseNoDocument
		}
	}
	return x.judged(ctx, w, r)
}

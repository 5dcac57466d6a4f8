package reconciler

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// keepUndone takes the keys out whose repair somebody has taken back, until they are released. Only drifted keys are asked
// for, so that it costs nothing where nothing is wrong.
func (p *pass) keepUndone(ctx context.Context, verdicts []verdict) error {
	var wrong []bson.RawValue
	for _, v := range verdicts {
		if v.skip == "" && v.drift != 0 {
			wrong = append(wrong, v.key)
		}
	}
	if len(wrong) == 0 {
		return nil
	}
	var kept map[string]string
	err := p.insist(ctx, func() (err error) {
		kept, err = p.journal.Kept(ctx, p.definition, wrong)
		return err
	})
	if err != nil {
		return err
	}
	for i, v := range verdicts {
		if run := kept[counter.Canonical(v.key)]; run != "" && v.skip == "" && v.drift != 0 {
			verdicts[i].skip = skipUndone
			p.undone = run
			verdicts[i].why = fmt.Sprintf("its repair was taken back: `reconciler undo %s --release` lets it be repaired again", run)
		}
	}
	return nil
}

// tellUndone logs once a run that keys are wrong and stay so.
func (p *pass) tellUndone() {
	if n := p.report.Skipped[skipUndone]; n > 0 {
		p.log.Warn("wrong keys not repaired: their repairs were taken back", logkey.Counter, p.definition.Name, "keys", n,
			logkey.Action, fmt.Sprintf("`reconciler undo %s --release` lets keys be repaired again; `reconciler verify` names all such runs", p.undone), logkey.Run, p.run)
	}
}

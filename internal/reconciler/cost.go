package reconciler

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// A batch should take about batchTime: short enough to stop or pause soon, and long enough that the reading of the
// checkpoint does not weigh. The first one of a counter is small, since nothing is known of its keys yet.
const (
	batchTime  = time.Second
	firstBatch = 100 // keys
)

// batchSize is how many listed keys are recounted at once, by what the batch before has cost.
type batchSize struct{ keys, most int }

// took adapts the size to a batch of so many keys.
func (b *batchSize) took(keys int, d time.Duration) {
	switch {
	case d > batchTime:
		b.keys = max(1, min(b.keys, int(float64(keys)*float64(batchTime)/float64(d))))
	case d < batchTime/2 && keys >= b.keys:
		b.keys = min(b.most, 2*b.keys)
	}
}

// sizeOf is the batch size of a counter, which lasts from run to run.
func (r *Reconciler) sizeOf(name string) *batchSize {
	if r.sizes[name] == nil {
		r.sizes[name] = &batchSize{min(firstBatch, r.settings.BatchKeys), r.settings.BatchKeys}
	}
	return r.sizes[name]
}

// rest is the time for which the loop leaves a key alone whose recount is costly.
type rest struct {
	until   time.Time
	through bson.Timestamp // where it was compared last
}

// weigh lets the keys rest that would take more than their share of the time if every run recounted them. The time of a batch
// is divided by rows.
func (p *pass) weigh(v view) {
	if p.resting[p.definition.Name] == nil {
		p.resting[p.definition.Name] = map[string]rest{}
	}
	resting, longest := p.resting[p.definition.Name], float64(p.settings.Sweep)
	pause := func(rows int64) time.Duration {
		return time.Duration(min(longest, float64(v.took)*float64(rows)/float64(v.rows)/p.settings.CostlyKeyShare))
	}
	if v.rows == 0 || len(resting) == 0 && pause(v.rows) <= p.settings.Every {
		return // not even all together
	}
	for key, truth := range v.truths {
		delete(resting, key)
		if d := pause(truth.Rows); d > p.settings.Every {
			resting[key] = rest{time.Now().Add(d), v.position(key)}
		}
	}
}

// due leaves out the touched keys that rest. A mark with a reason is for more than an increment, and does not wait.
func (p *pass) due(page []counter.Touched) []counter.Touched {
	resting := p.resting[p.definition.Name]
	if p.heart == nil || len(resting) == 0 {
		return page
	}
	return slices.DeleteFunc(page, func(t counter.Touched) bool {
		r, rests := resting[counter.Canonical(t.Key)]
		if !rests || t.Reason != "" || !time.Now().Before(r.until) {
			return false
		}
		p.report.skip(skipCostly)
		if p.rested.IsZero() || r.through.Before(p.rested) {
			p.rested = r.through
		}
		return true
	})
}

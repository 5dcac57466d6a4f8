package reconciler

import (
	"context"
	"fmt"
	"math"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Counters that events from a topic increment have no position in common with their rows. They are judged at a moment, the
// cut, that lies so far back that what happened before it has arrived: in their documents it is the bound of a bucket of
// event time, and in the rows what they say of themselves, or a snapshot where events carry the times of their commits.

// cutOf is the latest moment at which lanes can be judged, in Unix seconds: all of them are complete through it and what may
// still be under way, and it begins a bucket.
func cutOf(lanes []checkpoint.Checkpoint, settle time.Duration) int64 {
	width := int64(counter.FinestBucket(settle) / time.Second)
	at := int64(standing{lanes: lanes}.through().T) - int64(math.Ceil(settle.Seconds()))
	return max(1, at-at%width) // a lane that has just begun with the oldest record is nowhere yet
}

// settling says until when a counter waits that was taken up so lately that events of before may still come. since is the first
// cut that it can be judged at.
func settling(since bson.Timestamp, settle time.Duration) string {
	first := stream.Clock(since)
	return fmt.Sprintf("the incrementer took it up at %s, and events that were under way then may take reconciler.settle (%s): waiting until its lanes have passed %s",
		first.Add(-settle).Format(time.RFC3339), settle, first.Add(counter.FinestBucket(settle)+settle).Format(time.RFC3339))
}

// readEvents takes one cut: checkpoints, state and documents in one snapshot, the rows in the same one, or in that of the cut.
func (p *pass) readEvents(ctx context.Context, which counter.Selection) (view, error) {
	var v view
	started := time.Now()
	err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if v.standing, err = p.stand(ctx); err != nil {
			return err
		}
		if v.documents, err = p.definition.Documents(ctx, p.client, which); err != nil || !p.definition.ByTime() {
			return err
		}
		v.truths, v.rows, err = p.definition.CountAsOf(ctx, p.client, which, v.cut)
		return err
	})
	if err == nil && !p.definition.ByTime() {
		err = counter.Snapshot(ctx, p.client, before(v.cut), func(ctx context.Context) (err error) {
			v.truths, v.rows, err = p.definition.Count(ctx, p.client, which)
			return err
		})
	}
	if err == nil {
		err = p.present(ctx)
	}
	v.took = time.Since(started)
	v.divide()
	return v, p.verdictOn(err, v.through(), v.took)
}

// before is the last cluster time before a second.
func before(second int64) bson.Timestamp {
	return bson.Timestamp{T: uint32(second - 1), I: math.MaxUint32} //nolint:gosec // a Unix time
}

// divide divides all documents at the cut.
func (v *view) divide() {
	v.tail, v.divisions = make(map[string]int64, len(v.documents)), make(map[string]division, len(v.documents))
	for key, document := range v.documents {
		v.tail[key], v.divisions[key] = divideAt(document, v.cut)
	}
}

// changedRows compares the keys of rows that were created or deleted since the last run: of an event that was never published,
// nothing else tells. What this pass has compared already is left out, as far as it remembers.
func (p *pass) changedRows(ctx context.Context) error {
	from, to := int64(p.began.state.VerifiedThrough.T), p.began.cut
	if !p.definition.ByEvents() || p.definition.Rows.CreatedAt == "" || from == 0 || from >= to {
		return nil
	}
	return p.definition.ChangedBetween(ctx, p.client, time.Unix(from, 0), time.Unix(to, 0), p.settings.BatchKeys, func(keys []bson.RawValue) error {
		page := make([]counter.Touched, 0, len(keys))
		for _, key := range keys {
			if !p.compared[counter.Canonical(key)] {
				page = append(page, counter.Touched{Key: key})
			}
		}
		return p.page(ctx, page)
	})
}

// maxCompared bounds what a pass remembers.
const maxCompared = 500_000

// remember notes the keys of a view.
func (p *pass) remember(v view) {
	if !p.definition.ByEvents() || len(p.compared) > maxCompared {
		return
	}
	for key := range v.documents {
		p.compared[key] = true
	}
}

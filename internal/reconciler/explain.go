package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// maxKeyRepairs is how many repairs of a key an explanation lists.
const maxKeyRepairs = 10

// Question is what to explain, and how long to look.
type Question struct {
	Counter *counter.Definition
	Key     bson.RawValue
	Since   time.Duration // how far back to look for events, in the server's time; 0 for not at all
	Reading time.Duration // at most, to read them
	Tell    func(string)  // is told what is waited for; nil for nobody
}

// explainer puts one explanation together.
type explainer struct {
	*pass
	Question
	out   *Explanation
	mark  counter.Touched         // in the state database
	lanes []checkpoint.Checkpoint // of the key's source
	lane  int                     // of these, the key's; -1 when nobody knows
	last  bson.Timestamp          // the last write that a majority had when it began
}

// Explain tells what one key of a counter is made of, and judges it as a run does. It reads only: neither marks nor
// records change. What cannot be read is left out and said; an error means that the counter's document or the server
// could not be read at all.
func (r *Reconciler) Explain(ctx context.Context, q Question) (*Explanation, error) {
	x := &explainer{
		pass: &pass{
			Reconciler: r, definition: q.Counter, described: new(int), seen: map[string]bool{}, patience: r.settings.JudgeTimeout,
			options: Options{Counter: q.Counter.Name, Key: q.Key, DryRun: true, Wait: true, Tell: q.Tell},
			report:  &CounterReport{Skipped: map[string]int64{}},
		},
		Question: q, lane: -1,
		out: &Explanation{Counter: q.Counter.Name, Key: ExtendedJSON{q.Key}, Repairs: []KeyRepair{}, Events: Events{List: []Changed{}}},
	}
	last, err := counter.LastWrites(ctx, r.client)
	if err != nil {
		return nil, err
	}
	x.last = last.Majority // a change stream tells of no other
	// Marks before the cut, as in a run: what is marked then is judged there or later.
	for _, step := range []func(context.Context) error{x.lanesOfSource, x.records, x.asOfNow, x.judgeKey, x.owner, x.events, x.otherKeys} {
		if err := step(ctx); err != nil {
			return nil, fmt.Errorf("explain counter %s: %w", q.Counter.Name, err)
		}
	}
	x.out.Verdict = x.out.verdict()
	return x.out, nil
}

// optional notes that a part could not be read. It returns what ends the whole: that somebody has stopped it.
func (x *explainer) optional(ctx context.Context, part string, err error) error {
	if err != nil && ctx.Err() == nil {
		x.out.Unread = append(x.out.Unread, Unread{part, inShort(err)})
	}
	return ctx.Err()
}

// inShort is the server's own message where there is one.
func inShort(err error) string {
	var command mongo.CommandError
	if errors.As(err, &command) {
		return command.Message
	}
	return err.Error()
}

// lanesOfSource reads the checkpoints; none where the counter cannot be judged anyway.
func (x *explainer) lanesOfSource(ctx context.Context) error {
	if x.Counter.ByApplication() {
		return nil
	}
	lanes, err := x.checkpoints.Set(ctx, x.Counter.Source)
	if errors.Is(err, checkpoint.ErrNone) || errors.Is(err, checkpoint.ErrNewer) {
		return nil // the judgement says so
	}
	x.lanes = lanes
	return x.optional(ctx, "lanes", err)
}

// asOfNow reads document and rows in one snapshot, the latest that a majority has: that takes no lane.
func (x *explainer) asOfNow(ctx context.Context) error {
	d, which := x.Counter, counter.Listed([]bson.RawValue{x.Key})
	canonical := counter.Canonical(x.Key)
	var document counter.Document
	var now *Now
	err := x.insist(ctx, func() error {
		now = nil
		return counter.Snapshot(ctx, x.client, bson.Timestamp{}, func(ctx context.Context) error {
			documents, err := d.DocumentsOfLanes(ctx, x.client, which, max(1, len(x.lanes)))
			if err != nil {
				return err
			}
			document = documents[canonical]
			at := mongo.SessionFromContext(ctx).SnapshotTime()
			truths, rows, err := d.Count(ctx, x.client, which)
			if err == nil && truths[canonical].Bad == "" {
				now = &Now{Truth: truths[canonical].N, Rows: rows, Position: momentOf(at)}
			}
			return err
		})
	})
	if err != nil && (ctx.Err() != nil || isUnreachable(err) || errors.Is(stream.Classify(err), stream.ErrUnauthorized)) {
		return err
	}
	x.out.Now = now
	x.shown(document)
	x.inLane(x.lanes, document.Partition, document.Exists)
	if err := x.optional(ctx, "rows", err); err != nil {
		return err
	}
	x.out.Shown.ReconciledAt, err = d.ReconciledAt(ctx, x.client, x.Key)
	return x.optional(ctx, "reconciled_at", err)
}

// inLane says which of the source's lanes is the key's, as far as it is known.
func (x *explainer) inLane(lanes []checkpoint.Checkpoint, lane int, known bool) {
	x.lanes, x.lane = lanes, lane
	switch {
	case len(lanes) == 1:
		x.lane = 0
	case !known, len(lanes) == 0:
		x.lane = -1
	}
}

// shown fills in what the document displays.
func (x *explainer) shown(d counter.Document) {
	s := &x.out.Shown
	*s = Shown{Document: d.Exists, Displayed: d.Base + d.Live, Bad: d.Bad, ReconciledAt: s.ReconciledAt}
	if x.Counter.Target.Count != "" {
		return
	}
	s.Base, s.Live = &d.Base, &d.Live
	if d.HasTotal {
		s.Total, s.TotalAgrees = &d.Total, d.Total == d.Base+d.Live
	}
	x.out.Marks.Touched = d.Touched
	if d.Touched && !d.Stamp.IsZero() {
		x.out.Marks.TouchedAt = d.Stamp.Timestamp().UTC()
	}
}

// otherKeys looks for keys that are written the same, where there is nothing of this one.
func (x *explainer) otherKeys(ctx context.Context) error {
	forms := counter.OtherForms(x.Key)
	if x.out.Shown.Document || x.out.Now == nil || x.out.Now.Rows > 0 || len(forms) == 0 {
		return nil
	}
	var documents map[string]counter.Document
	var truths map[string]counter.Truth
	err := counter.Snapshot(ctx, x.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if documents, err = x.Counter.Documents(ctx, x.client, counter.Listed(forms)); err == nil {
			truths, _, err = x.Counter.Count(ctx, x.client, counter.Listed(forms))
		}
		return err
	})
	for _, form := range forms {
		canonical := counter.Canonical(form)
		if _, counted := truths[canonical]; counted || documents[canonical].Exists {
			x.out.Others = append(x.out.Others, ExtendedJSON{form})
		}
	}
	return x.optional(ctx, "keys of other types", err)
}

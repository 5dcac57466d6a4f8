package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
)

// Restart leaves a position that cannot be resumed, or all lanes of a source that is divided anew: the gap is recorded
// with the reason, the lane starts afresh and every counter of it is marked for a full recount (I7).
func (l *Lane) Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	lanes, err := l.checkpoints.OfSource(ctx, l.ID.Source)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	from := checkpoint.Checkpoint{Lane: l.ID.String()}
	for _, lane := range lanes {
		if lane.Partitions != l.ID.Count() || lane.Topic != "" {
			at, err := l.begin(ctx, lanes, reason, broken)
			if errors.Is(err, checkpoint.ErrFenced) { // another of the new lanes may have started all
				return l.Load(ctx, broken)
			}
			return at, err
		}
		if lane.Lane == from.Lane {
			from = lane
		}
	}
	if reason == ReasonPartitions && from.Seq > 0 { // another of the new lanes has started all
		return l.Load(ctx, broken)
	}
	position, err := l.checkpoints.Now(ctx, from.Lane)
	if err != nil {
		return from, err
	}
	to, err := l.afresh(ctx, position, broken)
	if err != nil {
		return from, err
	}
	_, at, err := l.jump(ctx, to, reason, func(context.Context) (checkpoint.Checkpoint, error) { return from, nil })
	return at, err
}

// jump moves the lane to a state that does not follow from what it has applied, and records it. where says, inside the
// transaction, which state it leaves. It returns the states before and after.
func (l *Lane) jump(ctx context.Context, to checkpoint.Checkpoint, reason string,
	where func(context.Context) (checkpoint.Checkpoint, error),
) (from, _ checkpoint.Checkpoint, err error) {
	err = l.transact(ctx, func(ctx context.Context) error {
		if from, err = where(ctx); err != nil {
			return err
		}
		to.Seq = max(from.Seq, l.last.Seq) + 1
		if err := l.checkpoints.Advance(ctx, from, to); err != nil {
			return err
		}
		before := from
		if before.Seq == 0 {
			before = l.last
		}
		return l.lost(ctx, before, to, reason)
	})
	to, err = l.started(to, err)
	return from, to, err
}

// begin starts all lanes of the source at once, in place of those that it had before.
func (l *Lane) begin(ctx context.Context, before []checkpoint.Checkpoint, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	mine := checkpoint.Checkpoint{Lane: l.ID.String()}
	position, err := l.checkpoints.Now(ctx, mine.Lane)
	if err != nil {
		return mine, err
	}
	if mine, err = l.afresh(ctx, position, broken); err != nil {
		return mine, err
	}
	oldest := checkpoint.Checkpoint{}
	for _, lane := range before {
		// One that was left in the middle of a transaction would hold its checkpoint for a minute.
		if err := l.checkpoints.Take(ctx, lane.Lane); err != nil {
			return mine, err
		}
		mine.Seq = max(mine.Seq, lane.Seq+1) // none of the new lanes may seem to go back
		if oldest.Seq == 0 || lane.Position.Before(oldest.Position) {
			oldest = lane
		}
	}
	err = l.transact(ctx, func(ctx context.Context) error {
		if err := l.checkpoints.Retire(ctx, l.ID.Source, l.ID.Count()); err != nil {
			return err
		}
		for _, id := range checkpoint.Lanes(l.ID.Source, l.ID.Count()) {
			lane := mine
			lane.Lane = id.String()
			if err := l.checkpoints.Advance(ctx, checkpoint.Checkpoint{Lane: lane.Lane}, lane); err != nil {
				return err
			}
		}
		return l.lost(ctx, oldest, mine, reason)
	})
	if IsConflict(err) { // with another of the lanes that starts them all, or with an owner before
		err = fmt.Errorf("start lane %s: %w: %w", l.ID, checkpoint.ErrFenced, err)
	}
	return l.started(mine, err)
}

// afresh is the state of the lane when it begins at a position, as things are now.
func (l *Lane) afresh(ctx context.Context, position bson.Timestamp, broken map[string]string) (checkpoint.Checkpoint, error) {
	to := checkpoint.Checkpoint{Lane: l.ID.String()}
	seen, err := l.look(ctx) // after the write of Now, which may have made the collection of checkpoints
	if err != nil {
		return to, err
	}
	to = checkpoint.Checkpoint{
		Lane: to.Lane, Seq: l.last.Seq + 1, Batch: bson.NewObjectID(), Position: position,
		Partitions: l.ID.Count(), Identity: seen.Identity, Counters: make(map[string]checkpoint.Counting, len(l.definitions)),
	}
	for _, d := range l.definitions {
		to.Counters[d.Name] = checkpoint.Counting{Hash: d.Hash, Since: position, Broken: broken[d.Name]}
	}
	return to, nil
}

// lost marks every counter of the source, and records what was lost between two states where there was a state before.
func (l *Lane) lost(ctx context.Context, from, to checkpoint.Checkpoint, reason string) error {
	states, err := l.states.All(ctx)
	if err != nil {
		return err
	}
	for _, d := range l.definitions {
		if err := l.states.Mark(ctx, d, recountReason(from, states[d.Name], d, lossReason(reason))); err != nil {
			return err
		}
	}
	if reason == "" {
		return nil
	}
	return l.states.RecordGap(ctx, Gap{
		ID: to.Batch, Lane: l.ID.String(), Reason: reason, From: from.Position, To: to.Position, At: time.Now(),
	})
}

// started remembers where the lane is.
func (l *Lane) started(at checkpoint.Checkpoint, err error) (checkpoint.Checkpoint, error) {
	if err == nil {
		l.last = at
	}
	return at, err
}

package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// resetFor is how long a reset tries to come between the transactions of an owner at work. The server gives up the
// transaction of one that died after a minute.
const resetFor = 90 * time.Second

var (
	// ErrNeverStarted means: there is nothing to reset, since the lane has never been followed.
	ErrNeverStarted = errors.New("never started")
	// ErrAhead means: the position lies in the future.
	ErrAhead = errors.New("lies ahead of the server's time")
)

// Reset moves the lane to a position of an operator's choice, an earlier or a later one, zero for the present, and returns
// the states before and after. It is recorded as a gap, and every counter of the lane is marked for a full recount (I7):
// what is counted twice or not at all is made right by that. An owner at work is fenced by it and goes on from there (I1).
// checkpoint.ErrPartitions: the source is divided otherwise.
func (l *Lane) Reset(ctx context.Context, position bson.Timestamp) (from, to checkpoint.Checkpoint, err error) {
	if from, err = l.resettable(ctx); err != nil {
		return from, to, fmt.Errorf("reset lane %s: %w", l.ID, err)
	}
	now, err := l.checkpoints.Now(ctx, l.ID.String())
	switch {
	case err != nil:
		return from, to, err
	case position.IsZero():
		position = now
	case position.After(now):
		return from, to, fmt.Errorf("reset lane %s: %s %w, %s", l.ID, stream.InWords(position), ErrAhead, stream.InWords(now))
	}
	return l.leap(ctx, func(from checkpoint.Checkpoint) (checkpoint.Checkpoint, error) {
		return l.afresh(ctx, position, brokenIn(from))
	})
}

// Reset is Lane.Reset for a partition of a topic: it goes to the beginning that the topic names, an earlier or a later one. Where
// that is, and from when on counters may be judged, is found anew each time: what an owner at work has applied of later events is
// applied once more, and must lie before.
func (l *TopicLane) Reset(ctx context.Context) (from, to checkpoint.Checkpoint, err error) {
	return l.leap(ctx, func(from checkpoint.Checkpoint) (to checkpoint.Checkpoint, err error) {
		token, err := l.topic.Beginning(ctx, l.ID.Partition, false)
		if err != nil {
			return to, err
		}
		if to, err = l.afreshAt(ctx, token, brokenIn(from)); err != nil {
			return to, err
		}
		if now := time.Now(); stream.Clock(to.Position).After(now) {
			return to, fmt.Errorf("%s %w, %s", stream.InWords(to.Position), ErrAhead, now.UTC().Format(time.RFC3339))
		}
		return to, nil
	})
}

// leap is a reset's jump to a goal, between the transactions of an owner at work. It reads where the lane is inside its own: an
// owner has moved on between any two others.
func (l *Lane) leap(ctx context.Context, goal func(from checkpoint.Checkpoint) (checkpoint.Checkpoint, error)) (from, to checkpoint.Checkpoint, err error) {
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(200*time.Millisecond), backoff.WithMaxElapsedTime(resetFor))
	err = backoff.Retry(func() error {
		if from, err = l.resettable(ctx); err == nil {
			to, err = goal(from)
		}
		if err == nil {
			from, to, err = l.jump(ctx, to, ReasonReset, l.resettable)
		}
		if err == nil || errors.Is(err, checkpoint.ErrFenced) || IsConflict(err) || hasLabel(err, "TransientTransactionError") {
			return err
		}
		return backoff.Permanent(err)
	}, backoff.WithContext(policy, ctx))
	if err != nil {
		return from, to, fmt.Errorf("reset lane %s: %w", l.ID, err)
	}
	return from, to, nil
}

// resettable returns where the lane is. It may have no checkpoint any more: then its counters are known.
func (l *Lane) resettable(ctx context.Context) (checkpoint.Checkpoint, error) {
	from := checkpoint.Checkpoint{Lane: l.ID.String()}
	lanes, err := l.checkpoints.OfSource(ctx, l.ID.Source)
	if err != nil {
		return from, err
	}
	for _, lane := range lanes {
		if lane.Topic != l.ID.Topic || l.ID.Topic == "" && lane.Partitions != l.ID.Count() {
			return from, l.divided(lane)
		}
		if lane.Lane == from.Lane {
			return lane, nil
		}
	}
	states, err := l.states.All(ctx)
	if err != nil {
		return from, err
	}
	if !l.known(lanes, states) {
		return from, ErrNeverStarted
	}
	return from, nil
}

// brokenIn is the server's message for each counter whose expression fails: an owner at work has found them out.
func brokenIn(at checkpoint.Checkpoint) map[string]string {
	broken := map[string]string{}
	for name, counting := range at.Counters {
		if counting.Broken != "" {
			broken[name] = counting.Broken
		}
	}
	return broken
}

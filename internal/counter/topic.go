package counter

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// Topic is what a lane asks about the topic that its partition is of.
type Topic interface {
	// Beginning is where a lane begins that has never been followed: where the configuration says, or, fresh, with the first
	// record of a partition that the topic has got since.
	Beginning(ctx context.Context, partition int, fresh bool) (bson.Raw, error)
	// End is behind the last record.
	End(ctx context.Context, partition int) (bson.Raw, error)
	// Partitions is how many the topic has.
	Partitions(ctx context.Context) (int, error)
}

// TopicLane is a Lane whose events come from a partition of a topic: it has no cluster time in common with the rows.
type TopicLane struct {
	*Lane
	topic  Topic
	settle time.Duration // how long an event may be under way

	began    time.Time
	verified atomic.Int64 // the moment that the reconciler has gone past, in Unix seconds
}

// OfTopic makes a lane follow a topic.
func (l *Lane) OfTopic(topic Topic, settle time.Duration) *TopicLane {
	t := &TopicLane{Lane: l, topic: topic, settle: settle, began: time.Now()}
	t.verified.Store(t.began.Unix())
	return t
}

// Load is Lane.Load. A partition that is new begins with its first record, and marks nothing.
func (l *TopicLane) Load(ctx context.Context, broken map[string]string) (checkpoint.Checkpoint, error) {
	partitions, err := l.topic.Partitions(ctx)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	l.ID.Partitions = partitions
	return l.load(ctx, broken, l.first, func(ctx context.Context, _ checkpoint.Checkpoint) (bson.Timestamp, error) { return l.now(ctx) })
}

// now is the first moment at which a counter may be judged that is taken up here: an event of it or later is still to come.
func (l *TopicLane) now(ctx context.Context) (bson.Timestamp, error) {
	at, err := l.checkpoints.Now(ctx, l.ID.String())
	at.T += uint32(l.settle / time.Second) //nolint:gosec // a short time
	return at, err
}

// first starts a partition that has never been followed.
func (l *TopicLane) first(ctx context.Context, states map[string]State, broken map[string]string) (checkpoint.Checkpoint, error) {
	lanes, err := l.checkpoints.OfSource(ctx, l.ID.Source)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	var others []checkpoint.Checkpoint // of the topic
	known := 0                         // partitions of it that somebody has seen
	for _, lane := range lanes {
		if lane.Topic == l.ID.Topic {
			others = append(others, lane)
			known = max(known, lane.Partitions)
		}
	}
	if len(lanes) > 0 && len(others) == 0 && l.last.Seq == 0 {
		return l.takeOver(ctx, lanes, "", broken)
	}
	fresh := len(others) > 0 && l.ID.Partition >= known
	if !fresh && l.last.Seq > 0 || len(others) == 0 && len(lanes) == 0 && l.known(nil, states) {
		return checkpoint.Checkpoint{}, fmt.Errorf("%w: %w", stream.ErrPositionLost, checkpoint.ErrMissing)
	}
	token, err := l.topic.Beginning(ctx, l.ID.Partition, fresh)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	none := checkpoint.Checkpoint{Lane: l.ID.String()}
	if !fresh {
		return l.beginAt(ctx, none, token, "", broken)
	}
	to, err := l.afreshAt(ctx, token, broken)
	if err != nil {
		return none, err
	}
	return l.started(to, l.move(ctx, none, to, func(ctx context.Context) error { return l.checkpoints.Supersede(ctx, l.ID) }))
}

// Restart leaves a position that cannot be resumed: the lane goes on behind the last record, the gap is recorded with the
// reason, and every counter of it is marked for a full recount (I7).
func (l *TopicLane) Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	from := checkpoint.Checkpoint{Lane: l.ID.String()}
	lanes, err := l.checkpoints.OfSource(ctx, l.ID.Source)
	if err != nil {
		return from, err
	}
	for _, lane := range lanes {
		if lane.Topic != l.ID.Topic {
			return l.takeOver(ctx, lanes, reason, broken)
		}
		if lane.Lane == from.Lane {
			from = lane
		}
	}
	token, err := l.topic.End(ctx, l.ID.Partition)
	if err != nil {
		return from, err
	}
	return l.beginAt(ctx, from, token, reason, broken)
}

// takeOver starts all lanes of the topic at once, in place of a change stream's or another topic's, behind the last records:
// what these tell has been counted before, or is by the recount. A start at their beginning would display it twice until then.
func (l *TopicLane) takeOver(ctx context.Context, before []checkpoint.Checkpoint, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	mine := checkpoint.Checkpoint{Lane: l.ID.String()}
	since, err := l.now(ctx)
	if err != nil {
		return mine, err
	}
	if mine, err = l.afresh(ctx, since, broken); err != nil {
		return mine, err
	}
	mine.Topic = l.ID.Topic
	for _, lane := range before {
		// One that was left in the middle of a transaction would hold its checkpoint for a minute.
		if err := l.checkpoints.Take(ctx, lane.Lane); err != nil {
			return mine, err
		}
		mine.Seq = max(mine.Seq, lane.Seq+1) // none of the new lanes may seem to go back
	}
	lanes, err := l.atEnds(ctx, mine)
	if err != nil {
		return mine, err
	}
	return l.started(lanes[l.ID.Partition], l.transact(ctx, func(ctx context.Context) error {
		if err := l.checkpoints.Supersede(ctx, l.ID); err != nil {
			return err
		}
		for _, lane := range lanes {
			if err := l.checkpoints.Advance(ctx, checkpoint.Checkpoint{Lane: lane.Lane}, lane); err != nil {
				return err
			}
		}
		return l.lost(ctx, before[0], lanes[l.ID.Partition], reason)
	}))
}

// atEnds are lanes of all partitions like one of them, each behind its last record.
func (l *TopicLane) atEnds(ctx context.Context, like checkpoint.Checkpoint) ([]checkpoint.Checkpoint, error) {
	lanes := make([]checkpoint.Checkpoint, l.ID.Partitions)
	for i, id := range checkpoint.TopicLanes(l.ID.Source, l.ID.Topic, l.ID.Partitions) {
		token, err := l.topic.End(ctx, i)
		if err != nil {
			return nil, err
		}
		at, err := stream.TokenTime(token)
		if err != nil {
			return nil, err
		}
		lanes[i] = like
		lanes[i].Lane, lanes[i].Token, lanes[i].Position = id.String(), token, stream.Before(at)
	}
	return lanes, nil
}

// beginAt moves the lane to a token that does not follow from what it has applied, and marks its counters.
func (l *TopicLane) beginAt(ctx context.Context, from checkpoint.Checkpoint, token bson.Raw, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	to, err := l.afreshAt(ctx, token, broken)
	if err != nil {
		return from, err
	}
	_, at, err := l.jump(ctx, to, reason, func(ctx context.Context) (checkpoint.Checkpoint, error) {
		return from, l.checkpoints.Supersede(ctx, l.ID)
	})
	return at, err
}

// afreshAt is the state of the lane when it begins at a token, as things are now.
func (l *TopicLane) afreshAt(ctx context.Context, token bson.Raw, broken map[string]string) (checkpoint.Checkpoint, error) {
	since, err := l.now(ctx)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	to, err := l.afresh(ctx, since, broken)
	if err != nil {
		return to, err
	}
	at, err := stream.TokenTime(token)
	to.Token, to.Position, to.Topic = token, stream.Before(at), l.ID.Topic
	return to, err
}

// Check looks whether at still stands for what is there: see Lane.Check. Another number of partitions is due to be loaded.
func (l *TopicLane) Check(ctx context.Context, at checkpoint.Checkpoint) (images bool, err error) {
	partitions, err := l.topic.Partitions(ctx)
	if err != nil {
		return true, err
	}
	if partitions > at.Partitions {
		return true, fmt.Errorf("topic %s has %d partitions now: %w", l.ID.Topic, partitions, ErrCollectionMade)
	}
	seen, err := l.look(ctx)
	if err != nil {
		return true, err
	}
	if err := at.Identity.Against(seen.Identity); err != nil {
		return true, err
	}
	states, err := l.recorded(ctx)
	if err != nil {
		return true, err
	}
	l.sees(states)
	return true, nil
}

// sees notes how far the reconciler has got.
func (l *TopicLane) sees(states map[string]State) {
	oldest := l.began.Unix()
	for i, d := range l.definitions {
		if at := int64(states[d.Name].VerifiedThrough.T); at != 0 && (i == 0 || at < oldest) {
			oldest = at
		}
	}
	l.verified.Store(oldest)
}

// Unseen is how long ago the last reconcile was, as far as the lane knows. It may be called beside the others.
func (l *TopicLane) Unseen() time.Duration {
	return max(0, time.Since(time.Unix(l.verified.Load(), 0))-2*l.settle)
}

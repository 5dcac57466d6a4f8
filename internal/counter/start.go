package counter

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// Lane ties a checkpoint to the counters that it stands for.
type Lane struct {
	Name        string
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *States
	definitions []*Definition
}

// NewLane opens the lane of the given name that feeds the given counters.
func NewLane(name string, client *mongo.Client, checkpoints *checkpoint.Store, states *States, definitions []*Definition) *Lane {
	return &Lane{Name: name, client: client, checkpoints: checkpoints, states: states, definitions: definitions}
}

// Load returns where the lane is, once it applies exactly the definitions it was opened with, less those in broken
// (the server's message by counter name). A lane without a checkpoint starts at a fresh position; counters that are new
// or changed are marked for a full recount in the transaction that takes them up.
func (l *Lane) Load(ctx context.Context, broken map[string]string) (checkpoint.Checkpoint, error) {
	if err := l.checkpoints.Take(ctx, l.Name); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	from, err := l.checkpoints.Load(ctx, l.Name)
	if errors.Is(err, checkpoint.ErrNone) {
		return l.restart(ctx, checkpoint.Checkpoint{Lane: l.Name}, "", broken)
	}
	if err != nil {
		return from, err
	}
	return l.adopt(ctx, from, broken)
}

// Restart leaves a position that cannot be resumed: the gap is recorded, the lane starts afresh and every counter of it
// is marked for a full recount (I7).
func (l *Lane) Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	from, err := l.checkpoints.Load(ctx, l.Name)
	if errors.Is(err, checkpoint.ErrNone) {
		from, err = checkpoint.Checkpoint{Lane: l.Name}, nil
	}
	if err != nil {
		return from, err
	}
	return l.restart(ctx, from, reason, broken)
}

func (l *Lane) restart(ctx context.Context, from checkpoint.Checkpoint, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	position, err := l.checkpoints.Now(ctx, l.Name)
	if err != nil {
		return from, err
	}
	to := from
	to.Seq, to.Batch, to.Token, to.Position, to.Tail = from.Seq+1, bson.NewObjectID(), nil, position, checkpoint.Tail{}
	to.Counters = make(map[string]checkpoint.Counting, len(l.definitions))
	for _, d := range l.definitions {
		to.Counters[d.Name] = checkpoint.Counting{Hash: d.Hash, Since: position, Broken: broken[d.Name]}
	}
	return to, l.move(ctx, from, to, func(ctx context.Context) error {
		for _, d := range l.definitions {
			if err := l.states.Mark(ctx, d, l.recountReason(from, d, reason)); err != nil {
				return err
			}
		}
		if reason == "" || from.Position.IsZero() {
			return nil
		}
		return l.states.RecordGap(ctx, Gap{
			ID: to.Batch, Lane: l.Name, Reason: reason, From: from.Position, To: position, At: time.Now(),
		})
	})
}

// adopt takes up counters that are new, changed, broken or mended, and drops those that are gone from the file.
func (l *Lane) adopt(ctx context.Context, from checkpoint.Checkpoint, broken map[string]string) (checkpoint.Checkpoint, error) {
	since := from.Position
	if from.Token != nil {
		at, err := stream.TokenTime(from.Token)
		if err != nil {
			return from, err
		}
		since = at
	}
	to := from
	to.Seq, to.Batch = from.Seq+1, bson.NewObjectID()
	to.Counters = make(map[string]checkpoint.Counting, len(l.definitions))
	var taken []*Definition
	for _, d := range l.definitions {
		have, ok := from.Counters[d.Name]
		if ok && have.Hash == d.Hash && have.Broken == broken[d.Name] {
			to.Counters[d.Name] = have
			continue
		}
		to.Counters[d.Name] = checkpoint.Counting{Hash: d.Hash, Since: since, Broken: broken[d.Name]}
		taken = append(taken, d)
	}
	if len(taken) == 0 && len(to.Counters) == len(from.Counters) {
		return from, nil
	}
	return to, l.move(ctx, from, to, func(ctx context.Context) error {
		for _, d := range taken {
			reason := ""
			if broken[d.Name] != "" || from.Counters[d.Name].Broken != "" {
				reason = ReasonBroken
			}
			if err := l.states.Mark(ctx, d, l.recountReason(from, d, reason)); err != nil {
				return err
			}
		}
		return nil
	})
}

// recountReason says why a counter is to be recounted: its own reason before the lane's.
func (l *Lane) recountReason(from checkpoint.Checkpoint, d *Definition, reason string) string {
	have, ok := from.Counters[d.Name]
	switch {
	case !ok:
		return ReasonNew
	case have.Hash != d.Hash:
		return ReasonChanged
	case reason == ReasonBroken:
		return ReasonBroken
	default:
		return ReasonGap
	}
}

// move commits one compare-and-set with what belongs to it. It is tried once: a caller that reopens loads again.
func (l *Lane) move(ctx context.Context, from, to checkpoint.Checkpoint, with func(context.Context) error) error {
	session, err := l.checkpoints.Session(l.Name)
	if err != nil {
		return err
	}
	return transact(ctx, session, func(ctx context.Context) error {
		if err := l.checkpoints.Advance(ctx, from, to); err != nil {
			return err
		}
		return with(ctx)
	})
}

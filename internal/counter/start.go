package counter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// ErrCollectionMade means: the rows' collection, which was not there, is now. Load takes note of it.
var ErrCollectionMade = errors.New("collection of rows has been made")

// ErrStates means: the state database does not say what the lane has recorded there about its counters. Load mends it.
var ErrStates = errors.New("state of a counter is gone or another deployment's")

// ErrContested means: another source's lane, which is being followed, counts another counter of the same name in the same
// state database. Whoever was there first goes on.
var ErrContested = errors.New("counted by another deployment that shares the state database: rename one of the two counters, " +
	"or give one deployment another mongodb.state_database")

// Lane ties a checkpoint to the counters that it stands for. It is used by one goroutine at a time, Check apart.
type Lane struct {
	ID          checkpoint.LaneID
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *States
	definitions []*Definition

	last checkpoint.Checkpoint // as this process saw it last, to tell one that is gone or went back
}

// NewLane opens the given lane that feeds the given counters.
func NewLane(id checkpoint.LaneID, client *mongo.Client, checkpoints *checkpoint.Store, states *States, definitions []*Definition) *Lane {
	return &Lane{ID: id, client: client, checkpoints: checkpoints, states: states, definitions: definitions}
}

// Load returns where the lane is, once it applies exactly the definitions it was opened with, less those in broken
// (the server's message by counter name). All lanes of a source that never started do so at one fresh position; counters
// that are new or changed are marked for a full recount in the transaction that takes them up. A checkpoint that does not
// stand for the rows any more is an error: stream.ErrPositionLost, stream.ErrCollectionChanged or checkpoint.ErrPartitions,
// which Restart answers; checkpoint.ErrNewer and ErrContested, which nothing but an operator does.
func (l *Lane) Load(ctx context.Context, broken map[string]string) (checkpoint.Checkpoint, error) {
	return l.load(ctx, broken, l.first, func(_ context.Context, from checkpoint.Checkpoint) (bson.Timestamp, error) { return sinceOf(from) })
}

// load is Load for any kind of lane: first starts one without a checkpoint, and since says from which position on a counter may
// be judged that is taken up at one.
func (l *Lane) load(ctx context.Context, broken map[string]string,
	first func(context.Context, map[string]State, map[string]string) (checkpoint.Checkpoint, error),
	since func(context.Context, checkpoint.Checkpoint) (bson.Timestamp, error),
) (checkpoint.Checkpoint, error) {
	if err := l.checkpoints.Take(ctx, l.ID.String()); err != nil {
		return checkpoint.Checkpoint{}, err
	}
	from, none := l.checkpoints.Load(ctx, l.ID.String())
	if none != nil && !errors.Is(none, checkpoint.ErrNone) {
		return from, none
	}
	// After the checkpoint: another lane of the source may start this one meanwhile, and marks the counters as it does.
	states, err := l.states.All(ctx)
	if err != nil {
		return from, err
	}
	if err := l.contested(ctx, states); err != nil {
		return from, err
	}
	if none != nil {
		return first(ctx, states, broken)
	}
	seen, err := l.look(ctx)
	if err != nil {
		return from, err
	}
	if err := l.stands(from, seen.Identity); err != nil {
		return from, err
	}
	at, err := since(ctx, from)
	if err != nil {
		return from, err
	}
	return l.started(l.adopt(ctx, from, at, seen.Identity, states, broken))
}

// sinceOf is the first position at which a counter may be judged that is taken up at a checkpoint.
func sinceOf(from checkpoint.Checkpoint) (bson.Timestamp, error) {
	if from.Token == nil {
		return from.Position, nil
	}
	return stream.TokenTime(from.Token)
}

// first starts a source that has never been followed. A lane without a checkpoint is something else when its source has
// been.
func (l *Lane) first(ctx context.Context, states map[string]State, broken map[string]string) (checkpoint.Checkpoint, error) {
	lanes, err := l.checkpoints.OfSource(ctx, l.ID.Source)
	if err != nil {
		return checkpoint.Checkpoint{}, err
	}
	for _, lane := range lanes {
		switch {
		case lane.Partitions != l.ID.Count(), lane.Topic != "":
			return checkpoint.Checkpoint{}, l.divided(lane)
		case lane.Lane == l.ID.String(): // just now
			return checkpoint.Checkpoint{}, fmt.Errorf("start lane %s: %w", l.ID, checkpoint.ErrFenced)
		}
	}
	if l.known(lanes, states) {
		return checkpoint.Checkpoint{}, fmt.Errorf("%w: %w", stream.ErrPositionLost, checkpoint.ErrMissing)
	}
	return l.begin(ctx, nil, "", broken)
}

// known reports whether the source has been followed before, although the lane has no checkpoint. lanes are those of the
// source that do have one.
func (l *Lane) known(lanes []checkpoint.Checkpoint, states map[string]State) bool {
	return len(lanes) > 0 || l.last.Seq > 0 || slices.ContainsFunc(l.definitions, func(d *Definition) bool {
		return states[d.Name].Hash == d.Hash
	})
}

// stands returns nil when a checkpoint holds for what is there now.
func (l *Lane) stands(from checkpoint.Checkpoint, now checkpoint.Identity) error {
	if from.Partitions != l.ID.Count() && l.ID.Topic == "" {
		return l.divided(from)
	}
	if err := from.Identity.Against(now); err != nil {
		return err
	}
	if from.Seq < l.last.Seq || from.Seq == l.last.Seq && from.Batch != l.last.Batch {
		return fmt.Errorf("%w: %w: at %d after %d", stream.ErrPositionLost, checkpoint.ErrWentBack, from.Seq, l.last.Seq)
	}
	return nil
}

// contested returns ErrContested when a counter's record is that of another one of the same name, which is being counted.
func (l *Lane) contested(ctx context.Context, states map[string]State) error {
	for _, d := range l.definitions {
		hash := states[d.Name].Hash
		if hash == "" || hash == d.Hash {
			continue
		}
		rival, err := l.checkpoints.Rival(ctx, l.ID.Source, d.Name, hash)
		if err != nil {
			return err
		}
		if rival.Held {
			return fmt.Errorf("counter %s of source %s: lane %s of instance %s has one of this name: %w",
				d.Name, l.ID.Source, rival.Lane, rival.Owner, ErrContested)
		}
	}
	return nil
}

// Reached notes that this process has moved the checkpoint to at.
func (l *Lane) Reached(at checkpoint.Checkpoint) {
	if at.Seq > l.last.Seq {
		l.last = at
	}
}

func (l *Lane) divided(before checkpoint.Checkpoint) error {
	return fmt.Errorf("%w: %d instead of %d", checkpoint.ErrPartitions, l.ID.Count(), before.Partitions)
}

// Check looks whether at still stands for what is there. It says what Load would, or that another Load is due:
// ErrStates, ErrCollectionMade. images tells whether the rows' images are on.
func (l *Lane) Check(ctx context.Context, at checkpoint.Checkpoint) (images bool, err error) {
	seen, err := l.look(ctx)
	if err != nil {
		return false, err
	}
	if err := at.Identity.Against(seen.Identity); err != nil {
		return seen.Images, err
	}
	if at.Identity.Collection == "" && seen.Collection != "" {
		return seen.Images, ErrCollectionMade
	}
	if _, err := l.recorded(ctx); err != nil {
		return seen.Images, err
	}
	return seen.Images || seen.Collection == "", nil // there is nothing to keep images of
}

// recorded reads the states, ErrStates when they are not what the lane has recorded of its counters.
func (l *Lane) recorded(ctx context.Context) (map[string]State, error) {
	states, err := l.states.All(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range l.definitions {
		if states[d.Name].Hash != d.Hash {
			return nil, fmt.Errorf("counter %s: %w", d.Name, ErrStates)
		}
	}
	return states, nil
}

// look asks for the identity of what is there. A source without counters has no rows that matter.
func (l *Lane) look(ctx context.Context) (checkpoint.Sighting, error) {
	if len(l.definitions) == 0 || l.ID.Topic != "" {
		return l.checkpoints.Look(ctx, "", "")
	}
	rows := l.definitions[0].Rows
	return l.checkpoints.Look(ctx, rows.Database, rows.Collection)
}

// adopt takes up counters that are new, changed, broken or mended, and drops those that are gone from the file.
func (l *Lane) adopt(ctx context.Context, from checkpoint.Checkpoint, since bson.Timestamp, now checkpoint.Identity,
	states map[string]State, broken map[string]string,
) (checkpoint.Checkpoint, error) {
	to := from
	to.Partitions = l.ID.Count()
	to.Seq, to.Batch = from.Seq+1, bson.NewObjectID()
	to.Identity.Collection = cmp.Or(from.Identity.Collection, now.Collection)
	if to.Identity.SetID.IsZero() {
		to.Identity.SetID = now.SetID
	}
	to.Counters = make(map[string]checkpoint.Counting, len(l.definitions))
	var taken []*Definition
	for _, d := range l.definitions {
		have, ok := from.Counters[d.Name]
		if ok && have.Hash == d.Hash && have.Broken == broken[d.Name] {
			to.Counters[d.Name] = have
			if states[d.Name].Hash != d.Hash { // removed, or another deployment's
				taken = append(taken, d)
			}
			continue
		}
		to.Counters[d.Name] = checkpoint.Counting{Hash: d.Hash, Since: since, Broken: broken[d.Name]}
		taken = append(taken, d)
	}
	if len(taken) == 0 && len(to.Counters) == len(from.Counters) && to.Identity == from.Identity && to.Partitions == from.Partitions {
		return from, nil
	}
	return to, l.move(ctx, from, to, func(ctx context.Context) error {
		for _, d := range taken {
			reason := ReasonNew
			if broken[d.Name] != "" || from.Counters[d.Name].Broken != "" {
				reason = ReasonBroken
			}
			if err := l.states.Mark(ctx, d, recountReason(from, State{}, d, reason)); err != nil {
				return err
			}
		}
		return nil
	})
}

// recountReason says why a counter is to be recounted: its own reason before the lane's. state is what is known of it
// where there is no checkpoint from before.
func recountReason(from checkpoint.Checkpoint, state State, d *Definition, reason string) string {
	hash := from.Counters[d.Name].Hash
	if from.Seq == 0 {
		hash = state.Hash
	}
	switch hash {
	case "":
		return ReasonNew
	case d.Hash:
		return reason
	default:
		return ReasonChanged
	}
}

// lossReason is the reason of a recount after a fresh start: what somebody did on purpose is no gap.
func lossReason(reason string) string {
	if reason == ReasonPartitions || reason == ReasonReset {
		return reason
	}
	return ReasonGap
}

// move commits one compare-and-set with what belongs to it. It is tried once: a caller that reopens loads again.
func (l *Lane) move(ctx context.Context, from, to checkpoint.Checkpoint, with func(context.Context) error) error {
	return l.transact(ctx, func(ctx context.Context) error {
		if err := l.checkpoints.Advance(ctx, from, to); err != nil {
			return err
		}
		return with(ctx)
	})
}

func (l *Lane) transact(ctx context.Context, body func(context.Context) error) error {
	session, err := l.checkpoints.Session(l.ID.String())
	if err != nil {
		return err
	}
	return transact(ctx, session, body)
}

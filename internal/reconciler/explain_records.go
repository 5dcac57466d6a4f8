package reconciler

import (
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// records reads what the state database has on record about the key and its counter.
func (x *explainer) records(ctx context.Context) error {
	return errors.Join(
		x.optional(ctx, "state", x.counterState(ctx)),
		x.optional(ctx, "mark", x.markOf(ctx)),
		x.optional(ctx, "dead letter", x.letter(ctx)),
		x.optional(ctx, "repairs", x.journalled(ctx)),
	)
}

// counterState is the counter's. One that the application keeps has none before its first run.
func (x *explainer) counterState(ctx context.Context) error {
	states, err := x.states.All(ctx)
	if err != nil {
		return err
	}
	s, known := states[x.Counter.Name]
	if !known || s.Hash != x.Counter.Hash {
		if !x.Counter.ByApplication() {
			x.out.State = &KeyState{State: KeyStateUnknown}
		}
		return nil
	}
	x.out.State = &KeyState{State: s.State, Reason: s.Reason, Held: s.Held, Verified: stream.Clock(s.VerifiedThrough)}
	var last counter.Gap
	for _, lane := range x.lanes {
		gap, found, err := x.states.LastGap(ctx, lane.Lane)
		if err != nil {
			return err
		}
		if found && gap.At.After(last.At) {
			last = gap
			x.out.State.Gap = &LaneGap{At: gap.At.UTC(), Reason: gap.Reason, Healed: !s.Lossy()}
		}
	}
	return nil
}

func (x *explainer) markOf(ctx context.Context) (err error) {
	if x.Counter.ByApplication() {
		return nil
	}
	if x.mark, err = x.states.MarkOf(ctx, x.Counter, x.Key); err != nil || x.mark.Stamp.IsZero() {
		return err
	}
	mark := &Mark{Reason: x.mark.Reason}
	if x.mark.ByLane() {
		mark.At = x.mark.Stamp.Timestamp().UTC()
	}
	if after := x.mark.After; !after.IsZero() {
		at := momentOf(after)
		mark.After = &at
	}
	x.out.Marks.Mark = mark
	return nil
}

func (x *explainer) letter(ctx context.Context) error {
	if x.Counter.ByApplication() {
		return nil
	}
	letter, found, err := x.states.LetterOf(ctx, x.Counter, x.Key)
	if found {
		x.out.Marks.DeadLetter = &DeadLetter{letter.Reason, letter.Delta, letter.Times, letter.LastAt.UTC()}
	}
	return err
}

func (x *explainer) journalled(ctx context.Context) error {
	entries, err := x.journal.LastOf(ctx, x.Counter, x.Key, maxKeyRepairs)
	for _, e := range entries {
		x.out.Repairs = append(x.out.Repairs, repairOf(e))
	}
	if err != nil {
		return err
	}
	kept, err := x.journal.Kept(ctx, x.Counter, []bson.RawValue{x.Key})
	x.out.Marks.Undone = kept[counter.Canonical(x.Key)]
	return err
}

// owner tells who follows the key's lane, and how far behind it is.
func (x *explainer) owner(ctx context.Context) error {
	if len(x.lanes) == 0 {
		return nil
	}
	at := x.lanes[max(0, x.lane)]
	if x.lane < 0 { // the key may be any lane's: the one that is furthest behind
		for _, lane := range x.lanes {
			if lane.Position.Before(at.Position) {
				at = lane
			}
		}
	}
	lane := &KeyLane{
		Lanes: len(x.lanes), Position: momentOf(at.Position), Behind: max(0, int64(x.last.T)-int64(at.Position.T)), MovedAt: at.UpdatedAt.UTC(),
	}
	x.out.Lane = lane
	if x.lane < 0 {
		return nil
	}
	lane.Lane = at.Lane
	roster, err := checkpoint.NewLeases(x.client, x.Reconciler.history.runs.Database().Name(), "", 0).Roster(ctx)
	if lease := roster.Leases[at.Lane]; lease.Held {
		lane.Owner = lease.Owner
	}
	return x.optional(ctx, "owner", err)
}

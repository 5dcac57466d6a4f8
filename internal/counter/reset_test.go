package counter

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
)

func TestAResetIsRecordedMarksEveryCounterAndFencesTheOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 1000)
	start := r.at.Position
	r.at = r.with(map[string]string{"b": "boom"}, r.definitions...)
	r.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	r.activate()
	operator := r.another(r.client, 1000)
	for n, position := range []bson.Timestamp{start, {}} { // back, and to the present
		before := r.at
		from, to, err := operator.lane.Reset(t.Context(), position)
		r.check(err)
		stored, err := r.checkpoints.Load(t.Context(), rigLane)
		r.check(err)
		if !from.Same(before) || !stored.Same(to) || to.Seq != before.Seq+1 || to.Token != nil || len(to.Tail.Deltas) != 0 {
			t.Errorf("reset from %+v to %+v, stored is %+v", from, to, stored)
		}
		if position.IsZero() && !before.Position.Before(to.Position) || !position.IsZero() && to.Position != position {
			t.Errorf("reset to %v leads to %v", position, to.Position)
		}
		for _, d := range r.definitions {
			if c := to.Counters[d.Name]; c.Since != to.Position || c.Hash != d.Hash || c.Broken != before.Counters[d.Name].Broken {
				t.Errorf("counter %s counts as %+v", d.Name, c)
			}
		}
		if got := r.rebasing(); got["a"] != ReasonReset || got["b"] != ReasonReset {
			t.Errorf("marked are %v", got)
		}
		if gaps := r.gaps(); len(gaps) != n+1 || gaps[n].Reason != ReasonReset || gaps[n].Lane != rigLane ||
			gaps[n].From != before.Position || gaps[n].To != to.Position {
			t.Errorf("recorded are %+v", gaps)
		}
		if _, err := r.applier.Apply(t.Context(), before, batchOf(rise(eventToken(r.after(2), 1), "x"))); !errors.Is(err, checkpoint.ErrFenced) {
			t.Errorf("the owner goes on with %v", err)
		}
		r.activate()
		if at := r.with(map[string]string{"b": "boom"}, r.definitions...); !at.Same(to) || len(r.rebasing()) != 0 {
			t.Errorf("the owner takes up %+v and marks %v", at, r.rebasing())
		}
		r.at = to
	}
}

func TestAResetComesBetweenTheTransactionsOfAnOwnerAtWork(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1000)
	r.activate()
	start := r.at.Position
	operator := r.another(r.client, 1000)
	var working sync.WaitGroup
	var ended error
	working.Go(func() {
		at := r.at
		for n := 1; ended == nil; n++ {
			at, ended = r.applier.Apply(t.Context(), at, batchOf(rise(eventToken(r.after(n), 1), "x")))
		}
	})
	_, to, err := operator.lane.Reset(t.Context(), start)
	r.check(err)
	working.Wait()
	if !errors.Is(ended, checkpoint.ErrFenced) {
		t.Errorf("the owner ended with %v", ended)
	}
	if now, err := r.checkpoints.Load(t.Context(), rigLane); err != nil || !now.Same(to) {
		t.Errorf("the lane is at %+v, %v", now, err)
	}
}

func TestWhatCannotBeReset(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1000)
	ahead := bson.Timestamp{T: uint32(time.Now().Add(time.Hour).Unix())}
	if _, _, err := r.lane.Reset(t.Context(), ahead); !errors.Is(err, ErrAhead) {
		t.Errorf("to the future: %v", err)
	}
	if _, _, err := r.laneOf("another").Reset(t.Context(), bson.Timestamp{}); !errors.Is(err, ErrNeverStarted) {
		t.Errorf("a lane that never started: %v", err)
	}
	half := NewLane(checkpoint.LaneID{Source: rigLane, Partitions: 2}, r.client, r.checkpoints, r.states, r.definitions)
	if _, _, err := half.Reset(t.Context(), bson.Timestamp{}); !errors.Is(err, checkpoint.ErrPartitions) {
		t.Errorf("a lane of another division: %v", err)
	}
	if gaps := r.gaps(); len(gaps) != 0 || len(r.stateOf()) != 1 {
		t.Errorf("recorded are %v, and the states %v", gaps, r.stateOf())
	}
	// One that was deleted by hand is one to reset: its counters are known.
	r.activate()
	db := r.client.Database(r.name)
	_, err := db.Collection(checkpoint.Collection).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: rigLane}})
	r.check(err)
	if _, to, err := r.another(r.client, 1000).lane.Reset(t.Context(), bson.Timestamp{}); err != nil || to.Seq != 1 || r.rebasing()["a"] != ReasonReset {
		t.Errorf("one that was deleted is reset to %+v, %v, and marked are %v", to, err, r.rebasing())
	}
	if gaps := r.gaps(); len(gaps) != 1 || !gaps[0].From.IsZero() {
		t.Errorf("nobody knows where it was, and recorded are %+v", gaps)
	}
	_, err = db.Collection(checkpoint.Collection).UpdateByID(t.Context(), rigLane, bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: 99}}}})
	r.check(err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // it does not try for long
	defer cancel()
	if _, _, err := r.lane.Reset(ctx, bson.Timestamp{}); !errors.Is(err, checkpoint.ErrNewer) {
		t.Errorf("a checkpoint of a newer version: %v", err)
	}
}

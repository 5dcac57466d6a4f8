package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/counter"
)

const (
	firstEdit    = 1500 * time.Millisecond
	editEvery    = 3 * time.Second // and up to as much more
	largestEdit  = 100
	editSetsOnce = 4 // edits of which one sets a field instead of adding to it
)

// operator edits counters by hand now and then. No event tells of it and no mark: only a recount finds it.
type operator struct {
	client     *mongo.Client
	definition *counter.Definition
	ledger     *ledger
	news       *news
}

// run edits until finish ends.
func (o *operator) run(ctx, finish context.Context) error {
	random := newRandom()
	for next := firstEdit; pause(finish, next); next = editEvery + random.duration(editEvery) {
		if err := o.edit(ctx, random); err != nil {
			return fmt.Errorf("operator: %w", err)
		}
	}
	return ctx.Err()
}

// edit changes one field of a busy post's counter and books by how much that falsifies it. The update returns the value
// before it, so the amount is exact whatever else is written at the same time.
func (o *operator) edit(ctx context.Context, random *random) error {
	post, field := min(random.post(), random.post()), o.definition.Target.Base // the lower, the busier
	if random.IntN(2) == 0 {
		field = o.definition.Target.Live
	}
	n := int64(1 + random.IntN(largestEdit))
	if random.IntN(2) == 0 {
		n = -n
	}
	verb := "$inc"
	if random.IntN(editSetsOnce) == 0 {
		verb = "$set"
	}
	var before bson.Raw
	err := o.client.Database(o.definition.Target.Database).Collection(o.definition.Target.Collection).FindOneAndUpdate(ctx,
		bson.D{{Key: "_id", Value: post}}, bson.D{{Key: verb, Value: bson.D{{Key: field, Value: n}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.Before)).Decode(&before)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return nil // nobody has commented on it yet
	}
	if err != nil {
		return err
	}
	by := n
	if verb == "$set" {
		was, _ := before.Lookup(field).AsInt64OK() // missing is 0
		by = n - was
	}
	o.ledger.inject(strconv.FormatInt(post, 10), by)
	o.news.add("operator edits post %d: {%s: {%s: %d}}, %s", post, verb, field, n, tooMuch(by))
	return nil
}

// tooMuch says what a drift means.
func tooMuch(drift int64) string {
	switch {
	case drift > 0:
		return thousands(drift) + " too high"
	case drift < 0:
		return thousands(-drift) + " too low"
	default:
		return "which changes nothing"
	}
}

func (r *random) duration(below time.Duration) time.Duration {
	return time.Duration(r.Int64N(int64(below)))
}

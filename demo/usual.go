package main

import (
	"context"
	"fmt"
	"sync/atomic"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	usualField = "comment_count"
	// What goes wrong is packed into minutes here; a real service takes weeks for it, and gets there as well.
	crashOnceIn  = 300 // increments that a crash between the two writes keeps away
	repeatOnceIn = 500 // increments that are retried after a timeout although they had been applied
)

// usual is the counter that the service keeps itself: posts.comment_count, by $inc after the row.
type usual struct {
	posts   *mongo.Collection
	crashes atomic.Int64
	repeats atomic.Int64
}

func newUsual(db *mongo.Database) *usual { return &usual{posts: db.Collection("posts")} }

// add is the second write after a row's. Between the two the service may crash, and it may take a slow answer for none.
func (u *usual) add(ctx context.Context, r *random, post, n int64) error {
	times := 1
	switch {
	case r.IntN(crashOnceIn) == 0:
		u.crashes.Add(1)
		return nil
	case r.IntN(repeatOnceIn) == 0:
		u.repeats.Add(1)
		times = 2
	}
	for range times {
		_, err := u.posts.UpdateOne(ctx, bson.D{{Key: "_id", Value: post}},
			bson.D{{Key: "$inc", Value: bson.D{{Key: usualField, Value: n}}}})
		if err != nil {
			return fmt.Errorf("count a comment: %w", err)
		}
	}
	return nil
}

// counts reads the counter of every post, in the session in ctx.
func (u *usual) counts(ctx context.Context) (map[int64]int64, error) {
	cursor, err := u.posts.Find(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("read posts: %w", err)
	}
	var all []struct {
		ID    int64 `bson:"_id"`
		Count int64 `bson:"comment_count"`
	}
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("read posts: %w", err)
	}
	counts := make(map[int64]int64, len(all))
	for _, post := range all {
		counts[post.ID] = post.Count
	}
	return counts, nil
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	batchEvery = 7 * time.Second
	batchRows  = 2000 // and up to as many more
	// crashMidwayOnceIn: the job that counts a batch dies before it has told every post.
	crashMidwayOnceIn = 4
)

// runBatches imports comments, or removes old ones, thousands at a time.
func (s *service) runBatches(ctx, finish context.Context) error {
	random := newRandom()
	for n := 0; ; n++ {
		if !pause(finish, batchEvery) {
			return ctx.Err()
		}
		work := s.importMany
		if n%2 == 1 {
			work = s.removeMany
		}
		changed, err := work(ctx, random)
		if err != nil {
			return err
		}
		s.batches.Add(1)
		if err := s.countMany(ctx, random, changed); err != nil {
			return err
		}
	}
}

// importMany inserts rows in one transaction and returns by how much each post grew.
func (s *service) importMany(ctx context.Context, r *random) (map[int64]int64, error) {
	rows := make([]comment, batchRows+r.IntN(batchRows))
	changed := map[int64]int64{}
	for i := range rows {
		rows[i] = r.comment()
		changed[rows[i].Post]++
	}
	err := s.transaction(ctx, func(ctx context.Context) error {
		_, err := s.comments.InsertMany(ctx, rows)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("import comments: %w", err)
	}
	s.changes.Add(int64(len(rows)))
	return changed, nil
}

// removeMany soft-deletes the oldest live rows in one transaction.
func (s *service) removeMany(ctx context.Context, r *random) (map[int64]int64, error) {
	limit := int64(batchRows/2 + r.IntN(batchRows))
	var changed map[int64]int64
	var rows int64
	err := s.transaction(ctx, func(ctx context.Context) error {
		cursor, err := s.comments.Find(ctx, isLive, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetLimit(limit).
			SetProjection(bson.D{{Key: "post_id", Value: 1}}))
		if err != nil {
			return err
		}
		var found []comment
		if err := cursor.All(ctx, &found); err != nil {
			return err
		}
		changed = map[int64]int64{} // the transaction may be tried again
		ids := make([]bson.ObjectID, len(found))
		for i, row := range found {
			ids[i] = row.ID
			changed[row.Post]--
		}
		result, err := s.comments.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
		if err == nil {
			rows = result.ModifiedCount
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("remove comments: %w", err)
	}
	s.changes.Add(rows)
	return changed, nil
}

func (s *service) transaction(ctx context.Context, body func(context.Context) error) error {
	session, err := s.client.StartSession()
	if err != nil {
		return err
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = session.WithTransaction(ctx, func(ctx context.Context) (any, error) { return nil, body(ctx) })
	return err
}

// countMany tells every post what a batch did to it, unless the job dies on the way.
func (s *service) countMany(ctx context.Context, r *random, changed map[int64]int64) error {
	ids := slices.Collect(maps.Keys(changed)) // in any order
	if r.IntN(crashMidwayOnceIn) == 0 {
		s.usual.crashes.Add(1)
		ids = ids[:r.IntN(len(ids)+1)]
	}
	if len(ids) == 0 {
		return nil
	}
	models := make([]mongo.WriteModel, len(ids))
	for i, id := range ids {
		models[i] = mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).
			SetUpdate(bson.D{{Key: "$inc", Value: bson.D{{Key: usualField, Value: changed[id]}}}})
	}
	if _, err := s.usual.posts.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("count a batch: %w", err)
	}
	return nil
}

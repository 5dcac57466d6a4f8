package main

import (
	"context"
	"fmt"
	"math/rand"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	rowsDatabase   = "app"
	rowsCollection = "comments"
	batchRows      = 5000
)

// rowsOf is the collection that all changes of the backlog are made in.
func rowsOf(client *mongo.Client) *mongo.Collection {
	return client.Database(rowsDatabase).Collection(rowsCollection)
}

// backlog is how many changes wait.
type backlog struct{ inserts, posts, softDeletes, hardDeletes int }

func backlogOf(scale float64) backlog {
	n := func(full int) int { return int(float64(full) * scale) }
	return backlog{inserts: n(300_000), posts: n(100_000), softDeletes: n(30_000), hardDeletes: n(10_000)}
}

// repeatable draws the same numbers in every run.
func repeatable() *rand.Rand { return rand.New(rand.NewSource(1)) }

// write makes the changes, the same ones in every run.
func (b backlog) write(ctx context.Context, rows *mongo.Collection) error {
	fmt.Printf("writing a backlog: %d inserts on %d posts (Zipf 1.1), %d soft deletes, %d hard deletes\n",
		b.inserts, b.posts, b.softDeletes, b.hardDeletes)
	random := repeatable()
	posts := rand.NewZipf(random, 1.1, 1, uint64(b.posts-1)) //nolint:gosec // not negative
	var models []mongo.WriteModel
	flush := func() error {
		if len(models) == 0 {
			return nil
		}
		_, err := rows.BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
		models = models[:0]
		if err != nil {
			return fmt.Errorf("write backlog: %w", err)
		}
		return nil
	}
	add := func(m mongo.WriteModel) error {
		if models = append(models, m); len(models) < batchRows {
			return nil
		}
		return flush()
	}
	for i := range b.inserts {
		row := bson.D{
			{Key: "_id", Value: i}, {Key: "post_id", Value: int64(posts.Uint64())}, //nolint:gosec // small
			{Key: "text", Value: "a comment as people write them, about this long"}, {Key: "created_at", Value: time.Now()},
		}
		if err := add(mongo.NewInsertOneModel().SetDocument(row)); err != nil {
			return err
		}
	}
	if err := flush(); err != nil {
		return err
	}
	for n, i := range random.Perm(b.inserts)[:b.softDeletes+b.hardDeletes] {
		id := bson.D{{Key: "_id", Value: i}}
		m := mongo.WriteModel(mongo.NewDeleteOneModel().SetFilter(id))
		if n < b.softDeletes {
			m = mongo.NewUpdateOneModel().SetFilter(id).SetUpdate(bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
		}
		if err := add(m); err != nil {
			return err
		}
	}
	return flush()
}

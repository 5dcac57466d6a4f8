package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"driftless/internal/counter"
	"driftless/internal/reconciler"
)

// counted is a subject whose counters are right and have had their first recount.
type counted struct {
	*subject
	keys, rowCount int
}

// deletedOf is one of so many rows that is soft-deleted.
const deletedOf = 10

// newCounted writes rows, so many for each key, and the counters that belong to them, which it has counted for the first time.
func newCounted(ctx context.Context, client *mongo.Client, name string, keys int, rowsOfKey func(key int) int) (*counted, error) {
	rows := client.Database("rows_" + name).Collection(rowsCollection)
	began := time.Now()
	documents, counts := comments(keys, rowsOfKey)
	if err := insert(ctx, rows, documents); err != nil {
		return nil, fmt.Errorf("write rows: %w", err)
	}
	s, err := newSubject(ctx, rows, name, 1)
	if err != nil {
		return nil, err
	}
	c := &counted{subject: s, keys: keys, rowCount: len(documents)}
	err = c.followed(ctx, func(ctx context.Context) error {
		target := s.definitions[0].Target
		if err := insert(ctx, client.Database(target.Database).Collection(target.Collection), counters(s.definitions[0].Name, counts)); err != nil {
			return fmt.Errorf("write counters: %w", err)
		}
		_, err := c.run(ctx, reconciler.Options{})
		return err
	})
	if err != nil {
		return nil, err
	}
	fmt.Printf("%d keys with %d rows and their counters, written and counted for the first time in %s\n", keys, c.rowCount, round(time.Since(began)))
	return c, nil
}

// comments are rows in no order of their keys, as they come in life, and how many of each key count.
func comments(keys int, rowsOfKey func(key int) int) (rows []any, counts []int64) {
	counts = make([]int64, keys)
	for key := range keys {
		for range rowsOfKey(key) {
			deleted := len(rows)%deletedOf == 0
			rows = append(rows, comment(int64(key), deleted))
			if !deleted {
				counts[key]++
			}
		}
	}
	repeatable().Shuffle(len(rows), func(i, j int) { rows[i], rows[j] = rows[j], rows[i] })
	return rows, counts
}

// counters are documents as a first recount leaves them.
func counters(name string, counts []int64) []any {
	documents := make([]any, len(counts))
	for key, n := range counts {
		documents[key] = bson.D{
			{Key: "_id", Value: int64(key)}, {Key: "base_count", Value: n}, {Key: "live_delta", Value: int64(0)}, {Key: "reconciled_at", Value: time.Now()},
			{Key: "driftless", Value: bson.D{{Key: name, Value: bson.D{{Key: counter.FieldTotal, Value: n}, {Key: counter.FieldRepair, Value: bson.NewObjectID()}}}}},
		}
	}
	return documents
}

// insert writes documents with a few writers at once.
func insert(ctx context.Context, into *mongo.Collection, documents []any) error {
	const atOnce = 4
	writers, ctx := errgroup.WithContext(ctx)
	writers.SetLimit(atOnce)
	for batch := range slices.Chunk(documents, batchRows) {
		writers.Go(func() error {
			_, err := into.InsertMany(ctx, batch, options.InsertMany().SetOrdered(false))
			return err
		})
	}
	return writers.Wait()
}

func comment(key int64, deleted bool) bson.D {
	row := bson.D{{Key: "post_id", Value: key}, {Key: "text", Value: "a comment as people write them, about this long"}, {Key: "created_at", Value: time.Now()}}
	if deleted {
		row = append(row, bson.E{Key: "deleted_at", Value: time.Now()})
	}
	return row
}

// run does one run of the reconciler, as `reconciler run --once` does, and returns how many keys it checked. It must find
// nothing wrong.
func (c *counted) run(ctx context.Context, o reconciler.Options) (checked int, err error) {
	report, err := c.reconciler().RunOnce(ctx, o)
	if err != nil {
		return 0, err
	}
	found := report.Counters[0]
	if report.Result != reconciler.ResultOK || found.Drift.Keys != 0 {
		return 0, fmt.Errorf("run %s: %d checked, %d drifted, %v skipped", report.Result, found.Checked, found.Drift.Keys, found.Skipped)
	}
	return int(found.Checked), nil
}

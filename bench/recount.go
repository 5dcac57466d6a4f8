package main

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/reconciler"
)

// passRounds is how often a full pass and a plain $group are measured, in turn: each takes about a second.
const passRounds = 7

// recount measures a full pass of the reconciler beside the plain $group over all rows that somebody would write instead. Two
// forms of that are measured, scanning the rows and from the index, and the faster one counts.
func recount(ctx context.Context, on bench, scale float64) error {
	client := on.client
	const rowsOfKey = 10
	c, err := newCounted(ctx, client, "recount", max(1, int(100_000*scale)), func(int) int { return rowsOfKey })
	if err != nil {
		return err
	}
	var scans, indexes, passes []cost
	err = c.followed(ctx, func(ctx context.Context) error {
		for range passRounds {
			scan, err := c.all(ctx, func() (int, error) { return c.group(ctx, scanning, nil) })
			if err != nil {
				return err
			}
			index, err := c.all(ctx, func() (int, error) { return c.group(ctx, covered, c.definitions[0].RowsIndex().Keys) })
			if err != nil {
				return err
			}
			pass, err := c.fullPass(ctx)
			if err != nil {
				return err
			}
			scans, indexes, passes = append(scans, scan), append(indexes, index), append(passes, pass)
			fmt.Printf("round: %d rows  $group scanning %s  from the index %s  full pass %s\n", c.rowCount, scan, index, pass)
		}
		return nil
	})
	if err != nil {
		return err
	}
	scan, index, pass := middle(scans), middle(indexes), middle(passes)
	plain, form := scan, "scanning"
	if index.took < scan.took {
		plain, form = index, "from the index"
	}
	fmt.Printf("full pass: %.2f times as long as one plain $group (%s, the faster form) over %d keys with %d rows, %.2f times the server's processor time (medians of %d rounds: %s and %s)\n",
		pass.took.Seconds()/plain.took.Seconds(), form, c.keys, c.rowCount, pass.server.Seconds()/plain.server.Seconds(), passRounds, pass, plain)
	return nil
}

// fullPass measures a run of the reconciler over all keys.
func (c *counted) fullPass(ctx context.Context) (cost, error) {
	return c.all(ctx, func() (int, error) { return c.run(ctx, reconciler.Options{Full: true}) })
}

// all measures something that must look at every key.
func (c *counted) all(ctx context.Context, do func() (keys int, err error)) (cost, error) {
	return timed(ctx, c.client, func() error {
		keys, err := do()
		if err == nil && keys != c.keys {
			return fmt.Errorf("%d keys counted, want %d", keys, c.keys)
		}
		return err
	})
}

// The two forms. A filter on the soft-delete field cannot use the index, which does not tell null from missing.
var (
	scanning = bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "deleted_at", Value: nil}}}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$post_id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	}
	covered = bson.A{
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$post_id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: bson.D{
			{Key: "$cond", Value: bson.A{bson.D{{Key: "$lte", Value: bson.A{"$deleted_at", nil}}}, 1, 0}},
		}}}}}}},
	}
)

// group counts all rows with one command, and returns how many keys there are.
func (c *counted) group(ctx context.Context, pipeline bson.A, hint any) (int, error) {
	opts := options.Aggregate().SetAllowDiskUse(true)
	if hint != nil {
		opts.SetHint(hint)
	}
	cursor, err := c.rows.Aggregate(ctx, pipeline, opts)
	if err != nil {
		return 0, err
	}
	defer func() { _ = cursor.Close(ctx) }()
	counts := map[int64]int64{}
	for cursor.Next(ctx) {
		counts[cursor.Current.Lookup("_id").AsInt64()] = cursor.Current.Lookup("n").AsInt64()
	}
	return len(counts), cursor.Err()
}

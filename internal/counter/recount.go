package counter

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Selection is a predicate on keys: some listed ones, or a range. It is the same for rows and counter documents.
type Selection bson.D

// Listed selects the given keys.
func Listed(keys []bson.RawValue) Selection { return Selection(one("$in", keys)) }

// On applies the selection to the field at path.
func (s Selection) On(path string) bson.D { return one(path, bson.D(s)) }

// Truth is what the rows of one key come to.
type Truth struct {
	Key bson.RawValue
	N   int64
	// Bad says why N is not a count: the sum is beyond 64 bits.
	Bad string
}

// Count adds up the rows that the selection names, by canonical key, in the session in ctx: a snapshot at the position
// that is to be judged. Conditions stand in the weight and not in the filter, so that an index on key and soft-delete
// field answers it without fetching a row. It returns how many rows it read as well, those that do not count included.
func (d *Definition) Count(ctx context.Context, client *mongo.Client, which Selection) (truths map[string]Truth, rows int64, err error) {
	cursor, err := d.rows(client).Aggregate(ctx, bson.A{
		one("$match", which.On(d.Key)),
		one("$group", bson.D{
			{Key: "_id", Value: "$" + d.Key},
			{Key: "n", Value: one("$sum", d.weight())},
			{Key: "rows", Value: one("$sum", int64(1))},
		}),
	}, options.Aggregate().SetCollation(simple).SetAllowDiskUse(true).SetBatchSize(batchDocuments))
	if err != nil {
		return nil, 0, fmt.Errorf("count rows of %s: %w", d.Name, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	truths = map[string]Truth{}
	for cursor.Next(ctx) {
		raw := append(bson.Raw(nil), cursor.Current...)
		truth := Truth{Key: raw.Lookup("_id")}
		if n := raw.Lookup("n"); n.Type == bson.TypeInt64 || n.Type == bson.TypeInt32 {
			truth.N = n.AsInt64()
		} else {
			truth.Bad = fmt.Sprintf("the sum is %s, beyond 64 bits", n)
		}
		rows += raw.Lookup("rows").AsInt64()
		truths[Canonical(truth.Key)] = truth
	}
	if err := cursor.Err(); err != nil {
		return nil, 0, fmt.Errorf("count rows of %s: %w", d.Name, err)
	}
	return truths, rows, nil
}

// KeysByLane lists the keys of rows and of counter documents that the selection names, by which of n lanes they belong to,
// in the session in ctx.
func (d *Definition) KeysByLane(ctx context.Context, client *mongo.Client, which Selection, n int) ([][]bson.RawValue, error) {
	lanes, seen := make([][]bson.RawValue, n), map[string]bool{}
	for _, from := range []struct {
		collection *mongo.Collection
		stages     bson.A
	}{
		{d.rows(client), bson.A{one("$match", which.On(d.Key)), one("$group", one("_id", "$"+d.Key)), one("$match", one("$expr", usableKey("$_id")))}},
		{d.targets(client), bson.A{one("$match", which.On("_id"))}},
	} {
		cursor, err := from.collection.Aggregate(ctx, append(from.stages, one("$project", one("lane", partition("$_id", n)))),
			options.Aggregate().SetCollation(simple).SetAllowDiskUse(true).SetBatchSize(batchDocuments))
		if err != nil {
			return nil, fmt.Errorf("list keys of %s: %w", d.Name, err)
		}
		var found []struct {
			ID   bson.RawValue `bson:"_id"`
			Lane int
		}
		if err := cursor.All(ctx, &found); err != nil {
			return nil, fmt.Errorf("list keys of %s: %w", d.Name, err)
		}
		for _, key := range found {
			if canonical := Canonical(key.ID); !seen[canonical] {
				seen[canonical] = true
				lanes[key.Lane] = append(lanes[key.Lane], key.ID)
			}
		}
	}
	return lanes, nil
}

// maxListed bounds the keys of one command of 16 MiB.
const maxListedBytes = 4 << 20

// Chunks lists keys in selections that each fit into one command.
func Chunks(keys []bson.RawValue) []Selection {
	var chunks []Selection
	for first, bytes, i := 0, 0, 0; i < len(keys); i++ {
		bytes += len(keys[i].Value)
		if last := i == len(keys)-1; last || bytes > maxListedBytes {
			chunks = append(chunks, Listed(keys[first:i+1]))
			first, bytes = i+1, 0
		}
	}
	return chunks
}

// RowsWithoutKey counts the rows whose key is missing, null, an array or otherwise unusable: they count for nothing.
func (d *Definition) RowsWithoutKey(ctx context.Context, client *mongo.Client) (int64, error) {
	suspects := bson.A{
		one(d.Key, nil),
		one(d.Key, one("$type", bson.A{"array", "regex", "object", "undefined"})),
	}
	// What stands in an array on the way is no key either, though a filter would look at each.
	for i, r := range d.Key {
		if r == '.' {
			suspects = append(suspects, one(d.Key[:i], one("$type", "array")))
		}
	}
	cursor, err := d.rows(client).Aggregate(ctx, bson.A{
		one("$match", one("$or", suspects)),
		one("$match", one("$expr", op("$not", usableKey("$"+d.Key)))),
		one("$count", "n"),
	}, options.Aggregate().SetCollation(simple))
	if err != nil {
		return 0, fmt.Errorf("count rows of %s without a key: %w", d.Name, err)
	}
	var counted []struct{ N int64 }
	if err := cursor.All(ctx, &counted); err != nil {
		return 0, fmt.Errorf("count rows of %s without a key: %w", d.Name, err)
	}
	if len(counted) == 0 {
		return 0, nil
	}
	return counted[0].N, nil
}

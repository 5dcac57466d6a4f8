package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
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
	// Rows is how many there are, those that do not count included.
	Rows int64
	// Bad says why N is not a count: the sum is beyond 64 bits.
	Bad string
	// Unsettled: as of a moment, a row may count or not, since it has been changed after it or is too close to it.
	Unsettled bool
}

// Count adds up the rows that the selection names, by canonical key, in the session in ctx: a snapshot at the position
// that is to be judged. Conditions stand in the weight and not in the filter, so that an index on key and soft-delete
// field answers it without fetching a row. It returns how many rows it read as well, those that do not count included.
func (d *Definition) Count(ctx context.Context, client *mongo.Client, which Selection) (truths map[string]Truth, rows int64, err error) {
	return d.countBy(ctx, client, which, d.weight(), nil)
}

// countBy adds up a weight, with what else is asked of each group.
func (d *Definition) countBy(ctx context.Context, client *mongo.Client, which Selection, weight any, more bson.D) (truths map[string]Truth, rows int64, err error) {
	cursor, err := d.grouped(ctx, client, which, append(bson.D{
		{Key: "n", Value: one("$sum", weight)},
		{Key: "rows", Value: one("$sum", int64(1))},
	}, more...))
	if err != nil {
		return nil, 0, fmt.Errorf("count rows of %s: %w", d.Name, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	truths = map[string]Truth{}
	for cursor.Next(ctx) {
		raw := cursor.Current
		truth := Truth{Key: raw.Lookup("_id")}
		truth.Key.Value = slices.Clone(truth.Key.Value) // the rest is the cursor's
		if n := raw.Lookup("n"); n.Type == bson.TypeInt64 || n.Type == bson.TypeInt32 {
			truth.N = n.AsInt64()
		} else {
			truth.Bad = fmt.Sprintf("the sum is %s, beyond 64 bits", n)
		}
		truth.Rows = raw.Lookup("rows").AsInt64()
		rows += truth.Rows
		truth.Unsettled, _ = raw.Lookup(unsettled).BooleanOK()
		truths[Canonical(truth.Key)] = truth
	}
	if err := cursor.Err(); err != nil {
		return nil, 0, fmt.Errorf("count rows of %s: %w", d.Name, err)
	}
	return truths, rows, nil
}

// ErrBehind means: the member that is to count the rows is not as far as the snapshot yet, or does not answer. Waiting may
// help, and so may another member.
var ErrBehind = errors.New("the member that counts the rows is behind")

// behindFor bounds how long a member may take until it is as far as the snapshot.
const behindFor = 2 * time.Second

// grouped opens a cursor over the rows that the selection names, grouped by key, in the session in ctx. It asks for no
// document at first: a member that lags answers once it is as far as the snapshot, and may take as long as it likes for the
// rows after that. ErrBehind: it is not as far.
func (d *Definition) grouped(ctx context.Context, client *mongo.Client, which Selection, fields bson.D, before ...any) (*mongo.Cursor, error) {
	group := one("$group", append(one("_id", "$"+d.Key), fields...))
	pipeline := append(append(bson.A{one("$match", which.On(d.Key))}, before...), group)
	// Without a deadline in it, until which the driver would try again to reach a server that is away.
	opening, cancel := limit(ctx, behindFor)
	defer cancel()
	cursor, err := d.rows(client).Aggregate(opening, pipeline,
		options.Aggregate().SetCollation(simple).SetAllowDiskUse(true).SetBatchSize(0))
	if errors.Is(err, context.Canceled) && ctx.Err() == nil {
		return nil, fmt.Errorf("%w: %w", ErrBehind, err)
	}
	if err != nil {
		return nil, err
	}
	cursor.SetBatchSize(batchDocuments)
	return cursor, nil
}

// Keys lists the keys of rows that the selection names and that belong to the lane, in the session in ctx. With an index on
// the key it costs one look into it for every key, not for every row. No stage may follow the grouping: it would be given
// another value for some types of keys (MinKey as {"": MinKey}, JavaScript as text; measured on 6.0.5).
func (d *Definition) Keys(ctx context.Context, client *mongo.Client, which Selection, lane checkpoint.LaneID) ([]bson.RawValue, error) {
	cursor, err := d.grouped(ctx, client, which, bson.D{
		{Key: "mine", Value: one("$first", inLane(usableKey("$"+d.Key), "$"+d.Key, lane))},
	})
	if err != nil {
		return nil, fmt.Errorf("list keys of %s: %w", d.Name, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	var keys []bson.RawValue
	for cursor.Next(ctx) {
		if mine, _ := cursor.Current.Lookup("mine").BooleanOK(); mine {
			key := cursor.Current.Lookup("_id")
			keys = append(keys, bson.RawValue{Type: key.Type, Value: slices.Clone(key.Value)})
		}
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("list keys of %s: %w", d.Name, err)
	}
	return keys, nil
}

// maxListedBytes bounds the keys of one command of 16 MiB, and keyOverhead is what each takes up besides its value.
const (
	maxListedBytes = 4 << 20
	keyOverhead    = 16
)

// Chunks lists keys in selections that each fit into one command: a key that is larger is alone.
func Chunks(keys []bson.RawValue) []Selection {
	var chunks []Selection
	for _, chunk := range ListedChunks(keys) {
		chunks = append(chunks, Listed(chunk))
	}
	return chunks
}

// ListedChunks cuts keys so that each part fits into one command when it is listed.
func ListedChunks(keys []bson.RawValue) (chunks [][]bson.RawValue) {
	first, bytes := 0, 0
	for i, key := range keys {
		size := len(key.Value) + keyOverhead
		if i > first && bytes+size > maxListedBytes {
			chunks = append(chunks, keys[first:i])
			first, bytes = i, 0
		}
		bytes += size
	}
	if first < len(keys) {
		chunks = append(chunks, keys[first:])
	}
	return chunks
}

// Try has the server evaluate the counter's expression on a row, and returns what it says about it. Where there are no
// rows, only what is wrong with any row is found.
func (d *Definition) Try(ctx context.Context, rows *mongo.Collection) error {
	cursor, err := rows.Aggregate(ctx, bson.A{
		one("$limit", 1), one("$project", bson.D{{Key: "_id", Value: 0}, {Key: "weight", Value: d.weight()}}),
	}, options.Aggregate().SetCollation(simple))
	if err != nil {
		return err
	}
	cursor.Next(ctx)
	return errors.Join(cursor.Err(), cursor.Close(ctx))
}

// RowsWithoutKey counts the rows whose key is missing, null, an array or otherwise unusable: they count for nothing.
func (d *Definition) RowsWithoutKey(ctx context.Context, client *mongo.Client) (int64, error) {
	suspects, err := d.suspects(ctx, client)
	if err != nil {
		return 0, fmt.Errorf("count rows of %s without a key: %w", d.Name, err)
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

// suspects are filters that find every row without a usable key, and others. No bounds of an index hold the arrays, so they
// are looked for only where there may be any: in all rows.
func (d *Definition) suspects(ctx context.Context, client *mongo.Client) (bson.A, error) {
	few := bson.A{one(d.Key, nil), one(d.Key, one("$type", bson.A{"regex", "object", "undefined"}))}
	indexed, err := d.RangesIndexed(ctx, client)
	if err != nil || indexed { // without an entry of an array
		return few, err
	}
	all := append(few, one(d.Key, one("$type", "array")))
	// What stands in an array on the way is no key either, though a filter would look at each.
	for i, r := range d.Key {
		if r == '.' {
			all = append(all, one(d.Key[:i], one("$type", "array")))
		}
	}
	return all, nil
}

package counter

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// unsettled names what a count as of a moment tells beside the number.
const unsettled = "unsettled"

// deletedAt is the path of the time at which a row was deleted, "" for none.
func (d *Definition) deletedAt() string { return cmp.Or(d.Rows.DeletedAt, d.SoftDelete) }

// CountAsOf is Count of the rows as they were at a moment, by what they say themselves: created before it, and not deleted
// before it. That is right for rows that are created and then deleted once, and keep both times. A key is unsettled that has
// a row which was updated since, where rows tell of it, or created or deleted so close to the moment that its event may lie
// on the other side.
func (d *Definition) CountAsOf(ctx context.Context, client *mongo.Client, which Selection, cut int64) (map[string]Truth, int64, error) {
	at := time.Unix(cut, 0)
	since := func(path string, at time.Time) bson.D { // a row without that time was there already
		return op("$and", op("$eq", one("$type", "$"+path), "date"), op("$gte", "$"+path, at))
	}
	was := bson.A{op("$not", since(d.Rows.CreatedAt, at))}
	if path := d.deletedAt(); path != "" {
		was = append(was, op("$or", op("$in", one("$type", "$"+path), bson.A{"missing", "null", "undefined"}), since(path, at)))
	}
	doubts := bson.A{false}
	if d.Rows.UpdatedAt != "" {
		doubts = append(doubts, op("$and", was[0], since(d.Rows.UpdatedAt, at)))
	}
	if skew := d.Rows.Skew; skew > 0 {
		for _, path := range []string{d.Rows.CreatedAt, d.deletedAt()} {
			if path != "" {
				doubts = append(doubts, op("$and", since(path, at.Add(-skew)), op("$not", since(path, at.Add(skew)))))
			}
		}
	}
	weight := op("$cond", one("$and", was), d.weightUnless(""), int64(0))
	return d.countBy(ctx, client, which, weight, bson.D{{Key: unsettled, Value: one("$max", one("$or", doubts))}})
}

// ChangedBetween calls each with the keys of the rows that were created or deleted at or after from and before to, so many
// at a time: an event that never came has touched nothing. Keys may come more than once.
func (d *Definition) ChangedBetween(ctx context.Context, client *mongo.Client, from, to time.Time, size int, each func([]bson.RawValue) error) error {
	for _, path := range []string{d.Rows.CreatedAt, d.deletedAt()} {
		if path == "" {
			continue
		}
		if err := d.changedBetween(ctx, client, path, from, to, size, each); err != nil {
			return fmt.Errorf("list keys of %s by %s: %w", d.Name, path, err)
		}
	}
	return nil
}

func (d *Definition) changedBetween(ctx context.Context, client *mongo.Client, path string, from, to time.Time, size int, each func([]bson.RawValue) error) error {
	cursor, err := d.rows(client).Aggregate(ctx, bson.A{
		one("$match", one(path, bson.D{{Key: "$gte", Value: from}, {Key: "$lt", Value: to}})),
		one("$match", one("$expr", usableKey("$"+d.Key))),
		one("$group", one("_id", "$"+d.Key)),
	}, options.Aggregate().SetCollation(simple).SetAllowDiskUse(true))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(ctx) }()
	var keys []bson.RawValue
	for cursor.Next(ctx) {
		key := cursor.Current.Lookup("_id")
		keys = append(keys, bson.RawValue{Type: key.Type, Value: append([]byte(nil), key.Value...)})
		if len(keys) == size {
			if err := each(keys); err != nil {
				return err
			}
			keys = nil
		}
	}
	if err := cursor.Err(); err != nil || len(keys) == 0 {
		return err
	}
	return each(keys)
}

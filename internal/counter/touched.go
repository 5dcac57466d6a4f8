package counter

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Touched is one key that has been touched since it was last compared.
type Touched struct {
	Key   bson.RawValue
	Stamp bson.ObjectID // of the mark in the state database, zero when the counter document carries it
}

// EachTouched calls visit with batches of at most size touched keys, each key once, those marked in the state database
// first. Marks that visit clears and marks that come meanwhile do not disturb it.
func (d *Definition) EachTouched(ctx context.Context, client *mongo.Client, states *States, size int, visit func([]Touched) error) error {
	elsewhere, err := states.db.Collection(TouchedCollection).Find(ctx, one("counter", d.Name),
		options.Find().SetBatchSize(int32(size))) //nolint:gosec // a small setting
	if err != nil {
		return fmt.Errorf("list touched keys of %s: %w", d.Name, err)
	}
	err = eachBatch(ctx, elsewhere, size, visit, func(raw bson.Raw) Touched {
		subtype, data := raw.Lookup("key").Binary()
		return Touched{Key: readRawKey(bson.Binary{Subtype: subtype, Data: data}), Stamp: raw.Lookup("stamp").ObjectID()}
	})
	if err != nil || !d.Target.Upsert {
		return err
	}
	inDocuments, err := d.targets(client).Find(ctx, one(d.Own(FieldTouched), true), options.Find().
		SetHint(d.TouchedIndex().Name).SetCollation(simple).
		SetProjection(one("_id", 1)).SetBatchSize(int32(size))) //nolint:gosec // a small setting
	if err != nil {
		return fmt.Errorf("list touched keys of %s: %w", d.Name, err)
	}
	return eachBatch(ctx, inDocuments, size, visit, func(raw bson.Raw) Touched { return Touched{Key: raw.Lookup("_id")} })
}

func eachBatch(ctx context.Context, cursor *mongo.Cursor, size int, visit func([]Touched) error, read func(bson.Raw) Touched) error {
	defer cursor.Close(ctx)
	batch := make([]Touched, 0, size)
	for cursor.Next(ctx) {
		batch = append(batch, read(append(bson.Raw(nil), cursor.Current...)))
		if len(batch) == size {
			if err := visit(batch); err != nil {
				return err
			}
			batch = batch[:0]
		}
	}
	if err := cursor.Err(); err != nil {
		return fmt.Errorf("list touched keys: %w", err)
	}
	if len(batch) == 0 {
		return nil
	}
	return visit(batch)
}

// TouchedBacklog counts the touched keys, up to limit.
func (d *Definition) TouchedBacklog(ctx context.Context, client *mongo.Client, states *States, limit int64) (int64, error) {
	n, err := states.db.Collection(TouchedCollection).CountDocuments(ctx, one("counter", d.Name), options.Count().SetLimit(limit))
	if err != nil || !d.Target.Upsert {
		return n, err
	}
	m, err := d.targets(client).CountDocuments(ctx, one(d.Own(FieldTouched), true), options.Count().
		SetHint(d.TouchedIndex().Name).SetCollation(simple).SetLimit(limit))
	return n + m, err
}

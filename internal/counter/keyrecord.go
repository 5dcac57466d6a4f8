package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// ReconciledAt is when the document of a key was last rebased, by its own field; zero for never, or for no such field.
func (d *Definition) ReconciledAt(ctx context.Context, client *mongo.Client, key bson.RawValue) (time.Time, error) {
	path := d.Target.ReconciledAt
	if path == "" {
		return time.Time{}, nil
	}
	raw, err := d.targets(client).FindOne(ctx, equalKey(key),
		options.FindOne().SetProjection(one(path, 1)).SetCollation(simple)).Raw()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return time.Time{}, fmt.Errorf("read counters of %s: %w", d.Name, err)
	}
	at, _ := lookup(raw, path).TimeOK()
	return at, nil
}

// MarkOf returns the mark of a key in the state database, without a stamp when there is none.
func (s *States) MarkOf(ctx context.Context, d *Definition, key bson.RawValue) (Touched, error) {
	var mark markDocument
	err := s.db.Collection(TouchedCollection).FindOne(ctx, one("_id", keyID(d, key))).Decode(&mark)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		return Touched{}, fmt.Errorf("read %s: %w", TouchedCollection, err)
	}
	return mark.touched(), nil
}

// LastGap returns the latest gap of a lane, false when there never was one.
func (s *States) LastGap(ctx context.Context, lane string) (Gap, bool, error) {
	var gap Gap
	err := s.db.Collection(GapsCollection).FindOne(ctx, one("lane", lane), options.FindOne().SetSort(one("at", -1))).Decode(&gap)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Gap{}, false, nil
	}
	if err != nil {
		return Gap{}, false, fmt.Errorf("read %s: %w", GapsCollection, err)
	}
	return gap, true, nil
}

// LastOf returns the last repairs of a key, at most n, the latest first.
func (j *Journal) LastOf(ctx context.Context, d *Definition, key bson.RawValue, n int64) ([]Entry, error) {
	cursor, err := j.entries().Find(ctx, one("key_id", keyID(d, key)), options.Find().SetSort(one("_id", -1)).SetLimit(n))
	return entriesOf(ctx, cursor, err)
}

package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"driftless/internal/stream"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Index is one that driftless needs. Its collation is the simple one.
type Index struct {
	Name    string
	Keys    bson.D
	Partial bson.D // only documents that match; nil for all
	Expires bool   // a document goes at the date that it holds there
}

// Model is the index as the driver creates it.
func (i Index) Model() mongo.IndexModel {
	opts := options.Index().SetName(i.Name).SetCollation(simple)
	if i.Partial != nil {
		opts.SetPartialFilterExpression(i.Partial)
	}
	if i.Expires {
		opts.SetExpireAfterSeconds(0)
	}
	return mongo.IndexModel{Keys: i.Keys, Options: opts}
}

// TouchedIndex is the partial index that a counter's marks stand in: it holds touched keys alone, in their order.
func (d *Definition) TouchedIndex() Index {
	return Index{
		Name:    "driftless_" + d.Name + "_touched",
		Keys:    bson.D{{Key: d.Own(FieldTouched), Value: 1}, {Key: "_id", Value: 1}},
		Partial: one(d.Own(FieldTouched), true),
	}
}

// ErrNoTouchedIndex means: the index that touched keys are listed by is not there.
var ErrNoTouchedIndex = errors.New("the index of the touched keys is gone")

// orNoIndex turns the server's answer to a hint that fits no index into ErrNoTouchedIndex.
func (d *Definition) orNoIndex(err error) error {
	const badValue = 2 // the only one in these reads that can be bad is the hint
	if !stream.HasCode(err, badValue) {
		return err
	}
	return fmt.Errorf("%w: run `incrementer setup` to have %s on %s.%s again, or grant createIndex there to the user of `reconciler run`, which then makes it",
		ErrNoTouchedIndex, d.TouchedIndex().Name, d.Target.Database, d.Target.Collection)
}

// MakeTouchedIndex makes the index of the touched keys where there is none of its name, and the collection with it. It
// reports whether it did.
func (d *Definition) MakeTouchedIndex(ctx context.Context, client *mongo.Client) (made bool, err error) {
	wanted := d.TouchedIndex()
	view := d.targets(client).Indexes()
	have, err := view.ListSpecifications(ctx)
	if err != nil || slices.ContainsFunc(have, func(i mongo.IndexSpecification) bool { return i.Name == wanted.Name }) {
		return false, err
	}
	_, err = view.CreateOne(ctx, wanted.Model())
	return err == nil, err
}

// RowsIndex is the index that answers a recount without fetching a row, unless count_if looks at further fields.
func (d *Definition) RowsIndex() Index {
	keys := bson.D{{Key: d.Key, Value: 1}}
	paths := []string{d.SoftDelete, d.Sum}
	if d.ByTime() {
		paths = []string{d.Rows.CreatedAt, d.deletedAt(), d.Rows.UpdatedAt}
	}
	for _, path := range paths {
		if path != "" && !slices.ContainsFunc(keys, func(e bson.E) bool { return e.Key == path }) {
			keys = append(keys, bson.E{Key: path, Value: 1})
		}
	}
	return Index{Name: "driftless_" + d.Name, Keys: keys}
}

// ChangeIndexes find the rows that were created or deleted of late, whose keys are compared although no event may have come.
func (d *Definition) ChangeIndexes() (all []Index) {
	if !d.ByEvents() {
		return nil
	}
	for _, path := range []string{d.Rows.CreatedAt, d.deletedAt()} {
		if path != "" && d.Rows.CreatedAt != "" {
			all = append(all, Index{Name: "driftless_" + path, Keys: bson.D{{Key: path, Value: 1}, {Key: d.Key, Value: 1}}})
		}
	}
	return all
}

// TouchedByCounter is the index of the marks in the state database.
func TouchedByCounter() Index { return Index{Name: "counter", Keys: one("counter", 1)} }

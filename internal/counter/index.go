package counter

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Index is one that driftless needs. Its collation is the simple one.
type Index struct {
	Name    string
	Keys    bson.D
	Partial bson.D // only documents that match; nil for all
}

// Model is the index as the driver creates it.
func (i Index) Model() mongo.IndexModel {
	opts := options.Index().SetName(i.Name).SetCollation(simple)
	if i.Partial != nil {
		opts.SetPartialFilterExpression(i.Partial)
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

// RowsIndex is the index that answers a recount without fetching a row, unless count_if looks at further fields.
func (d *Definition) RowsIndex() Index {
	keys := bson.D{{Key: d.Key, Value: 1}}
	for _, path := range []string{d.SoftDelete, d.Sum} {
		if path != "" && !slices.ContainsFunc(keys, func(e bson.E) bool { return e.Key == path }) {
			keys = append(keys, bson.E{Key: path, Value: 1})
		}
	}
	return Index{Name: "driftless_" + d.Name, Keys: keys}
}

// TouchedByCounter is the index of the marks in the state database.
func TouchedByCounter() Index { return Index{Name: "counter", Keys: one("counter", 1)} }

package counter

import (
	"context"
	"fmt"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// bracket is a class of types within which a filter compares: $gt and $lte never leave it. All brackets together hold
// every usable key.
type bracket struct {
	name  string   // as $type knows it
	types []string // that compare with each other
}

var brackets = []bracket{
	{"number", []string{"int", "long", "double", "decimal"}},
	{"string", []string{"string", "symbol"}},
	{"object", []string{"object"}},
	{"binData", []string{"binData"}},
	{"objectId", []string{"objectId"}},
	{"bool", []string{"bool"}},
	{"date", []string{"date"}},
	{"timestamp", []string{"timestamp"}},
	{"dbPointer", []string{"dbPointer"}},
	{"javascript", []string{"javascript"}},
	{"javascriptWithScope", []string{"javascriptWithScope"}},
	{"minKey", []string{"minKey"}},
	{"maxKey", []string{"maxKey"}},
}

// Ranges divides all keys, of rows and of counter documents, into selections that do not overlap and leave none out,
// each of about rowsPerRange rows or documents. The bounds are a sorted random sample of keys: exactness does not
// depend on them, only evenness does.
func (d *Definition) Ranges(ctx context.Context, client *mongo.Client, rowsPerRange int64) ([]Selection, error) {
	fromRows, err := sample(ctx, d.rows(client), d.Key, rowsPerRange)
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	fromDocuments, err := sample(ctx, d.targets(client), "_id", rowsPerRange)
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	bounds, err := sorted(ctx, client, d.Target.Database, append(fromRows, fromDocuments...))
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	return divide(bounds), nil
}

// sample returns about one random value of the field at path per perRange documents.
func sample(ctx context.Context, c *mongo.Collection, path string, perRange int64) ([]bson.RawValue, error) {
	n, err := c.EstimatedDocumentCount(ctx)
	if err != nil || n <= perRange {
		return nil, err
	}
	cursor, err := c.Aggregate(ctx, bson.A{
		one("$sample", one("size", n/perRange)),
		one("$project", bson.D{{Key: "_id", Value: 0}, {Key: "k", Value: "$" + path}}),
	})
	if err != nil {
		return nil, err
	}
	var drawn []struct{ K bson.RawValue }
	if err := cursor.All(ctx, &drawn); err != nil {
		return nil, err
	}
	keys := make([]bson.RawValue, 0, len(drawn))
	for _, s := range drawn {
		if !s.K.IsZero() {
			keys = append(keys, s.K)
		}
	}
	return keys, nil
}

// maxBoundBytes is how much of a command of 16 MiB bounds may take.
const maxBoundBytes = 8 << 20

// thinned leaves out so many of the keys, evenly, that the others fit into one command. Fewer bounds make larger ranges.
func thinned(keys []bson.RawValue) []bson.RawValue {
	const overhead = 64 // of one key among the others
	total := 0
	for _, k := range keys {
		total += len(k.Value) + overhead
	}
	if total <= maxBoundBytes {
		return keys
	}
	every := total/maxBoundBytes + 1
	var kept []bson.RawValue
	room := maxBoundBytes
	for i := 0; i < len(keys); i += every {
		if n := len(keys[i].Value) + overhead; n <= room {
			kept = append(kept, keys[i])
			room -= n
		}
	}
	return kept
}

// sorted has the server sort and distinguish the usable ones among keys, since its order is the one that ranges go by,
// and returns them by bracket.
func sorted(ctx context.Context, client *mongo.Client, databaseName string, keys []bson.RawValue) (map[string][]bson.RawValue, error) {
	documents := make(bson.A, 0, len(keys))
	for _, k := range thinned(keys) {
		// A key is a value, whatever it looks like to an expression: "$name" is text.
		documents = append(documents, one("k", one("$literal", k)))
	}
	if len(documents) == 0 {
		return nil, nil
	}
	cursor, err := database(client, databaseName).Aggregate(ctx, bson.A{
		one("$documents", documents),
		// Nothing is greater or less than NaN in a filter, so it cannot be a bound.
		one("$match", one("$expr", op("$and", usableKey("$k"), op("$ne", "$k", math.NaN())))),
		one("$group", one("_id", "$k")),
		one("$sort", one("_id", 1)),
		one("$project", bson.D{{Key: "type", Value: one("$type", "$_id")}}),
	}, options.Aggregate().SetCollation(simple))
	if err != nil {
		return nil, err
	}
	var all []struct {
		ID   bson.RawValue `bson:"_id"`
		Type string
	}
	if err := cursor.All(ctx, &all); err != nil {
		return nil, err
	}
	bounds := map[string][]bson.RawValue{}
	for _, k := range all {
		name := bracketOf(k.Type)
		bounds[name] = append(bounds[name], k.ID)
	}
	return bounds, nil
}

func bracketOf(typeName string) string {
	for _, b := range brackets {
		if slices.Contains(b.types, typeName) {
			return b.name
		}
	}
	return ""
}

// divide makes selections of sorted bounds by bracket.
func divide(bounds map[string][]bson.RawValue) []Selection {
	var all []Selection
	for _, b := range brackets {
		in := bounds[b.name]
		// Every value, of any type, is greater than MinKey and less than MaxKey: no bounds for these two.
		if len(in) == 0 || b.name == "minKey" || b.name == "maxKey" {
			all = append(all, Selection(one("$type", b.types)))
			continue
		}
		all = append(all, Selection(one("$lte", in[0])))
		for i := 1; i < len(in); i++ {
			all = append(all, Selection{{Key: "$gt", Value: in[i-1]}, {Key: "$lte", Value: in[i]}})
		}
		all = append(all, Selection(one("$gt", in[len(in)-1])))
		if b.name == "number" {
			all = append(all, Selection(one("$eq", math.NaN())))
		}
	}
	return all
}

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

// WholeScan is how many times larger ranges are when each of them scans all rows.
const WholeScan = 50

// Ranges divides all keys, of rows and of counter documents, into selections that do not overlap and leave none out,
// each of about rowsPerRange rows or documents, or far more where no index finds a range. The bounds are a sorted
// random sample of keys: exactness does not depend on them, only evenness does.
func (d *Definition) Ranges(ctx context.Context, client *mongo.Client, rowsPerRange int64) ([]Selection, error) {
	indexed, err := d.RangesIndexed(ctx, client)
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	if !indexed {
		rowsPerRange *= WholeScan
	}
	fromRows, err := sample(ctx, d.rows(client), d.Key, rowsPerRange)
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	fromDocuments, err := sample(ctx, d.targets(client), "_id", rowsPerRange)
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	sorter := d.rows(client)
	if len(fromRows) == 0 {
		sorter = d.targets(client)
	}
	bounds, err := sorted(ctx, sorter, append(fromRows, fromDocuments...))
	if err != nil {
		return nil, fmt.Errorf("divide keys of %s: %w", d.Name, err)
	}
	return divide(bounds), nil
}

// RangesIndexed reports whether the server finds a range of keys without reading all others. It does not where there is
// no index, nor where a row has an array for its key: the bounds of an index with several entries a row cannot be used
// together.
func (d *Definition) RangesIndexed(ctx context.Context, client *mongo.Client) (bool, error) {
	plan, err := database(client, d.Rows.Database).RunCommand(ctx, bson.D{
		{Key: "explain", Value: bson.D{
			{Key: "find", Value: d.Rows.Collection},
			{Key: "filter", Value: Selection{{Key: "$gt", Value: 0}, {Key: "$lte", Value: 1}}.On(d.Key)},
			{Key: "collation", Value: simple},
		}},
		{Key: "verbosity", Value: "queryPlanner"},
	}).Raw()
	if err != nil {
		return false, err
	}
	scan := indexScan(plan.Lookup("queryPlanner", "winningPlan"))
	several, _ := scan.Lookup("isMultiKey").BooleanOK()
	return scan != nil && !several, nil
}

// indexScan finds the stage that reads an index, nil for none.
func indexScan(stage bson.RawValue) bson.Raw {
	plan, ok := stage.DocumentOK()
	if !ok {
		return nil
	}
	if name, _ := plan.Lookup("stage").StringValueOK(); name == "IXSCAN" {
		return plan
	}
	elements, _ := plan.Elements()
	for _, e := range elements {
		if found := indexScan(e.Value()); found != nil {
			return found
		}
	}
	return nil
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

// maxBoundBytes is how much bounds may take: each stands in two ranges, and all of these in one document of 16 MiB.
const maxBoundBytes = 4 << 20

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
// and returns them by bracket. The collection that does it is any with a document in it.
func sorted(ctx context.Context, sorter *mongo.Collection, keys []bson.RawValue) (map[string][]bson.RawValue, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	cursor, err := sorter.Aggregate(ctx, bson.A{
		one("$limit", 1),
		// A key is a value, whatever it looks like to an expression: "$name" is text.
		one("$project", bson.D{{Key: "_id", Value: 0}, {Key: "k", Value: one("$literal", thinned(keys))}}),
		one("$unwind", "$k"),
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

package counter

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
)

// ByApplication reports whether the application increments the counter itself: there is no lane, no position, no mark.
func (d *Definition) ByApplication() bool { return d.Source == config.Application }

// Followed leaves out the counters that the application increments itself: the incrementer knows nothing of them.
func Followed(ds []*Definition) []*Definition {
	return slices.DeleteFunc(slices.Clone(ds), (*Definition).ByApplication)
}

// shownPaths are the fields whose sum the application displays: one, or base and live.
func (d *Definition) shownPaths() []string {
	if d.Target.Count != "" {
		return []string{d.Target.Count}
	}
	return []string{d.Target.Base, d.Target.Live}
}

// shown reads what the application keeps. A single field is in Base.
func (d *Definition) shown(raw bson.Raw) Document {
	doc := Document{Key: raw.Lookup("_id"), Exists: true}
	doc.Base = doc.whole(raw, cmp.Or(d.Target.Count, d.Target.Base))
	doc.Kind = lookup(raw, d.Target.Count).Type
	if d.Target.Count == "" {
		doc.Live = doc.whole(raw, d.Target.Live)
	}
	return doc
}

// largestWhole bounds the doubles of which each whole number is one.
const largestWhole = 1 << 53

// whole reads a number that the application keeps: some drivers and shells write every number as a double, which is as
// good as an integer while it is whole.
func (doc *Document) whole(raw bson.Raw, path string) int64 {
	v := lookup(raw, path)
	if f, is := v.DoubleOK(); is && f == math.Trunc(f) && math.Abs(f) < largestWhole {
		return int64(f)
	}
	if v.Type == bson.TypeDouble {
		doc.Bad = fmt.Sprintf("field %s is %v, not a whole number", path, v.Double())
		return 0
	}
	n, _ := doc.count(raw, path)
	return n
}

// Detail is what the rows of one key come to, with what may be under way between them and their counter.
type Detail struct {
	Truth
	// Low and High are how much lower and higher than N the display may be (Low is not positive, High not negative), as
	// far as rows tell that were created, deleted or updated a moment ago.
	Low, High int64
	// Print differs when the set of rows does, or what counts of one of them.
	Print int64
}

// Details is Count for few keys: it fetches every row to tell which of them changed since the given time.
func (d *Definition) Details(ctx context.Context, client *mongo.Client, which Selection, since time.Time) (map[string]Detail, error) {
	const weight, potential = "driftlessWeight", "driftlessPotential" // beside the row's own fields
	spread := func(extreme string) bson.D {
		return one("$sum", op("$cond", d.recent(since), op("$subtract", op(extreme, int64(0), "$"+potential), "$"+weight), int64(0)))
	}
	cursor, err := d.grouped(ctx, client, which, bson.D{
		{Key: "n", Value: one("$sum", "$"+weight)},
		{Key: "low", Value: spread("$min")}, {Key: "high", Value: spread("$max")},
		{Key: "rows", Value: one("$sum", int64(1))},
		{Key: "print", Value: one("$sum", d.fingerprint("$"+weight))},
	}, one("$set", bson.D{{Key: weight, Value: d.weight()}, {Key: potential, Value: d.weightUnless("")}}))
	if err != nil {
		return nil, fmt.Errorf("look at rows of %s: %w", d.Name, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	details := map[string]Detail{}
	for cursor.Next(ctx) {
		detail := detailOf(append(bson.Raw(nil), cursor.Current...))
		details[Canonical(detail.Key)] = detail
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("look at rows of %s: %w", d.Name, err)
	}
	return details, nil
}

// detailOf reads one group.
func detailOf(raw bson.Raw) Detail {
	detail := Detail{Truth: Truth{Key: raw.Lookup("_id"), Rows: raw.Lookup("rows").AsInt64()}}
	for path, n := range map[string]*int64{"n": &detail.N, "low": &detail.Low, "high": &detail.High, "print": &detail.Print} {
		v := raw.Lookup(path)
		if v.Type != bson.TypeInt64 && v.Type != bson.TypeInt32 {
			detail.Bad = fmt.Sprintf("the sum is %s, beyond 64 bits", v)
			continue
		}
		*n = v.AsInt64()
	}
	return detail
}

// recent is true for a row that was created, deleted or updated since the given time, as far as it says. Without a
// declared time of creation, an ObjectId for its _id does.
func (d *Definition) recent(since time.Time) bson.D {
	since = since.Add(-time.Second) // an ObjectId knows the second
	var times bson.A
	for _, path := range []string{cmp.Or(d.Rows.CreatedAt, "_id"), cmp.Or(d.Rows.DeletedAt, d.SoftDelete), d.Rows.UpdatedAt} {
		if path != "" {
			times = append(times, op("$and", op("$in", one("$type", "$"+path), bson.A{"date", "objectId"}), op("$gte", one("$toDate", "$"+path), since)))
		}
	}
	return bson.D{{Key: "$or", Value: times}}
}

// printBits leave room for two billion rows of one key.
const printBits = 32

// fingerprint is a number for what a row is to its counter: another row, weight or time has another one.
func (d *Definition) fingerprint(weight any) bson.D {
	parts := bson.D{{Key: "i", Value: "$_id"}, {Key: "w", Value: weight}}
	for i, path := range []string{d.SoftDelete, d.Rows.CreatedAt, d.Rows.DeletedAt, d.Rows.UpdatedAt} {
		if path != "" {
			parts = append(parts, bson.E{Key: fmt.Sprint(i), Value: "$" + path})
		}
	}
	return op("$mod", one("$toHashedIndexKey", parts), int64(1)<<printBits)
}

// Present reports whether a collection is there, as far as the user may read it: it takes no privilege to ask. A snapshot
// read of one that was dropped or renamed finds nothing, and no error.
func Present(ctx context.Context, client *mongo.Client, databaseName, collection string) (bool, error) {
	names, err := database(client, databaseName).ListCollectionNames(ctx, one("name", collection),
		options.ListCollections().SetAuthorizedCollections(true))
	if err != nil {
		return false, fmt.Errorf("look at collection %s.%s: %w", databaseName, collection, err)
	}
	return len(names) > 0, nil
}

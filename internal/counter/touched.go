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
	// Reason is why the key was marked, "" for an increment.
	Reason string
	// After is the cluster time of a change that the mark is for: a comparison at an earlier position has not seen it.
	After bson.Timestamp
}

// ByLane reports whether a lane set the mark in the state database, and not a reconciler that could not judge the key.
func (t Touched) ByLane() bool {
	return !t.Stamp.IsZero() && t.Stamp.Timestamp().Unix() != 0
}

// ownStamp is the stamp of a reconciler's own mark: an id without a time. Lanes stamp with batch ids, which have one.
func ownStamp() bson.ObjectID {
	stamp := bson.NewObjectID()
	copy(stamp[:4], []byte{0, 0, 0, 0})
	return stamp
}

// TouchedKeys pages through the touched keys of a counter. It goes on behind the last key, and no cursor stays open on
// the server: a page may take as long as it likes, and marks that are cleared, kept or set meanwhile do not disturb it.
type TouchedKeys struct {
	definition *Definition
	client     *mongo.Client
	states     *States
	size       int

	afterMark string        // the last mark of the state database
	afterKey  bson.RawValue // the last marked document, zero before the first
	documents bool          // the marks of the state database are done
	end       bool
	apart     bool // of the state database alone
}

// Touched lists the touched keys in pages of at most size: those marked in the state database first. A key that is
// marked in both places comes twice, unless its mark in the document is gone by then.
func (d *Definition) Touched(client *mongo.Client, states *States, size int) *TouchedKeys {
	return &TouchedKeys{definition: d, client: client, states: states, size: size, afterMark: d.Name + "/", apart: !d.Target.Upsert}
}

// MarkedApart lists only the keys whose mark stands in the state database.
func (d *Definition) MarkedApart(client *mongo.Client, states *States, size int) *TouchedKeys {
	t := d.Touched(client, states, size)
	t.apart = true
	return t
}

// Next returns the next page, empty at the end. After an error it can be called again, for the same page.
// ErrNoTouchedIndex: the marks in the documents cannot be listed.
func (t *TouchedKeys) Next(ctx context.Context) ([]Touched, error) {
	for !t.end {
		read := t.marks
		if t.documents {
			read = t.markedDocuments
		}
		page, err := read(ctx)
		if err != nil {
			return nil, fmt.Errorf("list touched keys of %s: %w", t.definition.Name, t.definition.orNoIndex(err))
		}
		if len(page) < t.size {
			t.end = t.documents || t.apart
			t.documents = true
		}
		if len(page) > 0 {
			return page, nil
		}
	}
	return nil, nil
}

// marks reads the marks of the state database in the order of their _id, which begins with the counter's name.
func (t *TouchedKeys) marks(ctx context.Context) ([]Touched, error) {
	cursor, err := t.states.db.Collection(TouchedCollection).Find(ctx,
		one("_id", bson.D{{Key: "$gt", Value: t.afterMark}, {Key: "$lt", Value: t.definition.Name + "0"}}), // 0 follows /
		options.Find().SetSort(one("_id", 1)).SetLimit(int64(t.size)).SetBatchSize(int32(t.size)))          //nolint:gosec // a small setting
	if err != nil {
		return nil, err
	}
	var found []markDocument
	if err := cursor.All(ctx, &found); err != nil {
		return nil, err
	}
	page := make([]Touched, len(found))
	for i, mark := range found {
		page[i] = mark.touched()
		t.afterMark = mark.ID
	}
	return page, nil
}

// markDocument is a mark as it stands in the state database.
type markDocument struct {
	ID    string `bson:"_id"`
	Key   bson.Binary
	Stamp bson.ObjectID

	Reason string
	After  bson.Timestamp
}

func (m markDocument) touched() Touched {
	return Touched{Key: readRawKey(m.Key), Stamp: m.Stamp, Reason: m.Reason, After: m.After}
}

// markedDocuments reads the marks in the counter documents in the order of their index. A filter by $gt would stay
// within one type of key, a bound on the index does not; it is inclusive.
func (t *TouchedKeys) markedDocuments(ctx context.Context) ([]Touched, error) {
	d := t.definition
	order := func(touched, key any) bson.D {
		return bson.D{{Key: d.Own(FieldTouched), Value: touched}, {Key: "_id", Value: key}}
	}
	find := options.Find().SetHint(d.TouchedIndex().Name).SetCollation(simple).SetProjection(one("_id", 1)).
		SetSort(order(1, 1)).SetLimit(int64(t.size) + 1).SetBatchSize(int32(t.size) + 1) //nolint:gosec // a small setting
	if !t.afterKey.IsZero() {
		find.SetMin(order(true, t.afterKey))
	}
	cursor, err := d.targets(t.client).Find(ctx, one(d.Own(FieldTouched), true), find)
	if err != nil {
		return nil, err
	}
	var found []struct {
		ID bson.RawValue `bson:"_id"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, err
	}
	page := make([]Touched, 0, len(found))
	for _, document := range found {
		again := !t.afterKey.IsZero() && Canonical(document.ID) == Canonical(t.afterKey)
		if !again && len(page) < t.size {
			page = append(page, Touched{Key: document.ID})
		}
	}
	if len(page) > 0 {
		t.afterKey = page[len(page)-1].Key
	}
	return page, nil
}

// TouchedBacklog counts the touched keys, up to limit. ErrNoTouchedIndex: only a scan of all documents could tell.
func (d *Definition) TouchedBacklog(ctx context.Context, client *mongo.Client, states *States, limit int64) (int64, error) {
	n, err := states.db.Collection(TouchedCollection).CountDocuments(ctx, one("counter", d.Name), options.Count().SetLimit(limit))
	if err != nil || !d.Target.Upsert {
		return n, err
	}
	m, err := d.targets(client).CountDocuments(ctx, one(d.Own(FieldTouched), true), options.Count().
		SetHint(d.TouchedIndex().Name).SetCollation(simple).SetLimit(limit))
	return n + m, d.orNoIndex(err)
}

package counter

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Undone is what became of one counter's repairs when they were taken back.
type Undone struct {
	Counter string `json:"counter"`
	Undone  int64  `json:"undone"` // taken back, and kept from repair until released
	// Gone had no document any more: there was nothing to take back, and the key is not kept.
	Gone int64 `json:"gone"`
	// Left could not be taken back: a document that refuses it, or is written to all the time. Another undo tries again.
	Left int64  `json:"left"`
	Why  string `json:"why,omitempty"` // the last reason
}

// Undo takes back the repairs of a run, each exactly once: what was added is taken off again, so that whatever came since
// survives, and the key is kept from repair until released. Counters that are not declared, or by another definition than
// their repair, are left alone: what the numbers in their documents mean has changed. It returns what became of each
// counter that had something to take back, also with an error.
func (j *Journal) Undo(ctx context.Context, run string, definitions []*Definition) ([]*Undone, error) {
	var all []*Undone
	me, after := bson.NewObjectID(), bson.NilObjectID
	for {
		page, err := j.toUndo(ctx, run, after)
		if err != nil || len(page) == 0 {
			return all, err
		}
		after = page[len(page)-1].ID
		for len(page) > 0 {
			name := page[0].Counter
			n := slices.IndexFunc(page, func(e Entry) bool { return e.Counter != name })
			if n < 0 {
				n = len(page)
			}
			var result *Undone
			all, result = of(all, name)
			if err := j.undoEntries(ctx, definitionOf(definitions, name), page[:n], me, result); err != nil {
				return all, err
			}
			page = page[n:]
		}
	}
}

// of is the result of a counter, made where there is none.
func of(all []*Undone, name string) ([]*Undone, *Undone) {
	if at := slices.IndexFunc(all, func(u *Undone) bool { return u.Counter == name }); at >= 0 {
		return all, all[at]
	}
	u := &Undone{Counter: name}
	return append(all, u), u
}

func definitionOf(definitions []*Definition, name string) *Definition {
	at := slices.IndexFunc(definitions, func(d *Definition) bool { return d.Name == name })
	if at < 0 {
		return nil
	}
	return definitions[at]
}

// pageEntries is how many entries are read at a time.
const pageEntries = 1000

// toUndo lists the next entries of a run that are not taken back.
func (j *Journal) toUndo(ctx context.Context, run string, after bson.ObjectID) ([]Entry, error) {
	cursor, err := j.entries().Find(ctx,
		bson.D{{Key: "run", Value: run}, {Key: "_id", Value: one("$gt", after)}, {Key: "undo", Value: one("$exists", false)}},
		options.Find().SetSort(one("_id", 1)).SetLimit(pageEntries))
	return entriesOf(ctx, cursor, err)
}

func entriesOf(ctx context.Context, cursor *mongo.Cursor, err error) ([]Entry, error) {
	var entries []Entry
	if err == nil {
		err = cursor.All(ctx, &entries)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", RepairsCollection, err)
	}
	return entries, nil
}

// undoEntries takes back entries of one counter.
func (j *Journal) undoEntries(ctx context.Context, d *Definition, entries []Entry, me bson.ObjectID, result *Undone) error {
	var same []Entry
	for _, e := range entries {
		if d != nil && e.Hash == d.Hash {
			same = append(same, e)
			continue
		}
		result.Left++
		result.Why = "the counter is not declared as it was when it was repaired"
	}
	return j.inPieces(ctx, len(same), pieces{
		write: func(ctx context.Context, piece []int, _ bool) (func(), error) {
			w := undoing{Journal: j, d: d, me: me}
			for _, i := range piece {
				w.entries = append(w.entries, same[i])
			}
			err := w.write(ctx)
			return func() {
				result.Undone += w.undone
				result.Gone += w.gone
			}, err
		},
		refused: func(_ int, why string) { result.Left++; result.Why = why },
		busy:    func(int) { result.Left++; result.Why = "the document is written to all the time" },
	})
}

// undoing is one attempt at one transaction that takes repairs back.
type undoing struct {
	*Journal
	d            *Definition
	me           bson.ObjectID // stands in what this undo has taken back
	entries      []Entry
	undone, gone int64
}

// write fills the transaction in ctx. What somebody else has taken back meanwhile is left out, and what an earlier attempt
// has, is counted.
func (w *undoing) write(ctx context.Context) error {
	ids, keys := make([]bson.ObjectID, len(w.entries)), make([]bson.RawValue, len(w.entries))
	for i, e := range w.entries {
		ids[i], keys[i] = e.ID, readRawKey(e.RawKey)
	}
	cursor, err := w.Journal.entries().Find(ctx, one("_id", one("$in", ids)))
	now, err := entriesOf(ctx, cursor, err)
	if err != nil {
		return err
	}
	documents, err := w.d.Documents(ctx, w.client, Listed(keys))
	if err != nil {
		return err
	}
	var targets, entries, touched []mongo.WriteModel
	var at []int
	for i, id := range ids {
		n := slices.IndexFunc(now, func(e Entry) bool { return e.ID == id })
		if n < 0 || !now[n].Undo.IsZero() && now[n].Undo != w.me {
			continue
		}
		exists := documents[Canonical(keys[i])].Exists
		if done := !now[n].Undo.IsZero(); exists || done && now[n].Kept {
			w.undone++
		} else {
			w.gone++
		}
		if !now[n].Undo.IsZero() {
			continue
		}
		entries = append(entries, w.taken(id, exists))
		if !exists {
			continue
		}
		targets, at = append(targets, w.d.takeBack(now[n], keys[i])), append(at, i)
		if !w.d.Target.Upsert && !w.d.ByApplication() { // of which every run looks at all keys
			touched = append(touched, touch(w.d, keys[i], ownStamp()))
		}
	}
	if len(targets) > 0 {
		if _, err := w.d.targets(w.client).BulkWrite(ctx, targets); err != nil {
			return refusal(err, at, "take back repairs of "+w.d.Name)
		}
	}
	if err := w.states.write(ctx, TouchedCollection, touched); err != nil {
		return err
	}
	return w.states.write(ctx, RepairsCollection, entries)
}

// taken marks an entry as taken back. One whose key is kept from repair must not expire.
func (w *undoing) taken(id bson.ObjectID, kept bool) mongo.WriteModel {
	set := bson.D{{Key: "undo", Value: w.me}, {Key: "undone_at", Value: time.Now().UTC()}}
	if !kept {
		return mongo.NewUpdateOneModel().SetFilter(one("_id", id)).SetUpdate(one("$set", set))
	}
	return mongo.NewUpdateOneModel().SetFilter(one("_id", id)).SetUpdate(bson.D{
		{Key: "$set", Value: append(set, bson.E{Key: "kept", Value: true})}, {Key: "$unset", Value: one("expires_at", "")},
	})
}

// takeBack is the update that takes a repair off a document again. It leaves a stamp of its own, so that a repair of an
// earlier reading finds the document changed, and a mark, so that the next run looks at the key. A document that the
// repair made stays, at zero or what increments have added since: which of the two, nobody could tell for sure.
func (d *Definition) takeBack(e Entry, key bson.RawValue) mongo.WriteModel {
	if d.ByApplication() { // whose documents have no fields of ours
		fields := bson.D{{Key: d.Target.Count, Value: small(e.Before.Base - e.After.Base)}}
		if d.Target.Count == "" {
			fields = bson.D{{Key: d.Target.Base, Value: small(e.Before.Base - e.After.Base)}, {Key: d.Target.Live, Value: small(e.Before.Live - e.After.Live)}}
		}
		return mongo.NewUpdateOneModel().SetFilter(equalKey(key)).SetCollation(simple).SetUpdate(one("$inc", fields))
	}
	set := bson.D{{Key: d.Own(FieldRepair), Value: bson.NewObjectID()}}
	if d.Target.Upsert {
		set = append(set, bson.E{Key: d.Own(FieldTouched), Value: true}, bson.E{Key: d.Own(FieldStamp), Value: bson.NewObjectID()})
	}
	return mongo.NewUpdateOneModel().SetFilter(equalKey(key)).SetCollation(simple).SetUpdate(bson.D{
		{Key: "$inc", Value: bson.D{
			{Key: d.Target.Base, Value: e.Before.Base - e.After.Base},
			{Key: d.Target.Live, Value: e.Before.Live - e.After.Live},
			{Key: d.TotalPath(), Value: e.Before.Total - e.After.Total},
		}},
		{Key: "$set", Value: set},
		{Key: "$unset", Value: one(d.Own(FieldDrifted), "")},
	})
}

// Release lets the keys be repaired again that an undo of the run has kept from it. It returns how many those were.
func (j *Journal) Release(ctx context.Context, run string) (int64, error) {
	result, err := j.entries().UpdateMany(ctx, bson.D{{Key: "run", Value: run}, {Key: "kept", Value: true}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "released_at", Value: time.Now().UTC()}, {Key: "expires_at", Value: Expiry()}}},
			{Key: "$unset", Value: one("kept", "")},
		})
	if err != nil {
		return 0, fmt.Errorf("release the keys of run %s: %w", run, err)
	}
	return result.ModifiedCount, nil
}

// KeptBack is how many keys of a counter are kept from repair since the repairs of a run were taken back.
type KeptBack struct {
	Counter string `bson:"counter" json:"counter"`
	Run     string `bson:"run" json:"run"`
	Keys    int64  `bson:"keys" json:"keys"`
}

// KeptBack lists what is kept from repair, by counter and run.
func (s *States) KeptBack(ctx context.Context) ([]KeptBack, error) {
	cursor, err := s.db.Collection(RepairsCollection).Aggregate(ctx, bson.A{
		one("$match", one("kept", true)),
		one("$group", bson.D{{Key: "_id", Value: bson.D{{Key: "counter", Value: "$counter"}, {Key: "run", Value: "$run"}}}, {Key: "keys", Value: one("$sum", 1)}}),
		one("$sort", one("_id", 1)),
		one("$project", bson.D{{Key: "_id", Value: 0}, {Key: "counter", Value: "$_id.counter"}, {Key: "run", Value: "$_id.run"}, {Key: "keys", Value: 1}}),
	})
	all := []KeptBack{}
	if err == nil {
		err = cursor.All(ctx, &all)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", RepairsCollection, err)
	}
	return all, nil
}

// Kept tells which of the keys are kept from repair, by canonical key: the run whose repair was taken back.
func (j *Journal) Kept(ctx context.Context, d *Definition, keys []bson.RawValue) (map[string]string, error) {
	kept := map[string]string{}
	for part := range slices.Chunk(keys, pageEntries) {
		ids := make([]string, len(part))
		for i, key := range part {
			ids[i] = keyID(d, key)
		}
		cursor, err := j.entries().Find(ctx, bson.D{{Key: "key_id", Value: one("$in", ids)}, {Key: "kept", Value: true}},
			options.Find().SetProjection(bson.D{{Key: "run", Value: 1}, {Key: "raw_key", Value: 1}}))
		entries, err := entriesOf(ctx, cursor, err)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			kept[Canonical(readRawKey(e.RawKey))] = e.Run
		}
	}
	return kept, nil
}

// Knows reports whether the journal has a repair of the run, taken back or not.
func (j *Journal) Knows(ctx context.Context, run string) (bool, error) {
	n, err := j.entries().CountDocuments(ctx, one("run", run), options.Count().SetLimit(1))
	if err != nil {
		return false, fmt.Errorf("read %s: %w", RepairsCollection, err)
	}
	return n > 0, nil
}

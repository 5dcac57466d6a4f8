package counter

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Repair is what makes one counter right at a position: differences to what was read, so that whatever came since
// survives (I5).
type Repair struct {
	Read              Document // as compared
	Base, Live, Total int64    // to add
	Drifted           bool     // it was wrong, and not only rebased
	Mark              Touched  // the mark in the state database to clear, if it has a stamp
}

// Repair applies repairs, each guarded by the id of the last repair that was read, so that two reconcilers at one
// position repair once. It returns how many applied; the others had been repaired by somebody else meanwhile, or their
// document refuses the update, and keep their marks.
func (d *Definition) Repair(ctx context.Context, client *mongo.Client, states *States, repairs []Repair) (applied int64, err error) {
	if len(repairs) == 0 {
		return 0, nil
	}
	models := make([]mongo.WriteModel, len(repairs))
	for i, r := range repairs {
		models[i] = d.repair(r)
	}
	result, err := d.targets(client).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if err != nil && (!errors.As(err, &bulk) || bulk.WriteConcernError != nil) {
		return 0, fmt.Errorf("repair counters of %s: %w", d.Name, err)
	}
	failed := map[int]bool{}
	for _, fault := range bulk.WriteErrors {
		failed[fault.Index] = true
	}
	var cleared []Touched
	for i, r := range repairs {
		if !failed[i] {
			cleared = append(cleared, r.Mark)
		}
	}
	return result.MatchedCount + result.UpsertedCount, d.Untouch(ctx, states, cleared)
}

// repair is the guarded update of one document.
func (d *Definition) repair(r Repair) mongo.WriteModel {
	add := func(path string, n int64) any { return op("$add", op("$ifNull", "$"+path, int64(0)), n) }
	stamp := "$" + d.Own(FieldStamp)
	set := bson.D{
		{Key: d.Target.Base, Value: add(d.Target.Base, r.Base)},
		{Key: d.Target.Live, Value: add(d.Target.Live, r.Live)},
		{Key: d.TotalPath(), Value: add(d.TotalPath(), r.Total)},
		{Key: d.Own(FieldRepair), Value: bson.NewObjectID()},
		// The mark goes only if it is the one that was read: a later touch is for the next run.
		{Key: d.Own(FieldTouched), Value: op("$cond", op("$eq", op("$ifNull", stamp, bson.NilObjectID), r.Read.Stamp),
			"$$REMOVE", "$"+d.Own(FieldTouched))},
		{Key: d.Own(FieldDrifted), Value: "$$REMOVE"},
	}
	if r.Drifted {
		set[len(set)-1].Value = true
	}
	if d.Target.ReconciledAt != "" {
		set = append(set, bson.E{Key: d.Target.ReconciledAt, Value: "$$NOW"})
	}
	guard := any(r.Read.Repair)
	if r.Read.Repair.IsZero() {
		guard = one("$exists", false)
	}
	filter := bson.D{{Key: "_id", Value: one("$eq", r.Read.Key)}, {Key: d.Own(FieldRepair), Value: guard}}
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(bson.A{one("$set", set)}).
		SetUpsert(d.Target.Upsert && !r.Read.Exists).SetCollation(simple)
}

func untouch(d *Definition, mark Touched) mongo.WriteModel {
	return mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: keyID(d, mark.Key)}, {Key: "stamp", Value: mark.Stamp}})
}

// Untouch clears marks of the state database, and what was set apart for the same keys: a key that has been compared
// owes nothing to an increment that its document once could not take.
func (d *Definition) Untouch(ctx context.Context, states *States, marks []Touched) error {
	var models []mongo.WriteModel
	var letters []string
	for _, mark := range marks {
		if !mark.Stamp.IsZero() {
			models = append(models, untouch(d, mark))
			letters = append(letters, keyID(d, mark.Key))
		}
	}
	if len(models) == 0 {
		return nil
	}
	if _, err := states.db.Collection(DeadLettersCollection).DeleteMany(ctx, one("_id", one("$in", letters))); err != nil {
		return fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	return states.marks(ctx, models)
}

// Touch marks keys in the state database, so that the next run looks at them again.
func (d *Definition) Touch(ctx context.Context, states *States, keys []bson.RawValue) error {
	models := make([]mongo.WriteModel, len(keys))
	for i, key := range keys {
		models[i] = touch(d, key, bson.NewObjectID())
	}
	return states.marks(ctx, models)
}

// marks runs the given writes on the marks of the state database.
func (s *States) marks(ctx context.Context, models []mongo.WriteModel) error {
	if len(models) == 0 {
		return nil
	}
	if _, err := s.db.Collection(TouchedCollection).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("write %s: %w", TouchedCollection, err)
	}
	return nil
}

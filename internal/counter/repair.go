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
	Passed            Recent   // of events: the buckets before the cut, which are in Base from now on
	Cut               int64    // of events, in Unix seconds; 0 for none
	Open              bool     // of events: there are some beyond the cut, so the mark in the document stays
	Mark              Touched  // the mark in the state database to clear, if it has a stamp
	Record            Record   // for the journal
}

// Outcome is what became of one repair.
type Outcome struct {
	Applied bool
	Gone    bool   // not applied, and there is no document
	Refused string // not applied: the document refuses the update, in the server's words
	Busy    bool   // not applied: others write to the document all the time
}

// Rebase makes repairs that change nothing displayed, with the same guard as the journal's and without an entry there:
// they come with every touched key, and there is nothing in them to take back. The outcomes are in the order of the
// repairs: what neither applied nor was refused has been repaired by somebody else meanwhile, or its document is gone. Only
// what applied loses its mark.
func (d *Definition) Rebase(ctx context.Context, client *mongo.Client, states *States, repairs []Repair) ([]Outcome, error) {
	outcomes, err := d.applyRepairs(ctx, client, repairs)
	if err != nil {
		return nil, err
	}
	// A lane may make a document just while a repair does: it is there now, and not repaired.
	var there []Repair
	var at []int
	for i, r := range repairs {
		if d.upserts(r) && outcomes[i] == (Outcome{}) {
			r.Read.Exists = true
			there, at = append(there, r), append(at, i)
		}
	}
	again, err := d.applyRepairs(ctx, client, there)
	if err != nil {
		return nil, err
	}
	for n, i := range at {
		outcomes[i] = again[n]
	}
	var cleared []Touched
	for i, r := range repairs {
		if outcomes[i].Applied {
			cleared = append(cleared, r.Mark)
		}
	}
	return outcomes, d.Untouch(ctx, states, cleared)
}

// applyRepairs sends the updates and finds out what became of each.
func (d *Definition) applyRepairs(ctx context.Context, client *mongo.Client, repairs []Repair) ([]Outcome, error) {
	if len(repairs) == 0 {
		return nil, nil
	}
	models, ids := make([]mongo.WriteModel, len(repairs)), make([]bson.ObjectID, len(repairs))
	for i, r := range repairs {
		ids[i] = bson.NewObjectID()
		models[i] = d.repair(r, ids[i])
	}
	result, err := d.targets(client).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	var bulk mongo.BulkWriteException
	if err != nil && (!errors.As(err, &bulk) || bulk.WriteConcernError != nil) {
		return nil, fmt.Errorf("repair counters of %s: %w", d.Name, err)
	}
	outcomes := outcomesOf(len(repairs), bulk.WriteErrors)
	if int(result.MatchedCount+result.UpsertedCount) < len(repairs)-len(bulk.WriteErrors) {
		if err := d.recheck(ctx, client, repairs, ids, outcomes); err != nil {
			return nil, err
		}
	}
	return outcomes, nil
}

func outcomesOf(n int, faults []mongo.BulkWriteError) []Outcome {
	outcomes := make([]Outcome, n)
	for i := range outcomes {
		outcomes[i].Applied = true
	}
	for _, fault := range faults {
		outcomes[fault.Index] = Outcome{Refused: fault.Message}
		if racedUpsert(fault) {
			outcomes[fault.Index] = Outcome{}
		}
	}
	return outcomes
}

// recheck finds out which repairs matched nothing: the server only says how many did.
func (d *Definition) recheck(ctx context.Context, client *mongo.Client, repairs []Repair, ids []bson.ObjectID, outcomes []Outcome) error {
	keys := keysOf(repairs)
	now, err := d.Documents(ctx, client, Listed(keys))
	if err != nil {
		return err
	}
	for i := range outcomes {
		if outcomes[i].Applied {
			document := now[Canonical(keys[i])]
			outcomes[i] = Outcome{Applied: document.Repair == ids[i], Gone: !document.Exists}
		}
	}
	return nil
}

// repair is the guarded update of one document. Everything in it is a difference, so whatever came since survives.
func (d *Definition) repair(r Repair, id bson.ObjectID) mongo.WriteModel {
	add := func(path string, n int64) any { return op("$add", op("$ifNull", "$"+path, int64(0)), n) }
	stamp := "$" + d.Own(FieldStamp)
	set := bson.D{
		{Key: d.Target.Base, Value: add(d.Target.Base, r.Base)},
		{Key: d.Target.Live, Value: add(d.Target.Live, r.Live)},
		{Key: d.TotalPath(), Value: add(d.TotalPath(), r.Total)},
		{Key: d.Own(FieldRepair), Value: id},
		// The mark goes only if it is the one that was read: a later touch is for the next run.
		{Key: d.Own(FieldTouched), Value: op("$cond", op("$and", !r.Open, op("$eq", op("$ifNull", stamp, bson.NilObjectID), r.Read.Stamp)),
			"$$REMOVE", "$"+d.Own(FieldTouched))},
		{Key: d.Own(FieldDrifted), Value: "$$REMOVE"},
	}
	if r.Drifted {
		set[len(set)-1].Value = true
	}
	if d.Target.ReconciledAt != "" {
		set = append(set, bson.E{Key: d.Target.ReconciledAt, Value: "$$NOW"})
	}
	set = append(set, d.divide(r)...)
	guard := any(r.Read.Repair)
	if r.Read.Repair.IsZero() {
		guard = one("$exists", false)
	}
	filter := bson.D{{Key: "_id", Value: one("$eq", r.Read.Key)}, {Key: d.Own(FieldRepair), Value: guard}}
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(bson.A{one("$set", set)}).
		SetUpsert(d.upserts(r)).SetCollation(simple)
}

// divide takes the buckets off that the repair has gone past. What came into one since stays there.
func (d *Definition) divide(r Repair) bson.D {
	if r.Cut == 0 {
		return nil
	}
	set := bson.D{{Key: d.Own(FieldCut), Value: r.Cut}}
	for b, n := range r.Passed {
		path := d.Own(FieldRecent) + "." + b.Name()
		left := op("$subtract", op("$ifNull", "$"+path, int64(0)), n)
		set = append(set, bson.E{Key: path, Value: op("$cond", op("$eq", left, int64(0)), "$$REMOVE", left)})
	}
	return set
}

// upserts reports whether a repair may make the document: not where one was read, which somebody has deleted then.
func (d *Definition) upserts(r Repair) bool { return d.Target.Upsert && !r.Read.Exists }

func untouch(d *Definition, mark Touched, stamp any) mongo.WriteModel {
	return mongo.NewDeleteOneModel().SetFilter(bson.D{{Key: "_id", Value: keyID(d, mark.Key)}, {Key: "stamp", Value: stamp}})
}

// Untouch clears marks of the state database, and what was set apart for the same keys: a key that has been compared
// owes nothing to an increment that its document once could not take.
func (d *Definition) Untouch(ctx context.Context, states *States, marks []Touched) error {
	var touched, letters []mongo.WriteModel
	for _, mark := range marks {
		if !mark.Stamp.IsZero() {
			touched = append(touched, untouch(d, mark, mark.Stamp))
			letters = append(letters, untouch(d, mark, one("$lte", mark.Stamp))) // a later increment has put its own stamp on the mark
		}
	}
	if err := states.write(ctx, DeadLettersCollection, letters); err != nil {
		return err
	}
	return states.write(ctx, TouchedCollection, touched)
}

// Touch marks keys in the state database, so that the next run looks at them again.
func (d *Definition) Touch(ctx context.Context, states *States, keys []bson.RawValue) error {
	models := make([]mongo.WriteModel, len(keys))
	for i, key := range keys {
		models[i] = touch(d, key, ownStamp())
	}
	return states.write(ctx, TouchedCollection, models)
}

// write runs the given writes on a collection of the state database.
func (s *States) write(ctx context.Context, collection string, models []mongo.WriteModel) error {
	if len(models) == 0 {
		return nil
	}
	if _, err := s.db.Collection(collection).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return fmt.Errorf("write %s: %w", collection, err)
	}
	return nil
}

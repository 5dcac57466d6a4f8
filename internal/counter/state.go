package counter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// Collections of the state database that counters keep.
const (
	StatesCollection      = "counters"
	TouchedCollection     = "touched"
	DeadLettersCollection = "dead_letters"
	GapsCollection        = "gaps"
	RepairsCollection     = "repairs"
	RunsCollection        = "runs"
)

// States of a counter.
const (
	Rebasing = "rebasing" // not right until a full recount
	Active   = "active"
)

// Reasons of a recount.
const (
	ReasonNew          = "new"            // never counted, or counted by nobody for a while
	ReasonChanged      = "changed"        // its definition differs from the one it was counted by
	ReasonGap          = "gap"            // events were lost
	ReasonMissingImage = "missing_image"  // an event came without the image that tells what it did
	ReasonBroken       = "broken"         // its expression fails on the server
	ReasonPartitions   = "partitions"     // its source is divided into another number of lanes
	ReasonReset        = "reset"          // an operator moved the checkpoint
	ReasonTarget       = "target_changed" // the collection of its documents was dropped, replaced or emptied
)

// State is what the state database knows about one counter.
type State struct {
	Name   string        `bson:"_id"`
	Hash   string        `bson:"hash"`
	State  string        `bson:"state"`
	Reason string        `bson:"reason,omitempty"` // of the recount it waits for
	Epoch  bson.ObjectID `bson:"epoch"`            // new with every reason for a recount
	// After is the cluster time of a change that the recount is for: one that began at an earlier position has not seen it.
	After bson.Timestamp `bson:"after,omitempty"`
	// VerifiedThrough is the position through which every touched key has been compared.
	VerifiedThrough bson.Timestamp `bson:"verified_through,omitempty"`
	// SweptThrough is the position through which every key has been compared at least once.
	SweptThrough bson.Timestamp `bson:"swept_through,omitempty"`
	// Target is what the last complete pass saw of the target collection, nil before the first. Between full passes its
	// count only grows, so that documents that go little by little are missed as well.
	Target *Sighting `bson:"target,omitempty"`
	// Held is the run that has held the repairs of the counter, "" for none.
	Held      string    `bson:"held,omitempty"`
	UpdatedAt time.Time `bson:"updated_at"`
}

// Rebased reports whether what a recount changes says nothing about drift, since nobody promised the value before.
func (s State) Rebased() bool {
	return s.State == Rebasing && (s.Reason == ReasonNew || s.Reason == ReasonChanged || s.Reason == ReasonBroken)
}

// Lossy reports whether events were lost since the last recount.
func (s State) Lossy() bool {
	return s.State == Rebasing && (s.Reason == ReasonGap || s.Reason == ReasonPartitions || s.Reason == ReasonReset)
}

// HeldBy returns the run that has held the repairs of a counter, "" when none has, or when the record is another's of its
// name.
func (s State) HeldBy(d *Definition) string {
	if s.Hash != d.Hash {
		return ""
	}
	return s.Held
}

// Gap is a stretch of history that a lane did not see, or, after a reset to an earlier position, sees again. From is zero
// where nothing is known of before.
type Gap struct {
	ID     bson.ObjectID  `bson:"_id"`
	Lane   string         `bson:"lane"`
	Reason string         `bson:"reason"`
	From   bson.Timestamp `bson:"from,omitempty"` // left out when zero: the server would put the present in its place
	To     bson.Timestamp `bson:"to"`
	At     time.Time      `bson:"at"`
}

// States reads and writes what the state database knows about counters. Its methods take part in the session in ctx.
type States struct{ db *mongo.Database }

// NewStates opens the states of the state database. They are read as a majority has them: a mark that a later snapshot
// read might not know yet must not be seen before it.
func NewStates(client *mongo.Client, stateDatabase string) *States {
	return &States{db: client.Database(stateDatabase, options.Database().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))}
}

// All returns the state of every counter ever declared, by name.
func (s *States) All(ctx context.Context) (map[string]State, error) {
	cursor, err := s.db.Collection(StatesCollection).Find(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list counter states: %w", err)
	}
	var all []State
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("list counter states: %w", err)
	}
	byName := make(map[string]State, len(all))
	for _, state := range all {
		byName[state.Name] = state
	}
	return byName, nil
}

// Mark asks for a full recount of a counter. A counter that waits for its first one keeps that reason, since nothing
// that the recount then changes is drift.
func (s *States) Mark(ctx context.Context, d *Definition, reason string) error {
	return s.mark(ctx, d, reason, bson.Timestamp{})
}

// mark is Mark because of a change at the given cluster time: the position that the lane gets to with it may be just
// before that, where a recount finds nothing wrong.
func (s *States) mark(ctx context.Context, d *Definition, reason string, after bson.Timestamp) error {
	keep := op("$and",
		op("$eq", "$state", Rebasing),
		op("$eq", "$hash", d.Hash),
		op("$in", "$reason", bson.A{ReasonNew, ReasonChanged}))
	set := bson.D{
		{Key: "reason", Value: op("$cond", keep, "$reason", reason)},
		{Key: "state", Value: Rebasing}, {Key: "hash", Value: d.Hash},
		{Key: "epoch", Value: bson.NewObjectID()}, {Key: "updated_at", Value: "$$NOW"},
	}
	if !after.IsZero() {
		set = append(set, bson.E{Key: "after", Value: op("$max", "$after", after)})
	}
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx, one("_id", d.Name), bson.A{one("$set", set)}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("mark counter %s for a recount: %w", d.Name, err)
	}
	return nil
}

// Keep returns the record of a counter that no lane takes up. It is made where there is none, or one of another definition,
// and active from then on.
func (s *States) Keep(ctx context.Context, d *Definition) (State, error) {
	fresh := bson.D{
		{Key: "_id", Value: "$_id"}, {Key: "hash", Value: d.Hash}, {Key: "state", Value: Active},
		{Key: "epoch", Value: bson.NewObjectID()}, {Key: "updated_at", Value: "$$NOW"},
	}
	var state State
	err := s.db.Collection(StatesCollection).FindOneAndUpdate(ctx, one("_id", d.Name),
		bson.A{one("$replaceWith", op("$cond", op("$eq", "$hash", d.Hash), "$$ROOT", fresh))},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&state)
	if err != nil {
		return State{}, fmt.Errorf("keep a record of counter %s: %w", d.Name, err)
	}
	return state, nil
}

// Activate ends the recount that was asked for in the given epoch. It reports false when another one has been asked
// for since.
func (s *States) Activate(ctx context.Context, state State) (bool, error) {
	result, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "hash", Value: state.Hash}, {Key: "epoch", Value: state.Epoch}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "state", Value: Active}}},
			{Key: "$unset", Value: bson.D{{Key: "reason", Value: ""}, {Key: "after", Value: ""}, {Key: "held", Value: ""}}},
			{Key: "$currentDate", Value: bson.D{{Key: "updated_at", Value: true}}},
		})
	if err != nil {
		return false, fmt.Errorf("end recount of counter %s: %w", state.Name, err)
	}
	return result.MatchedCount == 1, nil
}

// Verified records the position through which all touched keys of a counter have been compared, as long as the record
// is of the same definition.
func (s *States) Verified(ctx context.Context, state State, through bson.Timestamp) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "hash", Value: state.Hash}},
		bson.D{{Key: "$max", Value: one("verified_through", through)}})
	if err != nil {
		return fmt.Errorf("record verification of counter %s: %w", state.Name, err)
	}
	return nil
}

// Hold records that a run has held the repairs of an active counter, unless an earlier one has.
func (s *States) Hold(ctx context.Context, state State, run string) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "hash", Value: state.Hash}, {Key: "epoch", Value: state.Epoch}, {Key: "held", Value: one("$exists", false)}},
		one("$set", one("held", run)))
	if err != nil {
		return fmt.Errorf("hold counter %s: %w", state.Name, err)
	}
	return nil
}

// Unhold ends the hold that was read, and no later one.
func (s *States) Unhold(ctx context.Context, state State) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "held", Value: state.Held}}, one("$unset", one("held", "")))
	if err != nil {
		return fmt.Errorf("end the hold of counter %s: %w", state.Name, err)
	}
	return nil
}

// RecordGap keeps a gap for good.
func (s *States) RecordGap(ctx context.Context, gap Gap) error {
	if _, err := s.db.Collection(GapsCollection).InsertOne(ctx, gap); err != nil {
		return fmt.Errorf("record gap of lane %s: %w", gap.Lane, err)
	}
	return nil
}

// keyID names a counter and key in the state database. A key cannot stand in an _id there as it is: what the server
// takes for one document's _id it may refuse inside another's.
func keyID(d *Definition, key bson.RawValue) string {
	sum := sha256.Sum256([]byte(Canonical(key)))
	return d.Name + "/" + hex.EncodeToString(sum[:16])
}

// rawKey wraps a key so that any value, also one with $-fields, can be stored and read back.
func rawKey(key bson.RawValue) bson.Binary {
	return bson.Binary{Subtype: 0x80, Data: append([]byte{byte(key.Type)}, key.Value...)}
}

// readRawKey undoes rawKey.
func readRawKey(v bson.Binary) bson.RawValue {
	if len(v.Data) == 0 {
		return bson.RawValue{}
	}
	return bson.RawValue{Type: bson.Type(v.Data[0]), Value: v.Data[1:]}
}

// touch marks a key in the state database: its document cannot carry the mark, or may not exist.
func touch(d *Definition, key bson.RawValue, stamp bson.ObjectID) mongo.WriteModel {
	return mongo.NewUpdateOneModel().SetFilter(one("_id", keyID(d, key))).SetUpsert(true).
		SetUpdate(bson.D{{Key: "$set", Value: bson.D{
			{Key: "counter", Value: d.Name}, {Key: "key", Value: rawKey(key)}, {Key: "stamp", Value: stamp},
		}}})
}

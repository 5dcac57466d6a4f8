package counter

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
)

// Sighting is what a look at a counter's target collection found. No event tells that counter documents are gone; a
// sighting that complete passes keep does.
type Sighting struct {
	Collection string `bson:"collection,omitempty"` // its UUID in hexadecimal, "" when it does not exist
	Documents  int64  `bson:"documents"`            // about how many it holds
}

// fewDocuments is how many a collection must have held for the loss of half of them to count. The loss of all does always.
const fewDocuments = 10

// Lost says what happened to the documents since an earlier sighting, "" when nothing points to a loss. A recount for
// nothing is what a wrong guess costs.
func (s Sighting) Lost(since Sighting) string {
	switch {
	case s.Collection == "" && since.Collection != "":
		return "was dropped or renamed away"
	case s.Collection != since.Collection:
		return "was dropped, renamed or replaced, and is another one now"
	case s.Documents == 0 && since.Documents > 0, since.Documents >= fewDocuments && 2*s.Documents <= since.Documents:
		return fmt.Sprintf("lost half of its documents or more: it holds %d, and held %d", s.Documents, since.Documents)
	default:
		return ""
	}
}

// Sight looks at the target collection. Both answers are metadata: neither reads a document.
func (d *Definition) Sight(ctx context.Context, client *mongo.Client) (Sighting, error) {
	uuid, err := checkpoint.UUIDOf(ctx, client, d.Target.Database, d.Target.Collection)
	if err != nil || uuid == "" {
		return Sighting{}, err
	}
	n, err := d.targets(client).EstimatedDocumentCount(ctx)
	if err != nil {
		return Sighting{}, fmt.Errorf("look how many documents %s.%s holds: %w", d.Target.Database, d.Target.Collection, err)
	}
	return Sighting{Collection: uuid, Documents: n}, nil
}

// MarkLost asks for a full recount of an active counter because of what happened to its target, unless its state has
// moved on since it was read.
func (s *States) MarkLost(ctx context.Context, state State) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "hash", Value: state.Hash}, {Key: "epoch", Value: state.Epoch}, {Key: "state", Value: Active}},
		bson.D{
			{Key: "$set", Value: bson.D{{Key: "state", Value: Rebasing}, {Key: "reason", Value: ReasonTarget}, {Key: "epoch", Value: bson.NewObjectID()}}},
			{Key: "$currentDate", Value: bson.D{{Key: "updated_at", Value: true}}},
		})
	if err != nil {
		return fmt.Errorf("mark counter %s for a recount: %w", state.Name, err)
	}
	return nil
}

// Sighted keeps what a complete pass saw of the target, as long as the record is of the same definition.
func (s *States) Sighted(ctx context.Context, state State, seen Sighting) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: state.Name}, {Key: "hash", Value: state.Hash}},
		one("$set", one("target", seen)))
	if err != nil {
		return fmt.Errorf("record the target of counter %s: %w", state.Name, err)
	}
	return nil
}

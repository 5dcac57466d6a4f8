package counter

import (
	"context"
	"fmt"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/stream"
)

// Kinds of dead letters.
const (
	LetterIncrement = "increment" // a delta that its document could not take
	LetterRecord    = "record"    // a record of a topic that could not be read
)

// Lettered returns those of the keys that have a dead letter: a delta that their document could not take.
func (s *States) Lettered(ctx context.Context, d *Definition, keys []bson.RawValue) ([]bson.RawValue, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	byID, ids := make(map[string]bson.RawValue, len(keys)), make([]string, len(keys))
	for i, key := range keys {
		ids[i] = keyID(d, key)
		byID[ids[i]] = key
	}
	cursor, err := s.db.Collection(DeadLettersCollection).Find(ctx, one("_id", one("$in", ids)), options.Find().SetProjection(one("_id", 1)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	var letters []struct {
		ID string `bson:"_id"`
	}
	if err := cursor.All(ctx, &letters); err != nil {
		return nil, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	found := make([]bson.RawValue, len(letters))
	for i, letter := range letters {
		found[i] = byID[letter.ID]
	}
	return found, nil
}

// deadLetter records a delta that a document could not take. More of the same key add up in one record. It has the _id and
// the stamp of the mark that goes with it.
func deadLetter(a Apart, lane string, stamp bson.ObjectID) mongo.WriteModel {
	d := a.Delta
	return mongo.NewUpdateOneModel().SetFilter(one("_id", keyID(d.Counter, d.Key))).SetUpsert(true).
		SetUpdate(bson.D{
			{Key: "$set", Value: bson.D{
				{Key: "kind", Value: LetterIncrement}, {Key: "lane", Value: lane}, {Key: "counter", Value: d.Counter.Name},
				{Key: "key", Value: d.Key.String()}, {Key: "raw_key", Value: rawKey(d.Key)},
				{Key: "reason", Value: a.Reason}, {Key: "code", Value: a.Code}, {Key: "stamp", Value: stamp},
			}},
			{Key: "$inc", Value: bson.D{{Key: "delta", Value: d.N}, {Key: "times", Value: 1}}},
			{Key: "$currentDate", Value: bson.D{{Key: "last_at", Value: true}}},
		})
}

// deadRecord records a record of a topic that cannot be read, by lane and offset: another attempt at it is the same.
func deadRecord(d Dead, lane string, stamp bson.ObjectID) (mongo.WriteModel, error) {
	at, err := stream.TopicPositionOf(d.Token)
	if err != nil {
		return nil, err
	}
	return mongo.NewUpdateOneModel().SetFilter(one("_id", lane+"@"+strconv.FormatInt(at.Offset-1, 10))).SetUpsert(true).
		SetUpdate(bson.D{
			{Key: "$set", Value: bson.D{
				{Key: "kind", Value: LetterRecord}, {Key: "lane", Value: lane}, {Key: "offset", Value: at.Offset - 1},
				{Key: "reason", Value: d.Why}, {Key: "kind_of_fault", Value: d.Reason}, {Key: "record", Value: bson.Binary{Data: d.Value}}, {Key: "stamp", Value: stamp},
			}},
			{Key: "$currentDate", Value: bson.D{{Key: "last_at", Value: true}}},
		}), nil
}

package counter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// Kinds of dead letters.
const (
	LetterIncrement = "increment" // increments that a document could not take, added up by key
	LetterRecord    = "record"    // a record of a topic that could not be read
)

// Letter is a dead letter as it stands in the state database. Those that stand have a name of their own for _id; one that was
// discarded has got a new _id, so that the name is free for what comes.
type Letter struct {
	ID      string    `bson:"name"`
	Kind    string    `bson:"kind"`
	Lane    string    `bson:"lane"`
	Reason  string    `bson:"reason"` // in words
	FirstAt time.Time `bson:"first_at"`
	LastAt  time.Time `bson:"last_at"`

	Counter string      `bson:"counter"` // of increments
	Key     string      `bson:"key"`     // as extended JSON
	RawKey  bson.Binary `bson:"raw_key"`
	Delta   int64       `bson:"delta"`
	Times   int64       `bson:"times"`

	Topic     string       `bson:"topic"` // of a record
	Offset    int64        `bson:"offset"`
	Fault     string       `bson:"kind_of_fault"` // one of few
	RecordKey *bson.Binary `bson:"record_key"`    // nil for none
	Record    *bson.Binary `bson:"record"`
	Size      int64        `bson:"bytes"` // of key and record, as they were

	Stamp       bson.ObjectID `bson:"stamp"`
	DiscardedAt time.Time     `bson:"discarded_at"`
}

// Whole reports whether nothing of a record was cut off.
func (l Letter) Whole() bool {
	return int64(len(bytesOf(l.RecordKey))+len(bytesOf(l.Record))) == l.Size
}

// bytesOf is nil for none.
func bytesOf(b *bson.Binary) []byte {
	switch {
	case b == nil:
		return nil
	case b.Data == nil:
		return []byte{}
	default:
		return b.Data
	}
}

// named gives a letter its name for a field, whether it stands or not.
var named = one("$set", one("name", op("$ifNull", "$name", "$_id")))

// standing selects the letters that are not discarded, by the type of their _id.
func standing() bson.D { return one("_id", one("$type", "string")) }

func discarded() bson.D { return one("_id", one("$type", "objectId")) }

func (s *States) letters() *mongo.Collection { return s.db.Collection(DeadLettersCollection) }

// LetterCount counts the letters that stand, in no time however many there are. It may be off for a moment after a crash of the server.
func (s *States) LetterCount(ctx context.Context) (int64, error) {
	all, err := s.letters().EstimatedDocumentCount(ctx)
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", DeadLettersCollection, err)
	}
	gone, err := s.letters().CountDocuments(ctx, discarded())
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", DeadLettersCollection, err)
	}
	return max(0, all-gone), nil
}

// Letters calls each with the letters that stand, by name, or with those that were discarded, the earliest first; at most limit of
// them, 0 for all.
func (s *States) Letters(ctx context.Context, gone bool, limit int64, each func(Letter) error) error {
	which := standing()
	if gone {
		which = discarded()
	}
	stages := bson.A{one("$match", which), one("$sort", one("_id", 1)), named}
	if limit > 0 {
		stages = append(stages, one("$limit", limit))
	}
	cursor, err := s.letters().Aggregate(ctx, stages)
	if err != nil {
		return fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	for cursor.Next(ctx) {
		var letter Letter
		if err := cursor.Decode(&letter); err != nil {
			return fmt.Errorf("read %s: %w", DeadLettersCollection, err)
		}
		if err := each(letter); err != nil {
			return err
		}
	}
	if err := cursor.Err(); err != nil {
		return fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	return nil
}

// LetterNames returns the names of the letters that stand, in order: of those given, or all for nil.
func (s *States) LetterNames(ctx context.Context, of []string) ([]string, error) {
	which := standing()
	if of != nil {
		which = one("_id", one("$in", of))
	}
	cursor, err := s.letters().Find(ctx, which, options.Find().SetProjection(one("_id", 1)).SetSort(one("_id", 1)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	var found []struct {
		ID string `bson:"_id"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	names := make([]string, len(found))
	for i, letter := range found {
		names[i] = letter.ID
	}
	return names, nil
}

// Letter returns the letter of a name, false when none stands.
func (s *States) Letter(ctx context.Context, name string) (letter Letter, found bool, err error) {
	err = s.letters().FindOne(ctx, one("_id", name)).Decode(&letter)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Letter{}, false, nil
	}
	if err != nil {
		return Letter{}, false, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	letter.ID = name
	return letter, true, nil
}

// LetterOf returns the letter of a key, false when there is none.
func (s *States) LetterOf(ctx context.Context, d *Definition, key bson.RawValue) (Letter, bool, error) {
	return s.Letter(ctx, keyID(d, key))
}

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
	names, err := s.LetterNames(ctx, ids)
	found := make([]bson.RawValue, len(names))
	for i, name := range names {
		found[i] = byID[name]
	}
	return found, err
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
			{Key: "$setOnInsert", Value: one("first_at", time.Now())},
			{Key: "$inc", Value: bson.D{{Key: "delta", Value: d.N}, {Key: "times", Value: 1}}},
			{Key: "$currentDate", Value: bson.D{{Key: "last_at", Value: true}}},
		})
}

// setApart records the records of a lane that cannot be read, in place of what there was of them: one that was read before, since the
// lane was reset. That is cheaper than an upsert of each.
func (s *States) setApart(ctx context.Context, dead []Dead, at checkpoint.Checkpoint, stamp bson.ObjectID) error {
	if len(dead) == 0 {
		return nil
	}
	names, letters := make([]string, len(dead)), make([]any, len(dead))
	now := time.Now()
	for i, d := range dead {
		position, err := stream.TopicPositionOf(d.Token)
		if err != nil {
			return err
		}
		offset := position.Offset - 1
		names[i] = at.Lane + "@" + strconv.FormatInt(offset, 10)
		letter := bson.D{
			{Key: "_id", Value: names[i]},
			{Key: "kind", Value: LetterRecord}, {Key: "lane", Value: at.Lane}, {Key: "topic", Value: at.Topic}, {Key: "offset", Value: offset},
			{Key: "reason", Value: d.Why}, {Key: "kind_of_fault", Value: d.Reason}, {Key: "bytes", Value: d.Size}, {Key: "stamp", Value: stamp},
			{Key: "first_at", Value: now}, {Key: "last_at", Value: now},
		}
		if d.Key != nil {
			letter = append(letter, bson.E{Key: "record_key", Value: bson.Binary{Data: d.Key}})
		}
		if d.Value != nil {
			letter = append(letter, bson.E{Key: "record", Value: bson.Binary{Data: d.Value}})
		}
		letters[i] = letter
	}
	if _, err := s.letters().DeleteMany(ctx, one("_id", one("$in", names))); err != nil {
		return fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	if _, err := s.letters().InsertMany(ctx, letters, options.InsertMany().SetOrdered(false)); err != nil {
		return fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	return nil
}

// discardedAtOnce is how many letters one transaction discards.
const discardedAtOnce = 200

// Discard drops the letters of the given names that stand, and returns how many those were. A record of each stays for KeptFor.
func (s *States) Discard(ctx context.Context, names []string) (int, error) {
	session, err := s.db.Client().StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return 0, fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	sum := 0
	for first := 0; first < len(names); first += discardedAtOnce {
		n, part := 0, names[first:min(len(names), first+discardedAtOnce)]
		err := persist(ctx, session, func(ctx context.Context) (err error) {
			n, err = s.discard(ctx, part)
			return err
		})
		if err != nil {
			return sum, fmt.Errorf("discard dead letters: %w", err)
		}
		sum += n
	}
	return sum, nil
}

// discard moves letters to an _id of their own, inside a transaction.
func (s *States) discard(ctx context.Context, names []string) (int, error) {
	which := one("_id", one("$in", names))
	cursor, err := s.letters().Find(ctx, which)
	if err != nil {
		return 0, fmt.Errorf("read %s: %w", DeadLettersCollection, err)
	}
	var letters []bson.D
	if err := cursor.All(ctx, &letters); err != nil || len(letters) == 0 {
		return 0, err
	}
	for i, letter := range letters {
		name := letter[0].Value // an _id comes first
		letter[0].Value = bson.NewObjectID()
		letters[i] = append(letter, bson.E{Key: "name", Value: name}, bson.E{Key: "discarded_at", Value: time.Now()}, bson.E{Key: "expires_at", Value: Expiry()})
	}
	if _, err := s.letters().InsertMany(ctx, letters); err != nil {
		return 0, fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	if _, err := s.letters().DeleteMany(ctx, which); err != nil {
		return 0, fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	return len(letters), nil
}

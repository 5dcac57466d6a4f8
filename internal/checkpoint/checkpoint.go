// Package checkpoint keeps where a lane is: its position, what it has applied beyond it, and what it counts. A
// checkpoint moves only by compare-and-set, inside the transaction that applies its batch (I1).
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/stream"
)

var (
	// ErrFenced means: another owner has moved the checkpoint. Nothing was applied; load it and go on from there.
	ErrFenced = errors.New("fenced: another owner moved the checkpoint")
	// ErrNone means: the lane has no checkpoint yet.
	ErrNone = errors.New("no checkpoint")
)

// Collection is the state database's collection of checkpoints.
const Collection = "checkpoints"

// Checkpoint is where one lane is. Its position is the instant before the token's cluster time: every event up to it
// is applied, and Tail lists what is applied beyond it.
type Checkpoint struct {
	Lane      string              `bson:"_id"`
	Seq       int64               `bson:"seq"`             // one more with every move
	Batch     bson.ObjectID       `bson:"batch"`           // names this very move
	Token     bson.Raw            `bson:"token,omitempty"` // resume here; nil: start after Position
	Position  bson.Timestamp      `bson:"position"`        // complete through here
	Tail      Tail                `bson:"tail"`
	Counters  map[string]Counting `bson:"counters"` // by counter name
	UpdatedAt time.Time           `bson:"updated_at"`
}

// Counting says what a lane applies for one counter.
type Counting struct {
	Hash string `bson:"hash"`
	// Since is the first position at which the counter may be judged: its deltas may be missing at the cluster time
	// in the middle of which the lane took it up.
	Since bson.Timestamp `bson:"since"`
	// Broken is the server's message when its expression fails; nothing is applied then.
	Broken string `bson:"broken,omitempty"`
}

// Tail is what is applied beyond the position: the deltas at the token's cluster time.
type Tail struct {
	Deltas   []Delta `bson:"deltas,omitempty"`
	TooLarge bool    `bson:"too_large,omitempty"` // not listed; wait for a later checkpoint
}

// Delta is what one counter document has been incremented by.
type Delta struct {
	Counter string        `bson:"counter"`
	Key     bson.RawValue `bson:"key"`
	Delta   int64         `bson:"delta"`
}

// Store reads and moves the checkpoints of one state database.
type Store struct {
	client             *mongo.Client
	collection, leases *mongo.Collection

	mutex    sync.Mutex
	sessions map[string]*mongo.Session // by lane
}

// NewStore opens the checkpoints of the state database.
func NewStore(client *mongo.Client, stateDatabase string) *Store {
	db := client.Database(stateDatabase, options.Database().
		SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).
		SetWriteConcern(writeconcern.Majority()))
	return &Store{
		client: client, collection: db.Collection(Collection), leases: db.Collection(LeasesCollection),
		sessions: map[string]*mongo.Session{},
	}
}

// Load returns the lane's checkpoint as a majority has it, ErrNone when the lane has never started.
func (s *Store) Load(ctx context.Context, lane string) (Checkpoint, error) {
	var c Checkpoint
	err := s.collection.FindOne(ctx, bson.D{{Key: "_id", Value: lane}}).Decode(&c)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return c, fmt.Errorf("load checkpoint of lane %s: %w", lane, ErrNone)
	case err != nil:
		return c, fmt.Errorf("load checkpoint of lane %s: %w", lane, err)
	case c.Position.IsZero():
		// A start that got no further than its own first write.
		return c, fmt.Errorf("load checkpoint of lane %s: %w", lane, ErrNone)
	}
	return c, nil
}

// All returns every lane's checkpoint, in the order of their names. A context with a snapshot session reads them
// as of its snapshot.
func (s *Store) All(ctx context.Context) ([]Checkpoint, error) {
	cursor, err := s.collection.Find(ctx, bson.D{{Key: "position", Value: bson.D{{Key: "$exists", Value: true}}}},
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	var all []Checkpoint
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	return all, nil
}

// Advance moves the checkpoint from exactly the state from to the state to. It belongs into the transaction in ctx,
// beside the increments that to stands for.
func (s *Store) Advance(ctx context.Context, from, to Checkpoint) error {
	expected := bson.D{{Key: "_id", Value: from.Lane}, {Key: "seq", Value: from.Seq}, {Key: "batch", Value: from.Batch}}
	if from.Seq == 0 { // a lane that has never started
		expected = bson.D{{Key: "_id", Value: from.Lane}, {Key: "seq", Value: bson.D{{Key: "$exists", Value: false}}}}
	}
	set := bson.D{
		{Key: "seq", Value: to.Seq}, {Key: "batch", Value: to.Batch}, {Key: "position", Value: to.Position},
		{Key: "tail", Value: to.Tail}, {Key: "counters", Value: to.Counters},
	}
	update := bson.D{{Key: "$currentDate", Value: bson.D{{Key: "updated_at", Value: true}}}}
	if to.Token == nil {
		update = append(update, bson.E{Key: "$unset", Value: bson.D{{Key: "token", Value: ""}}})
	} else {
		set = append(set, bson.E{Key: "token", Value: to.Token})
	}
	result, err := s.collection.UpdateOne(ctx, expected, append(update, bson.E{Key: "$set", Value: set}))
	if err != nil {
		return fmt.Errorf("move checkpoint of lane %s: %w", from.Lane, err)
	}
	if result.MatchedCount == 0 {
		return fmt.Errorf("move checkpoint of lane %s from %d: %w", from.Lane, from.Seq, ErrFenced)
	}
	return nil
}

// Now writes to the lane's document and returns the cluster time of that, acknowledged by a majority: a position to
// start from. A lane that has no checkpoint yet gets its document by it.
func (s *Store) Now(ctx context.Context, lane string) (bson.Timestamp, error) {
	session, err := s.client.StartSession()
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	_, err = s.collection.UpdateOne(mongo.NewSessionContext(ctx, session), bson.D{{Key: "_id", Value: lane}},
		bson.D{{Key: "$inc", Value: bson.D{{Key: "starts", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("start lane %s: %w", lane, err)
	}
	return *session.OperationTime(), nil
}

// Next returns the state after c once everything up to token is applied, without a tail.
func (c Checkpoint) Next(token bson.Raw) (Checkpoint, error) {
	at, err := stream.TokenTime(token)
	if err != nil {
		return c, fmt.Errorf("move checkpoint of lane %s: %w", c.Lane, err)
	}
	to := c
	to.Seq, to.Batch, to.Token, to.Position = c.Seq+1, bson.NewObjectID(), token, stream.Before(at)
	if to.Position.Before(c.Position) {
		return c, fmt.Errorf("move checkpoint of lane %s: token of %v is older than position %v", c.Lane, at, c.Position)
	}
	if to.Position != c.Position {
		to.Tail = Tail{}
	}
	return to, nil
}

// Start says where a reader of this lane begins.
func (c Checkpoint) Start() stream.Start { return stream.Start{Token: c.Token, Position: c.Position} }

// Same reports whether c and other are one state.
func (c Checkpoint) Same(other Checkpoint) bool { return c.Seq == other.Seq && c.Batch == other.Batch }

// Package checkpoint keeps where a lane is: its position, what it has applied beyond it, and what it counts. A
// checkpoint moves only by compare-and-set, inside the transaction that applies its batch (I1).
package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// ErrIncomplete means: one of a source's lanes has no checkpoint, or that of another division.
	ErrIncomplete = errors.New("a lane of the source is missing")
)

// Collection is the state database's collection of checkpoints.
const Collection = "checkpoints"

// version is the format of a checkpoint.
const version = 1

// Checkpoint is where one lane is. Its position is the instant before the token's cluster time: every event up to it
// is applied, and Tail lists what is applied beyond it.
type Checkpoint struct {
	Lane       string              `bson:"_id"`
	Seq        int64               `bson:"seq"`             // one more with every move
	Batch      bson.ObjectID       `bson:"batch"`           // names this very move
	Token      bson.Raw            `bson:"token,omitempty"` // resume here; nil: start after Position
	Position   bson.Timestamp      `bson:"position"`        // complete through here
	Tail       Tail                `bson:"tail"`
	Counters   map[string]Counting `bson:"counters"`   // by counter name
	Partitions int                 `bson:"partitions"` // lanes of the source; the keys of a lane depend on it, but not those of a topic's
	Topic      string              `bson:"topic,omitempty"`
	Identity   Identity            `bson:"identity"`
	UpdatedAt  time.Time           `bson:"updated_at"`
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
	found, err := s.find(ctx, bson.D{{Key: "_id", Value: lane}})
	if err == nil && len(found) == 0 {
		err = ErrNone
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("load checkpoint of lane %s: %w", lane, err)
	}
	return found[0], nil
}

// All returns every lane's checkpoint, in the order of their names. A context with a snapshot session reads them
// as of its snapshot.
func (s *Store) All(ctx context.Context) ([]Checkpoint, error) {
	all, err := s.find(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	return all, nil
}

// Names lists the lanes that have a checkpoint, also one of a later version.
func (s *Store) Names(ctx context.Context) ([]string, error) {
	cursor, err := s.collection.Find(ctx, started, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}).SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	var all []struct {
		Lane string `bson:"_id"`
	}
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("list checkpoints: %w", err)
	}
	names := make([]string, len(all))
	for i, c := range all {
		names[i] = c.Lane
	}
	return names, nil
}

// OfSource returns the checkpoints of a source's lanes, also of those that it was divided into before.
func (s *Store) OfSource(ctx context.Context, source string) ([]Checkpoint, error) {
	all, err := s.find(ctx, ofSource(source))
	if err != nil {
		return nil, fmt.Errorf("list checkpoints of source %s: %w", source, err)
	}
	return all, nil
}

// Set returns the checkpoints of all lanes of a source, in the order of their partitions. ErrNone: there are none;
// ErrIncomplete, which is an ErrNone as well: not all of one division.
func (s *Store) Set(ctx context.Context, source string) ([]Checkpoint, error) {
	found, err := s.OfSource(ctx, source)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("source %s: %w", source, ErrNone)
	}
	byLane := make(map[string]Checkpoint, len(found))
	for _, c := range found {
		byLane[c.Lane] = c
	}
	ids := LanesOf(source, found)
	set := make([]Checkpoint, len(ids))
	for i, id := range ids {
		c, ok := byLane[id.String()]
		if !ok || c.Partitions != len(ids) && id.Topic == "" {
			return nil, fmt.Errorf("%w: lane %s: %w", ErrIncomplete, id, ErrNone)
		}
		set[i] = c
	}
	return set, nil
}

// LanesOf are the lanes that a source has by its checkpoints, of which there is at least one. A topic may have got more partitions, which not every lane has
// heard of yet.
func LanesOf(source string, found []Checkpoint) []LaneID {
	if found[0].Topic == "" {
		return Lanes(source, found[0].Partitions)
	}
	most := 0
	for _, c := range found {
		most = max(most, c.Partitions)
	}
	return TopicLanes(source, found[0].Topic, most)
}

// started leaves out what a start left that got no further than its own first write.
var started = bson.D{{Key: "position", Value: bson.D{{Key: "$exists", Value: true}}}}

// find returns what has started. A later version's is ErrNewer.
func (s *Store) find(ctx context.Context, which bson.D) ([]Checkpoint, error) {
	cursor, err := s.collection.Find(ctx, append(slices.Clone(started), which...),
		options.Find().SetSort(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return nil, err
	}
	defer func() { _ = cursor.Close(ctx) }()
	var all []Checkpoint
	for cursor.Next(ctx) {
		if v, ok := cursor.Current.Lookup("version").AsInt64OK(); ok && v > version {
			return nil, fmt.Errorf("lane %s: %w", cursor.Current.Lookup("_id").String(), ErrNewer)
		}
		var c Checkpoint
		if err := cursor.Decode(&c); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, cursor.Err()
}

// Advance moves the checkpoint from exactly the state from to the state to. It belongs into the transaction in ctx,
// beside the increments that to stands for.
func (s *Store) Advance(ctx context.Context, from, to Checkpoint) error {
	expected := bson.D{{Key: "_id", Value: from.Lane}, {Key: "seq", Value: from.Seq}, {Key: "batch", Value: from.Batch}}
	opts := options.UpdateOne()
	if from.Seq == 0 { // a lane that has never started: its document may be there already, without a position
		expected = bson.D{{Key: "_id", Value: from.Lane}, {Key: "seq", Value: bson.D{{Key: "$exists", Value: false}}}}
		opts.SetUpsert(true)
	}
	set := bson.D{
		{Key: "version", Value: version},
		{Key: "seq", Value: to.Seq}, {Key: "batch", Value: to.Batch}, {Key: "position", Value: to.Position},
		{Key: "tail", Value: to.Tail}, {Key: "counters", Value: to.Counters},
		{Key: "partitions", Value: to.Partitions}, {Key: "identity", Value: to.Identity},
	}
	if to.Topic != "" {
		set = append(set, bson.E{Key: "topic", Value: to.Topic})
	}
	update := bson.D{{Key: "$currentDate", Value: bson.D{{Key: "updated_at", Value: true}}}}
	if to.Token == nil {
		update = append(update, bson.E{Key: "$unset", Value: bson.D{{Key: "token", Value: ""}}})
	} else {
		set = append(set, bson.E{Key: "token", Value: to.Token})
	}
	result, err := s.collection.UpdateOne(ctx, expected, append(update, bson.E{Key: "$set", Value: set}), opts)
	if mongo.IsDuplicateKeyError(err) { // somebody else has started it
		return fmt.Errorf("start lane %s: %w", from.Lane, ErrFenced)
	}
	if err != nil {
		return fmt.Errorf("move checkpoint of lane %s: %w", from.Lane, err)
	}
	if result.MatchedCount+result.UpsertedCount == 0 {
		return fmt.Errorf("move checkpoint of lane %s from %d: %w", from.Lane, from.Seq, ErrFenced)
	}
	return nil
}

// Retire removes the checkpoints of a source's earlier lanes, divided into another number than partitions, or of a topic: their
// owners are fenced by it. It belongs into the transaction that starts the new ones.
func (s *Store) Retire(ctx context.Context, source string, partitions int) error {
	other := bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "partitions", Value: bson.D{{Key: "$ne", Value: partitions}}}},
		bson.D{{Key: "topic", Value: bson.D{{Key: "$exists", Value: true}}}},
	}}}
	which := bson.D{{Key: "$and", Value: bson.A{ofSource(source), other, bson.D{{Key: "seq", Value: bson.D{{Key: "$exists", Value: true}}}}}}}
	if _, err := s.collection.DeleteMany(ctx, which); err != nil {
		return fmt.Errorf("retire the lanes of source %s: %w", source, err)
	}
	var kept bson.A
	for _, lane := range Lanes(source, partitions) {
		kept = append(kept, lane.String())
	}
	leases := bson.D{{Key: "$and", Value: bson.A{ofSource(source), bson.D{{Key: "_id", Value: bson.D{{Key: "$nin", Value: kept}}}}}}}
	if _, err := s.leases.DeleteMany(ctx, leases); err != nil {
		return fmt.Errorf("retire the leases of source %s: %w", source, err)
	}
	return nil
}

// Supersede removes what a source has left that came from elsewhere before, a change stream or another topic: its owners are
// fenced by it. It belongs into the transaction that starts a lane of the topic.
func (s *Store) Supersede(ctx context.Context, lane LaneID) error {
	which := append(ofSource(lane.Source), bson.E{Key: "topic", Value: bson.D{{Key: "$ne", Value: lane.Topic}}},
		bson.E{Key: "seq", Value: bson.D{{Key: "$exists", Value: true}}})
	if _, err := s.collection.DeleteMany(ctx, which); err != nil {
		return fmt.Errorf("retire the former lanes of source %s: %w", lane.Source, err)
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

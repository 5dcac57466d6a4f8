package stream

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// awaitTime is how long an idle getMore waits for news before it returns an empty batch with a fresh token.
const awaitTime = time.Second

// ChangeStream is a source that tails one collection of a replica set.
type ChangeStream struct {
	client      *mongo.Client
	db          *mongo.Database
	collection  string
	pipeline    bson.A // appended to $changeStream
	batchEvents int32
}

// NewChangeStream tails database.collection with the given stages behind $changeStream, at most batchEvents events
// at a time.
func NewChangeStream(client *mongo.Client, database, collection string, stages bson.A, batchEvents int) *ChangeStream {
	return &ChangeStream{
		client:      client,
		db:          client.Database(database, options.Database().SetReadPreference(readpref.Primary())),
		collection:  collection,
		pipeline:    stages,
		batchEvents: int32(min(batchEvents, 1<<30)), //nolint:gosec // bounded on the line
	}
}

// Open starts a server cursor. The commands are sent as they are, and not through the driver's ChangeStream, because
// that one reopens by itself, and then a token of the opening aggregate, which is no evidence that anything was
// delivered, cannot be told from a getMore's.
func (s *ChangeStream) Open(ctx context.Context, from Start) (Reader, error) {
	if err := from.check(); err != nil {
		return nil, fmt.Errorf("open change stream: %w", err)
	}
	r, err := s.open(ctx, changeStreamStage(from), s.pipeline)
	if err == nil {
		return r, nil
	}
	classified := Classify(err)
	if from.Token != nil && errors.Is(classified, ErrExpression) && s.refuses(ctx, from) {
		return nil, fmt.Errorf("%w: the server cannot read the resume token: %w", ErrPositionLost, err)
	}
	return nil, classified
}

// refuses reports whether the server takes a change stream, but none after the token of from, whatever the pipeline. A
// damaged token is refused with one of some twenty codes, among them such as expressions have as well (9, 15), and
// others in every version: so it is tried, and not read from the code.
func (s *ChangeStream) refuses(ctx context.Context, from Start) bool {
	takes := func(stage bson.D) error {
		r, err := s.open(ctx, stage, nil)
		if err == nil {
			r.Close(ctx)
		}
		return Classify(err)
	}
	return takes(bson.D{}) == nil && errors.Is(takes(changeStreamStage(from)), ErrExpression)
}

// open starts a cursor with the stages behind $changeStream. Its errors are as the server gave them.
func (s *ChangeStream) open(ctx context.Context, stage bson.D, stages bson.A) (*changeReader, error) {
	session, err := s.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return nil, err
	}
	r := &changeReader{source: s, session: session}
	// batchSize 0: the aggregate returns at once. With a first batch it would scan a long foreign stretch of the oplog
	// before it answers, and a time limit there would start over for ever.
	command := bson.D{
		{Key: "aggregate", Value: s.collection},
		{Key: "pipeline", Value: append(bson.A{bson.D{{Key: "$changeStream", Value: stage}}}, stages...)},
		{Key: "cursor", Value: bson.D{{Key: "batchSize", Value: 0}}},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "majority"}}},
	}
	reply, err := s.db.RunCommand(mongo.NewSessionContext(ctx, session), command).Raw()
	if err == nil {
		var ok bool
		if r.cursor, ok = cursorID(reply); ok {
			return r, nil
		}
		err = fmt.Errorf("open change stream: reply without cursor: %v", reply)
	}
	session.EndSession(context.WithoutCancel(ctx))
	return nil, err
}

func changeStreamStage(from Start) bson.D {
	stage := bson.D{
		{Key: "fullDocument", Value: "whenAvailable"},
		{Key: "fullDocumentBeforeChange", Value: "whenAvailable"},
	}
	if from.Token == nil {
		return append(stage, bson.E{Key: "startAtOperationTime", Value: next(from.Position)})
	}
	// startAfter resumes like resumeAfter, and also behind an invalidate.
	return append(stage, bson.E{Key: "startAfter", Value: from.Token})
}

type changeReader struct {
	source  *ChangeStream
	session *mongo.Session
	cursor  int64
}

// Next sends one getMore. Its post-batch token is returned as the batch's.
func (r *changeReader) Next(ctx context.Context) (Batch, error) {
	reply, err := r.source.db.RunCommand(mongo.NewSessionContext(ctx, r.session), bson.D{
		{Key: "getMore", Value: r.cursor},
		{Key: "collection", Value: r.source.collection},
		{Key: "batchSize", Value: r.source.batchEvents},
		{Key: "maxTimeMS", Value: awaitTime.Milliseconds()},
	}).Raw()
	if err != nil {
		return Batch{}, Classify(err)
	}
	batch, err := parseBatch(reply)
	if err != nil {
		return Batch{}, err
	}
	if id, ok := cursorID(reply); ok && id == 0 && len(batch.Events) == 0 {
		return Batch{}, fmt.Errorf("read change stream: %w", ErrCollectionChanged)
	}
	return batch, nil
}

// cursorID is the cursor that a reply is of, 0 when the server has closed it.
func cursorID(reply bson.Raw) (id int64, ok bool) {
	value, err := reply.LookupErr("cursor", "id")
	if err != nil {
		return 0, false
	}
	return value.AsInt64OK()
}

// parseBatch finds the events in a getMore's reply without copying or decoding them.
func parseBatch(reply bson.Raw) (Batch, error) {
	cursor, ok := reply.Lookup("cursor").DocumentOK()
	if !ok {
		return Batch{}, fmt.Errorf("read change stream: reply without cursor: %v", reply)
	}
	docs, ok := cursor.Lookup("nextBatch").ArrayOK()
	if !ok {
		return Batch{}, fmt.Errorf("read change stream: reply without batch: %v", reply)
	}
	values, err := docs.Values()
	if err != nil {
		return Batch{}, fmt.Errorf("read change stream: %w", err)
	}
	batch := Batch{Events: make([]Event, len(values))}
	for i, v := range values {
		doc := bson.Raw(v.Value)
		token, ok := doc.Lookup("_id").DocumentOK()
		if !ok {
			return Batch{}, fmt.Errorf("read change stream: event without a resume token: %v", doc)
		}
		batch.Events[i] = Event{Token: token, Doc: doc}
	}
	batch.Token, ok = cursor.Lookup("postBatchResumeToken").DocumentOK()
	if !ok {
		return Batch{}, errors.New("read change stream: reply without postBatchResumeToken; driftless needs MongoDB 6.0 or later")
	}
	// A high-water mark sorts before the events of its own cluster time: never resume from one of the last event's time.
	if n := len(batch.Events); n > 0 && sameTime(batch.Events[n-1].Token, batch.Token) {
		batch.Token = batch.Events[n-1].Token
	}
	return batch, nil
}

// Close ends the cursor on the server, best effort: the server drops it by itself with the session.
func (r *changeReader) Close(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if r.cursor != 0 {
		r.source.db.RunCommand(mongo.NewSessionContext(ctx, r.session), bson.D{
			{Key: "killCursors", Value: r.source.collection},
			{Key: "cursors", Value: bson.A{r.cursor}},
		})
	}
	r.session.EndSession(ctx)
}

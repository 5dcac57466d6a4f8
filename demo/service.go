package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"
)

const (
	posts      = 1000
	seededRows = 5000
	writers    = 8
	remembered = 2000 // rows that one writer goes back to
)

// comment is one row.
type comment struct {
	ID        bson.ObjectID `bson:"_id"`
	Post      int64         `bson:"post_id"`
	Author    string        `bson:"author"`
	Text      string        `bson:"text"`
	CreatedAt time.Time     `bson:"created_at"`
	DeletedAt *time.Time    `bson:"deleted_at,omitempty"` // missing or null: live
}

// service writes comments as such services do: the row first, the counter as a second write. It knows nothing of
// driftless.
type service struct {
	client   *mongo.Client
	comments *mongo.Collection
	usual    *usual
	rate     int          // row changes a second
	changes  atomic.Int64 // rows changed
	batches  atomic.Int64 // transactions of thousands of rows
}

func newService(client *mongo.Client, database string, rate int) *service {
	db := client.Database(database)
	return &service{client: client, comments: db.Collection("comments"), usual: newUsual(db), rate: rate}
}

// seed is what was there before driftless came: rows, and a counter that is right.
func seed(ctx context.Context, db *mongo.Database) error {
	random := newRandom()
	counts := make(map[int64]int64, posts)
	rows := make([]comment, seededRows)
	for i := range rows {
		rows[i] = random.comment()
		counts[rows[i].Post]++
	}
	documents := make([]bson.D, posts)
	for i := range documents {
		documents[i] = bson.D{{Key: "_id", Value: int64(i)}, {Key: usualField, Value: counts[int64(i)]}}
	}
	if _, err := db.Collection("comments").InsertMany(ctx, rows); err != nil {
		return fmt.Errorf("write the first comments: %w", err)
	}
	if _, err := db.Collection("posts").InsertMany(ctx, documents); err != nil {
		return fmt.Errorf("write the posts: %w", err)
	}
	return nil
}

// run writes until finish ends; what is under way then is completed. ctx gives it up.
func (s *service) run(ctx, finish context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	for range writers {
		w := &writer{service: s, random: newRandom()}
		pace := time.Duration(writers * int(time.Second) / s.rate)
		group.Go(func() error { return safely(func() error { return w.run(ctx, finish, pace) }) })
	}
	group.Go(func() error { return safely(func() error { return s.runBatches(ctx, finish) }) })
	if err := group.Wait(); err != nil {
		return fmt.Errorf("write service: %w", err)
	}
	return nil
}

// writer is one thread of the service.
type writer struct {
	*service
	random *random
	mine   []bson.ObjectID // rows to go back to
}

// actions and how often each is taken, in per cent.
var actions = []struct {
	share int
	do    func(*writer, context.Context) error
}{
	{55, (*writer).insert}, {12, (*writer).edit}, {14, (*writer).softDelete}, {7, (*writer).restore},
	{5, (*writer).hardDelete}, {7, (*writer).move},
}

func (w *writer) run(ctx, finish context.Context, pace time.Duration) error {
	ticker := time.NewTicker(pace) // drops ticks when the server is slow: the rate is a bound
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-finish.Done():
			return nil
		case <-ticker.C:
			if err := w.act(ctx); err != nil {
				return err
			}
		}
	}
}

func (w *writer) act(ctx context.Context) error {
	roll := w.random.IntN(100)
	for _, action := range actions {
		if roll -= action.share; roll < 0 {
			return action.do(w, ctx)
		}
	}
	return nil
}

func (w *writer) insert(ctx context.Context) error {
	row := w.random.comment()
	if _, err := w.comments.InsertOne(ctx, row); err != nil {
		return err
	}
	w.changes.Add(1)
	if len(w.mine) < remembered {
		w.mine = append(w.mine, row.ID)
	} else {
		w.mine[w.random.IntN(remembered)] = row.ID
	}
	return w.usual.add(ctx, w.random, row.Post, 1)
}

func (w *writer) edit(ctx context.Context) error {
	_, err := w.change(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: w.random.text()}}}})
	return err
}

func (w *writer) softDelete(ctx context.Context) error {
	row, err := w.change(ctx, isLive, bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
	if row == nil || err != nil {
		return err
	}
	return w.usual.add(ctx, w.random, row.Post, -1)
}

// restore leaves deleted_at missing or null: both are live.
func (w *writer) restore(ctx context.Context) error {
	update := bson.D{{Key: "$unset", Value: bson.D{{Key: "deleted_at", Value: ""}}}}
	if w.random.IntN(2) == 0 {
		update = bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: nil}}}}
	}
	row, err := w.change(ctx, bson.D{{Key: "deleted_at", Value: bson.D{{Key: "$ne", Value: nil}}}}, update)
	if row == nil || err != nil {
		return err
	}
	return w.usual.add(ctx, w.random, row.Post, 1)
}

func (w *writer) hardDelete(ctx context.Context) error {
	id, ok := w.any()
	if !ok {
		return nil
	}
	row, err := w.found(w.comments.FindOneAndDelete(ctx, bson.D{{Key: "_id", Value: id}}))
	if row == nil || err != nil || row.DeletedAt != nil {
		return err
	}
	return w.usual.add(ctx, w.random, row.Post, -1)
}

// move takes a comment to another post: two counters, and a chance to crash before each.
func (w *writer) move(ctx context.Context) error {
	to := w.random.post()
	row, err := w.change(ctx, bson.D{}, bson.D{{Key: "$set", Value: bson.D{{Key: "post_id", Value: to}}}})
	if row == nil || err != nil || row.DeletedAt != nil || row.Post == to {
		return err
	}
	if err := w.usual.add(ctx, w.random, row.Post, -1); err != nil {
		return err
	}
	return w.usual.add(ctx, w.random, to, 1)
}

// change updates one of the writer's rows if the condition holds and returns the row as it was, nil if nothing was done.
func (w *writer) change(ctx context.Context, condition, update bson.D) (*comment, error) {
	id, ok := w.any()
	if !ok {
		return nil, nil
	}
	filter := append(bson.D{{Key: "_id", Value: id}}, condition...)
	return w.found(w.comments.FindOneAndUpdate(ctx, filter, update))
}

func (w *writer) found(result *mongo.SingleResult) (*comment, error) {
	var row comment
	switch err := result.Decode(&row); {
	case errors.Is(err, mongo.ErrNoDocuments):
		return nil, nil
	case err != nil:
		return nil, err
	}
	w.changes.Add(1)
	return &row, nil
}

func (w *writer) any() (bson.ObjectID, bool) {
	if len(w.mine) == 0 {
		return bson.NilObjectID, false
	}
	return w.mine[w.random.IntN(len(w.mine))], true
}

// isLive is how the service asks for rows that are not deleted: null finds missing ones as well.
var isLive = bson.D{{Key: "deleted_at", Value: nil}}

// random makes up comments. Few posts have most of them, as everywhere (Zipf).
type random struct {
	*rand.Rand
	zipf *rand.Zipf
}

func newRandom() *random {
	r := rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	return &random{Rand: r, zipf: rand.NewZipf(r, 1.2, 10, posts-1)}
}

func (r *random) post() int64 { return int64(r.zipf.Uint64()) } //nolint:gosec // below posts

func (r *random) comment() comment {
	return comment{
		ID: bson.NewObjectID(), Post: r.post(), Author: fmt.Sprintf("user-%d", r.IntN(5000)), Text: r.text(), CreatedAt: time.Now(),
	}
}

func (r *random) text() string {
	const words = "a counter kept beside the rows that it counts drifts, and the errors add up; "
	return words + words[:r.IntN(len(words))]
}

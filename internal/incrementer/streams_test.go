package incrementer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// inTransaction inserts rows at one cluster time.
func (w *world) inTransaction(rows []bson.D) {
	w.t.Helper()
	w.check(w.client.UseSession(w.t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			_, err := w.rows.InsertMany(ctx, rows)
			return nil, err
		})
		return err
	}))
}

// recorder keeps what an applier did.
type recorder struct {
	mutex   sync.Mutex
	applied []counter.Applied
	moved   chan struct{} // a signal for each
	most    int           // what is applied then waits for resume; 0 is no end
	resume  chan struct{}
}

func newRecorder() *recorder {
	return &recorder{moved: make(chan struct{}, 1<<16), resume: make(chan struct{})}
}

func (r *recorder) Applied(a counter.Applied) {
	r.mutex.Lock()
	r.applied = append(r.applied, a)
	last := len(r.applied) == r.most
	r.mutex.Unlock()
	r.moved <- struct{}{}
	if last {
		<-r.resume
	}
}

func (r *recorder) Retried(string, error) {}

func (r *recorder) all() []counter.Applied {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return append([]counter.Applied(nil), r.applied...)
}

func TestATransactionLargerThanABatchIsCountedOnceHoweverItIsCut(t *testing.T) {
	t.Parallel()
	const size, batch = 5000, 400
	w := newWorld(t, perPost())
	w.begin()
	moves := w.moves()
	// Few keys at first, and then more of them than a tail lists.
	rows := w.someRows(size)
	for i := 1000; i < size; i++ {
		rows[i][1].Value = 1000 + i
	}
	w.inTransaction(rows)

	// Every owner applies one or two transactions and is gone, until the middle; the last one finishes.
	var inside bson.Timestamp
	for range 4 {
		r := newRecorder()
		r.most = 1 + w.pick(2)
		o := w.follow(following{batchEvents: batch, observer: r})
		for range r.most {
			<-r.moved
		}
		o.cancel()
		close(r.resume)
		_ = o.stop()
		if n := len(r.all()); n != r.most {
			t.Fatalf("%d transactions, want %d: the last owner would find nothing to finish", n, r.most)
		}
		for _, a := range r.all() {
			if a.Events == 0 {
				continue
			}
			at, err := stream.TokenTime(a.At.Token)
			w.check(err)
			if inside.IsZero() {
				inside = at
			}
			if at != inside || a.At.Position != stream.Before(inside) {
				t.Fatalf("inside a transaction of %v the checkpoint is at %v, token %v", inside, a.At.Position, at)
			}
		}
	}
	r := newRecorder()
	o := w.follow(following{batchEvents: batch, observer: r})
	w.wantExact()
	_ = o.stop()
	tooLarge := false
	for _, a := range r.all() {
		at, err := stream.TokenTime(a.At.Token)
		w.check(err)
		switch {
		case at == inside && a.At.Tail.TooLarge:
			tooLarge = true
		case at == inside && tooLarge:
			t.Errorf("a tail that was too large has %d deltas later on", len(a.At.Tail.Deltas))
		case at != inside && (a.At.Tail.TooLarge || len(a.At.Tail.Deltas) > 1):
			t.Errorf("after the transaction the tail is %+v", a.At.Tail)
		}
	}
	if !tooLarge {
		t.Error("the tail of thousands of keys was never too large")
	}
	w.wantEqual()
	wantNoGaps(t, moves())
}

func TestWritesOfManyRowsAtOnceAllCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	o := w.follow(following{batchEvents: 70})
	_, err := w.rows.InsertMany(t.Context(), w.someRows(2000), options.InsertMany().SetOrdered(false))
	w.check(err)
	_, err = w.rows.UpdateMany(t.Context(), bson.D{{Key: "words", Value: bson.D{{Key: "$lt", Value: 50}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
	w.check(err)
	_, err = w.rows.DeleteMany(t.Context(), bson.D{{Key: "post", Value: bson.D{{Key: "$lt", Value: posts / 2}}}})
	w.check(err)
	w.wantExact()
	_ = o.stop()
	w.wantEqual()
}

func TestAnIdleLanesPositionKeepsUpWithABusyNeighbour(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	o := w.follow(following{idle: 500 * time.Millisecond})
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		for ctx.Err() == nil {
			_, _ = w.database().Collection("neighbour").InsertMany(ctx, []bson.D{{}, {}, {}, {}})
		}
	})
	began := time.Now()
	for n := range 3 {
		deadline := began.Add(time.Duration(n) * time.Second)
		realtest.Eventually(t, patience, "the position reaches the present", func() bool {
			return !time.Unix(int64(w.at().Position.T), 0).Add(time.Second).Before(deadline)
		})
		if behind := time.Since(deadline); behind > 5*time.Second {
			t.Errorf("the position was %v behind", behind)
		}
	}
	if at := w.at(); len(at.Tail.Deltas) != 0 || at.Tail.TooLarge {
		t.Errorf("an idle lane has the tail %+v", at.Tail)
	}
	if lag := o.State.View().Lag; lag > 5*time.Second {
		t.Errorf("an idle lane lags by %v", lag)
	}
	o.wantRunning(t)
	w.wantExact()
}

func TestABacklogBehindALongForeignStretchIsCounted(t *testing.T) {
	t.Parallel()
	const each, times = 25000, 4
	w := newWorld(t)
	w.begin()
	w.churn(t.Context(), 50)
	documents := make([]bson.D, each)
	for i := range documents {
		documents[i] = bson.D{{Key: "n", Value: i}}
	}
	for range times {
		_, err := w.database().Collection("neighbour").InsertMany(t.Context(), documents, options.InsertMany().SetOrdered(false))
		w.check(err)
	}
	w.churn(t.Context(), 50)
	o := w.follow(following{})
	w.wantExact()
	o.wantRunning(t)
}

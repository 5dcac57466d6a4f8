package incrementer_test

import (
	"context"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// paused is a client that stops at the n-th command of a step and goes on when it is told to.
type paused struct {
	*mongo.Client
	reached chan struct{} // closed when it stands there
	resume  func()
}

func (w *world) paused(s step, n int) *paused {
	w.t.Helper()
	goOn := make(chan struct{})
	p := &paused{reached: make(chan struct{}), resume: sync.OnceFunc(func() { close(goOn) })}
	var seen int
	var mutex sync.Mutex
	matched := map[int64]bool{}
	stand := func() {
		close(p.reached)
		<-goOn
	}
	p.Client = realtest.Client(w.t, w.uri, options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			mutex.Lock()
			here := s.matches(e)
			if here {
				seen++
				here = seen == n
				matched[e.RequestID] = here && s.after
			}
			mutex.Unlock()
			if here && !s.after {
				stand()
			}
		},
		Succeeded: func(_ context.Context, e *event.CommandSucceededEvent) {
			mutex.Lock()
			here := matched[e.RequestID]
			mutex.Unlock()
			if here {
				stand()
			}
		},
	}))
	w.t.Cleanup(p.resume)
	return p
}

func TestAnOwnerThatWasPausedAnywhereIsFencedAndNothingIsLostOrDoubled(t *testing.T) {
	t.Parallel()
	counters := target + "_of_per_post"
	for _, s := range []step{
		{command: "getMore", after: true},
		{command: "update", collection: checkpoint.Collection},
		{command: "update", collection: checkpoint.Collection, after: true},
		{command: "update", collection: counters, after: true},
		{command: "commitTransaction"},
		{command: "commitTransaction", after: true},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			moves := w.moves()
			w.begin()
			stop := w.keepChurning()
			for n := 1; n <= soak(2, 5); n++ {
				p := w.paused(s, n)
				first := w.follow(following{client: p.Client, batchEvents: 50})
				waitFor(t, p.reached, s.String())
				second := w.follow(following{batchEvents: 50})
				// Also while the first one holds a transaction open.
				w.wantMoves(3)
				p.resume()
				realtest.Eventually(t, patience, "the first owner is fenced", func() bool {
					return first.metric(t, "incrementer_fenced_total") > 0
				})
				w.wantMoves(2)
				_, _ = first.stop(), second.stop()
			}
			stop()
			o := w.follow(following{})
			w.wantExact()
			_ = o.stop()
			w.wantEqual()
			wantNoGaps(t, moves())
		})
	}
}

// gate holds every Apply back while it is closed.
type gate struct {
	incrementer.Applier
	pass chan struct{}
}

func (g gate) Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error) {
	select {
	case <-g.pass:
	case <-ctx.Done():
		return at, ctx.Err()
	}
	return g.Applier.Apply(ctx, at, batch)
}

func TestTwoOwnersThatTakeTurnsCommitEveryBatchOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	moves := w.moves()
	w.begin()
	stop := w.keepChurning()
	passes := [2]chan struct{}{make(chan struct{}), make(chan struct{})}
	for _, pass := range passes {
		w.follow(following{batchEvents: 30, wrapApplier: func(a incrementer.Applier) incrementer.Applier { return gate{a, pass} }})
	}
	for range soak(40, 20) {
		// Any number of batches each, so that both often stand at the same one.
		for range 1 + w.pick(3) {
			passes[w.pick(2)] <- struct{}{}
		}
	}
	stop()
	for _, pass := range passes {
		close(pass)
	}
	w.wantExact()
	wantNoGaps(t, moves())
}

func TestARestartedLaneWaitsForNoTransactionThatItsPredecessorLeftOpen(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	w.insert(t.Context(), 10)
	p := w.paused(step{command: "commitTransaction"}, 1)
	w.follow(following{client: p.Client})
	waitFor(t, p.reached, "a transaction that is ready to commit")
	w.follow(following{})
	w.mark() // patience is well below the minute after which the server gives up such a transaction
	p.resume()
	w.wantExact()
}

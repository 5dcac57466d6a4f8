package reconciler

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// through is the fixture with a client of its own, which tells of each command before it is sent. Its lanes write nothing while
// there are no events.
func (f *topical) through(hook func(*event.CommandStartedEvent)) *topical {
	f.t.Helper()
	fixture, c, other := *f.fixture, *f.config, *f
	c.Incrementer.IdleCheckpoint = time.Hour
	fixture.config = &c
	fixture.client = realtest.Client(f.t, f.uri, options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) { hook(e) },
	}))
	fixture.checkpoints = checkpoint.NewStore(fixture.client, c.MongoDB.StateDatabase)
	fixture.states = counter.NewStates(fixture.client, c.MongoDB.StateDatabase)
	other.fixture = &fixture
	return &other
}

// A member whose batch takes longer than the group waits for it has lost its partitions when it goes on, and is the last to
// know. Another one has applied these events by then.
func TestABatchThatTakesLongerThanTheSessionIsAppliedOnce(t *testing.T) {
	t.Parallel()
	const session = 2 * time.Second
	f := onTopic(t, 2)
	events := 0
	react := func() {
		f.react(0, false)
		events++
	}
	leave := f.joinFor(session)
	react()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	leave()
	settled := func() {
		t.Helper()
		realtest.Eventually(t, patience, "all events to be applied", func() bool { return f.applied() == events })
		f.wantCounted()
	}
	for _, where := range []func(*event.CommandStartedEvent) bool{
		isUpdateOf(checkpoint.Collection), isUpdateOf(targetName), func(e *event.CommandStartedEvent) bool { return e.CommandName == "commitTransaction" },
	} {
		var armed atomic.Bool
		reached, released := make(chan struct{}), make(chan struct{})
		leave := f.through(once(func(e *event.CommandStartedEvent) bool { return armed.Load() && where(e) }, func() {
			close(reached)
			<-released
		})).joinFor(session)
		release := sync.OnceFunc(func() { close(released) })
		t.Cleanup(release)
		react()
		settled()
		armed.Store(true)
		react()
		<-reached
		leaveOther := f.joinFor(session)
		settled()
		release()
		leaveOther()
		react()
		settled()
		leave()
	}
	f.joinFor(session)
	f.passed()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

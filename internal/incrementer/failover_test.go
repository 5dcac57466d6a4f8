package incrementer_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

func TestFailoversLoseNoEventAndApplyNoneTwice(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	w := newWorldOn(t, set.URI(), realtest.Client(t, set.URI()))
	w.begin()
	o := w.follow(following{client: realtest.Client(t, set.URI()), batchEvents: 50})
	w.faulty = true
	stop := w.keepChurning()
	for n := range soak(2, 5) {
		w.wantMoves(3)
		if n == 0 { // once: whoever has stepped down cannot be elected for a minute
			_, err := set.StepDown(t.Context())
			w.check(err)
			continue
		}
		primary, err := set.Primary(t.Context())
		w.check(err)
		primary.Kill() // what it had not replicated is rolled back when it comes again
		w.wantMoves(3)
		w.check(primary.Restart(t.Context()))
	}
	w.wantMoves(2)
	stop()
	w.wantExact()
	o.wantRunning(t)
	w.check(ignoreCancelled(o.stop()))
	w.wantEqual()
}

func TestAConnectionThatGoesSilentIsGivenUpAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	proxy := realtest.NewProxy(t, hostOf(t, w.uri))
	cleared := make(chan struct{}, 1)
	o := w.follow(following{batchEvents: 50, client: realtest.Client(t, proxy.URI(), options.Client().
		SetConnectTimeout(500*time.Millisecond).SetServerSelectionTimeout(time.Second).
		SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
			if e.Type == event.ConnectionPoolCleared {
				select {
				case cleared <- struct{}{}:
				default:
				}
			}
		}}))})
	stop := w.keepChurning()
	for range soak(2, 5) {
		w.wantMoves(3)
		// Half open: what either side sends is lost, in the middle of whatever goes on.
		proxy.Silence()
		waitFor(t, cleared, "the client has given up its connections")
		proxy.Heal()
	}
	w.wantMoves(3)
	stop()
	w.wantExact()
	o.wantRunning(t)
	w.check(ignoreCancelled(o.stop()))
	w.wantEqual()
}

package reconciler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/realtest"
)

// candidate is one of several reconcilers of the same counters, whose work is to be there.
type candidate struct {
	*Leadership
	*pulse
	t       *testing.T
	working chan struct{} // one for each time that it begins to lead
	ended   chan struct{} // one for each time that it has ended
	stop    func()        // in order
}

// candidate runs until it is stopped.
func (f *fixture) candidate(t *testing.T, name string, term time.Duration) *candidate {
	t.Helper()
	c := &candidate{t: t, pulse: &pulse{}, working: make(chan struct{}, 10), ended: make(chan struct{}, 10)}
	c.Leadership = &Leadership{
		Leases: checkpoint.NewLeases(realtest.Client(t, f.uri), f.state.Name(), name, term),
		Lane:   LeaderLane(f.definitions, Options{}), Term: term, Heart: c.pulse, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		err := c.Run(ctx, func(ctx context.Context) error {
			c.working <- struct{}{}
			<-ctx.Done()
			c.ended <- struct{}{}
			return ctx.Err()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s ended with %v", name, err)
		}
	})
	c.stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(c.stop)
	return c
}

// within fails unless something happens in time.
func (c *candidate) within(d time.Duration, what string, happens <-chan struct{}) {
	c.t.Helper()
	select {
	case <-happens:
	case <-time.After(d):
		c.t.Fatalf("not within %v: %s %s", d, c.Leases.Self(), what)
	}
}

// leads waits until it does.
func (c *candidate) leads() { c.t.Helper(); c.within(patience, "leads", c.working) }

func (c *candidate) standsBy(leader *candidate) {
	c.t.Helper()
	realtest.Eventually(c.t, patience, c.Leases.Self()+" stands by", func() bool {
		return c.View() == Standing{Leader: leader.Leases.Self()}
	})
	if len(c.working) > len(c.ended) {
		c.t.Errorf("%s works while it stands by", c.Leases.Self())
	}
}

func TestOneReconcilerLeadsAndAnotherFollowsAtOnceWhenItStops(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	a := f.candidate(t, "a", time.Minute)
	a.leads()
	b := f.candidate(t, "b", time.Minute)
	b.standsBy(a)
	if want := (Standing{Leads: true, Leader: "a"}); a.View() != want {
		t.Errorf("a says %+v", a.View())
	}
	a.stop()
	b.within(10*time.Second, "leads", b.working) // a sixth of the lease
	if len(a.ended) != 1 || a.View().Leads {
		t.Error("a was not told to end its work")
	}
}

// A deployment that shares the state database, and one counter alone, are looked after by somebody else.
func TestReconcilersOfOtherCountersLeadBesideEachOther(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	two := append(f.definitions, f.definitions[0])
	names := map[string]bool{}
	for _, name := range []string{
		LeaderLane(two, Options{}), LeaderLane(f.definitions, Options{}), LeaderLane(two, Options{Counter: "another"}),
	} {
		names[name] = true
	}
	if len(names) != 3 || LeaderLane(f.definitions, Options{Full: true, Counter: counterName}) != LeaderLane(f.definitions, Options{}) {
		t.Errorf("leases %v", names)
	}
}

func TestALeaseIsKeptForAsLongAsTheWorkTakes(t *testing.T) {
	t.Parallel()
	const term = 4 * time.Second // the machine is shared
	f := setUp(t)
	a := f.candidate(t, "a", term)
	a.leads()
	b := f.candidate(t, "b", term)
	b.standsBy(a)
	select {
	case <-a.ended:
		t.Error("a has lost its lease")
	case <-b.working:
		t.Error("b leads as well")
	case <-time.After(2*term + term/2):
	}
	b.stop()
	if n := len(b.beats); n < 3 {
		t.Errorf("the heart of the standby beat %d times", n)
	}
}

func TestWorkEndsWhenItsLeaseIsLost(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*fixture) func(){
		"to another, whose clock is ahead": func(f *fixture) func() {
			must(f.state.Collection(checkpoint.LeasesCollection).UpdateOne(f.t.Context(), bson.D{}, bson.D{{Key: "$set", Value: bson.D{
				{Key: "owner", Value: "b"}, {Key: "run", Value: bson.NewObjectID()},
			}}}))(f.t)
			return func() {
				must(f.state.Collection(checkpoint.LeasesCollection).DeleteMany(f.t.Context(), bson.D{}))(f.t)
			}
		},
		"with the state database": func(f *fixture) func() {
			f.check(f.state.Drop(f.t.Context()))
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			const term = 15 * time.Second
			a := f.candidate(t, "a", term)
			a.leads()
			back := lose(f)
			a.within(term-2*time.Second, "ends its work", a.ended) // before it runs out
			back()
			a.leads()
		})
	}
}

// Nobody tells a leader that cannot reach the server that another leads by now: its own clock does, before.
func TestWorkEndsWhenItsLeaseMayHaveRunOutUnseen(t *testing.T) {
	t.Parallel()
	const term = time.Second
	m := realtest.Private(t, realtest.Options{})
	f := setUpOn(t, m.URI())
	a := f.candidate(t, "a", term)
	a.leads()
	f.check(m.Pause(t.Context()))
	t.Cleanup(m.Resume)
	a.within(10*term, "ends its work", a.ended)
	realtest.Eventually(t, patience, "a says why it neither leads nor stands by", func() bool { return a.View().Problem != nil })
	m.Resume()
	a.leads()
}

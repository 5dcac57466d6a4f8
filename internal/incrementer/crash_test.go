package incrementer_test

import (
	"context"
	"fmt"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// step is one command of a lane, at which its process dies.
type step struct {
	command    string
	collection string // of which collection, "" for any
	after      bool   // the server executes it, and the answer does not come back; else the server never gets it
}

func (s step) String() string {
	when := "before"
	if s.after {
		when = "after"
	}
	return fmt.Sprint(when, " ", s.command, " ", s.collection)
}

// matches reports whether a command is this step's.
func (s step) matches(e *event.CommandStartedEvent) bool {
	if e.CommandName != s.command {
		return false
	}
	field := e.CommandName
	if field == "getMore" {
		field = "collection"
	}
	name, _ := e.Command.Lookup(field).StringValueOK()
	return s.collection == "" || name == s.collection
}

// severed is a client whose connections break for good at the n-th command of a step.
type severed struct {
	*mongo.Client
	proxy *realtest.Proxy
	done  chan struct{} // closed when it has happened
}

func (w *world) severed(s step, n int) *severed {
	w.t.Helper()
	c := &severed{proxy: realtest.NewProxy(w.t, hostOf(w.t, w.uri)), done: make(chan struct{})}
	var mutex sync.Mutex
	seen := 0
	c.Client = realtest.Client(w.t, c.proxy.URI(), options.Client().SetServerSelectionTimeout(50*time.Millisecond).
		SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
			mutex.Lock()
			defer mutex.Unlock()
			if !s.matches(e) {
				return
			}
			if seen++; seen != n {
				return
			}
			if s.after {
				c.proxy.Drop(0)
			} else {
				c.proxy.Cut()
			}
			close(c.done)
		}}))
	return c
}

func hostOf(t testing.TB, uri string) string {
	t.Helper()
	parsed, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return parsed.Host
}

// keepChurning makes random changes until the returned function is called. None is cancelled midway: a transaction
// whose first command arrives behind its abort would stay open, and hold its rows.
func (w *world) keepChurning() (stop func()) {
	var enough atomic.Bool
	var writing sync.WaitGroup
	writing.Go(func() {
		for !enough.Load() && w.t.Context().Err() == nil {
			w.churn(w.t.Context(), 1)
		}
	})
	stop = func() {
		enough.Store(true)
		writing.Wait()
	}
	w.t.Cleanup(stop)
	return stop
}

// begin gives the lane its first checkpoint: what is inserted from then on counts.
func (w *world) begin() {
	w.t.Helper()
	o := w.follow(following{})
	realtest.Eventually(w.t, patience, "the lane has a checkpoint", func() bool { return w.at().Seq > 0 })
	w.check(ignoreCancelled(o.stop()))
}

func ignoreCancelled(err error) error {
	if err == context.Canceled { //nolint:errorlint // exactly this one is the clean end
		return nil
	}
	return err
}

func TestACrashAtAnyStepLosesNoEventAndAppliesNoneTwice(t *testing.T) {
	t.Parallel()
	for _, s := range []step{
		{command: "find", collection: checkpoint.Collection},
		{command: "aggregate"},
		{command: "aggregate", after: true},
		{command: "getMore"},
		{command: "getMore", after: true},
		{command: "update", collection: checkpoint.Collection},
		{command: "update", collection: checkpoint.Collection, after: true},
		{command: "update", collection: target + "_of_per_post"},
		{command: "update", collection: target + "_of_words_per_author", after: true},
		{command: "commitTransaction"},
		{command: "commitTransaction", after: true},
	} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			moves := w.moves()
			w.begin()
			stop := w.keepChurning()
			for n := 1; n <= soak(3, 5); n++ {
				broken := w.severed(s, min(n, timesPerLife(s)))
				o := w.follow(following{client: broken.Client, batchEvents: 50})
				waitFor(t, broken.done, s.String())
				_ = o.stop()
				broken.proxy.Heal()
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

// timesPerLife is how often a lane comes by a step while nothing goes wrong.
func timesPerLife(s step) int {
	if s.command == "find" || s.command == "aggregate" {
		return 1
	}
	return 1 << 30
}

func waitFor(t testing.TB, done <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("after %v still waiting: %s", patience, what)
	}
}

// dying ends its lane at a call, before or after it, and from then on does nothing.
type dying struct {
	reader  stream.Reader
	applier incrementer.Applier
	after   bool
	calls   int // before it dies
	die     func()
}

func (d *dying) now() bool {
	d.calls--
	return d.calls == 0
}

func (d *dying) Open(ctx context.Context, from stream.Start, source stream.Source) (stream.Reader, error) {
	reader, err := source.Open(ctx, from)
	d.reader = reader
	return d, err
}

func (d *dying) Next(ctx context.Context) (stream.Batch, error) {
	now := d.now()
	if now && !d.after {
		d.die()
		return stream.Batch{}, context.Canceled
	}
	batch, err := d.reader.Next(ctx)
	if now {
		d.die()
		return stream.Batch{}, context.Canceled
	}
	return batch, err
}

func (d *dying) Close(ctx context.Context) { d.reader.Close(ctx) }

func (d *dying) Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error) {
	now := d.now()
	if now && !d.after {
		d.die()
		return at, context.Canceled
	}
	to, err := d.applier.Apply(ctx, at, batch)
	if now {
		d.die()
		return at, context.Canceled
	}
	return to, err
}

// dyingSource opens readers that die.
type dyingSource struct {
	stream.Source
	*dying
}

func (s dyingSource) Open(ctx context.Context, from stream.Start) (stream.Reader, error) {
	return s.dying.Open(ctx, from, s.Source)
}

func TestALaneThatEndsBetweenReadingAndApplyingLosesNothing(t *testing.T) {
	t.Parallel()
	for _, where := range []string{"before read", "after read", "before apply", "after apply"} {
		t.Run(where, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			moves := w.moves()
			w.begin()
			stop := w.keepChurning()
			for calls := 1; calls <= soak(4, 5); calls++ {
				died := make(chan struct{})
				d := &dying{calls: calls, after: where == "after read" || where == "after apply", die: func() { close(died) }}
				f := following{batchEvents: 50}
				if where == "before read" || where == "after read" {
					f.wrapSource = func(s stream.Source) stream.Source { return dyingSource{s, d} }
				} else {
					f.wrapApplier = func(a incrementer.Applier) incrementer.Applier { d.applier = a; return d }
				}
				o := w.follow(f)
				waitFor(t, died, where)
				_ = o.stop()
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

package incrementer_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// following says how an owner follows the lane; the zero value is the plain way.
type following struct {
	client      *mongo.Client // nil is the world's
	definitions []*counter.Definition
	batchEvents int // 0 is 1000
	idle        time.Duration
	brokenRetry time.Duration
	stop        bool // on_position_lost: stop
	wrapSource  func(stream.Source) stream.Source
	wrapApplier func(incrementer.Applier) incrementer.Applier
	observer    counter.Observer // told besides the metrics
}

// owner is one process that follows the lane, as far as the lane can tell.
type owner struct {
	*incrementer.Lane
	registry *prometheus.Registry
	log      *logBuffer
	cancel   context.CancelFunc
	ended    chan struct{}
	err      error // of Run, once ended
}

// follow starts an owner of the lane. It is stopped at the end of the test at the latest.
func (w *world) follow(f following) *owner {
	w.t.Helper()
	o := w.owner(f)
	ctx, cancel := context.WithCancel(w.t.Context())
	o.cancel = cancel
	go func() {
		defer close(o.ended)
		o.err = o.Run(ctx)
	}()
	w.t.Cleanup(func() {
		_ = o.stop()
		if w.t.Failed() {
			w.t.Logf("log of the lane:\n%s", o.log)
		}
	})
	return o
}

// owner makes a lane as cmd/incrementer does.
func (w *world) owner(f following) *owner {
	if f.client == nil {
		f.client = w.client
	}
	if f.definitions == nil {
		f.definitions = w.definitions
	}
	if f.batchEvents == 0 {
		f.batchEvents = 1000
	}
	if f.idle == 0 {
		f.idle = 200 * time.Millisecond
	}
	log := &logBuffer{}
	logger := slog.New(slog.NewTextHandler(log, nil))
	registry := prometheus.NewRegistry()
	metrics := incrementer.NewMetrics(registry)
	state := incrementer.NewState(nil)
	metrics.Lane(registry, source, source, f.definitions, state)
	metrics.Source(registry, source, func() []*incrementer.State { return []*incrementer.State{state} })
	checkpoints, states := checkpoint.NewStore(f.client, w.stateName), counter.NewStates(f.client, w.stateName)
	observer := counter.Observer(incrementer.Observer{Metrics: metrics, Source: source, Lane: source, Log: logger})
	if f.observer != nil {
		observer = observers{observer, f.observer}
	}
	lane := &incrementer.Lane{
		ID: checkpoint.LaneID{Source: source}, Definitions: f.definitions,
		Counters: counter.NewLane(checkpoint.LaneID{Source: source}, f.client, checkpoints, states, f.definitions),
		OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
			stages, err := counter.Pipeline(ds, checkpoint.LaneID{})
			if err != nil {
				return nil, err
			}
			var s stream.Source = stream.NewChangeStream(f.client, w.name, source, stages, f.batchEvents)
			if f.wrapSource != nil {
				s = f.wrapSource(s)
			}
			return s, nil
		},
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			var a incrementer.Applier = counter.NewApplier(f.client, checkpoints, states, ds, f.definitions, f.batchEvents, observer)
			if f.wrapApplier != nil {
				a = f.wrapApplier(a)
			}
			return a
		},
		IdleCheckpoint: f.idle, StopWhenLost: f.stop, BrokenRetry: f.brokenRetry,
		State: state, Metrics: metrics, Log: logger,
	}
	return &owner{Lane: lane, registry: registry, log: log, ended: make(chan struct{})}
}

// stop ends the owner as a signal would, and returns what Run returned.
func (o *owner) stop() error {
	o.cancel()
	<-o.ended
	return o.err
}

// logged waits for a line of the owner's log that holds text.
func (o *owner) logged(t testing.TB, text string) {
	t.Helper()
	realtest.Eventually(t, patience, "log says "+text, func() bool { return strings.Contains(o.log.String(), text) })
}

// metric is the sum of a metric over the series that have all the given label values.
func (o *owner) metric(t testing.TB, name string, values ...string) float64 {
	t.Helper()
	families, err := o.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			var have []string
			for _, l := range m.GetLabel() {
				have = append(have, l.GetValue())
			}
			if !slices.ContainsFunc(values, func(v string) bool { return !slices.Contains(have, v) }) {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// observers tells two.
type observers [2]counter.Observer

func (o observers) Applied(a counter.Applied) { o[0].Applied(a); o[1].Applied(a) }
func (o observers) Retried(operation string, err error) {
	o[0].Retried(operation, err)
	o[1].Retried(operation, err)
}

// logBuffer keeps a log for the test to read.
type logBuffer struct {
	mutex sync.Mutex
	lines bytes.Buffer
}

func (b *logBuffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.lines.Write(p)
}

func (b *logBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.lines.String()
}

// commands counts what a client sends, by name.
type commands struct {
	counts sync.Map // of *atomic.Int64
}

func (c *commands) monitor() *options.ClientOptions {
	return options.Client().SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		n, _ := c.counts.LoadOrStore(e.CommandName, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}})
}

func (c *commands) all() (sum int64) {
	c.counts.Range(func(_, n any) bool {
		sum += n.(*atomic.Int64).Load()
		return true
	})
	return sum
}

func (c *commands) String() string {
	var b strings.Builder
	c.counts.Range(func(name, n any) bool {
		fmt.Fprintf(&b, "%v %d ", name, n.(*atomic.Int64).Load())
		return true
	})
	return b.String()
}

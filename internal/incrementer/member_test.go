package incrementer_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// shortTerm is a lease that runs out within a test, longTerm one that does not.
const shortTerm, longTerm = 2 * time.Second, time.Minute

// joining says how an instance joins the group; the zero value is the plain way.
type joining struct {
	partitions int           // 0 is one lane
	hash       string        // of its configuration
	term       time.Duration // 0 is shortTerm
	stop       bool          // on_position_lost: stop
}

// member is one instance of a group, as far as the group can tell: with a client, a log and metrics of its own.
type member struct {
	*owner   // without a lane of its own
	group    *incrementer.Group
	proxy    *realtest.Proxy
	applying map[string]*applying
}

// applying is held by a lane while it applies a batch.
type applying struct {
	sync.Mutex
	waiting atomic.Bool // for the mutex
}

// join starts an instance. It is stopped at the end of the test at the latest.
func (w *world) join(name string, j joining) *member {
	w.t.Helper()
	m := &member{proxy: realtest.NewProxy(w.t, hostOf(w.t, w.uri)), applying: map[string]*applying{}}
	client := realtest.Client(w.t, m.proxy.URI(), options.Client().SetServerSelectionTimeout(time.Second).SetConnectTimeout(2*time.Second))
	log := &logBuffer{}
	m.owner = &owner{registry: prometheus.NewRegistry(), log: log, ended: make(chan struct{})}
	term := cmp.Or(j.term, shortTerm)
	m.group = &incrementer.Group{
		Leases:  checkpoint.NewLeases(client, w.stateName, name, term),
		Sources: map[string]string{source: cmp.Or(j.hash, "h")}, Term: term, Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	m.lanes(w, client, j)
	ctx, cancel := context.WithCancel(w.t.Context())
	m.cancel = cancel
	go func() {
		defer close(m.ended)
		m.err = m.group.Run(ctx)
	}()
	w.t.Cleanup(func() {
		_ = m.stop()
		if w.t.Failed() {
			w.t.Logf("log of instance %s:\n%s", name, m.log)
		}
	})
	return m
}

// lanes makes the lanes as cmd/incrementer does.
func (m *member) lanes(w *world, client *mongo.Client, j joining) {
	metrics := incrementer.NewMetrics(m.registry)
	checkpoints, states := checkpoint.NewStore(client, w.stateName), counter.NewStates(client, w.stateName)
	for _, id := range checkpoint.Lanes(source, j.partitions) {
		name, state, gate := id.String(), incrementer.NewState(nil), &applying{}
		m.applying[name] = gate
		metrics.Lane(m.registry, source, name, w.definitions, state)
		observer := incrementer.Observer{Metrics: metrics, Source: source, Lane: name, Log: m.group.Log}
		m.group.Lanes = append(m.group.Lanes, &incrementer.Lane{
			ID: id, Definitions: w.definitions,
			Hold:     func(ctx context.Context) error { return m.group.Leases.Renew(ctx, name) },
			Counters: counter.NewLane(id, client, checkpoints, states, w.definitions),
			OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
				stages, err := counter.Pipeline(ds, id)
				return stream.NewChangeStream(client, w.name, source, stages, 50), err
			},
			NewApplier: func(ds []*counter.Definition) incrementer.Applier {
				return noted{counter.NewApplier(client, checkpoints, states, ds, w.definitions, 50, observer), gate}
			},
			IdleCheckpoint: 200 * time.Millisecond, StopWhenLost: j.stop, State: state, Metrics: metrics, Log: m.group.Log,
		})
	}
}

// noted holds a mutex while it applies a batch.
type noted struct {
	incrementer.Applier
	applying *applying
}

func (n noted) Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error) {
	n.applying.waiting.Store(true)
	n.applying.Lock()
	n.applying.waiting.Store(false)
	defer n.applying.Unlock()
	return n.Applier.Apply(ctx, at, batch)
}

// cutOff takes the instance's connections, at a moment at which it applies nothing: it knows of all that it has committed.
func (m *member) cutOff() {
	for _, gate := range m.applying {
		gate.Lock()
		defer gate.Unlock()
	}
	m.proxy.Cut()
}

// abandon ends the instance without a word to the database.
func (m *member) abandon() {
	m.proxy.Cut()
	_ = m.stop()
}

// owns lists the lanes that the instance follows.
func (m *member) owns() []string {
	lanes := []string{}
	for _, l := range m.group.Lanes {
		if l.State.View().Owned {
			lanes = append(lanes, l.ID.String())
		}
	}
	return lanes
}

// took is how often the instance has taken a lane.
func (m *member) took() int { return strings.Count(m.log.String(), `msg="lane taken"`) }

// leases is the roster as the database has it.
func (w *world) leases() checkpoint.Roster {
	w.t.Helper()
	r, err := checkpoint.NewLeases(w.client, w.stateName, "", 0).Roster(w.t.Context())
	w.check(err)
	return r
}

// shared reports whether each member has n lanes, every lane one owner, and the leases say so too.
func (w *world) shared(n int, members ...*member) bool {
	w.t.Helper()
	leases := w.leases().Leases
	owned := map[string]bool{}
	for _, m := range members {
		lanes := m.owns()
		if len(lanes) != n {
			return false
		}
		for _, lane := range lanes {
			if lease := leases[lane]; owned[lane] || !lease.Held || lease.Owner != m.group.Leases.Self() {
				return false
			}
			owned[lane] = true
		}
	}
	return true
}

// wantShared waits until each member has n lanes, and returns after how long they had.
func (w *world) wantShared(n int, members ...*member) time.Duration {
	w.t.Helper()
	began := time.Now()
	realtest.Eventually(w.t, 2*patience, fmt.Sprintf("%d instances have %d lanes each", len(members), n), func() bool {
		return w.shared(n, members...)
	})
	return time.Since(began)
}

// wantProgress waits until all lanes have come to the present.
func (w *world) wantProgress(lanes int) {
	w.t.Helper()
	session, err := w.client.StartSession()
	w.check(err)
	defer session.EndSession(context.WithoutCancel(w.t.Context()))
	// Later than all writes that were answered.
	_, err = w.database().Collection("clock").InsertOne(mongo.NewSessionContext(w.t.Context(), session), bson.D{})
	w.check(err)
	realtest.Eventually(w.t, 2*patience, fmt.Sprintf("%d lanes are at %v", lanes, session.OperationTime()), func() bool {
		all, err := w.checkpoints.OfSource(w.t.Context(), source)
		w.check(err)
		for _, c := range all {
			if c.Position.Before(*session.OperationTime()) {
				return false
			}
		}
		return len(all) == lanes
	})
}

// wantAppliedOnce holds every counter to a plain count once all lanes have come to the present, and what all instances
// together say that they have applied to what stands in the counters.
func (w *world) wantAppliedOnce(lanes int, members ...*member) {
	w.t.Helper()
	w.wantProgress(lanes)
	w.wantEqual()
	for _, d := range w.definitions {
		said := 0.0
		for _, m := range members {
			said += m.metric(w.t, "incrementer_increments_applied_total", d.Name, "inc") - m.metric(w.t, "incrementer_increments_applied_total", d.Name, "dec")
		}
		if live := w.live(d); int64(said) != live {
			w.t.Errorf("%s: %d applied, as %d instances say, and %d are in the counters", d.Name, int64(said), len(members), live)
		}
	}
}

// live is the sum of live_delta.
func (w *world) live(d *counter.Definition) (sum int64) {
	w.t.Helper()
	cursor, err := w.targets(d).Find(w.t.Context(), bson.D{})
	w.check(err)
	for cursor.Next(w.t.Context()) {
		sum += integer(cursor.Current, d.Target.Live)
	}
	w.check(cursor.Err())
	return sum
}

// wantStopped stops the members in order.
func wantStopped(t testing.TB, members ...*member) {
	t.Helper()
	for _, m := range members {
		if err := ignoreCancelled(m.stop()); err != nil {
			t.Errorf("instance %s ends with %v", m.group.Leases.Self(), err)
		}
	}
}

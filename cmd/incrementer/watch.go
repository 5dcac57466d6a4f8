package main

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/logkey"
)

const (
	watchEvery = 2 * time.Second // how fresh /status and /readyz are
	watchLimit = 3 * time.Second // for one look
)

// watch looks at the state database every so often, so that neither a probe nor a scrape has to.
type watch struct {
	read   func(context.Context) (records, error)
	oldest func(context.Context) (bson.Timestamp, error)
	log    *slog.Logger

	mutex   sync.Mutex
	seen    records
	change  bson.Timestamp // the oldest that the server keeps; zero when that is not known
	err     error          // of the last look
	gaps    int            // noticed by lanes: a look that began before one says nothing about it
	noOplog bool           // it may not be read
}

var errNotLooked = errors.New("not asked yet")

func newWatch(client *mongo.Client, stateDatabase string, log *slog.Logger) *watch {
	return &watch{
		read:   func(ctx context.Context) (records, error) { return readRecords(ctx, client, stateDatabase) },
		oldest: func(ctx context.Context) (bson.Timestamp, error) { return deployment.Oldest(ctx, client) },
		log:    log, err: errNotLooked,
	}
}

// run looks until ctx ends.
func (w *watch) run(ctx context.Context) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			w.refresh(ctx)
		}
	}
}

// refresh looks once. What fails is told by the readiness, and tried again.
func (w *watch) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	gaps := w.gapsSoFar()
	seen, err := w.read(ctx)
	change := w.oldestChange(ctx)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.err, w.change = err, change
	if err == nil && w.gaps == gaps {
		w.seen = seen
	}
}

func (w *watch) gapsSoFar() int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.gaps
}

// oldestChange asks the server, zero when it does not say. A user that may not read the oplog is told so once.
func (w *watch) oldestChange(ctx context.Context) bson.Timestamp {
	if w.noOplog {
		return bson.Timestamp{}
	}
	at, err := w.oldest(ctx)
	if errors.Is(err, deployment.ErrNoOplog) {
		w.noOplog = true
		w.log.Warn("how far a position may fall behind is not known: incrementer_resume_headroom_seconds has no value",
			logkey.Error, err, logkey.Action, "grant find on local.oplog.rs to see it; everything else works without")
	}
	return at
}

// lost notes that the given counters wait for a recount after a gap.
func (w *watch) lost(definitions []*counter.Definition) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.gaps++
	states := maps.Clone(w.seen.states)
	if states == nil {
		states = map[string]counter.State{}
	}
	for _, d := range definitions {
		state := states[d.Name]
		if first := state.State == counter.Rebasing && (state.Reason == counter.ReasonNew || state.Reason == counter.ReasonChanged); first {
			continue // it waits for its first recount, which makes good for the gap as well
		}
		state.Name, state.State, state.Reason = d.Name, counter.Rebasing, counter.ReasonGap
		states[d.Name] = state
	}
	w.seen.states = states
}

// view returns what was seen last, and why the last look failed.
func (w *watch) view() (records, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.seen, w.err
}

// headroom is how much further a position may fall behind before what follows it is gone; NaN when that is not known.
func (w *watch) headroom(at bson.Timestamp) float64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if at.IsZero() || w.change.IsZero() {
		return math.NaN()
	}
	return float64(at.T) - float64(w.change.T)
}

// register publishes the headroom of a lane.
func (w *watch) register(r prometheus.Registerer, source, lane string, state *incrementer.State) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "incrementer_resume_headroom_seconds",
		Help:        "How much further the checkpoint may fall behind before the history after it is gone; NaN when the user may not read the oplog.",
		ConstLabels: prometheus.Labels{"source": source, "lane": lane},
	}, func() float64 { return w.headroom(state.View().At.Position) }))
}

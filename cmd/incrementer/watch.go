package main

import (
	"context"
	"errors"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/daemon"
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
	change  bson.Timestamp  // the oldest that the server keeps; zero when that is not known
	err     error           // of the last look
	gaps    int             // noticed by lanes: a look that began before one says nothing about it
	unseen  map[string]bool // lanes whose gap no look has seen yet
	noOplog bool            // it may not be read
}

var errNotLooked = errors.New("not asked yet")

func newWatch(client *mongo.Client, stateDatabase string, log *slog.Logger) *watch {
	return &watch{
		read:   func(ctx context.Context) (records, error) { return readRecords(ctx, client, stateDatabase) },
		oldest: func(ctx context.Context) (bson.Timestamp, error) { return deployment.Oldest(ctx, client) },
		log:    log, err: errNotLooked, unseen: map[string]bool{},
	}
}

// run looks until ctx ends.
func (w *watch) run(ctx context.Context) error {
	return daemon.Every(ctx, watchEvery, w.refresh)
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
		w.seen, w.unseen = seen, map[string]bool{}
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

// lost notes that events of a lane were lost.
func (w *watch) lost(lane string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.gaps++
	w.unseen[lane] = true
}

// view returns what was seen last, and why the last look failed.
func (w *watch) view() (records, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.seen, w.err
}

// headroom is how much further a lane's position may fall behind before what follows it is gone; NaN when that is not
// known, or another instance's to tell.
func (w *watch) headroom(v incrementer.View) float64 {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if v.Standby != "" {
		return math.NaN()
	}
	return headroom(v.At, w.change)
}

// headroom of a change stream: the server's oldest change says nothing of a topic's records.
func headroom(at checkpoint.Checkpoint, oldest bson.Timestamp) float64 {
	if at.Topic != "" || at.Position.IsZero() || oldest.IsZero() {
		return math.NaN()
	}
	return float64(at.Position.T) - float64(oldest.T)
}

// register publishes the headroom of a lane.
func (w *watch) register(r prometheus.Registerer, source, lane string, state *incrementer.State) {
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name:        "incrementer_resume_headroom_seconds",
		Help:        "How much further the checkpoint may fall behind before the history after it is gone; NaN on standby, and when the user may not read the oplog.",
		ConstLabels: prometheus.Labels{"source": source, "lane": lane},
	}, func() float64 { return w.headroom(state.View()) }))
}

package main

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/counter"
	"driftless/internal/daemon"
)

const (
	watchEvery = 2 * time.Second // how fresh /status and /readyz are
	watchLimit = 3 * time.Second // for one look
)

// watch looks at the state database every so often, so that neither a probe nor a scrape has to.
type watch struct {
	read func(context.Context) (map[string]counter.State, error)

	mutex sync.Mutex
	seen  map[string]counter.State // by counter
	err   error                    // of the last look
}

var errNotLooked = errors.New("not asked yet")

// newWatch looks at the counters' states. Whoever only looks at counters may be one who must not read them, and is told
// whether the server answers.
func newWatch(client *mongo.Client, stateDatabase string, dryRun bool) *watch {
	read := counter.NewStates(client, stateDatabase).All
	if dryRun {
		read = func(ctx context.Context) (map[string]counter.State, error) {
			return nil, client.Ping(ctx, readpref.Primary())
		}
	}
	return &watch{read: read, err: errNotLooked}
}

// run looks until ctx ends.
func (w *watch) run(ctx context.Context) error { return daemon.Every(ctx, watchEvery, w.refresh) }

// refresh looks once. What fails is told by the readiness, and tried again.
func (w *watch) refresh(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, watchLimit)
	defer cancel()
	seen, err := w.read(ctx)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	if w.err = err; err == nil {
		w.seen = seen
	}
}

// view returns what was seen last, and why the last look failed.
func (w *watch) view() (map[string]counter.State, error) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.seen, w.err
}

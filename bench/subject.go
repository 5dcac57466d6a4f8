package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/reconciler"
	"driftless/internal/stream"
)

// sourceName is what the counters' source is called.
const sourceName = "comments"

// batchEvents is the default of incrementer.max_batch_events.
const batchEvents = 20000

// subject is one incrementer, of one lane or several, that starts before the backlog, with counters and a state database of
// its own.
type subject struct {
	client      *mongo.Client
	rows        *mongo.Collection
	config      *config.Config
	definitions []*counter.Definition
	checkpoints *checkpoint.Store
	states      *counter.States
	ids         []checkpoint.LaneID
	lanes       []*counter.Lane
	start       stream.Start
}

// newSubject takes up a counter of the rows in their collection, which it makes where there is none. The name tells it from
// other subjects.
func newSubject(ctx context.Context, rows *mongo.Collection, name string, lanes int) (*subject, error) {
	client, in := rows.Database().Client(), rows.Database().Name()
	c := config.Default()
	c.MongoDB.StateDatabase = "state_" + name
	c.Sources = []config.Source{{Name: sourceName, ChangeStream: &config.ChangeStream{Database: in, Collection: rows.Name(), Partitions: lanes}}}
	c.Counters = []config.Counter{commentsPerPost("counts_" + name)}
	c.Counters[0].SoftDelete, c.Counters[0].Rows = "deleted_at", config.Rows{Database: in, Collection: rows.Name()}
	definitions, err := counter.DefineAll(c.Counters)
	if err != nil {
		return nil, err
	}
	if err := create(ctx, rows); err != nil {
		return nil, err
	}
	if err := setUp(ctx, client, c, definitions); err != nil {
		return nil, err
	}
	s := &subject{
		client: client, rows: rows, config: c, definitions: definitions,
		checkpoints: checkpoint.NewStore(client, c.MongoDB.StateDatabase), states: counter.NewStates(client, c.MongoDB.StateDatabase),
	}
	s.ids = checkpoint.Lanes(sourceName, lanes)
	for _, id := range s.ids {
		s.lanes = append(s.lanes, counter.NewLane(id, client, s.checkpoints, s.states, definitions))
	}
	at, err := s.lanes[0].Load(ctx, nil) // starts all
	s.start = at.Start()
	return s, err
}

// commentsPerPost counts into a database of its own.
func commentsPerPost(database string) config.Counter {
	return config.Counter{
		Name: "comments_per_post", Source: sourceName, Key: "post_id",
		Target: config.Target{
			Database: database, Collection: "post_counters",
			Base: "base_count", Live: "live_delta", ReconciledAt: "reconciled_at", Upsert: true,
		},
	}
}

// setUp does what `incrementer setup` does.
func setUp(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition) error {
	steps, err := deployment.Plan(ctx, client, c, definitions)
	if err != nil {
		return err
	}
	for _, step := range steps {
		if err := step.Do(ctx); err != nil {
			return fmt.Errorf("%s: %w", step.What, err)
		}
	}
	return nil
}

// create makes a collection where there is none.
func create(ctx context.Context, c *mongo.Collection) error {
	const namespaceExists = 48
	var server mongo.ServerError
	err := c.Database().CreateCollection(ctx, c.Name())
	if errors.As(err, &server) && server.HasErrorCode(namespaceExists) {
		return nil
	}
	return err
}

func (s *subject) source(id checkpoint.LaneID, ds []*counter.Definition) (stream.Source, error) {
	stages, err := counter.Pipeline(ds, id)
	return stream.NewChangeStream(s.client, s.rows.Database().Name(), s.rows.Name(), stages, batchEvents), err
}

// readOnly reads a lane's part of the backlog with the incrementer's own pipeline and does nothing with it.
func (s *subject) readOnly(ctx context.Context, id checkpoint.LaneID) (events int, took time.Duration, err error) {
	source, err := s.source(id, s.definitions)
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	reader, err := source.Open(ctx, s.start)
	if err != nil {
		return 0, 0, err
	}
	defer reader.Close(ctx)
	for {
		batch, err := reader.Next(ctx)
		if err != nil {
			return 0, 0, err
		}
		if len(batch.Events) == 0 {
			return events, took, nil
		}
		events += len(batch.Events)
		took = time.Since(began)
	}
}

// caught is how a catch-up went.
type caught struct {
	took         time.Duration
	transactions int
	peakHeap     uint64 // bytes
}

// progress adds up what the lanes have applied.
type progress struct {
	applied atomic.Int64
	commits atomic.Int64
	want    int // events; negative for no end
	done    chan struct{}
	told    func(counter.Applied) // nil for nobody
}

// observer tells progress what its lane has applied.
type observer struct {
	incrementer.Observer
	progress *progress
}

// Applied implements counter.Observer.
func (o observer) Applied(a counter.Applied) {
	o.Observer.Applied(a)
	p := o.progress
	p.commits.Add(1)
	if p.told != nil {
		p.told(a)
	}
	if a.Events > 0 && p.applied.Add(int64(a.Events)) == int64(p.want) {
		close(p.done)
	}
}

// lane is wired as `incrementer run` does.
func (s *subject) lane(i int, watch *progress) *incrementer.Lane {
	id, log := s.ids[i], slog.New(slog.NewTextHandler(io.Discard, nil))
	laneMetrics := incrementer.NewMetrics(prometheus.NewRegistry())
	return &incrementer.Lane{
		ID: id, Definitions: s.definitions, Counters: s.lanes[i],
		OpenSource: func(ds []*counter.Definition) (stream.Source, error) { return s.source(id, ds) },
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			told := observer{incrementer.Observer{Metrics: laneMetrics, Source: sourceName, Lane: id.String(), Log: log}, watch}
			return counter.NewApplier(s.client, s.checkpoints, s.states, ds, s.definitions, batchEvents, told)
		},
		IdleCheckpoint: s.config.Incrementer.IdleCheckpoint, State: incrementer.NewState(nil), Metrics: laneMetrics, Log: log,
	}
}

// catchUp runs all lanes until every event of the backlog is committed.
func (s *subject) catchUp(ctx context.Context, events int) (result caught, err error) {
	watch := &progress{want: events, done: make(chan struct{})}
	began := time.Now()
	err = s.running(ctx, watch, func(ctx context.Context) error {
		result.peakHeap = heap()
		ticker := time.NewTicker(20 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-ticker.C:
				result.peakHeap = max(result.peakHeap, heap())
			case <-watch.done:
				result.took, result.transactions = time.Since(began), int(watch.commits.Load())
				return nil
			}
		}
	})
	return result, err
}

// followed does something while all lanes run: the reconciler goes easy on an incrementer that lags.
func (s *subject) followed(ctx context.Context, do func(context.Context) error) error {
	return s.running(ctx, &progress{want: -1}, do)
}

// running does something while all lanes run, as `incrementer run` does. A lane that ends early ends it.
func (s *subject) running(ctx context.Context, watch *progress, do func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	lanes, ctx := errgroup.WithContext(ctx)
	for i := range s.ids {
		lane := s.lane(i, watch)
		lanes.Go(func() error { return lane.Run(ctx) })
	}
	done := do(ctx)
	stop()
	if err := lanes.Wait(); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a lane ended early: %w", err)
	}
	return done
}

// heap is the live heap in bytes.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// reconciler is wired as `reconciler run` does.
func (s *subject) reconciler() *reconciler.Reconciler {
	return reconciler.New(s.client, s.config.MongoDB.StateDatabase, s.definitions, s.config.Reconciler,
		reconciler.NewMetrics(prometheus.NewRegistry(), s.definitions), slog.New(slog.NewTextHandler(io.Discard, nil)))
}

// check compares every counter with a recount, so that no speed comes from counting wrong.
func (s *subject) check(ctx context.Context) error {
	report, err := s.reconciler().RunOnce(ctx, reconciler.Options{Full: true, DryRun: true})
	if err != nil {
		return err
	}
	c := report.Counters[0]
	// The lane began with the first row, so that even a counter without its first recount must be right.
	if report.Result != reconciler.ResultOK || c.Drift.Keys != 0 || c.Rebased != 0 || c.Checked == 0 {
		return fmt.Errorf("counters are not right after the catch-up: %d checked, %d wrong, %v skipped (run %s)",
			c.Checked, c.Drift.Keys+c.Rebased, c.Skipped, report.Result)
	}
	return nil
}

// clear makes room for the next.
func (s *subject) clear(ctx context.Context) error {
	return s.client.Database(s.definitions[0].Target.Database).RunCommand(ctx, bson.D{{Key: "dropDatabase", Value: 1}}).Err()
}

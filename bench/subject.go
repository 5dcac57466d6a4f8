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

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/reconciler"
	"driftless/internal/stream"
)

// batchEvents is the default of incrementer.max_batch_events.
const batchEvents = 20000

// subject is one incrementer that starts before the backlog, with counters and a state database of its own.
type subject struct {
	client      *mongo.Client
	config      *config.Config
	definitions []*counter.Definition
	checkpoints *checkpoint.Store
	states      *counter.States
	lane        *counter.Lane
	start       stream.Start
}

func newSubject(ctx context.Context, client *mongo.Client, round int) (*subject, error) {
	c := config.Default()
	c.MongoDB.StateDatabase = fmt.Sprintf("state%d", round)
	c.Sources = []config.Source{{Name: "comments", ChangeStream: &config.ChangeStream{Database: rowsDatabase, Collection: rowsCollection, Partitions: 1}}}
	c.Counters = []config.Counter{{
		Name: "comments_per_post", Source: "comments", Key: "post_id", SoftDelete: "deleted_at",
		Rows: config.Rows{Database: rowsDatabase, Collection: rowsCollection},
		Target: config.Target{
			Database: fmt.Sprintf("counts%d", round), Collection: "post_counters",
			Base: "base_count", Live: "live_delta", ReconciledAt: "reconciled_at", Upsert: true,
		},
	}}
	definitions, err := counter.DefineAll(c.Counters)
	if err != nil {
		return nil, err
	}
	if round == 0 {
		if err := client.Database(rowsDatabase).CreateCollection(ctx, rowsCollection); err != nil {
			return nil, err
		}
	}
	steps, err := deployment.Plan(ctx, client, c, definitions)
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		if err := step.Do(ctx); err != nil {
			return nil, fmt.Errorf("%s: %w", step.What, err)
		}
	}
	s := &subject{
		client: client, config: c, definitions: definitions,
		checkpoints: checkpoint.NewStore(client, c.MongoDB.StateDatabase), states: counter.NewStates(client, c.MongoDB.StateDatabase),
	}
	s.lane = counter.NewLane(checkpoint.LaneID{Source: "comments"}, client, s.checkpoints, s.states, definitions)
	at, err := s.lane.Load(ctx, nil)
	s.start = at.Start()
	return s, err
}

func (s *subject) source(ds []*counter.Definition) (stream.Source, error) {
	stages, err := counter.Pipeline(ds, checkpoint.LaneID{})
	return stream.NewChangeStream(s.client, rowsDatabase, rowsCollection, stages, batchEvents), err
}

// readOnly reads the whole backlog with the incrementer's own pipeline and does nothing with it.
func (s *subject) readOnly(ctx context.Context) (events int, took time.Duration, err error) {
	source, err := s.source(s.definitions)
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

// progress tells a lane's applied events.
type progress struct {
	incrementer.Observer
	applied atomic.Int64
	commits atomic.Int64
	want    int
	done    chan struct{}
}

// Applied implements counter.Observer.
func (p *progress) Applied(a counter.Applied) {
	p.Observer.Applied(a)
	p.commits.Add(1)
	if p.applied.Add(int64(a.Events)) == int64(p.want) {
		close(p.done)
	}
}

// catchUp runs a whole lane, as `incrementer run` does, until every event of the backlog is committed.
func (s *subject) catchUp(ctx context.Context, events int) (caught, error) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	laneMetrics := incrementer.NewMetrics(prometheus.NewRegistry())
	watch := &progress{
		Observer: incrementer.Observer{Metrics: laneMetrics, Source: "comments", Lane: "comments", Log: log},
		want:     events, done: make(chan struct{}),
	}
	lane := &incrementer.Lane{
		ID: checkpoint.LaneID{Source: "comments"}, Definitions: s.definitions, Counters: s.lane, OpenSource: s.source,
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			return counter.NewApplier(s.client, s.checkpoints, s.states, ds, s.definitions, batchEvents, watch)
		},
		IdleCheckpoint: s.config.Incrementer.IdleCheckpoint, State: incrementer.NewState(nil), Metrics: laneMetrics, Log: log,
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, 1)
	began := time.Now()
	go func() { ended <- lane.Run(running) }()
	result := caught{peakHeap: heap()}
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-ended:
			return result, fmt.Errorf("lane ended early: %w", err)
		case <-ticker.C:
			result.peakHeap = max(result.peakHeap, heap())
		case <-watch.done:
			result.took, result.transactions = time.Since(began), int(watch.commits.Load())
			stop()
			if err := <-ended; !errors.Is(err, context.Canceled) {
				return result, err
			}
			return result, nil
		}
	}
}

// heap is the live heap in bytes.
func heap() uint64 {
	sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// check compares every counter with a recount, so that no speed comes from counting wrong.
func (s *subject) check(ctx context.Context) error {
	r := reconciler.New(s.client, s.config.MongoDB.StateDatabase, s.definitions, s.config.Reconciler,
		reconciler.NewMetrics(prometheus.NewRegistry(), s.definitions), slog.New(slog.NewTextHandler(io.Discard, nil)))
	report, err := r.RunOnce(ctx, reconciler.Options{Full: true, DryRun: true})
	if err != nil {
		return err
	}
	c := report.Counters[0]
	// The lane began with the first row, so that even a counter without its first recount must be right.
	if report.Result != reconciler.ResultOK || c.Drift.Keys != 0 || c.Rebased != 0 || c.Checked == 0 {
		return fmt.Errorf("counters are not right after the catch-up: %d checked, %d wrong, %v skipped (run %s)",
			c.Checked, c.Drift.Keys+c.Rebased, c.Skipped, report.Result)
	}
	return s.client.Database(s.definitions[0].Target.Database).RunCommand(ctx, bson.D{{Key: "dropDatabase", Value: 1}}).Err()
}

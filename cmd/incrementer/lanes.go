package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
)

// laneSilence is how long a lane may be at work on one batch before it counts as stuck: a transaction is tried for a
// minute, and its last attempt may take another.
const laneSilence = 3 * time.Minute

// makeLanes builds the lanes of every source. Those of a topic are built when they are followed for the first time.
func (p *process) makeLanes(client *mongo.Client, c *config.Config) error {
	b := laneBuilder{
		process: p, client: client, settings: c.Incrementer, metrics: incrementer.NewMetrics(p.registry),
		checkpoints: checkpoint.NewStore(client, c.MongoDB.StateDatabase), states: counter.NewStates(client, c.MongoDB.StateDatabase),
	}
	for _, s := range c.Sources {
		mine := counter.OfSource(p.definitions, s.Name)
		if s.Kafka != nil {
			topic, err := b.topic(s, mine, c.Reconciler.Settle)
			if err != nil {
				return fmt.Errorf("source %s: %w", s.Name, err)
			}
			p.topics = append(p.topics, topic)
			p.sources[s.Name] = counter.HashAllOf(*s.Kafka, mine)
			b.metrics.Source(p.registry, s.Name, topic.states)
			continue
		}
		p.sources[s.Name] = counter.HashAll(*s.ChangeStream, mine)
		var states []*incrementer.State
		for _, id := range checkpoint.Lanes(s.Name, s.ChangeStream.Partitions) {
			lane := b.lane(s, id, mine)
			p.lanes, states = append(p.lanes, lane), append(states, lane.State)
		}
		b.metrics.Source(p.registry, s.Name, func() []*incrementer.State { return states })
	}
	return nil
}

// laneBuilder holds what all lanes share.
type laneBuilder struct {
	*process
	client      *mongo.Client
	settings    config.Incrementer
	metrics     *incrementer.Metrics
	checkpoints *checkpoint.Store
	states      *counter.States
}

// lane builds one lane of a source, which feeds the counters in mine.
func (b laneBuilder) lane(s config.Source, id checkpoint.LaneID, mine []*counter.Definition) *incrementer.Lane {
	name := id.String()
	state := incrementer.NewState(b.health.Loop("lane "+name, laneSilence))
	b.metrics.Lane(b.registry, s.Name, name, mine, state)
	b.watch.register(b.registry, s.Name, name, state)
	counters := counter.NewLane(id, b.client, b.checkpoints, b.states, mine)
	lane := b.follower(s, id, mine, counters, state, func(ds []*counter.Definition) (stream.Source, error) {
		stages, err := counter.Pipeline(ds, id)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", s.Name, err)
		}
		return stream.NewChangeStream(b.client, s.ChangeStream.Database, s.ChangeStream.Collection, stages, b.settings.MaxBatchEvents), nil
	})
	lane.Hold = func(ctx context.Context) error { return b.group.Leases.Renew(ctx, name) }
	return lane
}

// follower is a lane of any kind, whose two ends are given.
func (b laneBuilder) follower(s config.Source, id checkpoint.LaneID, mine []*counter.Definition, counters incrementer.Counters,
	state *incrementer.State, open func([]*counter.Definition) (stream.Source, error),
) *incrementer.Lane {
	observer := incrementer.Observer{Metrics: b.metrics, Source: s.Name, Lane: id.String(), Log: b.log}
	return &incrementer.Lane{
		ID: id, Definitions: mine, Counters: gapTeller{counters, b.watch, id.String()}, OpenSource: open,
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			applier := counter.NewApplier(b.client, b.checkpoints, b.states, ds, mine, b.settings.MaxBatchEvents, observer)
			applier.Window = dedupeWindow(s)
			return applier
		},
		IdleCheckpoint: b.settings.IdleCheckpoint, MaxBatchEvents: b.settings.MaxBatchEvents, StopWhenLost: s.OnPositionLost == "stop",
		State: state, Metrics: b.metrics, Log: b.log,
	}
}

// dedupeWindow is how long the ids of a source's events are kept, 0 for not at all.
func dedupeWindow(s config.Source) time.Duration {
	if s.Kafka == nil || s.Kafka.Dedupe.Field == "" {
		return 0
	}
	return s.Kafka.Dedupe.Window
}

// gapTeller tells the watch of a gap as soon as it is recorded, so that the process is not ready from then on, and not
// only once the watch has looked.
type gapTeller struct {
	incrementer.Counters
	watch *watch
	lane  string
}

// Restart implements incrementer.Counters.
func (g gapTeller) Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	at, err := g.Counters.Restart(ctx, reason, broken)
	if err == nil {
		g.watch.lost(g.lane)
	}
	return at, err
}

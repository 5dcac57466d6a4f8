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

// makeLanes builds one lane for every source.
func (p *process) makeLanes(client *mongo.Client, c *config.Config) {
	metrics := incrementer.NewMetrics(p.registry)
	checkpoints := checkpoint.NewStore(client, c.MongoDB.StateDatabase)
	states := counter.NewStates(client, c.MongoDB.StateDatabase)
	for _, s := range c.Sources {
		mine := counter.OfSource(p.definitions, s.Name)
		state := incrementer.NewState(p.health.Loop("lane "+s.Name, laneSilence))
		metrics.Lane(p.registry, s.Name, s.Name, mine, state)
		p.watch.register(p.registry, s.Name, s.Name, state)
		p.lanes = append(p.lanes, &incrementer.Lane{
			Name: s.Name, Source: s.Name, Definitions: mine,
			Counters: gapTeller{counter.NewLane(s.Name, client, checkpoints, states, mine), p.watch, mine},
			OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
				stages, err := counter.Pipeline(ds)
				if err != nil {
					return nil, fmt.Errorf("source %s: %w", s.Name, err)
				}
				return stream.NewChangeStream(client, s.ChangeStream.Database, s.ChangeStream.Collection, stages, c.Incrementer.MaxBatchEvents), nil
			},
			NewApplier: func(ds []*counter.Definition) incrementer.Applier {
				return counter.NewApplier(client, checkpoints, states, ds, mine, c.Incrementer.MaxBatchEvents,
					incrementer.Observer{Metrics: metrics, Source: s.Name, Lane: s.Name, Log: p.log})
			},
			IdleCheckpoint: c.Incrementer.IdleCheckpoint, StopWhenLost: s.OnPositionLost == "stop",
			State: state, Metrics: metrics, Log: p.log,
		})
	}
}

// gapTeller tells the watch of a gap as soon as it is recorded, so that the process is not ready from then on, and not
// only once the watch has looked.
type gapTeller struct {
	incrementer.Counters
	watch       *watch
	definitions []*counter.Definition
}

// Restart implements incrementer.Counters.
func (g gapTeller) Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error) {
	at, err := g.Counters.Restart(ctx, reason, broken)
	if err == nil {
		g.watch.lost(g.definitions)
	}
	return at, err
}

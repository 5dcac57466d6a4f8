package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
)

// laneSilence is how long a lane may be at work on one batch before it counts as stuck: a transaction is tried for a
// minute, and its last attempt may take another.
const laneSilence = 3 * time.Minute

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Follow all sources; the main job",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, definitions, err := load(cmd)
			if err != nil {
				return err
			}
			return daemon.CleanStop(cmd.Context(), run(cmd.Context(), c, definitions))
		},
	}
}

// run wires the process: connect, look whether setup was run, one lane a source, one port.
func run(ctx context.Context, c *config.Config, definitions []*counter.Definition) error {
	log := logger(c)
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	if err := deployment.Ready(ctx, client, c, definitions); err != nil {
		return err
	}
	registry := daemon.NewRegistry(program)
	health, readiness := daemon.NewHealth(), daemon.NewReadiness()
	lanes := makeLanes(client, c, definitions, registry, health, log)
	for _, l := range lanes {
		readiness.Add("lane "+l.Name, func(context.Context) error { return l.State.View().LastErr })
	}
	server, err := daemon.Listen(ctx, daemon.Options{
		Program: program, Listen: c.Incrementer.Listen, Log: log, Health: health, Readiness: readiness, Metrics: registry,
		Status: func(context.Context) (any, error) { return laneStatus(lanes), nil },
	})
	if err != nil {
		return err
	}
	log.Info("listening", "address", server.Addr())

	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	served := make(chan error, 1)
	go func() { served <- server.Serve(serving) }()
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range lanes {
		group.Go(func() error { return l.Run(ctx) })
	}
	group.Go(func() error {
		// A port that fails ends the lanes; lanes that end leave the port to answer until they are done.
		select {
		case err := <-served:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	err = group.Wait()
	stopServing()
	if errors.Is(err, stream.ErrPositionLost) || errors.Is(err, stream.ErrCollectionChanged) {
		return daemon.WithExitCode(err, daemon.PositionLost)
	}
	return err
}

// makeLanes builds one lane for every source.
func makeLanes(client *mongo.Client, c *config.Config, definitions []*counter.Definition, registry *prometheus.Registry,
	health *daemon.Health, log *slog.Logger,
) []*incrementer.Lane {
	metrics := incrementer.NewMetrics(registry)
	checkpoints := checkpoint.NewStore(client, c.MongoDB.StateDatabase)
	states := counter.NewStates(client, c.MongoDB.StateDatabase)
	var lanes []*incrementer.Lane
	for _, s := range c.Sources {
		mine := counter.OfSource(definitions, s.Name)
		state := incrementer.NewState(health.Loop("lane "+s.Name, laneSilence))
		metrics.Lane(registry, s.Name, s.Name, mine, state)
		lanes = append(lanes, &incrementer.Lane{
			Name: s.Name, Source: s.Name, Definitions: mine,
			Counters: counter.NewLane(s.Name, client, checkpoints, states, mine),
			OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
				stages, err := counter.Pipeline(ds)
				if err != nil {
					return nil, fmt.Errorf("source %s: %w", s.Name, err)
				}
				return stream.NewChangeStream(client, s.ChangeStream.Database, s.ChangeStream.Collection, stages, c.Incrementer.MaxBatchEvents), nil
			},
			NewApplier: func(ds []*counter.Definition) incrementer.Applier {
				return counter.NewApplier(client, checkpoints, states, ds, mine, c.Incrementer.MaxBatchEvents,
					incrementer.Observer{Metrics: metrics, Source: s.Name, Lane: s.Name, Log: log})
			},
			IdleCheckpoint: c.Incrementer.IdleCheckpoint, StopWhenLost: s.OnPositionLost == "stop",
			State: state, Metrics: metrics, Log: log,
		})
	}
	return lanes
}

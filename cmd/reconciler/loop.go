package main

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// runSilence is how long a run may be at one batch of keys before the loop counts as stuck.
const runSilence = 10 * time.Minute

// loop reconciles every so often until ctx ends, and answers on its port meanwhile.
func loop(ctx context.Context, c *config.Config, definitions []*counter.Definition, options reconciler.Options) error {
	log := command.Logger(c.Log.Level, c.Log.Format)
	client, err := connect(ctx, c, definitions, options)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	options.Progress = logProgress(log)
	registry := daemon.NewRegistry(program)
	r := reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler, reconciler.NewMetrics(registry, definitions), log)
	health, readiness := daemon.NewHealth(), daemon.NewReadiness()
	heart := health.Loop("runs", runSilence)
	readiness.Add("runs", func(context.Context) error { return lastRun(r.Last()) })
	server, err := daemon.Listen(ctx, daemon.Options{
		Program: program, Listen: c.Reconciler.Listen, Log: log, Health: health, Readiness: readiness, Metrics: registry,
		Status: func(context.Context) (any, error) { return r.Last(), nil },
	})
	if err != nil {
		return err
	}
	log.Info("listening", "address", server.Addr())
	err = serve(ctx, server, func(ctx context.Context) error { return r.Run(ctx, options, heart) })
	if daemon.CleanStop(ctx, err) == nil {
		log.Info("stopped")
	}
	return err
}

// lastRun says why the last run failed. Before its end a first run, which may recount everything, is no reason to be
// unready: that the deployment serves was seen before.
func lastRun(s reconciler.Status) error {
	if s.Error == "" {
		return nil
	}
	return errors.New("the last run failed: " + s.Error)
}

// connect opens a client for what the options do, when everything is there.
func connect(ctx context.Context, c *config.Config, definitions []*counter.Definition, options reconciler.Options) (*mongo.Client, error) {
	use := deployment.Reconcile
	if options.DryRun {
		use = deployment.Verify
	}
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return nil, err
	}
	if err := deployment.Ready(ctx, client, c, definitions, use); err != nil {
		deployment.Close(ctx, client)
		return nil, err
	}
	return client, nil
}

// serve answers on the port for as long as work takes. A port that fails ends the work.
func serve(ctx context.Context, server *daemon.Server, work func(context.Context) error) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(serving) })
	group.Go(func() error {
		defer stopServing()
		return work(ctx)
	})
	return group.Wait()
}

package main

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sync/errgroup"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// runSilence is how long a run may take before the loop counts as stuck.
const runSilence = time.Hour

// loop reconciles every so often until ctx ends, and answers on its port meanwhile.
func loop(ctx context.Context, c *config.Config, definitions []*counter.Definition, options reconciler.Options) error {
	log := logger(c)
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	registry := daemon.NewRegistry(program)
	r := newReconciler(client, c, definitions, registry)
	health, readiness := daemon.NewHealth(), daemon.NewReadiness()
	heart := health.Loop("runs", runSilence)
	readiness.Add("last run", func(context.Context) error { return r.Last().Problem() })
	server, err := daemon.Listen(ctx, daemon.Options{
		Program: program, Listen: c.Reconciler.Listen, Log: log, Health: health, Readiness: readiness, Metrics: registry,
		Status: func(context.Context) (any, error) { return r.Last(), nil },
	})
	if err != nil {
		return err
	}
	log.Info("listening", "address", server.Addr())
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(ctx) })
	group.Go(func() error { return r.Run(ctx, options, heart) })
	err = group.Wait()
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	return err
}

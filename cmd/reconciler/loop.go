package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// runSilence is how long a run may be at one batch of keys before the loop counts as stuck.
const runSilence = 10 * time.Minute

// loop reconciles every so often, while this process leads, until ctx ends, and answers on its port meanwhile.
func loop(ctx context.Context, c *config.Config, definitions []*counter.Definition, options reconciler.Options) error {
	log := command.Logger(c.Log.Level, c.Log.Format)
	client, err := connect(ctx, c, definitions, options)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	options.Progress = logProgress(log)
	p := newProcess(client, c, definitions, options, log)
	p.watch.refresh(ctx) // what it finds, it tells
	server, err := daemon.Listen(ctx, p.serving())
	if err != nil {
		return err
	}
	log.Info("listening", "address", server.Addr())
	p.instance = command.Instance(server.Addr())
	p.leadership.Leases = checkpoint.NewLeases(client, c.MongoDB.StateDatabase, p.instance, c.Reconciler.Lease)
	err = serve(ctx, server, p.run)
	if daemon.CleanStop(ctx, err) == nil {
		log.Info("stopped")
	}
	return err
}

// process is what runs beside each other: the runs, while this process leads, and the watch over the state database.
type process struct {
	definitions []*counter.Definition
	options     reconciler.Options
	settings    config.Reconciler
	reconciler  *reconciler.Reconciler
	leadership  *reconciler.Leadership
	instance    string // the name among those that share the work
	watch       *watch
	registry    *prometheus.Registry
	health      *daemon.Health
	heart       *daemon.Heartbeat // of the runs
	log         *slog.Logger
}

func newProcess(client *mongo.Client, c *config.Config, definitions []*counter.Definition, options reconciler.Options, log *slog.Logger) *process {
	registry, health := daemon.NewRegistry(program), daemon.NewHealth()
	heart := health.Loop("runs", runSilence)
	return &process{
		definitions: definitions, options: options, settings: c.Reconciler,
		reconciler: reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler, reconciler.NewMetrics(registry, definitions), log),
		leadership: &reconciler.Leadership{
			Lane: reconciler.LeaderLane(definitions, options), Term: c.Reconciler.Lease, Heart: heart, Log: log,
		},
		watch: newWatch(client, c.MongoDB.StateDatabase, options.DryRun), registry: registry, health: health, heart: heart, log: log,
	}
}

// serving is what the port serves. Nothing of it asks the database: /healthz must not, and the rest need not.
func (p *process) serving() daemon.Options {
	return daemon.Options{
		Program: program, Listen: p.settings.Listen, Log: p.log, Health: p.health, Readiness: p.readiness(), Metrics: p.registry,
		Status: func(context.Context) (any, error) { return p.status(), nil },
	}
}

// run reconciles until ctx ends. A run that writes nothing disturbs nobody, and needs not lead.
func (p *process) run(ctx context.Context) error {
	runs := func(ctx context.Context) error { return p.reconciler.Run(ctx, p.options, p.heart) }
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.watch.run(ctx) })
	group.Go(func() error {
		if p.options.DryRun {
			return runs(ctx)
		}
		return p.leadership.Run(ctx, runs)
	})
	return group.Wait()
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

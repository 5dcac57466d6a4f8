package main

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
)

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run",
		Short: "Follow all sources; the main job",
		Long: "run follows all sources until it is stopped. The first SIGTERM or SIGINT lets it finish what is in flight, a second one\n" +
			"ends it at once; nothing is lost or applied twice either way. Its port serves /status, /healthz, /readyz and /metrics.\n" +
			"It exits with 4 when a position is lost and the source says on_position_lost: stop.",
		Example: "  incrementer run --config /etc/driftless.yaml\n" +
			"  DRIFTLESS_LOG_LEVEL=debug incrementer run --incrementer-listen 0.0.0.0:9464",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, definitions, err := command.Load(cmd)
			if err != nil {
				return err
			}
			if len(c.Sources) == 0 {
				return daemon.WithExitCode(errNothingToFollow, daemon.Config)
			}
			return daemon.CleanStop(cmd.Context(), run(cmd.Context(), c, counter.Followed(definitions)))
		},
	}
}

// errNothingToFollow: a file may declare only counters that the application keeps.
var errNothingToFollow = errors.New("there is nothing to follow: the configuration declares no sources, only counters that the application keeps, which `reconciler run` looks after")

// run wires the process: connect, look whether setup was run, the lanes of every source, one port, and this instance
// among those that share the lanes.
func run(ctx context.Context, c *config.Config, definitions []*counter.Definition) error {
	log := command.Logger(c.Log.Level, c.Log.Format)
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	if err := deployment.Ready(ctx, client, c, definitions, deployment.Follow); err != nil {
		return err
	}
	p, err := newProcess(client, c, definitions, log)
	if err != nil {
		return err
	}
	defer p.close()
	p.watch.refresh(ctx) // what it finds, it tells
	server, err := daemon.Listen(ctx, p.options(c.Incrementer.Listen))
	if err != nil {
		return err
	}
	log.Info("listening", "address", server.Addr())
	p.group.Leases = checkpoint.NewLeases(client, c.MongoDB.StateDatabase, command.Instance(server.Addr()), c.Incrementer.Lease)
	err = p.run(ctx, server)
	if daemon.CleanStop(ctx, err) == nil {
		log.Info("stopped")
	}
	if errors.Is(err, stream.ErrPositionLost) || errors.Is(err, stream.ErrCollectionChanged) {
		return daemon.WithExitCode(err, daemon.PositionLost)
	}
	return err
}

// process is what runs beside each other: the share of the lanes that is this instance's, and the watch over the state
// database.
type process struct {
	definitions []*counter.Definition
	lanes       []*incrementer.Lane // of change streams
	topics      []*topic
	sources     map[string]string // how each is followed, as a hash
	group       *incrementer.Group
	watch       *watch
	registry    *prometheus.Registry
	health      *daemon.Health
	log         *slog.Logger
}

func newProcess(client *mongo.Client, c *config.Config, definitions []*counter.Definition, log *slog.Logger) (*process, error) {
	p := &process{
		definitions: definitions, sources: map[string]string{}, group: &incrementer.Group{Term: c.Incrementer.Lease, Log: log},
		watch: newWatch(client, c.MongoDB.StateDatabase, log), registry: daemon.NewRegistry(program), health: daemon.NewHealth(), log: log,
	}
	if err := p.makeLanes(client, c); err != nil {
		return nil, err
	}
	p.group.Lanes, p.group.Sources = p.lanes, p.sources
	return p, nil
}

func (p *process) close() {
	for _, t := range p.topics {
		t.Client.Close()
	}
}

// allLanes are those that this process follows or stands by for, in the order of their sources.
func (p *process) allLanes() []*incrementer.Lane {
	all := slices.Clone(p.lanes)
	for _, t := range p.topics {
		all = append(all, t.Lanes()...)
	}
	return all
}

// options are what the port serves. Nothing of it asks the database: /healthz must not, and the rest need not.
func (p *process) options(listen string) daemon.Options {
	return daemon.Options{
		Program: program, Listen: listen, Log: p.log, Health: p.health, Readiness: p.readiness(), Metrics: p.registry,
		Status: func(context.Context) (any, error) { return p.status(), nil },
	}
}

// run follows the lanes until ctx ends or one of them fails for good. A port that fails ends the lanes; lanes that drain
// leave the port to answer until they are done.
func (p *process) run(ctx context.Context, server *daemon.Server) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(serving) })
	group.Go(func() error {
		defer stopServing()
		return p.follow(ctx)
	})
	return group.Wait()
}

func (p *process) follow(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.group.Run(ctx) })
	group.Go(func() error { return p.watch.run(ctx) })
	for _, t := range p.topics {
		group.Go(func() error { return t.Run(ctx) })
	}
	return group.Wait()
}

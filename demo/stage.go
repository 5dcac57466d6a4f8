package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

const (
	source      = "comments"
	counterName = "comments_per_post"
	incrementer = "incrementer"
	reconciler  = "reconciler"

	prepareLimit = 3 * time.Minute // a download and a build included
	clearLimit   = 20 * time.Second
)

// stage is what the demo stands on, all of it removed by clear.
type stage struct {
	dir         string
	names       names
	drop        bool             // the databases, at the end
	mongod      *realtest.Mongod // nil on a server of the user's
	client      *mongo.Client
	programs    *programs
	config      *config.Config
	definition  *counter.Definition
	checkpoints *checkpoint.Store
	states      *counter.States
}

// names are the databases, ours alone also on a server of the user's.
type names struct{ app, state string }

// setStage builds everything up to a database with rows and counters, ready for `incrementer run`. ctx ends at the
// first Ctrl-C.
func setStage(ctx context.Context, s settings, progress io.Writer) (*stage, error) {
	ctx, cancel := context.WithTimeout(ctx, prepareLimit)
	defer cancel()
	stage := &stage{}
	err := safely(func() error { return stage.set(ctx, s, progress) })
	if err == nil {
		return stage, nil
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		err = errors.New("interrupted before it began")
	}
	return nil, errors.Join(err, stage.clear(ctx, false))
}

// set is the story of the preparation.
func (s *stage) set(ctx context.Context, chosen settings, progress io.Writer) (err error) {
	if s.dir, err = os.MkdirTemp("", "driftless-demo-"); err != nil {
		return fmt.Errorf("create folder: %w", err)
	}
	say(progress, "demo: building the two binaries")
	if err := build(ctx, s.dir); err != nil {
		return err
	}
	if err := s.openServer(ctx, chosen.uri, progress); err != nil {
		return err
	}
	if err := s.configure(); err != nil {
		return err
	}
	if err := seed(ctx, s.client.Database(s.names.app)); err != nil {
		return err
	}
	_, err = s.programs.output(ctx, incrementer, "setup")
	return err
}

// openServer uses the user's server, or starts one.
func (s *stage) openServer(ctx context.Context, uri string, progress io.Writer) error {
	s.names = names{app: "app", state: "driftless"}
	if uri != "" {
		s.names = ownNames()
		say(progress, "demo: using MONGODB_URI, databases %s and %s, dropped at the end", s.names.app, s.names.state)
	} else {
		if err := getMongod(ctx, progress); err != nil {
			return err
		}
		say(progress, "demo: starting a private replica set")
		mongod, err := realtest.StartMongod(ctx, realtest.Options{LogTo: s.path("mongod.log"), OplogMB: 1024})
		if err != nil {
			return err
		}
		s.mongod, uri = mongod, mongod.URI()
	}
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetAppName("driftless-demo").
		SetServerSelectionTimeout(20 * time.Second))
	if err != nil {
		return fmt.Errorf("connect to MongoDB: %w", err)
	}
	s.client, s.programs = client, newPrograms(s.dir, uri)
	if err := client.Ping(ctx, nil); err != nil {
		return fmt.Errorf("connect to MongoDB: %w", err)
	}
	s.drop = s.mongod == nil
	return nil
}

// configure writes the configuration file and reads it back as the binaries do.
func (s *stage) configure() error {
	text, err := configuration(s.names)
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.programs.configPath(), []byte(text), 0o600); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	s.config, err = config.Load(config.Options{File: s.programs.configPath(), Env: s.programs.lookup})
	if err != nil {
		return fmt.Errorf("read configuration: %w", err)
	}
	declared, ok := s.config.Counter(counterName)
	if !ok {
		return fmt.Errorf("read configuration: no counter %s", counterName)
	}
	s.definition, err = counter.Define(*declared)
	s.checkpoints = checkpoint.NewStore(s.client, s.names.state)
	s.states = counter.NewStates(s.client, s.names.state)
	return err
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

// clear ends every process and removes every file and database; with keep, the logs and the configuration stay.
func (s *stage) clear(ctx context.Context, keep bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), clearLimit) // whatever ended the demo, this is done
	defer cancel()
	var faults []error
	if s.programs != nil {
		s.programs.killAll()
	}
	if s.client != nil {
		if s.drop {
			faults = append(faults, s.client.Database(s.names.app).Drop(ctx), s.client.Database(s.names.state).Drop(ctx))
		}
		faults = append(faults, s.client.Disconnect(ctx))
	}
	if s.mongod != nil {
		faults = append(faults, s.mongod.Stop())
	}
	if keep {
		return errors.Join(append(faults, removeBinaries(s.dir))...)
	}
	return errors.Join(append(faults, os.RemoveAll(s.dir))...)
}

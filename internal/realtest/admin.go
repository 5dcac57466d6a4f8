package realtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// admin runs f with a client for this server alone. Before there is a user, the server lets us in because we are local.
func (m *Mongod) admin(ctx context.Context, f func(*mongo.Database) error) error {
	return m.adminAt(ctx, m.directURI(), f)
}

func (m *Mongod) adminAt(ctx context.Context, uri string, f func(*mongo.Database) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(2 * time.Second))
	if err != nil {
		return fmt.Errorf("connect to mongod: %w", err)
	}
	err = f(client.Database("admin"))
	return errors.Join(err, client.Disconnect(context.WithoutCancel(ctx)))
}

func (m *Mongod) anonymous(ctx context.Context, f func(*mongo.Database) error) error {
	return m.adminAt(ctx, mongoURI(Options{}, "directConnection=true", m), f)
}

// initiate makes the members a replica set. Elections are quicker than the server's ten seconds: tests wait for them.
func (m *Mongod) initiate(ctx context.Context, members []*Mongod) error {
	list := make(bson.A, len(members))
	for i, member := range members {
		list[i] = bson.D{{Key: "_id", Value: i}, {Key: "host", Value: member.Addr()}}
	}
	config := bson.D{
		{Key: "_id", Value: replicaSetName},
		{Key: "members", Value: list},
		{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: 2000},
			{Key: "heartbeatIntervalMillis", Value: 500},
		}},
	}
	return m.anonymous(ctx, func(admin *mongo.Database) error {
		if err := admin.RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: config}}).Err(); err != nil {
			return fmt.Errorf("initiate replica set: %w", err)
		}
		return nil
	})
}

// role is what a server says about itself.
type role struct {
	Writable  bool `bson:"isWritablePrimary"`
	Secondary bool `bson:"secondary"`
}

func (m *Mongod) waitReady(ctx context.Context) error {
	err := m.waitRole(ctx, func(r role) bool { return r.Writable || m.options.inSet && r.Secondary })
	if err != nil {
		return fmt.Errorf("wait until %s is ready: %w", m.Addr(), err)
	}
	return nil
}

// waitRole asks without credentials: hello needs none, and there may be no user yet.
func (m *Mongod) waitRole(ctx context.Context, want func(role) bool) error {
	return m.anonymous(ctx, func(admin *mongo.Database) error {
		return poll(ctx, func(ctx context.Context) (bool, error) {
			r, err := hello(ctx, admin)
			return err == nil && want(r), nil // not answering is one more reason to go on waiting
		})
	})
}

func hello(ctx context.Context, admin *mongo.Database) (role, error) {
	var r role
	err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&r)
	return r, err
}

// createRoot creates the user that the options ask for. Until the first user exists the server trusts local connections.
func (m *Mongod) createRoot(ctx context.Context) error {
	if !m.options.Auth {
		return nil
	}
	return m.anonymous(ctx, func(admin *mongo.Database) error {
		err := admin.RunCommand(ctx, bson.D{
			{Key: "createUser", Value: RootUser},
			{Key: "pwd", Value: RootPassword},
			{Key: "roles", Value: bson.A{"root"}},
		}).Err()
		if err != nil {
			return fmt.Errorf("create user: %w", err)
		}
		return nil
	})
}

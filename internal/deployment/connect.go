// Package deployment is the database side of an installation: connecting to it, what must be there, and creating it.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/config"
)

const (
	// connectTimeout bounds the first look at a deployment.
	connectTimeout = 20 * time.Second
	// heartbeat is how soon the driver sees a new primary.
	heartbeat = 2 * time.Second
	// oldestWireVersion is MongoDB 6.0's: the first with both images of a change.
	oldestWireVersion = 17
)

// Connect opens a client and makes sure that the deployment can serve driftless: a replica set of MongoDB 6.0 or later
// with a primary. The errors say what to do. Nothing of ours has a time limit for the whole client: a getMore may take
// as long as the server scans.
func Connect(ctx context.Context, c config.MongoDB, program string) (*mongo.Client, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(c.URI).
		SetAppName("driftless-" + program).SetHeartbeatInterval(heartbeat).SetServerSelectionTimeout(connectTimeout))
	if err != nil {
		return nil, fmt.Errorf("open mongodb.uri (%s): %w", c, err)
	}
	if err := inspect(ctx, client, c); err != nil {
		_ = client.Disconnect(context.WithoutCancel(ctx))
		return nil, err
	}
	return client, nil
}

// hello is what the server says of itself.
type hello struct {
	SetName        string `bson:"setName"`
	Msg            string `bson:"msg"`
	MaxWireVersion int    `bson:"maxWireVersion"`
}

func inspect(ctx context.Context, client *mongo.Client, c config.MongoDB) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var h hello
	// Any server answers this, also one that is no primary or no member of a set: it is asked what it is first.
	err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}},
		options.RunCmd().SetReadPreference(readpref.Nearest())).Decode(&h)
	if err != nil {
		return explainConnect(err, c)
	}
	switch {
	case h.Msg == "isdbgrid":
		return errors.New("mongodb.uri leads to a mongos: a sharded cluster shows the rows of a transaction at another time " +
			"than its change events, so counts from change streams cannot be exact there; use a replica set, or a Kafka source")
	case h.SetName == "":
		return errors.New("mongodb.uri leads to a standalone mongod, which has neither change streams nor transactions: " +
			"restart it with --replSet rs0 and run rs.initiate() once")
	case h.MaxWireVersion < oldestWireVersion:
		return errors.New("the server is older than MongoDB 6.0, which is the first to keep the image of a row before a change: upgrade it")
	}
	// Reads something as this user: a wrong password is told by the first command that needs one.
	if err := client.Ping(ctx, readpref.Primary()); err != nil {
		return explainConnect(err, c)
	}
	return nil
}

// explainConnect turns the driver's error into one line with what to do.
func explainConnect(err error, c config.MongoDB) error {
	const authenticationFailed = 18
	var server mongo.ServerError
	switch {
	case errors.As(err, &server) && server.HasErrorCode(authenticationFailed):
		return fmt.Errorf("MongoDB refuses the user name or password of mongodb.uri (%s): correct it, or authSource", c)
	case mongo.IsTimeout(err), mongo.IsNetworkError(err), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no usable MongoDB at mongodb.uri (%s): check host, port, replicaSet and TLS: %w", c, err)
	default:
		return fmt.Errorf("ask MongoDB at mongodb.uri (%s) what it is: %w", c, err)
	}
}

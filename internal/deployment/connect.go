// Package deployment is the database side of an installation: connecting to it, what the user of it may do, what must be
// there, and creating it.
package deployment

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/config"
)

const (
	// selectionTimeout is how long an operation waits for a server to take it, unless the connection string says.
	selectionTimeout = 20 * time.Second
	// heartbeat is how soon the driver sees a new primary, unless the connection string says.
	heartbeat = 2 * time.Second
	// answerTimeout bounds what the first look may take once a server was found: it may be one that only listens.
	answerTimeout = 10 * time.Second
	// closeTimeout bounds the farewell: a server that is gone would be told about our sessions until it is back.
	closeTimeout = 2 * time.Second
)

// Connect opens a client and makes sure that the deployment can serve driftless: a replica set of MongoDB 6.0 or later
// with a primary that knows the user. The errors say what to do. Close ends it.
func Connect(ctx context.Context, c config.MongoDB, program string) (*mongo.Client, error) {
	met := newSightings()
	opts := clientOptions(c, program).SetServerMonitor(met.monitor())
	// Nothing of ours has a time limit for the whole client: a getMore may take as long as the server scans, and one cut
	// off would start over for ever.
	if opts.Timeout != nil && *opts.Timeout > 0 {
		return nil, &Fault{Found: "mongodb.uri sets timeoutMS, which would cut off the wait for changes", Fix: "remove it"}
	}
	client, err := mongo.Connect(opts)
	if err != nil {
		return nil, fmt.Errorf("open mongodb.uri (%s): %s", address(c), withoutPassword(err, c))
	}
	if err := inspect(ctx, client, *opts.ServerSelectionTimeout+answerTimeout); err != nil {
		defer Close(ctx, client)
		return nil, explainConnect(err, c, met.why(setName(opts)), met.leaderless(setName(opts)))
	}
	return client, nil
}

// clientOptions are our defaults under what the connection string says.
func clientOptions(c config.MongoDB, program string) *options.ClientOptions {
	return options.Client().SetAppName("driftless-" + program).SetHeartbeatInterval(heartbeat).
		SetServerSelectionTimeout(selectionTimeout).ApplyURI(c.URI)
}

func setName(opts *options.ClientOptions) string {
	if opts.ReplicaSet == nil {
		return ""
	}
	return *opts.ReplicaSet
}

// Close ends a client, also after ctx has ended.
func Close(ctx context.Context, client *mongo.Client) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	_ = client.Disconnect(ctx) // what did not hear of it forgets us by itself
}

// inspect returns a servingError for a deployment that cannot serve driftless, else the driver's error.
func inspect(ctx context.Context, client *mongo.Client, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// Any server answers this, also one that is no primary or no member of a set: it is asked what it is first.
	h, err := greet(ctx, client, readpref.Nearest())
	if err != nil {
		return err
	}
	if err := h.fault(); err != nil {
		return err
	}
	// Needs a user where the server asks for one, but no privilege: a missing user is told here and not by whatever comes first.
	return client.Database("admin").RunCommand(ctx, bson.D{
		{Key: "listDatabases", Value: 1}, {Key: "nameOnly", Value: true}, {Key: "authorizedDatabases", Value: true},
		{Key: "filter", Value: bson.D{{Key: "name", Value: "admin"}}},
	}, options.RunCmd().SetReadPreference(readpref.Primary())).Err()
}

func greet(ctx context.Context, client *mongo.Client, which *readpref.ReadPref) (h hello, err error) {
	err = client.Database("admin").RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}, options.RunCmd().SetReadPreference(which)).Decode(&h)
	return h, err
}

// Error codes of the server.
const (
	codeUnauthorized         = 13
	codeAuthenticationFailed = 18
	codeNamespaceNotFound    = 26
	codeNamespaceExists      = 48
)

// address names the deployment without the password.
func address(c config.MongoDB) string {
	text, _, _ := strings.Cut(c.String(), ", state in ")
	return text
}

// explainConnect turns the driver's error into a Fault. why is what the servers said, "" for nothing; leaderless that they
// are members of a set without a primary.
func explainConnect(err error, c config.MongoDB, why string, leaderless bool) error {
	var serving servingError
	var server mongo.ServerError
	switch {
	case errors.As(err, &serving):
		return &Fault{Found: "mongodb.uri leads to " + serving.what, Fix: serving.fix}
	case errors.As(err, &server) && server.HasErrorCode(codeAuthenticationFailed):
		return &Fault{Found: fmt.Sprintf("MongoDB refuses the user name or password of mongodb.uri (%s)", address(c)),
			Fix: "correct it, or authSource"}
	case errors.As(err, &server) && server.HasErrorCode(codeUnauthorized):
		return &Fault{Found: fmt.Sprintf("MongoDB asks for a user, and mongodb.uri (%s) names none", address(c)),
			Fix: "put user:password@ in front of the host, best in a file that mongodb.uri_file names"}
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("connect to mongodb.uri (%s): %w", address(c), context.Canceled)
	case leaderless && (mongo.IsTimeout(err) || mongo.IsNetworkError(err)):
		return &Fault{Found: fmt.Sprintf("the replica set of mongodb.uri (%s) has no primary: %s", address(c), why),
			Fix: "bring back so many members that they are a majority, see rs.status()"}
	case mongo.IsTimeout(err), mongo.IsNetworkError(err):
		if why == "" {
			why = "no server answers"
		}
		return &Fault{Found: fmt.Sprintf("no usable MongoDB at mongodb.uri (%s): %s", address(c), why),
			Fix: "check host, port, replicaSet and TLS"}
	default:
		return fmt.Errorf("ask MongoDB at mongodb.uri (%s) what it is: %s", address(c), withoutPassword(err, c))
	}
}

// withoutPassword is the text of an error of the driver, which may quote what it stumbles over.
func withoutPassword(err error, c config.MongoDB) string {
	text := err.Error()
	authority, _, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(c.URI, "mongodb+srv://"), "mongodb://"), "/")
	if end := strings.LastIndex(authority, "@"); end >= 0 {
		_, password, _ := strings.Cut(authority[:end], ":")
		plain, _ := url.PathUnescape(password)
		for _, secret := range []string{password, plain} {
			if secret != "" {
				text = strings.ReplaceAll(text, secret, "***")
			}
		}
	}
	return text
}

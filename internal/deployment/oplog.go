package deployment

import (
	"context"
	"errors"
	"fmt"

	"driftless/internal/stream"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
)

// ErrNoOplog means that the user may not read the oplog.
var ErrNoOplog = errors.New("the user of mongodb.uri may not read local.oplog.rs")

// readOplog is what it takes to read it.
var readOplog = Privilege{"local", "oplog.rs", []string{"find"}}

// change is one entry of the oplog.
type change struct {
	At bson.Timestamp `bson:"ts"`
	Op struct {
		Message any `bson:"msg"`
	} `bson:"o"`
}

// The two ends of the oplog, by the order to look for them in.
const (
	oldest = 1
	newest = -1
)

// oplogEnd reads an end of the primary's oplog.
func oplogEnd(ctx context.Context, client *mongo.Client, order int) (change, error) {
	var end change
	err := client.Database(readOplog.Database, options.Database().SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Local())).
		Collection(readOplog.Collection).
		FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: order}}).
			SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "o.msg", Value: 1}})).Decode(&end)
	return end, err
}

// Oldest returns the cluster time of the oldest change that the primary keeps: a position before it cannot be resumed.
func Oldest(ctx context.Context, client *mongo.Client) (bson.Timestamp, error) {
	end, err := oplogEnd(ctx, client, oldest)
	switch {
	case stream.HasCode(err, codeUnauthorized):
		return bson.Timestamp{}, ErrNoOplog
	case err != nil:
		return bson.Timestamp{}, fmt.Errorf("read the oldest change: %w", err)
	}
	return end.At, nil
}

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

// Oldest returns the cluster time of the oldest change that the primary keeps: a position before it cannot be resumed.
func Oldest(ctx context.Context, client *mongo.Client) (bson.Timestamp, error) {
	var entry struct {
		At bson.Timestamp `bson:"ts"`
	}
	oplog := client.Database("local", options.Database().SetReadPreference(readpref.Primary()).SetReadConcern(readconcern.Local())).
		Collection("oplog.rs")
	err := oplog.FindOne(ctx, bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).
		SetProjection(bson.D{{Key: "ts", Value: 1}})).Decode(&entry)
	switch {
	case stream.HasCode(err, codeUnauthorized):
		return bson.Timestamp{}, ErrNoOplog
	case err != nil:
		return bson.Timestamp{}, fmt.Errorf("read the oldest change: %w", err)
	}
	return entry.At, nil
}

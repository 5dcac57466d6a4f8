package counter

import (
	"context"
	"fmt"

	"driftless/internal/stream"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Snapshot runs read with a context in which every read of any collection sees the database as of one cluster time: at,
// or the latest that a majority has when at is zero.
func Snapshot(ctx context.Context, client *mongo.Client, at bson.Timestamp, read func(context.Context) error) error {
	opts := options.Session().SetSnapshot(true)
	if !at.IsZero() {
		opts.SetSnapshotTime(at)
	}
	session, err := client.StartSession(opts)
	if err != nil {
		return fmt.Errorf("start snapshot session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	return read(mongo.NewSessionContext(ctx, session))
}

// IsSnapshotGone reports whether the server no longer keeps the snapshot that was asked for: by default it keeps 300
// seconds. SnapshotTooOld, SnapshotUnavailable.
func IsSnapshotGone(err error) bool { return stream.HasCode(err, 239, 246) }

// Writes are the cluster times of the last write that the primary has, and that a majority has.
type Writes struct{ Primary, Majority bson.Timestamp }

// LastWrites asks the primary, as anybody may.
func LastWrites(ctx context.Context, client *mongo.Client) (Writes, error) {
	type opTime struct {
		At bson.Timestamp `bson:"ts"`
	}
	var hello struct {
		LastWrite struct {
			OpTime         opTime `bson:"opTime"`
			MajorityOpTime opTime `bson:"majorityOpTime"`
		} `bson:"lastWrite"`
	}
	err := database(client, "admin").RunCommand(ctx, one("hello", 1)).Decode(&hello)
	if err != nil {
		return Writes{}, fmt.Errorf("ask for the last write: %w", err)
	}
	return Writes{hello.LastWrite.OpTime.At, hello.LastWrite.MajorityOpTime.At}, nil
}

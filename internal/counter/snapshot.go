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

// LastWrite is the cluster time of the primary's last write, a majority has it or not. Anybody may ask.
func LastWrite(ctx context.Context, client *mongo.Client) (bson.Timestamp, error) {
	var hello struct {
		LastWrite struct {
			OpTime struct {
				At bson.Timestamp `bson:"ts"`
			} `bson:"opTime"`
		} `bson:"lastWrite"`
	}
	err := database(client, "admin").RunCommand(ctx, one("hello", 1)).Decode(&hello)
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("ask for the last write: %w", err)
	}
	return hello.LastWrite.OpTime.At, nil
}

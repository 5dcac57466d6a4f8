package incrementer

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/stream/kafka"
)

// Places are where a lane may begin, as resume tokens.
type Places struct {
	Client *kafka.Client
	Start  string // earliest, latest or an RFC 3339 time: where one begins that was never followed
}

// Beginning is where a partition begins that was never followed; fresh, with its first record.
func (p Places) Beginning(ctx context.Context, partition int, fresh bool) (bson.Raw, error) {
	switch {
	case fresh, p.Start == "earliest", p.Start == "":
		return p.token(ctx, partition, kafka.Earliest, oldest)
	case p.Start == "latest":
		return p.End(ctx, partition)
	}
	at, err := time.Parse(time.RFC3339, p.Start)
	if err != nil {
		return nil, fmt.Errorf("start %q: %w", p.Start, err)
	}
	return p.token(ctx, partition, kafka.At(at), at)
}

// oldest is before the time of every record.
var oldest = time.Unix(1, 0)

// End is behind the last record of a partition.
func (p Places) End(ctx context.Context, partition int) (bson.Raw, error) {
	now := time.Now() // before the broker is asked
	return p.token(ctx, partition, kafka.Latest, now)
}

// Partitions is how many the topic has.
func (p Places) Partitions(ctx context.Context) (int, error) {
	topic, err := p.Client.Topic(ctx)
	return len(topic.Partitions), err
}

func (p Places) token(ctx context.Context, partition int, place kafka.Place, through time.Time) (bson.Raw, error) {
	topic, err := p.Client.Topic(ctx)
	if err != nil {
		return nil, err
	}
	positions, err := p.Client.Positions(ctx, topic, place)
	if err != nil {
		return nil, err
	}
	at, ok := positions[int32(partition)] //nolint:gosec // a partition's number
	if !ok {
		return nil, fmt.Errorf("%w: it has no partition %d", kafka.ErrUnknownTopic, partition)
	}
	return token(at, through), nil
}

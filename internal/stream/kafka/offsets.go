package kafka

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol/listoffsets"
)

// Place names an offset in every partition: [Earliest], [Latest] or [At] a time.
type Place struct{ millis int64 }

// The ends of a partition. Latest is the last stable offset: a transaction that is under way will be read.
var (
	Earliest = Place{millis: -2}
	Latest   = Place{millis: -1}
)

// At is the first record of that time or later, by the records' own time, else the end.
func At(t time.Time) Place { return Place{millis: t.UnixMilli()} }

// Positions looks up a place in each of the partitions of a topic, as [Client.Topic] gave it.
func (c *Client) Positions(ctx context.Context, topic Topic, place Place) (map[int32]Position, error) {
	offsets, err := c.offsets(ctx, topic, place, readCommitted)
	if err != nil {
		return nil, fmt.Errorf("look up offsets of %s: %w", c.options.Topic, err)
	}
	positions := make(map[int32]Position, len(offsets))
	for partition, offset := range offsets {
		positions[partition] = Position{Topic: topic.ID, Offset: offset, Epoch: -1}
	}
	missing := Topic{ID: topic.ID}
	for _, p := range topic.Partitions {
		if positions[p.ID].Offset < 0 { // no record is so late
			missing.Partitions = append(missing.Partitions, p)
		}
	}
	if len(missing.Partitions) == 0 {
		return positions, nil
	}
	ends, err := c.Positions(ctx, missing, Latest)
	for partition, end := range ends {
		positions[partition] = end
	}
	return positions, err
}

// offsets asks each leader once for its partitions. An offset of -1 means that there is none.
func (c *Client) offsets(ctx context.Context, topic Topic, place Place, isolation int8) (map[int32]int64, error) {
	byLeader := map[int32][]listoffsets.RequestPartition{}
	for _, p := range topic.Partitions {
		if _, err := topic.find(p.ID); err != nil {
			return nil, err
		}
		byLeader[p.Leader] = append(byLeader[p.Leader], listoffsets.RequestPartition{
			Partition: p.ID, CurrentLeaderEpoch: p.Epoch, Timestamp: place.millis,
		})
	}
	offsets := make(map[int32]int64, len(topic.Partitions))
	for leader, partitions := range byLeader {
		answer, err := c.roundTrip(ctx, leader, 0, &listoffsets.Request{
			ReplicaID: -1, IsolationLevel: isolation,
			Topics: []listoffsets.RequestTopic{{Topic: c.options.Topic, Partitions: partitions}},
		})
		if err != nil {
			return nil, err
		}
		for _, t := range answer.(*listoffsets.Response).Topics {
			for _, p := range t.Partitions {
				if p.ErrorCode != 0 {
					return nil, fmt.Errorf("partition %d: %w", p.Partition, Classify(kafka.Error(p.ErrorCode)))
				}
				offsets[p.Partition] = p.Offset
			}
		}
	}
	return offsets, nil
}

// bounds are the first offset of a partition and the one behind its last record.
func (c *Client) bounds(ctx context.Context, topic Topic, partition int32) (first, end int64, err error) {
	topic.Partitions = slices.DeleteFunc(slices.Clone(topic.Partitions), func(p Partition) bool { return p.ID != partition })
	const readUncommitted = 0
	firsts, err := c.offsets(ctx, topic, Earliest, readUncommitted)
	if err != nil {
		return 0, 0, err
	}
	ends, err := c.offsets(ctx, topic, Latest, readUncommitted)
	return firsts[partition], ends[partition], err
}

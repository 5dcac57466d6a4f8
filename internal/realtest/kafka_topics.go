package realtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
)

// Client speaks to the listener that asks for nothing: access lists, groups' offsets and what else tests look up or change.
func (k *Kafka) Client() *kafka.Client { return k.client }

// Topic creates a topic with a name of its own on a broker and deletes it at cleanup. The settings are the topic's
// ("cleanup.policy", …) and may be nil.
func (k *Kafka) Topic(t testing.TB, partitions int, settings map[string]string) string {
	t.Helper()
	name := databaseName(t.Name())
	if err := k.CreateTopic(t.Context(), name, partitions, settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		// A broker or topic that the test has ended has taken it along.
		_ = k.DeleteTopic(ctx, name)
	})
	return name
}

// CreateTopic creates a topic, and returns when it can be written to.
func (k *Kafka) CreateTopic(ctx context.Context, name string, partitions int, settings map[string]string) error {
	config := kafka.TopicConfig{Topic: name, NumPartitions: partitions, ReplicationFactor: 1}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		config.ConfigEntries = append(config.ConfigEntries, kafka.ConfigEntry{ConfigName: key, ConfigValue: settings[key]})
	}
	err := k.retry(ctx, func(ctx context.Context) error {
		response, err := k.client.CreateTopics(ctx, &kafka.CreateTopicsRequest{Topics: []kafka.TopicConfig{config}})
		if err != nil {
			return err
		}
		return response.Errors[name]
	})
	if err != nil {
		return fmt.Errorf("create topic: %w", err)
	}
	return k.waitPartitions(ctx, name, partitions)
}

// DeleteTopic deletes a topic. It is gone when this returns.
func (k *Kafka) DeleteTopic(ctx context.Context, name string) error {
	err := k.retry(ctx, func(ctx context.Context) error {
		response, err := k.client.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{name}})
		if err != nil {
			return err
		}
		return response.Errors[name]
	})
	if err != nil {
		return fmt.Errorf("delete topic: %w", err)
	}
	return k.waitPartitions(ctx, name, 0)
}

// GrowTopic gives a topic more partitions, so that it has so many.
func (k *Kafka) GrowTopic(ctx context.Context, name string, partitions int) error {
	err := k.retry(ctx, func(ctx context.Context) error {
		response, err := k.client.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
			Topics: []kafka.TopicPartitionsConfig{{Name: name, Count: int32(partitions)}}, //nolint:gosec // a few
		})
		if err != nil {
			return err
		}
		return response.Errors[name]
	})
	if err != nil {
		return fmt.Errorf("add partitions: %w", err)
	}
	return k.waitPartitions(ctx, name, partitions)
}

// waitPartitions returns when the broker shows so many partitions, each with a leader, to our client.
func (k *Kafka) waitPartitions(ctx context.Context, topic string, want int) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		response, err := k.client.Metadata(ctx, &kafka.MetadataRequest{Topics: []string{topic}})
		if err != nil || len(response.Topics) != 1 {
			return false, nil //nolint:nilerr // not known yet
		}
		found := 0
		for _, p := range response.Topics[0].Partitions {
			if p.Error == nil && p.Leader.Port != 0 {
				found++
			}
		}
		return found == want && (want > 0 || response.Topics[0].Error != nil), nil
	})
}

// DeleteRecords drops what stands before an offset of a partition, as retention does.
func (k *Kafka) DeleteRecords(ctx context.Context, topic string, partition int32, before int64) error {
	_, err := k.transport.RoundTrip(ctx, k.client.Addr, &deleteRecords{topic: topic, partition: partition, before: before})
	if err != nil {
		return fmt.Errorf("delete records: %w", err)
	}
	return nil
}

// deleteRecords is a request that kafka-go does not know, https://kafka.apache.org/protocol.html#The_Messages_DeleteRecords, version 1.
type deleteRecords struct {
	topic     string
	partition int32
	before    int64
}

func (*deleteRecords) ApiKey() protocol.ApiKey                 { return protocol.DeleteRecords } //nolint:revive // kafka-go's name
func (*deleteRecords) Required(map[protocol.ApiKey]int16) bool { return true }

func (d *deleteRecords) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	b := make([]byte, 4, 64)
	b = binary.BigEndian.AppendUint16(b, uint16(protocol.DeleteRecords))
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint32(b, 1)                    // correlation
	b = binary.BigEndian.AppendUint16(b, 0xffff)               // no client id
	b = binary.BigEndian.AppendUint32(b, 1)                    // topics
	b = binary.BigEndian.AppendUint16(b, uint16(len(d.topic))) //nolint:gosec // at most 249
	b = append(b, d.topic...)
	b = binary.BigEndian.AppendUint32(b, 1)                   // partitions
	b = binary.BigEndian.AppendUint32(b, uint32(d.partition)) //nolint:gosec // bits
	b = binary.BigEndian.AppendUint64(b, uint64(d.before))    //nolint:gosec // bits
	b = binary.BigEndian.AppendUint32(b, 10_000)              // ms
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))           //nolint:gosec // short
	if _, err := rw.Write(b); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(rw, size[:]); err != nil {
		return nil, err
	}
	reply := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(rw, reply); err != nil {
		return nil, err
	}
	// One topic with one partition: the error code comes last.
	if code := int16(binary.BigEndian.Uint16(reply[len(reply)-2:])); code != 0 { //nolint:gosec // bits
		return nil, kafka.Error(code)
	}
	return d, nil
}

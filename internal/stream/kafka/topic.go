package kafka

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"driftless/internal/stream"
)

// Topic is the topic as the cluster shows it now.
type Topic struct {
	ID         TopicID
	Partitions []Partition // in the order of their ids
}

// Partition is one of a topic's.
type Partition struct {
	ID     int32
	Leader int32 // the broker to ask, -1 while there is none
	Epoch  int32 // of the leader: one more with each change
}

// Topic looks the topic up: its id, and its partitions, which may have become more. A topic that is not there is
// [ErrUnknownTopic].
func (c *Client) Topic(ctx context.Context) (Topic, error) {
	answer, err := c.roundTrip(ctx, anyBroker, 0, &metadata{name: c.options.Topic})
	if err != nil {
		return Topic{}, fmt.Errorf("look up topic %s: %w", c.options.Topic, err)
	}
	m := answer.(*metadata)
	if m.code != 0 {
		return Topic{}, fmt.Errorf("look up topic %s: %w", c.options.Topic, Classify(kafka.Error(m.code)))
	}
	if m.topic.ID == (TopicID{}) {
		return Topic{}, fmt.Errorf("look up topic %s: %w: it gives topics no id", c.options.Topic, ErrTooOld)
	}
	return m.topic, nil
}

// metadata asks for one topic, https://kafka.apache.org/protocol.html#The_Messages_Metadata
type metadata struct {
	name  string
	code  int16
	topic Topic
}

func (*metadata) ApiKey() protocol.ApiKey { return protocol.Metadata } //nolint:revive // kafka-go's name
func (*metadata) apiVersion() int16       { return 12 }                // the first with topic ids in both directions, Kafka 3.1

func (m *metadata) encode(e *encoder) {
	e.length(1)
	e.uuid(TopicID{}) // by name
	e.text(m.name)
	e.tags()
	e.byte(0) // do not create it
	e.byte(0) // authorized operations
	e.tags()
}

func (m *metadata) decode(d *decoder) error {
	d.int32() // throttle time
	for range d.length() {
		d.int32() // id
		d.bytes() // host
		d.int32() // port
		d.bytes() // rack
		d.tags(nil)
	}
	d.bytes() // cluster id
	d.int32() // controller
	m.code = int16(kafka.UnknownTopicOrPartition)
	for range d.length() {
		m.code = d.int16()
		d.bytes() // name
		m.topic.ID = d.uuid()
		d.take(1) // internal
		m.decodePartitions(d)
		d.int32() // authorized operations
		d.tags(nil)
	}
	d.tags(nil)
	return d.err
}

func (m *metadata) decodePartitions(d *decoder) {
	m.topic.Partitions = make([]Partition, d.length())
	for i := range m.topic.Partitions {
		d.int16() // error code: without a leader, and that is -1 then
		m.topic.Partitions[i] = Partition{ID: d.int32(), Leader: d.int32(), Epoch: d.int32()}
		for range 3 { // replicas, in sync, offline
			for range d.length() {
				d.int32()
			}
		}
		d.tags(nil)
	}
	slices.SortFunc(m.topic.Partitions, func(a, b Partition) int { return cmp.Compare(a.ID, b.ID) })
}

// find returns a partition by its id.
func (t Topic) find(partition int32) (Partition, error) {
	i, found := slices.BinarySearchFunc(t.Partitions, partition, func(p Partition, id int32) int { return cmp.Compare(p.ID, id) })
	if !found {
		return Partition{}, fmt.Errorf("%w: it has no partition %d", ErrUnknownTopic, partition)
	}
	if t.Partitions[i].Leader < 0 {
		return Partition{}, fmt.Errorf("%w: partition %d has no leader", stream.ErrInterrupted, partition)
	}
	return t.Partitions[i], nil
}

package main

import (
	"context"
	"time"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
	"driftless/internal/stream/kafka"
)

// topic is a source that is one.
type topic struct {
	incrementer.Topic
	source string
}

func (t *topic) states() (all []*incrementer.State) {
	for _, l := range t.Lanes() {
		all = append(all, l.State)
	}
	return all
}

// topic builds a source that is a topic, which feeds the counters in mine.
func (b laneBuilder) topic(s config.Source, mine []*counter.Definition, settle time.Duration) (*topic, error) {
	options := kafka.OptionsOf(s.Kafka)
	options.Log = b.log
	client, err := kafka.New(options)
	if err != nil {
		return nil, err
	}
	t := &topic{source: s.Name}
	t.Client, t.Reader, t.Log = client, client.NewReader(), b.log
	t.Group = kafka.GroupOptions{Name: s.Kafka.Group, Session: b.settings.Lease}
	t.Claim = func(ctx context.Context, lane string) error { return b.group.Leases.Claim(ctx, lane) }
	t.Outside = func() error { return b.group.Outside(s.Name) }
	t.Lane = func(partition int32) *incrementer.Lane { return b.topicLane(t, s, mine, settle, partition) }
	return t, nil
}

// topicLane builds the lane of a partition.
func (b laneBuilder) topicLane(t *topic, s config.Source, mine []*counter.Definition, settle time.Duration, partition int32) *incrementer.Lane {
	id := checkpoint.LaneID{Source: s.Name, Topic: s.Kafka.Topic, Partition: int(partition)}
	name := id.String()
	state := incrementer.NewState(b.health.Loop("lane "+name, laneSilence))
	b.metrics.TopicLane(b.registry, s.Name, name, mine, state)
	counters := counter.NewLane(id, b.client, b.checkpoints, b.states, mine).OfTopic(incrementer.Places{Client: t.Client, Start: s.Kafka.Start}, settle)
	return b.follower(s, id, mine, counters, state, func(ds []*counter.Definition) (stream.Source, error) {
		projector, err := counter.NewProjector(envelope.New(s.Kafka), ds, settle, counters.Unseen)
		return incrementer.Records{Reader: t.Reader, Partition: partition, Projector: projector, Stop: s.Kafka.OnError == "stop"}, err
	})
}

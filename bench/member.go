package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
	"driftless/internal/stream/kafka"
)

// member is an incrementer of a topic, the only one of its group, with counters and a state database of its own.
type member struct {
	uri         string
	config      *config.Config
	definitions []*counter.Definition
	joined      chan time.Time // when it has got partitions
}

// dedupeWindow is how long ids are kept where they are.
const dedupeWindow = 10 * time.Minute

// newMember sets up a counter of the topic's events. The name tells it from other members.
func newMember(ctx context.Context, on bench, broker, topic, name string, dedupe bool) (*member, error) {
	c := config.Default()
	c.MongoDB.StateDatabase = "state_" + name
	source := &config.Kafka{
		Brokers: []string{broker}, Topic: topic, Group: name, Format: config.FormatEvent, Start: "earliest", OnError: "dead_letter",
		Event: config.Event{Type: "type", Key: "post_id", Time: "at", Deltas: map[string]int64{"comment.added": 1, "comment.removed": -1}},
	}
	if dedupe {
		source.Dedupe = config.Dedupe{Field: "id", Window: dedupeWindow}
	}
	c.Sources = []config.Source{{Name: sourceName, Kafka: source, OnPositionLost: "recount"}}
	c.Counters = []config.Counter{commentsPerPost("counts_" + name)}
	c.Counters[0].Format, c.Counters[0].Rows.CreatedAt = config.FormatEvent, "created_at"
	c.Counters[0].Rows.Database, c.Counters[0].Rows.Collection = rowsDatabase, rowsCollection
	m := &member{uri: on.uri, config: c, joined: make(chan time.Time, 1)}
	var err error
	if m.definitions, err = counter.DefineAll(c.Counters); err != nil {
		return nil, err
	}
	return m, setUp(ctx, on.client, c, m.definitions)
}

// catchUp starts as a process does, with connections of its own, and runs until so many records are committed.
func (m *member) catchUp(ctx context.Context, client *mongo.Client, records int) (spent spell, err error) {
	watch := &progress{want: records, done: make(chan struct{})}
	own := ownTime()
	whole, err := timed(ctx, client, func() error {
		began := time.Now()
		return m.running(ctx, watch, func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-watch.done:
				spent = spell{took: time.Since(began), assigned: time.Since(<-m.joined)}
				return nil
			}
		})
	})
	spent.processor = whole.server + ownTime() - own
	return spent, err
}

// ownTime is the processor time of this process.
func ownTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // cannot fail for ourselves
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// running does something while the member is in its group, as `incrementer run` is.
func (m *member) running(ctx context.Context, watch *progress, do func(context.Context) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(m.uri))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	source := m.config.Sources[0].Kafka
	of := kafka.OptionsOf(source)
	of.Log = discard
	broker, err := kafka.New(of)
	if err != nil {
		return err
	}
	defer broker.Close()
	c := m.config.Incrementer
	instances := &incrementer.Group{
		Leases:  checkpoint.NewLeases(client, m.config.MongoDB.StateDatabase, "bench", c.Lease),
		Sources: map[string]string{sourceName: "one configuration"}, Term: c.Lease, Log: discard,
	}
	topic := &incrementer.Topic{
		Client: broker, Reader: broker.NewReader(), Group: kafka.GroupOptions{Name: source.Group, Session: c.Lease}, Log: discard,
		Claim: instances.Leases.Claim, Outside: func() error { return instances.Outside(sourceName) },
	}
	topic.Lane = m.lanes(client, topic, watch)
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return instances.Run(ctx) })
	group.Go(func() error { return topic.Run(ctx) })
	done := do(ctx)
	stop()
	if err := group.Wait(); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("the member ended early: %w", err)
	}
	return done
}

var discard = slog.New(slog.NewTextHandler(io.Discard, nil))

// lanes are wired as `incrementer run` does.
func (m *member) lanes(client *mongo.Client, topic *incrementer.Topic, watch *progress) func(int32) *incrementer.Lane {
	c, source := m.config, m.config.Sources[0].Kafka
	checkpoints, states := checkpoint.NewStore(client, c.MongoDB.StateDatabase), counter.NewStates(client, c.MongoDB.StateDatabase)
	metrics := incrementer.NewMetrics(prometheus.NewRegistry())
	return func(partition int32) *incrementer.Lane {
		select {
		case m.joined <- time.Now():
		default:
		}
		id := checkpoint.LaneID{Source: sourceName, Topic: source.Topic, Partition: int(partition)}
		counters := counter.NewLane(id, client, checkpoints, states, m.definitions).
			OfTopic(incrementer.Places{Client: topic.Client, Start: source.Start}, c.Reconciler.Settle)
		return &incrementer.Lane{
			ID: id, Definitions: m.definitions, Counters: counters,
			OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
				projector, err := counter.NewProjector(envelope.New(source), ds, c.Reconciler.Settle, counters.Unseen)
				return incrementer.Records{Reader: topic.Reader, Partition: partition, Projector: projector}, err
			},
			NewApplier: func(ds []*counter.Definition) incrementer.Applier {
				told := observer{incrementer.Observer{Metrics: metrics, Source: sourceName, Lane: id.String(), Log: discard}, watch}
				applier := counter.NewApplier(client, checkpoints, states, ds, m.definitions, c.Incrementer.MaxBatchEvents, told)
				if source.Dedupe.Field != "" {
					applier.Window = source.Dedupe.Window
				}
				return applier
			},
			IdleCheckpoint: c.Incrementer.IdleCheckpoint, State: incrementer.NewState(nil), Metrics: metrics, Log: discard,
		}
	}
}

// check compares every counter document with what the events come to, and how many dead letters there are.
func (m *member) check(ctx context.Context, client *mongo.Client, want published) error {
	target := m.definitions[0].Target
	field := func(name string) bson.D { return bson.D{{Key: "$ifNull", Value: bson.A{"$" + name, int64(0)}}} } // a mark alone moves none
	sum := bson.D{{Key: "$add", Value: bson.A{field(target.Base), field(target.Live)}}}
	if err := sameCounts(ctx, client.Database(target.Database).Collection(target.Collection), sum, want.counts); err != nil {
		return err
	}
	dead, err := client.Database(m.config.MongoDB.StateDatabase).Collection(counter.DeadLettersCollection).CountDocuments(ctx, bson.D{})
	if err == nil && dead != int64(want.bad) {
		err = fmt.Errorf("%d dead letters, want %d", dead, want.bad)
	}
	return err
}

// drop makes room for the next.
func (m *member) drop(ctx context.Context, client *mongo.Client) error {
	return errors.Join(client.Database(m.definitions[0].Target.Database).Drop(ctx), client.Database(m.config.MongoDB.StateDatabase).Drop(ctx))
}

// sameCounts compares the documents of a collection with the counts by their _id.
func sameCounts(ctx context.Context, documents *mongo.Collection, count any, want map[int64]int64) error {
	cursor, err := documents.Find(ctx, bson.D{}, options.Find().SetProjection(bson.D{{Key: "n", Value: count}}).SetBatchSize(batchRows))
	if err != nil {
		return err
	}
	defer func() { _ = cursor.Close(ctx) }()
	found := 0
	for ; cursor.Next(ctx); found++ {
		key, n := cursor.Current.Lookup("_id").AsInt64(), cursor.Current.Lookup("n").AsInt64()
		if n != want[key] {
			return fmt.Errorf("post %d has the count %d, want %d", key, n, want[key])
		}
	}
	if err := cursor.Err(); err != nil {
		return err
	}
	if found != len(want) {
		return fmt.Errorf("%d posts have a count, want %d", found, len(want))
	}
	return nil
}

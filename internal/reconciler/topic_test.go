package reconciler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
	"driftless/internal/stream/kafka"
)

// topical is a fixture whose counter is incremented by events from a topic of a real broker.
type topical struct {
	*fixture
	kafka      *realtest.Kafka
	topic      string
	partitions int
}

// settleTime is how long an event may be under way in these tests.
const settleTime = 3 * time.Second

// onTopic makes the fixture's source a topic, and the rows tell when they came and went.
func onTopic(t *testing.T, partitions int, edits ...func(*config.Config)) *topical {
	t.Helper()
	return onBroker(t, realtest.SharedKafka(t), partitions, edits...)
}

func onBroker(t *testing.T, k *realtest.Kafka, partitions int, edits ...func(*config.Config)) *topical {
	t.Helper()
	f := &topical{kafka: k, topic: k.Topic(t, partitions, nil), partitions: partitions}
	f.fixture = setUp(t, func(c *config.Config) {
		c.Reconciler.Settle = settleTime
		c.Sources[0] = config.Source{Name: sourceName, OnPositionLost: "recount", Kafka: &config.Kafka{
			Brokers: []string{k.Addr()}, Topic: f.topic, Group: f.topic, Format: config.FormatEvent, Start: "earliest",
			Event: config.Event{Type: "type", Key: "post_id", Time: "at", Deltas: map[string]int64{"added": 1, "removed": -1}},
		}}
		c.Counters[0].Format, c.Counters[0].Rows.CreatedAt = config.FormatEvent, "created_at"
		for _, edit := range edits {
			edit(c)
		}
	})
	return f
}

// join runs a member of the group until the returned function is called, or the end of the test.
func (f *topical) join() (leave func()) {
	f.t.Helper()
	return f.joinFor(6 * time.Second)
}

// joinFor is join with a session of another length.
func (f *topical) joinFor(session time.Duration) (leave func()) {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	client := must(kafka.New(kafka.Options{Brokers: f.config.Sources[0].Kafka.Brokers, Topic: f.topic}))(f.t)
	reader := client.NewReader()
	topic := &incrementer.Topic{
		Client: client, Reader: reader, Group: kafka.GroupOptions{Name: f.topic, Session: session, Watch: time.Second},
		Log: slog.New(slog.DiscardHandler), Lane: func(partition int32) *incrementer.Lane { return f.topicLane(client, reader, int(partition)) },
	}
	var running sync.WaitGroup
	running.Go(func() {
		if err := topic.Run(ctx); !errors.Is(err, context.Canceled) {
			f.t.Errorf("member ended: %v", err)
		}
		client.Close()
	})
	leave = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	f.t.Cleanup(leave)
	return leave
}

// topicLane is wired as cmd/incrementer does.
func (f *topical) topicLane(client *kafka.Client, reader *kafka.Reader, partition int) *incrementer.Lane {
	c, log := f.config, slog.New(slog.NewTextHandler(io.Discard, nil))
	id := checkpoint.LaneID{Source: sourceName, Topic: f.topic, Partition: partition}
	counters := counter.NewLane(id, f.client, f.checkpoints, f.states, f.definitions).OfTopic(incrementer.Places{Client: client, Start: c.Sources[0].Kafka.Start}, c.Reconciler.Settle)
	metrics := incrementer.NewMetrics(prometheus.NewRegistry())
	return &incrementer.Lane{
		ID: id, Definitions: f.definitions, Counters: counters,
		OpenSource: func(ds []*counter.Definition) (stream.Source, error) {
			p, err := counter.NewProjector(envelope.New(c.Sources[0].Kafka), ds, c.Reconciler.Settle, counters.Unseen)
			return incrementer.Records{Reader: reader, Partition: int32(partition), Projector: p}, err
		},
		NewApplier: func(ds []*counter.Definition) incrementer.Applier {
			applier := counter.NewApplier(f.client, f.checkpoints, f.states, ds, f.definitions, c.Incrementer.MaxBatchEvents,
				incrementer.Observer{Metrics: metrics, Source: sourceName, Lane: id.String(), Log: log})
			if dedupe := c.Sources[0].Kafka.Dedupe; dedupe.Field != "" {
				applier.Window = dedupe.Window
			}
			return applier
		},
		IdleCheckpoint: c.Incrementer.IdleCheckpoint, State: incrementer.NewState(nil), Metrics: metrics, Log: log,
	}
}

// publish sends an event.
func (f *topical) publish(kind string, post any, at time.Time) {
	f.t.Helper()
	f.check(f.kafka.Produce(f.t.Context(), f.topic, int32(rand.IntN(f.partitions)), eventOf(kind, post, at)))
}

// react adds a row, and publishes it unless that is to be lost.
func (f *topical) react(post any, lost bool) (row any) {
	f.t.Helper()
	now := time.Now()
	result := must(f.rows.InsertOne(f.t.Context(), bson.D{{Key: "post_id", Value: post}, {Key: "created_at", Value: now}}))(f.t)
	if !lost {
		f.publish("added", post, now)
	}
	return result.InsertedID
}

// retract deletes a row softly and publishes it.
func (f *topical) retract(post, row any) {
	f.t.Helper()
	now := time.Now()
	must(f.rows.UpdateByID(f.t.Context(), row, set("deleted_at", now)))(f.t)
	f.publish("removed", post, now)
}

// passed waits until the cut of a run is behind everything that has happened so far, for as long as the lanes get on.
func (f *topical) passed() {
	f.t.Helper()
	now := time.Now().Unix() + 1
	lanes := func() (all []checkpoint.Checkpoint, through uint32) {
		all, err := f.checkpoints.Set(f.t.Context(), sourceName)
		if err != nil { // not all of them have begun
			return nil, 0
		}
		return all, standing{lanes: all}.through().T
	}
	for all, at := lanes(); all == nil || cutOf(all, f.config.Reconciler.Settle) <= now; all, at = lanes() {
		realtest.Eventually(f.t, patience, "the lanes to get on", func() bool {
			_, through := lanes()
			return through > at
		})
	}
}

func TestEventsOfATopicAreCountedOnceAndTheirDriftIsThePlantedOne(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3)
	for range 5 {
		f.react("there before", false)
	}
	f.join()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	f.wantShown("there before", 5)

	rows := []any{}
	for range 20 {
		rows = append(rows, f.react("busy", false))
	}
	f.retract("busy", rows[0])
	f.react("lost", true)
	f.react("twice", false)
	f.publish("added", "twice", time.Now())
	f.passed()
	wantDrift(t, f.run(r, Options{}), map[any]int64{"lost": -1, "twice": 1})
	f.wantShown("busy", 19)
	f.wantShown("lost", 1)
	f.wantShown("twice", 1)
	f.passed()
	wantDrift(t, f.run(r, Options{}), nil)
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

// inImages makes the topic's records change events with the images of the rows.
func inImages(c *config.Config) {
	c.Sources[0].Kafka.Format, c.Sources[0].Kafka.Event = "change_stream", config.Event{}
	c.Counters[0].Format, c.Counters[0].Rows.CreatedAt = "change_stream", ""
}

// connect publishes the changes of the rows as a connector does, and has fate say how often each of them.
func (f *topical) connect(fate func(bson.Raw) int) {
	f.t.Helper()
	changes := must(f.rows.Watch(f.t.Context(), bson.A{}, options.ChangeStream().
		SetFullDocument(options.WhenAvailable).SetFullDocumentBeforeChange(options.WhenAvailable)))(f.t)
	ctx, cancel := context.WithCancel(f.t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for changes.Next(ctx) {
			value, err := bson.MarshalExtJSON(changes.Current, true, false)
			for range fate(changes.Current) {
				err = errors.Join(err, f.kafka.Produce(ctx, f.topic, int32(rand.IntN(f.partitions)), realtest.Record{Value: value}))
			}
			if err != nil && ctx.Err() == nil {
				f.t.Errorf("connector: %v", err)
			}
		}
	})
	f.t.Cleanup(func() {
		cancel()
		running.Wait()
		_ = changes.Close(context.WithoutCancel(ctx))
	})
}

// Where events carry the times of their commits, rows that are moved, undeleted and deleted for good are as exact as from the
// change stream itself.
func TestChangeEventsFromATopicAreAsExactAsTheStream(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3, inImages)
	f.connect(func(change bson.Raw) int {
		fate, _ := change.Lookup("fullDocument", "fate").StringValueOK()
		switch fate {
		case "lost":
			return 0
		case "twice":
			return 2
		default:
			return 1
		}
	})
	f.join()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	row := func(post any, fate string) any {
		return must(f.rows.InsertOne(t.Context(), bson.D{{Key: "post_id", Value: post}, {Key: "fate", Value: fate}}))(t).InsertedID
	}
	change := func(id any, update bson.D) { must(f.rows.UpdateByID(t.Context(), id, update))(t) }
	for round := range 3 {
		for n := range 30 {
			id, post := row(n%5, ""), n%5
			switch n % 6 {
			case 1:
				change(id, set("deleted_at", time.Now()))
			case 2:
				change(id, set("deleted_at", time.Now()))
				change(id, bson.D{{Key: "$unset", Value: bson.D{{Key: "deleted_at", Value: ""}}}})
			case 3:
				change(id, set("post_id", post+100))
			case 4:
				must(f.rows.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: id}}))(t)
			}
		}
		if round == 1 {
			row("a lost one", "lost")
			row("one sent twice", "twice")
			f.passed()
			f.check(f.definitions[0].Touch(t.Context(), f.states, []bson.RawValue{raw("a lost one")})) // nothing leads to it before the sweep
			wantDrift(t, f.run(r, Options{}), map[any]int64{"a lost one": -1, "one sent twice": 1})
			continue
		}
		wantDrift(t, f.run(r, Options{}), nil)
	}
	f.passed()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	f.passed()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	f.wantCounted()
}

// wantCounted fails unless every document displays what a plain count of the rows says, when all events have arrived.
func (f *topical) wantCounted() {
	f.t.Helper()
	want := f.plainCount()
	for key, document := range must(f.definitions[0].Documents(f.t.Context(), f.client, counter.Selection{{Key: "$exists", Value: true}}))(f.t) {
		if n := document.Base + document.Live; n != want[key] || document.Total != n {
			f.t.Errorf("%v displays %d, total %d, and has %d rows", document.Key, n, document.Total, want[key])
		}
		delete(want, key)
	}
	for key, n := range want {
		if n != 0 {
			f.t.Errorf("no document for %d rows, canonical key %q", n, key)
		}
	}
}

// applied is how many events are before the places of the lanes that have begun.
func (f *topical) applied() (n int) {
	lanes, _ := f.checkpoints.Set(f.t.Context(), sourceName)
	for _, at := range lanes {
		if position, err := stream.TopicPositionOf(at.Token); err == nil {
			n += int(position.Offset)
		}
	}
	return n
}

// Instances that come, go and die lose no event and apply none twice.
func TestMembersOfAGroupComeAndGoUnderLoadAndEveryEventIsAppliedOnce(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 4)
	leave := []func(){f.join()}
	events, rounds := 0, 3
	if soak() {
		rounds = 20
	}
	for round := range rounds {
		leave = append(leave, f.join())
		for range 150 {
			f.react(rand.IntN(20), false)
			events++
		}
		leave[round]()
	}
	f.passed()
	r := f.reconciler(equipment{})
	f.activate(r)
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	if n := f.applied(); n != events {
		t.Errorf("the lanes have passed %d of %d events", n, events)
	}
	f.wantCounted()
}

// A topic that was deleted and made again, and one whose records are gone, leave a gap and a recount.
func TestATopicThatIsMadeAnewLeavesAGapAndARecount(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 1)
	f.join()
	f.react("a", false)
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	f.check(f.kafka.DeleteTopic(t.Context(), f.topic))
	f.check(f.kafka.CreateTopic(t.Context(), f.topic, 1, nil))
	for range 5 {
		f.react("a", false)
	}
	realtest.Eventually(t, 2*patience, "the gap to be recorded", func() bool {
		n, err := f.state.Collection(counter.GapsCollection).CountDocuments(t.Context(), bson.D{})
		return err == nil && n > 0
	})
	f.react("a", false)
	f.passed()
	if report := f.run(r, Options{}); report.Result != ResultOK || f.stateOf(counterName).State != counter.Active {
		t.Errorf("%s", show(report))
	}
	f.wantShown("a", 7)
	f.passed()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

package reconciler

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// deduped has repeated events left out.
func deduped(c *config.Config) {
	c.Sources[0].Kafka.Dedupe = config.Dedupe{Field: "id", Window: 10 * time.Minute}
}

// withID is the event with an id.
func withID(e realtest.Record, id any) realtest.Record {
	e.Value = fmt.Appendf(e.Value[:len(e.Value)-1:len(e.Value)-1], `,"id":"%v"}`, id)
	return e
}

// A producer that repeats itself, in one partition and in others, within a batch and much later, counts once while the ids
// are kept, whoever of the group applies it.
func TestRepeatedEventsAreAppliedOnceWithinTheWindow(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3, underLoad, deduped, func(c *config.Config) { c.Incrementer.MaxBatchEvents = 50 })
	ctx := t.Context()
	load := f.feed(0, 20, 0)
	produce := load.produce
	var sent []realtest.Record
	load.produce = func(ctx context.Context, p int32, records []realtest.Record) error {
		var all []realtest.Record
		for _, e := range records {
			e = withID(e, bson.NewObjectID().Hex())
			sent = append(sent, e)
			for range 1 + rand.IntN(3) {
				all = append(all, e)
			}
		}
		for range len(records) / 2 {
			all = append(all, sent[rand.IntN(len(sent))])
		}
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		if err := produce(ctx, p, all[:len(all)/2]); err != nil {
			return err
		}
		return produce(ctx, (p+1)%3, all[len(all)/2:])
	}
	leave := f.join()
	for round := range size(3, 20) {
		for range 10 {
			f.check(load.batch(ctx, 50))
		}
		if round%2 == 0 {
			next := f.join()
			leave()
			leave = next
		}
	}
	f.check(load.end(ctx))
	f.passed()
	f.wantCounted()
	if n := must(f.state.Collection(counter.DedupeCollection).CountDocuments(ctx, bson.D{}))(t); n != int64(len(sent)) {
		t.Errorf("%d ids are kept, want %d", n, len(sent))
	}
	r := f.reconciler(equipment{})
	f.activate(r)

	// What is older than the window is applied, whether its id has been dropped yet or not.
	now := time.Now()
	must(f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: 0}, {Key: "created_at", Value: now}}))(t)
	again := withID(eventOf("added", 0, now), "again")
	f.check(f.kafka.Produce(ctx, f.topic, 0, again, again))
	f.passed()
	f.wantCounted()
	must(f.state.Collection(counter.DedupeCollection).UpdateMany(ctx, bson.D{}, set("expires_at", now.Add(-time.Hour))))(t)
	f.check(f.kafka.Produce(ctx, f.topic, 1, again))
	f.check(f.kafka.Produce(ctx, f.topic, 0, again, eventOf("added", "without an id", now)))
	f.passed()
	wantDrift(t, f.run(r, Options{}), map[any]int64{0: 1})
	if letters := f.letters(); len(letters) != 1 {
		t.Errorf("dead letters %v, want that of the event without an id", letters)
	}
}

// What it costs is in the log.
func TestCatchUpWithAndWithoutDedupe(t *testing.T) {
	events, ctx := size(6000, 300_000), t.Context()
	for name, edits := range map[string][]func(*config.Config){"without": nil, "with dedupe": {deduped}} {
		t.Run(name, func(t *testing.T) {
			f := onTopic(t, 3, edits...)
			for n := 0; n < events; n += 3000 {
				for p := range 3 {
					batch := make([]realtest.Record, 1000)
					for i := range batch {
						batch[i] = withID(eventOf("added", rand.IntN(1000), time.Now()), bson.NewObjectID().Hex())
					}
					f.check(f.kafka.Produce(ctx, f.topic, int32(p), batch...))
				}
			}
			f.join()
			realtest.Eventually(t, patience, "the lanes to begin", func() bool { return f.applied() > 0 })
			first, started := f.applied(), time.Now()
			realtest.Eventually(t, 5*patience, "all to be applied", func() bool { return f.applied() == events })
			t.Logf("%.0f events/s", float64(events-first)/time.Since(started).Seconds())
		})
	}
}

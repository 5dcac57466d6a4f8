package reconciler

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// underLoad gives events more time to come than a busy machine takes.
func underLoad(c *config.Config) { c.Reconciler.Settle = 6 * time.Second }

// overMinutes lets the full numbers take minutes without a run: where none has come for 64 of the finest buckets, these become
// coarser, and a busy key waits for a cut that lies between two of them.
func overMinutes(c *config.Config) {
	if soak() {
		c.Reconciler.Settle, c.Reconciler.JudgeTimeout = 30*time.Second, 2*time.Minute
	}
}

// size is the first, or the second where the full numbers are asked for.
func size(short, full int) int {
	if soak() {
		return full
	}
	return short
}

// flow is a load of events of which none is lost, until stop is called.
func (f *topical) flow(first, keys int) (stop func()) {
	clean := f.feed(first, keys, 0)
	ended := f.pace(10, func(ctx context.Context, _ int) error { return clean.batch(context.WithoutCancel(ctx), 20) })
	return func() {
		ended()
		f.check(clean.end(f.t.Context()))
	}
}

// A topic of many events of which some are lost, repeated, out of order and too late is off by exactly these, which one run
// reports and repairs while further events come.
func TestEventsThatWereLostRepeatedOrLateAreReportedAsTheyWerePlanted(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3, underLoad, overMinutes)
	ctx, overdue := t.Context(), []realtest.Record{}
	for n := range 20 {
		f.react(fmt.Sprint("late ", n), true)
		overdue = append(overdue, eventOf("added", fmt.Sprint("late ", n), time.Now()))
	}
	planted := f.feed(0, 300, 40)
	planted.faulty = 0
	f.check(planted.batch(ctx, 500))
	f.check(planted.end(ctx))
	planted.faulty = 40
	f.join()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)

	stop := f.flow(200, 100)
	events, batch := int64(size(4000, 500_000)), size(100, 1000)
	for planted.events.Load() < events {
		f.check(planted.batch(ctx, batch))
	}
	f.check(planted.end(ctx))
	f.check(planted.send(ctx, overdue))
	f.passed()
	report := f.run(r, Options{})
	wantDrift(t, report, planted.drift())
	if late := only(t, report).Late; late != 20 {
		t.Errorf("%d events are told to be late, want 20", late)
	}
	f.passed()
	report = f.run(r, Options{Full: true})
	wantDrift(t, report, nil)
	if late := only(t, report).Late; late != 0 {
		t.Errorf("%d events are told to be late again", late)
	}
	stop()
	f.passed()
	f.wantCounted()
}

// Of transactions of producers, side by side in the same partitions, those count that are committed.
func TestNoEventOfAnAbortedTransactionIsCounted(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 2, underLoad)
	ctx := t.Context()
	f.join()
	f.react("plain", false)
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	var before func()
	for round := range size(20, 300) {
		end := f.inTransaction(fmt.Sprint(f.topic, round%2), round%5, round%4 < 2)
		f.react("plain", false)
		if before != nil {
			before()
		}
		before = end
	}
	before()
	f.passed()
	f.wantCounted()
	wantDrift(t, f.run(r, Options{Full: true}), nil)

	// One that is open for longer than events may be under way holds the moment back at which counters are judged.
	began := time.Now()
	x := must(f.kafka.Begin(ctx, f.topic))(t)
	must(f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: "open"}, {Key: "created_at", Value: began}}))(t)
	f.check(x.Produce(ctx, f.topic, 0, eventOf("added", "open", began)))
	realtest.Eventually(t, patience, "the other partition to pass it", func() bool {
		at, err := f.checkpoints.Load(ctx, must(f.checkpoints.Set(ctx, sourceName))(t)[1].Lane)
		return err == nil && stream.Clock(at.Position).After(began.Add(2*f.config.Reconciler.Settle))
	})
	f.react("plain", false)
	if cut := cutOf(must(f.checkpoints.Set(ctx, sourceName))(t), f.config.Reconciler.Settle); cut > began.Unix() {
		t.Errorf("the cut is %s past an event that nobody can read yet", time.Unix(cut, 0).Sub(began))
	}
	f.check(x.Commit(ctx))
	f.passed()
	f.wantCounted()
	report := f.run(r, Options{})
	wantDrift(t, report, nil)
	if late := only(t, report).Late; late != 0 {
		t.Errorf("%d events are told to be late", late)
	}
}

// inTransaction publishes events in one, of rows that there are if it commits, and returns what ends it.
func (f *topical) inTransaction(id string, post int, commit bool) (end func()) {
	f.t.Helper()
	ctx, now := f.t.Context(), time.Now()
	x := must(f.kafka.Begin(ctx, id))(f.t)
	for p := range f.partitions {
		for range 5 {
			f.check(x.Produce(ctx, f.topic, int32(p), eventOf("added", post, now)))
			if commit {
				must(f.rows.InsertOne(ctx, bson.D{{Key: "post_id", Value: post}, {Key: "created_at", Value: now}}))(f.t)
			}
		}
	}
	return func() {
		if f.t.Helper(); commit {
			f.check(x.Commit(ctx))
		} else {
			f.check(x.Abort(ctx))
		}
	}
}

// A broker that dies loses and repeats nothing, for those who read from it.
func TestBrokerThatIsKilledUnderLoadCostsNoEvent(t *testing.T) {
	t.Parallel()
	k := realtest.PrivateKafka(t, realtest.KafkaOptions{})
	f := onBroker(t, k, 3, underLoad)
	f.join()
	f.react("there before", false)
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	load := f.feed(0, 50, 0).outlasting()
	stop := f.pace(20, func(ctx context.Context, _ int) error { return load.batch(context.WithoutCancel(ctx), 20) })
	for range size(1, 5) {
		seen := load.events.Load()
		realtest.Eventually(t, 2*patience, "load", func() bool { return load.events.Load() > seen+300 })
		k.Kill()
		f.check(k.Restart(t.Context()))
	}
	seen := load.events.Load()
	realtest.Eventually(t, 2*patience, "load", func() bool { return load.events.Load() > seen+300 })
	stop()
	f.check(load.end(t.Context()))
	f.passed()
	f.wantCounted()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// topicBench measures, in turn, an incrementer that catches up with a topic; the same where one record in a hundred cannot be
// read, and with `dedupe`; and Kafka Streams, which counts the topic into the same MongoDB.
type topicBench struct {
	bench
	broker       *realtest.Kafka
	app          *streamsApp
	pairs        int
	clean, dirty published
}

// topicRun is what the rounds have measured.
type topicRun struct{ ours, streams, dirty, deduped spells }

// mostPairs is how often a clean topic and one with bad records are compared in each round, where they are short: they differ by
// little.
const mostPairs = 3

func topics(ctx context.Context, on bench, scale float64) error {
	broker, err := realtest.StartKafka(ctx, realtest.KafkaOptions{Optimize: true, HeapMB: 1024})
	if err != nil {
		return err
	}
	defer func() { _ = broker.Stop() }()
	app, err := newStreamsApp(ctx, on.uri, broker.Addr())
	if err != nil {
		return err
	}
	defer app.remove()
	if err := create(ctx, rowsOf(on.client)); err != nil { // it is asked for, though nobody counts it here
		return err
	}
	b := topicBench{bench: on, broker: broker, app: app, pairs: 1}
	if err := b.warmUp(ctx); err != nil {
		return fmt.Errorf("warm up: %w", err)
	}
	b.pairs = min(mostPairs, max(1, int(mostPairs/scale)))
	if b.clean, err = backlogOf(scale).publish(ctx, broker, "clean", false); err != nil {
		return err
	}
	if b.dirty, err = backlogOf(scale).publish(ctx, broker, "dirty", true); err != nil {
		return err
	}
	var all topicRun
	for r := range rounds {
		run, err := b.round(ctx, fmt.Sprint(r))
		if err != nil {
			return err
		}
		all.ours, all.streams = append(all.ours, run.ours...), append(all.streams, run.streams...)
		all.dirty, all.deduped = append(all.dirty, run.dirty...), append(all.deduped, run.deduped...)
	}
	b.report(all)
	return nil
}

// warmUp lets both go once over a small topic, so that none of them pays for what a broker does only once.
func (b *topicBench) warmUp(ctx context.Context) error {
	small, err := backlogOf(0.01).publish(ctx, b.broker, "warm", false)
	if err != nil {
		return err
	}
	b.clean, b.dirty = small, small
	_, err = b.round(ctx, "warm")
	return err
}

func (b *topicBench) round(ctx context.Context, name string) (run topicRun, err error) {
	for pair := range b.pairs {
		clean, err := b.member(ctx, b.clean, fmt.Sprintf("clean_%s_%d", name, pair), false)
		if err != nil {
			return run, err
		}
		dirty, err := b.member(ctx, b.dirty, fmt.Sprintf("dirty_%s_%d", name, pair), false)
		if err != nil {
			return run, err
		}
		run.ours, run.dirty = append(run.ours, clean), append(run.dirty, dirty)
	}
	deduped, err := b.member(ctx, b.clean, "dedupe_"+name, true)
	if err != nil {
		return run, err
	}
	if err := b.settle(ctx); err != nil {
		return run, err
	}
	streams, err := b.app.catchUp(ctx, b.client, b.clean, name)
	if err != nil {
		return run, err
	}
	run.deduped, run.streams = append(run.deduped, deduped), append(run.streams, streams)
	fmt.Printf("round %s: %s  one in a hundred is bad %s  dedupe %s  Kafka Streams %s\n", name,
		run.ours.middle().of(b.clean), run.dirty.middle().of(b.dirty), deduped.of(b.clean), streams.of(b.clean))
	return run, nil
}

// member measures a new incrementer that begins with the first record, and checks what it has counted.
func (b *topicBench) member(ctx context.Context, topic published, name string, dedupe bool) (spell, error) {
	m, err := newMember(ctx, b.bench, b.broker.Addr(), topic.topic, name, dedupe)
	if err != nil {
		return spell{}, err
	}
	if err := b.settle(ctx); err != nil {
		return spell{}, err
	}
	spent, err := m.catchUp(ctx, b.client, topic.records())
	if err != nil {
		return spent, err
	}
	return spent, errors.Join(m.check(ctx, b.client, topic), m.drop(ctx, b.client))
}

// settle has the server write down what it still has in memory, which nobody else is to pay for.
func (b *topicBench) settle(ctx context.Context) error {
	return b.client.Database("admin").RunCommand(ctx, bson.D{{Key: "fsync", Value: 1}}).Err()
}

// spell is how long a catch-up took from the start of the process, and from when it had its partitions, and the processor time
// of it and of MongoDB.
type spell struct{ took, assigned, processor time.Duration }

func (s spell) of(t published) string {
	return fmt.Sprintf("%s (%s, processors %s)", round(s.took), rate(t.records(), s.took), round(s.processor))
}

// spells are some of the same thing.
type spells []spell

// middle is the medians of all.
func (s spells) middle() spell {
	var took, assigned, processor []time.Duration
	for _, one := range s {
		took, assigned, processor = append(took, one.took), append(assigned, one.assigned), append(processor, one.processor)
	}
	return spell{median(took), median(assigned), median(processor)}
}

// over is the median of the ratios to others, each measured right after ours: they differ by less than the load of a machine does.
func (s spells) over(others spells, of func(spell) time.Duration) float64 {
	ratios := make([]float64, len(s))
	for i := range s {
		ratios[i] = over(of(s[i]), of(others[i]))
	}
	slices.Sort(ratios)
	return ratios[len(ratios)/2]
}

// report compares the medians.
func (b *topicBench) report(all topicRun) {
	ours, streams, dirty, deduped := all.ours.middle(), all.streams.middle(), all.dirty.middle(), all.deduped.middle()
	each := float64(b.dirty.records()) / float64(b.clean.records())
	fmt.Printf("topic: %.2f times as fast as Kafka Streams (exactly_once_v2) on %d events, starts included; %.2f times once the partitions are assigned, with %.2f of its processor time (medians of %d and %d: %s and %s)\n",
		over(streams.took, ours.took), b.clean.events, over(streams.assigned, ours.assigned), over(ours.processor, streams.processor),
		len(all.ours), len(all.streams), ours.of(b.clean), streams.of(b.clean))
	fmt.Printf("bad records: one in a hundred leaves %.2f of the speed, %.2f by processor time (medians of %d pairs, %s)\n",
		each*all.ours.over(all.dirty, func(s spell) time.Duration { return s.took }),
		each*all.ours.over(all.dirty, func(s spell) time.Duration { return s.processor }), len(all.dirty), dirty.of(b.dirty))
	fmt.Printf("dedupe: %.2f of the speed without, %.2f by processor time (medians of %d: %s)\n",
		over(ours.took, deduped.took), over(ours.processor, deduped.processor), len(all.deduped), deduped.of(b.clean))
}

func over(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }

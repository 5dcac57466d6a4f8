package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand"
	"strconv"
	"time"

	"driftless/internal/realtest"
)

const (
	partitions = 6
	// producerBatch is how many events a producer sends at a time.
	producerBatch = 500
	// badEvery: so many events stand before one that cannot be read.
	badEvery = 99
	// backlogAge is how old the first event is; the last one is of now.
	backlogAge = 10 * time.Minute
)

// published is a topic, and what its events come to.
type published struct {
	topic       string
	events, bad int
	sum         int64
	counts      map[int64]int64 // by post, also where it is 0
}

func (p published) records() int { return p.events + p.bad }

// publisher writes one topic, partition by partition in batches.
type publisher struct {
	published
	kafka   *realtest.Kafka
	random  *rand.Rand
	since   time.Time
	waiting [partitions][]realtest.Record
}

// publish writes the backlog as events to a topic of its own, the same ones in every run: those that a post gains and then those
// that it loses, keyed by the post. Where dirty, one record in a hundred is cut off.
func (b backlog) publish(ctx context.Context, kafka *realtest.Kafka, topic string, dirty bool) (published, error) {
	p := &publisher{published: published{topic: topic, counts: map[int64]int64{}}, kafka: kafka, random: repeatable(), since: time.Now().Add(-backlogAge)}
	if err := kafka.CreateTopic(ctx, topic, partitions, nil); err != nil {
		return p.published, err
	}
	removed := b.softDeletes + b.hardDeletes
	total := b.inserts + removed
	zipf := rand.NewZipf(p.random, 1.1, 1, uint64(b.posts-1)) //nolint:gosec // not negative
	posts := make([]int64, b.inserts)
	for i := range posts {
		posts[i] = int64(zipf.Uint64()) //nolint:gosec // small
	}
	gone := p.random.Perm(b.inserts)[:removed]
	for i := range total {
		at := p.since.Add(backlogAge * time.Duration(i) / time.Duration(total))
		post, delta := posts[i%b.inserts], int64(1)
		if i >= b.inserts {
			post, delta = posts[gone[i-b.inserts]], -1
		}
		if err := p.event(ctx, post, delta, at); err != nil {
			return p.published, err
		}
		if dirty && i%badEvery == 0 {
			if err := p.broken(ctx, post, at); err != nil {
				return p.published, err
			}
		}
	}
	fmt.Printf("%s: %d events of %d posts (Zipf 1.1) in %d partitions, and %d records that cannot be read\n", topic, p.events, len(p.counts), partitions, p.bad)
	return p.published, p.flush(ctx)
}

func (p *publisher) event(ctx context.Context, post, delta int64, at time.Time) error {
	p.events++
	p.sum += delta
	p.counts[post] += delta
	return p.send(ctx, post, p.value(post, delta, at), at)
}

func (p *publisher) broken(ctx context.Context, post int64, at time.Time) error {
	p.bad++
	value := p.value(post, 1, at)
	return p.send(ctx, post, value[:len(value)/2], at)
}

func (p *publisher) value(post, delta int64, at time.Time) []byte {
	kind := "comment.added"
	if delta < 0 {
		kind = "comment.removed"
	}
	return fmt.Appendf(nil, `{"id":"%016x%016x","type":"%s","post_id":%d,"at":%d}`, p.random.Uint64(), p.random.Uint64(), kind, post, at.UnixMilli())
}

func (p *publisher) send(ctx context.Context, post int64, value []byte, at time.Time) error {
	key := strconv.AppendInt(nil, post, 10)
	hash := fnv.New32a()
	_, _ = hash.Write(key) // never fails
	to := hash.Sum32() % partitions
	p.waiting[to] = append(p.waiting[to], realtest.Record{Key: key, Value: value, Time: at})
	if len(p.waiting[to]) < producerBatch {
		return nil
	}
	return p.write(ctx, to)
}

func (p *publisher) flush(ctx context.Context) error {
	for to := range uint32(partitions) {
		if err := p.write(ctx, to); err != nil {
			return err
		}
	}
	return nil
}

func (p *publisher) write(ctx context.Context, to uint32) error {
	if len(p.waiting[to]) == 0 {
		return nil
	}
	err := p.kafka.Produce(ctx, p.topic, int32(to), p.waiting[to]...) //nolint:gosec // a few
	p.waiting[to] = p.waiting[to][:0]
	return err
}

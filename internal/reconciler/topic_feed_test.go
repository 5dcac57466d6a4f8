package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// feed is an application that makes rows and takes them away, and publishes events of it, in batches. Events of a batch may
// be overtaken by those of the next one.
type feed struct {
	*topical
	first, keys int // its keys: the first one and how many
	faulty      int // of so many of them events are lost and repeated
	produce     func(ctx context.Context, partition int32, records []realtest.Record) error

	alive   []bson.ObjectID // rows that may still be taken away
	post    map[bson.ObjectID]int
	held    []realtest.Record // of the batch before
	planted map[any]int64     // by how much counts will be off
	events  atomic.Int64      // that happened, whatever became of them
	written map[int32]int64   // of one that outlasts its broker: where each partition ends
}

// feed makes one for keys of its own.
func (f *topical) feed(first, keys, faulty int) *feed {
	return &feed{
		topical: f, first: first, keys: keys, faulty: faulty, post: map[bson.ObjectID]int{}, planted: map[any]int64{},
		produce: func(ctx context.Context, partition int32, records []realtest.Record) error {
			return f.kafka.Produce(ctx, f.topic, partition, records...)
		},
	}
}

// batch makes n rows, takes one away for ten of them, and publishes what happened.
func (f *feed) batch(ctx context.Context, n int) error {
	now, events := time.Now(), f.held
	f.held = nil
	publish := func(kind string, post int, by int64) {
		for range f.fate(post, by) {
			if e := eventOf(kind, post, now); rand.IntN(2) == 0 {
				f.held = append(f.held, e)
			} else {
				events = append(events, e)
			}
		}
	}
	var rows []any
	for range n {
		id, post := bson.NewObjectID(), f.first+rand.IntN(f.keys)
		rows = append(rows, bson.D{{Key: "_id", Value: id}, {Key: "post_id", Value: post}, {Key: "created_at", Value: now}})
		publish("added", post, 1)
		f.post[id] = post
	}
	gone := bson.A{}
	for range min(n/10, len(f.alive)) {
		i := rand.IntN(len(f.alive))
		id := f.alive[i]
		f.alive[i] = f.alive[len(f.alive)-1]
		f.alive = f.alive[:len(f.alive)-1]
		gone = append(gone, id)
		publish("removed", f.post[id], -1)
	}
	result, err := f.rows.InsertMany(ctx, rows)
	if err == nil {
		for _, id := range result.InsertedIDs {
			f.alive = append(f.alive, id.(bson.ObjectID))
		}
	}
	_, err2 := f.rows.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: gone}}}}, set("deleted_at", now))
	f.events.Add(int64(len(rows) + len(gone)))
	return errors.Join(err, err2, f.send(ctx, events))
}

// fate is how often an event is published, which is once unless that is planned otherwise.
func (f *feed) fate(post int, by int64) int {
	times := 1
	if post < f.first+f.faulty {
		times = []int{0, 1, 1, 1, 2}[rand.IntN(5)]
	}
	f.planted[post] += by * int64(times-1)
	return times
}

// drift is what was planted.
func (f *feed) drift() map[any]int64 {
	maps.DeleteFunc(f.planted, func(_ any, n int64) bool { return n == 0 })
	return f.planted
}

// end publishes what is held back.
func (f *feed) end(ctx context.Context) error {
	events := f.held
	f.held = nil
	return f.send(ctx, events)
}

// send spreads events over the partitions, in no order.
func (f *feed) send(ctx context.Context, events []realtest.Record) (err error) {
	rand.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	size := max(1, (len(events)+f.partitions-1)/f.partitions)
	for p := int32(0); len(events) > 0; p++ {
		n := min(size, len(events))
		err = errors.Join(err, f.produce(ctx, p, events[:n]))
		events = events[n:]
	}
	return err
}

// eventOf is an event in the form that the fixture's source reads.
func eventOf(kind string, post any, at time.Time) realtest.Record {
	return realtest.Record{Value: fmt.Appendf(nil, `{"type":%q,"post_id":%s,"at":%d}`, kind, ExtendedJSON{raw(post)}, at.UnixMilli())}
}

// outlasting makes the feed, as the only producer, write every batch once although the broker goes away in between: it looks
// whether one is there of which it did not learn.
func (f *feed) outlasting() *feed {
	f.written = map[int32]int64{}
	for p := range int32(f.partitions) {
		f.written[p] = f.endOf(f.t.Context(), p)
	}
	produce := f.produce
	f.produce = func(ctx context.Context, p int32, records []realtest.Record) error {
		for want := f.written[p] + int64(len(records)); ctx.Err() == nil; {
			if produce(ctx, p, records) == nil || f.endOf(ctx, p) == want {
				f.written[p] = want
				return nil
			}
		}
		return ctx.Err()
	}
	return f
}

// endOf is where a partition ends, as soon as the broker tells.
func (f *topical) endOf(ctx context.Context, partition int32) (offset int64) {
	realtest.Eventually(f.t, patience, "the broker to answer", func() bool {
		response, err := f.kafka.Client().ListOffsets(ctx, &kafka.ListOffsetsRequest{
			Topics: map[string][]kafka.OffsetRequest{f.topic: {kafka.LastOffsetOf(int(partition))}},
		})
		if err != nil || len(response.Topics[f.topic]) != 1 || response.Topics[f.topic][0].Error != nil {
			return false
		}
		offset = response.Topics[f.topic][0].LastOffset
		return true
	})
	return offset
}

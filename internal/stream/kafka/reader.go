package kafka

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/segmentio/kafka-go"
)

// Reader reads any number of partitions, all that one broker leads in one request.
type Reader struct {
	client *Client
	wake   chan struct{} // holds one token when there may be something to do

	mu       sync.Mutex
	lanes    []*Lane // who was served longest ago comes first in a request
	requests map[room]bool
	looking  bool // the topic is being looked up
	checked  bool // the brokers are recent enough
	ended    bool
	running  sync.WaitGroup
}

// room is what shares a request. Lanes at their end wait for news in a request of their own, which must not hold up those that
// have something to read.
type room struct {
	broker int32
	topic  TopicID
	atEnd  bool
}

// NewReader returns a reader that reads while [Reader.Run] runs.
func (c *Client) NewReader() *Reader {
	return &Reader{client: c, wake: make(chan struct{}, 1), requests: map[room]bool{}}
}

// Open starts to read a partition behind a position. One without a topic id is taken to be of the topic as it is now.
func (r *Reader) Open(partition int32, from Position) *Lane {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := &Lane{reader: r, partition: partition, position: from, leader: -1, ready: make(chan struct{}, 1), retry: newBackoff()}
	if r.ended {
		l.err = context.Canceled
	}
	r.lanes = append(r.lanes, l)
	r.wakeUp()
	return l
}

func (r *Reader) close(l *Lane) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.err, l.waiting, l.bytes = context.Canceled, nil, 0
	r.lanes = slices.DeleteFunc(r.lanes, func(other *Lane) bool { return other == l })
}

// end ends a lane whose next batch cannot be decoded.
func (r *Reader) end(l *Lane, at Position, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	l.position, l.err, l.waiting, l.bytes = at, err, nil, 0
}

func (r *Reader) offset(l *Lane) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return l.position.Offset
}

func (r *Reader) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reads until the context ends, and returns when all that it has started is over. Lanes end with it.
func (r *Reader) Run(ctx context.Context) {
	defer r.finish()
	defer r.running.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if next := r.dispatch(ctx); !next.IsZero() {
			timer.Reset(time.Until(next))
		}
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		case <-timer.C:
		}
	}
}

func (r *Reader) finish() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for _, l := range r.lanes {
		if l.err == nil {
			l.err = context.Canceled
			l.tell()
		}
	}
}

// dispatch starts every request that can be made now, and returns when the next one can, zero when that is not a matter of time.
func (r *Reader) dispatch(ctx context.Context) (next time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rooms, now := map[room][]*Lane{}, time.Now()
	for _, l := range r.lanes {
		switch {
		case l.err != nil || l.busy || l.bytes >= r.client.options.PartitionBytes:
		case now.Before(l.notBefore):
			if next.IsZero() || l.notBefore.Before(next) {
				next = l.notBefore
			}
		case l.leader < 0:
			r.lookUp(ctx)
		default:
			in := room{broker: l.leader, topic: l.position.Topic, atEnd: l.atEnd}
			rooms[in] = append(rooms[in], l)
		}
	}
	for in, lanes := range rooms {
		if !r.requests[in] {
			r.fetch(ctx, in, lanes)
		}
	}
	return next
}

// maxPartitions is how many partitions fill an answer, at most.
const maxPartitions = 16

// fetch sends one request for the lanes. The mutex is held.
func (r *Reader) fetch(ctx context.Context, in room, lanes []*Lane) {
	size := int32(min(r.client.options.PartitionBytes, 1<<26)) //nolint:gosec // bounded on the line
	request := &fetch{topic: in.topic, partBytes: size, maxBytes: min(size*maxPartitions, maxAnswer/2)}
	if in.atEnd {
		request.wait = r.client.options.Wait
	}
	for _, l := range lanes {
		l.busy = true
		request.wants = append(request.wants, want{partition: l.partition, leaderEpoch: l.epoch, Position: l.position})
	}
	r.requests[in] = true
	r.running.Go(func() {
		askedAt := time.Now()
		_, err := r.client.roundTrip(ctx, in.broker, request.wait, request)
		if err == nil && request.code != 0 {
			err = Classify(kafka.Error(request.code))
		}
		if err != nil {
			// The answer may still be on its way into the request.
			r.client.tellRetry(err)
			r.fetched(ctx, in, lanes, nil, askedAt, err)
			return
		}
		r.fetched(ctx, in, lanes, request.answers, askedAt, nil)
	})
}

// fetched hands the answers to the lanes, and puts those that were served behind the others.
func (r *Reader) fetched(ctx context.Context, in room, lanes []*Lane, answers []answer, askedAt time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer r.wakeUp()
	delete(r.requests, in)
	for _, l := range lanes {
		l.busy = false
		if err != nil && l.err == nil {
			l.failed(err)
		}
	}
	if err != nil {
		return
	}
	for _, a := range answers {
		if i := slices.IndexFunc(lanes, func(l *Lane) bool { return l.partition == a.partition }); i >= 0 && lanes[i].err == nil {
			r.answered(ctx, lanes[i], a, askedAt)
		}
	}
}

func (r *Reader) answered(ctx context.Context, l *Lane, a answer, askedAt time.Time) {
	switch {
	case kafka.Error(a.code) == kafka.OffsetOutOfRange:
		r.outOfRange(ctx, l)
	case a.code != 0 || a.diverges:
		err := a.refused()
		r.client.tellRetry(err)
		l.failed(err)
	case l.take(a, askedAt):
		i := slices.Index(r.lanes, l)
		r.lanes = append(slices.Delete(r.lanes, i, i+1), l)
	}
}

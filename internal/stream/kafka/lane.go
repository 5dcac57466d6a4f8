package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/segmentio/kafka-go"

	"driftless/internal/stream"
)

// Lane is one partition that is being read. Next and Close are for one goroutine.
type Lane struct {
	reader    *Reader
	partition int32
	ready     chan struct{} // holds one token when there may be something for Next

	// Guarded by the reader's mutex.
	position Position // behind what was fetched
	leader   int32    // -1 while it is to be looked up
	epoch    int32    // the leader's
	busy     bool     // in a request
	atEnd    bool     // nothing more was there when it was asked for last
	toldEnd  time.Time
	waiting  []chunk
	bytes    int   // of all that waits
	err      error // what ended the lane

	retry     *backoff.ExponentialBackOff
	notBefore time.Time // of the next request, after a failure
	doubts    int       // answers in a row that deny the topic or the offset
}

// chunk is an answer that waits for its consumer.
type chunk struct {
	answer
	from, to Position
	askedAt  time.Time
}

// maxDoubts is how often the topic or the offset may be denied before it is believed. A broker that has just started may not know
// all yet.
const maxDoubts = 5

// minQuiet is how long nothing must have happened before the consumer is told so again: a busy partition that shares a request
// with a quiet one ends the wait for both.
const minQuiet = 100 * time.Millisecond

func newBackoff() *backoff.ExponentialBackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(50*time.Millisecond), backoff.WithMultiplier(2), backoff.WithMaxInterval(2*time.Second),
		backoff.WithMaxElapsedTime(0)) // a daemon does not give up
}

// Next returns the next batch, and waits for it. Batches follow each other without a gap or overlap; at the end of the partition
// an empty one comes each time that a fetch has found nothing, several at once for a consumer that is behind. Failures that pass
// are retried inside. Any other ends the lane: [stream.ErrPositionLost], [stream.ErrUnauthorized], [ErrUnknownTopic],
// [ErrTooOld] or [ErrCorrupt].
func (l *Lane) Next(ctx context.Context) (Batch, error) {
	for {
		c, err := l.pop()
		if err != nil {
			return Batch{}, fmt.Errorf("read %s/%d at offset %d: %w", l.reader.client.options.Topic, l.partition, l.reader.offset(l), err)
		}
		if c != nil {
			if b, err := l.decode(c); err == nil || b.To != b.From {
				return b, nil
			}
			continue // the lane has ended
		}
		select {
		case <-l.ready:
		case <-ctx.Done():
			return Batch{}, ctx.Err()
		}
	}
}

// pop returns what waits longest, nil for nothing. What came before a failure comes first.
func (l *Lane) pop() (*chunk, error) {
	l.reader.mu.Lock()
	defer l.reader.mu.Unlock()
	if len(l.waiting) == 0 {
		return nil, l.err
	}
	c := l.waiting[0]
	l.waiting = l.waiting[1:]
	l.bytes -= len(c.records)
	l.reader.wakeUp()
	return &c, nil
}

// decode makes records of an answer, here rather than in the reader, so that lanes do it side by side. An error ends the lane
// behind the batch.
func (l *Lane) decode(c *chunk) (Batch, error) {
	records, to, err := c.decode(c.from)
	if err != nil {
		l.reader.end(l, to, err)
	}
	return Batch{
		Partition: l.partition, From: c.from, To: to, Records: records,
		HighWatermark: c.highWatermark, LastStable: c.lastStable, LogStart: c.logStart, AskedAt: c.askedAt,
	}, err
}

// Close stops reading the partition.
func (l *Lane) Close() { l.reader.close(l) }

// take keeps an answer for the consumer. It reports whether there was anything in it.
func (l *Lane) take(a answer, askedAt time.Time) bool {
	c := chunk{answer: a, from: l.position, to: a.span(l.position), askedAt: askedAt}
	l.position, l.atEnd = c.to, c.to.Offset >= a.lastStable
	l.retry.Reset()
	l.notBefore, l.doubts = time.Time{}, 0
	last := len(l.waiting) - 1
	switch {
	case len(a.records) == 0 && (!l.atEnd || askedAt.Sub(l.toldEnd) < minQuiet):
		return false // others have filled the answer, or have made it come early
	case len(a.records) == 0 && last >= 0 && len(l.waiting[last].records) == 0:
		l.waiting[last] = c
	default:
		l.waiting = append(l.waiting, c)
		l.bytes += len(a.records)
	}
	if len(a.records) == 0 {
		l.toldEnd = askedAt
	}
	l.tell()
	return len(a.records) > 0
}

// tell wakes the consumer.
func (l *Lane) tell() {
	select {
	case l.ready <- struct{}{}:
	default:
	}
}

// failed makes the lane look up its leader anew after a while, or ends it.
func (l *Lane) failed(err error) {
	l.leader = -1
	denied := errors.Is(err, ErrUnknownTopic)
	if denied {
		l.doubts++
	}
	if denied && l.doubts < maxDoubts || errors.Is(err, stream.ErrInterrupted) {
		l.notBefore = time.Now().Add(l.retry.NextBackOff())
		return
	}
	l.err = err
	l.tell()
}

// refused turns the error code of a partition into a classified error.
func (a answer) refused() error {
	if a.diverges {
		return fmt.Errorf("%w: the records before the offset are not the log's any more: the broker lost what was at offset %d and later, "+
			"and others have been written since (an unclean election of a leader, or a broker that lost its disk)", stream.ErrPositionLost, a.divergesAt)
	}
	return Classify(kafka.Error(a.code))
}

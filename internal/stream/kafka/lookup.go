package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"driftless/internal/stream"
)

// lookUp finds out who leads the partitions, unless that is under way. The mutex is held.
func (r *Reader) lookUp(ctx context.Context) {
	if r.looking {
		return
	}
	r.looking = true
	r.running.Go(func() {
		topic, err := r.topic(ctx)
		if err != nil {
			r.client.tellRetry(err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		defer r.wakeUp()
		r.looking = false
		for _, l := range r.lanes {
			if l.err == nil && !l.busy && l.leader < 0 && !time.Now().Before(l.notBefore) {
				l.found(topic, err)
			}
		}
	})
}

func (r *Reader) topic(ctx context.Context) (Topic, error) {
	r.mu.Lock()
	checked := r.checked
	r.mu.Unlock()
	if !checked {
		if err := r.client.check(ctx); err != nil {
			return Topic{}, err
		}
	}
	topic, err := r.client.Topic(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checked = err == nil
	return topic, err
}

// found tells a lane its leader. That the topic has another id is believed only when a leader has denied ours: a broker may be
// late in learning of a new topic.
func (l *Lane) found(topic Topic, err error) {
	if l.position.Topic == (TopicID{}) {
		l.position.Topic = topic.ID
	}
	if err == nil && topic.ID != l.position.Topic && l.doubts > 0 {
		l.failed(fmt.Errorf("%w: the topic was deleted and created again: its id is %v, and not %v", stream.ErrPositionLost, topic.ID, l.position.Topic))
		return
	}
	var p Partition
	if err == nil {
		p, err = topic.find(l.partition)
	}
	if err != nil {
		l.failed(err)
		return
	}
	l.leader, l.epoch = p.Leader, p.Epoch
}

// outOfRange asks where the partition begins and ends, which tells what became of the offset. One that is there after all is
// asked for again, but not for ever: a leader that does not know the position's epoch has another history. The mutex is held.
func (r *Reader) outOfRange(ctx context.Context, l *Lane) {
	l.busy = true
	l.doubts++
	at, doubts := l.position.Offset, l.doubts
	r.running.Go(func() {
		err := r.client.whyOutOfRange(ctx, l.partition, at)
		if err == nil && doubts < maxDoubts {
			err = fmt.Errorf("%w: offset out of range", stream.ErrInterrupted)
		} else if err == nil {
			err = fmt.Errorf("%w: the log has another history than the position, whose leader epoch it does not know", stream.ErrPositionLost)
		}
		r.client.tellRetry(err)
		r.mu.Lock()
		defer r.mu.Unlock()
		defer r.wakeUp()
		l.busy = false
		if l.err == nil {
			l.failed(err)
		}
	})
}

// whyOutOfRange returns nil when the offset is within the partition.
func (c *Client) whyOutOfRange(ctx context.Context, partition int32, offset int64) error {
	topic, err := c.Topic(ctx)
	if err != nil {
		return err
	}
	first, end, err := c.bounds(ctx, topic, partition)
	switch {
	case err != nil:
		return err
	case offset < first:
		return fmt.Errorf("%w: retention has removed %d offsets: the partition begins at %d", stream.ErrPositionLost, first-offset, first)
	case offset > end:
		return fmt.Errorf("%w: the partition ends at offset %d: the broker lost what was behind it", stream.ErrPositionLost, end)
	default:
		return nil
	}
}

// tellRetry says that something failed, once for each request, and not that we stop.
func (c *Client) tellRetry(err error) {
	if errors.Is(err, context.Canceled) || !errors.Is(err, stream.ErrInterrupted) && !errors.Is(err, ErrUnknownTopic) {
		return
	}
	c.log.Warn("read from Kafka again after a failure", "topic", c.options.Topic, "error", err)
	if c.options.OnRetry != nil {
		c.options.OnRetry(err)
	}
}

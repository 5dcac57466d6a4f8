package incrementer

import (
	"context"
	"sync"

	"driftless/internal/stream"
)

// gatherBytes is how large what waits may become before the reader is held back: memory stays flat whatever the backlog. A single
// batch may be larger.
const gatherBytes = 4 << 20

// waiting is what has been read while a batch is being applied, gathered into one: the more events a transaction has, the less each
// of them costs, and the fewer transactions the last of them waits for. Behind it may wait the news that there is no more for now.
type waiting struct {
	most int // events to gather

	mutex   sync.Mutex
	batches []stream.Batch // one with events, or one without, or both in this order
	bytes   int            // of the events
	closed  bool
	changed chan struct{} // closed, and made anew, with every change
}

func newWaiting(most int) *waiting { return &waiting{most: most, changed: make(chan struct{})} }

// put adds a batch when there is room for it.
func (w *waiting) put(ctx context.Context, b stream.Batch) error {
	return w.until(ctx, func() bool { return w.add(b) })
}

// take returns what waits, when there is something; false at the end.
func (w *waiting) take(ctx context.Context) (b stream.Batch, more bool, err error) {
	err = w.until(ctx, func() bool {
		if more = len(w.batches) > 0; more {
			b, w.batches = w.batches[0], w.batches[1:]
			w.bytes = 0
		}
		return more || w.closed
	})
	return b, more, err
}

// close says that nothing comes any more.
func (w *waiting) close() {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	w.closed = true
	close(w.changed)
	w.changed = make(chan struct{})
}

// until tries something until it succeeds, with every change.
func (w *waiting) until(ctx context.Context, try func() bool) error {
	for {
		w.mutex.Lock()
		done, changed := try(), w.changed
		if done {
			close(w.changed)
			w.changed = make(chan struct{})
		}
		w.mutex.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// add gathers a batch, false when there is no room.
func (w *waiting) add(b stream.Batch) bool {
	n := len(w.batches)
	if n > 0 && len(w.batches[n-1].Events) == 0 {
		n-- // older news
	}
	bytes := bytesOf(b)
	switch {
	case n == 0 || len(b.Events) == 0:
		w.batches = append(w.batches[:n], b)
	case len(w.batches[0].Events)+len(b.Events) > w.most, w.bytes+bytes > gatherBytes:
		return false
	default:
		b.Events = append(w.batches[0].Events, b.Events...)
		w.batches = append(w.batches[:0], b)
	}
	w.bytes += bytes
	return true
}

func bytesOf(b stream.Batch) (bytes int) {
	for i := range b.Events {
		bytes += len(b.Events[i].Doc)
	}
	return bytes
}

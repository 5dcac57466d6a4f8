package daemon

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// Health knows whether the loops of this process still turn. It asks nothing outside the process: restarting us does
// not help a database that is down.
type Health struct {
	mu    sync.Mutex
	loops map[*Heartbeat]struct{}
}

// NewHealth returns a Health without loops, which is healthy.
func NewHealth() *Health {
	return &Health{loops: make(map[*Heartbeat]struct{})}
}

// Heartbeat is how one loop shows that it turns. Its methods may be called from any goroutine.
type Heartbeat struct {
	health  *Health
	name    string
	allowed time.Duration

	// Guarded by health.mu.
	last    time.Time
	waiting bool
}

// Loop registers a loop that beats at least every allowed, retries and their pauses included. The time runs from now.
// Two loops may share a name, as when a lane is left and taken again.
func (h *Health) Loop(name string, allowed time.Duration) *Heartbeat {
	b := &Heartbeat{health: h, name: name, allowed: allowed, last: time.Now()}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.loops[b] = struct{}{}
	return b
}

// Beat says that the loop turns, and ends what Waiting began.
func (b *Heartbeat) Beat() { b.set(false) }

// Waiting says that the loop enters a call that may rightly take any time, such as a getMore on a quiet collection. The
// loop is not judged until its next Beat, so the call needs a limit of its own.
func (b *Heartbeat) Waiting() { b.set(true) }

// Silent is how long ago the loop last said anything, also that it is waiting.
func (b *Heartbeat) Silent() time.Duration {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	return time.Since(b.last)
}

// Done says that the loop has ended on purpose and is not to be judged any more.
func (b *Heartbeat) Done() {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	delete(b.health.loops, b)
}

func (b *Heartbeat) set(waiting bool) {
	b.health.mu.Lock()
	defer b.health.mu.Unlock()
	b.last, b.waiting = time.Now(), waiting
}

// Check returns nil while every loop turns, else one error for each loop that does not, joined in the order of names.
func (h *Health) Check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var stuck []error
	for _, b := range slices.SortedFunc(maps.Keys(h.loops), byName) {
		if silent := time.Since(b.last); !b.waiting && silent > b.allowed {
			stuck = append(stuck, fmt.Errorf("loop %s has not moved for %s, at most %s is expected",
				b.name, silent.Round(time.Second), b.allowed))
		}
	}
	return errors.Join(stuck...)
}

func byName(a, b *Heartbeat) int { return cmp.Compare(a.name, b.name) }

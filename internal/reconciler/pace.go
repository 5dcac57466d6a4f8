package reconciler

import (
	"context"
	"time"
)

// pace holds a run back to so many keys and rows a second.
type pace struct {
	keysPerSecond, rowsPerSecond int       // 0 for no limit
	free                         time.Time // when the next work may begin
}

// cost is the time that work takes by the limits.
func (p *pace) cost(keys, rows int64) time.Duration {
	of := func(n int64, perSecond int) time.Duration {
		if perSecond == 0 {
			return 0
		}
		return time.Duration(float64(n) / float64(perSecond) * float64(time.Second))
	}
	return max(of(keys, p.keysPerSecond), of(rows, p.rowsPerSecond))
}

// beatEvery is how often a wait shows that it is alive.
const beatEvery = 10 * time.Second

// did waits for as long as the work that has just been done takes by the limits, and calls beat meanwhile. Time in which
// nothing was done is not saved up.
func (p *pace) did(ctx context.Context, began time.Time, keys, rows int64, beat func()) error {
	if p.free.Before(began) {
		p.free = began
	}
	p.free = p.free.Add(p.cost(keys, rows))
	for wait := time.Until(p.free); wait > 0; wait = time.Until(p.free) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(min(wait, beatEvery)):
			beat()
		}
	}
	return nil
}

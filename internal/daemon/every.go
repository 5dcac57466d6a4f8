package daemon

import (
	"context"
	"time"
)

// Every does something every so often, the first time after the interval, until ctx ends. It returns ctx's error.
func Every(ctx context.Context, interval time.Duration, do func(context.Context)) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
			do(ctx)
		}
	}
}

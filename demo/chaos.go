package main

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	firstKill = 2 * time.Second
	killEvery = 2 * time.Second // and up to twice as much more
	downFor   = time.Second     // at most; sometimes it starts again at once
)

// chaos runs the incrementer and kills it every few seconds.
type chaos struct {
	programs *programs
	news     *news
	kills    atomic.Int64
	up       atomic.Bool
	current  *process // once run has returned
}

func (c *chaos) start() error {
	child, err := c.programs.start(incrementer, "run")
	if err != nil {
		return err
	}
	c.current = child
	c.up.Store(true)
	return nil
}

// run kills and restarts until finish ends, and leaves an incrementer running.
func (c *chaos) run(ctx, finish context.Context) error {
	random := newRandom()
	for next := firstKill; ; next = killEvery + random.duration(2*killEvery) {
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-finish.Done():
			timer.Stop()
			return nil
		case <-c.current.done:
			return c.programs.unexpected(incrementer, c.current)
		case <-timer.C:
		}
		if err := c.killAndRestart(ctx, random); err != nil {
			return err
		}
	}
}

func (c *chaos) killAndRestart(ctx context.Context, random *random) error {
	c.current.kill()
	c.up.Store(false)
	c.news.add("kill -9 of the incrementer, number %d", c.kills.Add(1))
	if random.IntN(2) == 0 && !pause(ctx, random.duration(downFor)) {
		return ctx.Err()
	}
	return c.start()
}

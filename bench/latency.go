package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"driftless/internal/counter"
)

const (
	steadyRate    = 1000 // rows a second
	steadyWriters = 8
	steadyFor     = 20 * time.Second
	steadyWarmUp  = 2 * time.Second
)

// moments are when so many events had come to a point, in the order in which they passed it.
type moments struct {
	mutex sync.Mutex
	at    []time.Time
}

func (m *moments) pass(n int) {
	now := time.Now()
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for range n {
		m.at = append(m.at, now)
	}
}

func (m *moments) sorted() []time.Time {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return slices.SortedFunc(slices.Values(m.at), time.Time.Compare)
}

// latency measures how long it takes from the acknowledged write of a row to the committed count, while rows are written steadily,
// after how long it takes to read them from a change stream and do nothing. The n-th event of the stream is the n-th row that was
// acknowledged, give or take the few that are written at once.
func latency(ctx context.Context, on bench, _ float64) error {
	s, err := newSubject(ctx, rowsOf(on.client), "latency", 1)
	if err != nil {
		return err
	}
	var delivered, committed moments
	reading, stop := context.WithCancel(ctx)
	var reader errgroup.Group
	reader.Go(func() error { return s.deliver(reading, &delivered) })
	read, err := s.steadily(ctx, &delivered)
	stop()
	if ended := reader.Wait(); err != nil || !errors.Is(ended, context.Canceled) {
		return errors.Join(err, ended)
	}
	var count []time.Duration
	watch := &progress{want: -1, told: func(a counter.Applied) { committed.pass(a.Events) }}
	err = s.running(ctx, watch, func(ctx context.Context) (err error) {
		if err := committed.wait(ctx, len(delivered.sorted())); err != nil { // what was written before
			return err
		}
		committed.at = nil
		count, err = s.steadily(ctx, &committed)
		return err
	})
	if err != nil {
		return err
	}
	fmt.Printf("latency: from the acknowledged row to the committed count %s at the median, %s at the 99th percentile; to its reader alone %s and %s (%d rows, %d a second, %d transactions)\n",
		millis(quantile(count, 0.5)), millis(quantile(count, 0.99)), millis(quantile(read, 0.5)), millis(quantile(read, 0.99)),
		len(count), steadyRate, watch.commits.Load())
	return errors.Join(s.check(ctx), s.clear(ctx))
}

// steadily writes rows steadily, waits until all have got to a point, and returns how long each took, in order of length.
func (s *subject) steadily(ctx context.Context, passed *moments) ([]time.Duration, error) {
	var acknowledged moments
	if err := writeSteadily(ctx, s, &acknowledged); err != nil {
		return nil, err
	}
	from := acknowledged.sorted()
	err := passed.wait(ctx, len(from))
	return delays(from, passed.sorted()), err
}

// wait waits until so many have passed.
func (m *moments) wait(ctx context.Context, n int) error {
	for len(m.sorted()) < n {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
	return nil
}

// deliver reads the stream and does nothing.
func (s *subject) deliver(ctx context.Context, delivered *moments) error {
	source, err := s.source(s.ids[0], s.definitions)
	if err != nil {
		return err
	}
	reader, err := source.Open(ctx, s.start)
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	for {
		batch, err := reader.Next(ctx)
		if err != nil {
			return errors.Join(err, ctx.Err())
		}
		delivered.pass(len(batch.Events))
	}
}

// writeSteadily inserts rows, each by a command of its own.
func writeSteadily(ctx context.Context, s *subject, acknowledged *moments) error {
	var writers errgroup.Group
	began := time.Now()
	for w := range steadyWriters {
		writers.Go(func() error {
			for n := w; ; n += steadyWriters {
				due := began.Add(time.Duration(n) * time.Second / steadyRate)
				if due.Sub(began) >= steadyFor {
					return nil
				}
				select {
				case <-ctx.Done():
					return ctx.Err()
				case <-time.After(time.Until(due)):
				}
				if _, err := s.rows.InsertOne(ctx, comment(int64(n%1000), false)); err != nil {
					return fmt.Errorf("write a row: %w", err)
				}
				acknowledged.pass(1)
			}
		})
	}
	return writers.Wait()
}

// delays are the times between the same event's moments, in order of length, without those of the first seconds.
func delays(from, to []time.Time) []time.Duration {
	all := make([]time.Duration, 0, len(from))
	for i, at := range from {
		if at.Sub(from[0]) >= steadyWarmUp {
			all = append(all, max(0, to[i].Sub(at)))
		}
	}
	slices.Sort(all)
	return all
}

func quantile(sorted []time.Duration, q float64) time.Duration {
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

func millis(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }

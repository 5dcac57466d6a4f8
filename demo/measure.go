package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
)

const (
	measureEvery = time.Second
	// measureShare bounds what measuring costs: after each measurement, so many times its duration nothing.
	measureShare = 4
)

// everyPost selects every row and every counter document: an index on the key answers it.
var everyPost = counter.Selection{{Key: "$gte", Value: int64(0)}}

// distance is how far counters are from the truth.
type distance struct {
	sum   int64 // absolute, over all posts
	posts int64 // that are wrong
}

func (d *distance) add(displayed, truth int64) {
	if displayed != truth {
		d.sum += abs(displayed - truth)
		d.posts++
	}
}

// measurement is how wrong both counters are at one position of the incrementer.
type measurement struct {
	at          time.Time // when it was taken
	position    bson.Timestamp
	rows        int64 // deleted ones included
	usual, ours distance
}

// errNotNow: this position cannot be measured, a later one can.
var errNotNow = errors.New("not now")

// measure reads ours and the checkpoint in one snapshot, then rows and the usual counter in another at the checkpoint's
// position: one count serves both comparisons. What the operator edited is an error of ours until it is repaired.
func (s *stage) measure(ctx context.Context, usual *usual) (measurement, error) {
	m := measurement{at: time.Now()}
	var at checkpoint.Checkpoint
	var documents map[string]counter.Document
	err := counter.Snapshot(ctx, s.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if at, err = s.checkpoints.Load(ctx, source); err != nil {
			return err
		}
		documents, err = s.definition.Documents(ctx, s.client, everyPost)
		return err
	})
	if err != nil {
		return m, fmt.Errorf("measure: %w", err)
	}
	if at.Tail.TooLarge {
		return m, errNotNow
	}
	var truths map[string]counter.Truth
	var usuals map[int64]int64
	err = counter.Snapshot(ctx, s.client, at.Position, func(ctx context.Context) (err error) {
		if truths, m.rows, err = s.definition.Count(ctx, s.client, everyPost); err != nil {
			return err
		}
		usuals, err = usual.counts(ctx)
		return err
	})
	if counter.IsSnapshotGone(err) {
		return m, errNotNow
	}
	if err != nil {
		return m, fmt.Errorf("measure: %w", err)
	}
	m.position = at.Position
	m.ours = distanceOfOurs(documents, truths, at.Tail)
	m.usual = distanceOfUsual(usuals, truths)
	return m, nil
}

// distanceOfOurs compares base + live, less what is applied beyond the position, with the rows at the position.
func distanceOfOurs(documents map[string]counter.Document, truths map[string]counter.Truth, tail checkpoint.Tail) (d distance) {
	displayed := make(map[string]int64, len(documents))
	for key := range truths {
		displayed[key] = 0 // rows that nothing displays
	}
	for key, document := range documents {
		displayed[key] = document.Base + document.Live
	}
	for _, delta := range tail.Deltas {
		if delta.Counter == counterName {
			displayed[counter.Canonical(delta.Key)] -= delta.Delta
		}
	}
	for key, n := range displayed {
		d.add(n, truths[key].N)
	}
	return d
}

func distanceOfUsual(counts map[int64]int64, truths map[string]counter.Truth) (d distance) {
	byPost := make(map[int64]int64, len(truths))
	for _, truth := range truths {
		byPost[truth.Key.AsInt64()] = truth.N
	}
	for post, n := range counts {
		d.add(n, byPost[post])
	}
	return d
}

// runMeasurements measures in the background until ctx ends and hands on what it finds.
func (s *stage) runMeasurements(ctx context.Context, usual *usual, publish func(measurement)) error {
	for next := time.Duration(0); pause(ctx, next); {
		began := time.Now()
		m, err := s.measure(ctx, usual)
		if err == nil {
			publish(m)
		} else if ctx.Err() == nil && !errors.Is(err, errNotNow) {
			return err
		}
		next = max(measureEvery, measureShare*time.Since(began))
	}
	return nil
}

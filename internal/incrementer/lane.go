// Package incrementer follows what happened to the rows and applies it to the counters: read, fold, apply.
package incrementer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream"
)

const (
	// readAhead is how many batches may wait while one is being committed: memory stays flat whatever the backlog.
	readAhead = 1
	// brokenRetry is how often a counter whose expression failed is tried again.
	brokenRetry = time.Minute
	// refusedRetry is how often a lane looks again whose counter documents must be mended: looking costs the server.
	refusedRetry = time.Minute
	// retryAfter is the shortest pause after an error of the server or the network.
	retryAfter    = time.Second
	maxRetryAfter = 10 * time.Second
	// fencedPause is the first pause after losing to another owner. It doubles while nothing is applied in between, so
	// that two owners of one lane do not reopen in a tight loop.
	fencedPause = 50 * time.Millisecond
)

// errMend ends a reading so that broken counters are tried again.
var errMend = errors.New("try broken counters again")

// Counters is what a lane needs of the counters' side: where it is, and how batches are applied.
type Counters interface {
	// Load returns where the lane is once it applies the definitions less those in broken.
	Load(ctx context.Context, broken map[string]string) (checkpoint.Checkpoint, error)
	// Restart starts the lane afresh, records the gap and marks the counters for a recount.
	Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error)
}

// Applier applies batches in order and returns the checkpoint it got to, also with an error.
type Applier interface {
	Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error)
}

// Lane is one ordered stream and its checkpoint. Its functions open the two ends for a set of counters.
type Lane struct {
	Name, Source   string
	Definitions    []*counter.Definition
	Counters       Counters
	OpenSource     func([]*counter.Definition) (stream.Source, error)
	NewApplier     func([]*counter.Definition) Applier
	IdleCheckpoint time.Duration
	BrokenRetry    time.Duration // how often broken counters are tried again; 0 is every minute
	StopWhenLost   bool          // policy stop: a lost position ends the process
	State          *State
	Metrics        *Metrics
	Log            *slog.Logger

	broken  map[string]string // the server's message by counter; published, so replaced and never changed
	mendAt  time.Time         // when the broken ones are tried again
	failing *backoff.ExponentialBackOff
	fenced  time.Duration // the next pause after being fenced
}

// Run follows the lane until ctx ends. Everything that can be tried again is; a lost position ends it when the policy
// says so.
func (l *Lane) Run(ctx context.Context) error {
	l.broken, l.fenced = nil, fencedPause
	l.failing = backoff.NewExponentialBackOff(backoff.WithInitialInterval(retryAfter),
		backoff.WithMaxInterval(maxRetryAfter), backoff.WithMaxElapsedTime(0))
	for {
		l.State.working()
		err := l.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.State.working()
		pause, err := l.recover(ctx, err)
		if err != nil {
			return err
		}
		l.State.waiting()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}

// recover decides what an ended reading means and how long to wait before the next.
func (l *Lane) recover(ctx context.Context, err error) (pause time.Duration, fatal error) {
	switch {
	case errors.Is(err, errMend):
		return 0, nil
	case errors.Is(err, checkpoint.ErrFenced):
		l.Metrics.fenced(l.Source)
		pause = l.fenced
		l.fenced = min(2*l.fenced, retryAfter)
		l.Log.Warn("fenced by another owner, reloading", logkey.Lane, l.Name, logkey.Error, err, "after", pause)
		return pause, nil
	case errors.Is(err, stream.ErrPositionLost), errors.Is(err, stream.ErrCollectionChanged):
		return l.lost(ctx, err)
	case errors.Is(err, counter.ErrRefused):
		return l.refused(err), nil
	case errors.Is(err, stream.ErrExpression):
		if found := l.findBroken(ctx); found {
			return 0, nil
		}
	}
	l.State.failed(err)
	l.Metrics.restarted(l.Source, reasonOf(err))
	pause = l.pause()
	l.Log.Warn("lane interrupted, reopening from its checkpoint", logkey.Lane, l.Name, logkey.Error, err, "after", pause)
	return pause, nil
}

// pause is how long to wait after one more failure: longer each time, with jitter, and never less than retryAfter.
func (l *Lane) pause() time.Duration { return max(retryAfter, l.failing.NextBackOff()) }

// refused answers documents that must be mended by hand: the lane stands still, and looks now and then.
func (l *Lane) refused(cause error) time.Duration {
	l.State.failed(cause)
	l.Metrics.restarted(l.Source, reasonOf(cause))
	l.Log.Error("lane stands still: too many counter documents cannot take their increment", logkey.Lane, l.Name,
		logkey.Error, cause, "after", refusedRetry, logkey.Action,
		"mend the documents or the counters' target fields; nothing is lost while the history reaches back")
	return refusedRetry
}

// lost answers a position that cannot be resumed, by the policy (I7).
func (l *Lane) lost(ctx context.Context, cause error) (time.Duration, error) {
	if l.StopWhenLost {
		return 0, fmt.Errorf("lane %s cannot resume, and on_position_lost is stop: "+
			"set it to recount, which starts afresh and recounts every counter of source %s: %w", l.Name, l.Source, cause)
	}
	at, err := l.Counters.Restart(ctx, reasonOf(cause), l.broken)
	if err != nil {
		l.State.failed(errors.Join(cause, err))
		pause := l.pause()
		l.Log.Warn("fresh start not possible yet", logkey.Lane, l.Name, logkey.Error, err, logkey.Cause, cause, "after", pause)
		return pause, nil
	}
	l.Metrics.gap(l.Source)
	l.Metrics.restarted(l.Source, reasonOf(cause))
	l.Log.Error("position lost: started afresh, every counter of the source is marked for a recount",
		logkey.Lane, l.Name, logkey.Error, cause, logkey.Position, at.Position.T,
		logkey.Action, "run the reconciler; counters may be wrong until it has recounted them")
	return retryAfter, nil
}

// follow reads and applies from the checkpoint on until something ends it.
func (l *Lane) follow(ctx context.Context) error {
	at, err := l.Counters.Load(ctx, l.broken)
	if err != nil {
		return err
	}
	if len(l.broken) > 0 && !time.Now().Before(l.mendAt) {
		l.mend(ctx, at)
		if at, err = l.Counters.Load(ctx, l.broken); err != nil {
			return err
		}
	}
	working := l.working()
	source, err := l.OpenSource(working)
	if err != nil {
		return err
	}
	reader, err := source.Open(ctx, at.Start())
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	l.State.following(at, l.broken)
	defer l.State.left()
	l.Log.Info("following", logkey.Lane, l.Name, logkey.Seq, at.Seq, "counters", len(working), "broken", len(l.broken))

	group, ctx := errgroup.WithContext(ctx)
	batches := make(chan stream.Batch, readAhead)
	var ended error // why there is no more to read
	group.Go(func() error {
		// Not the group's error, which would cancel the applier: what was read before is applied first, and only then
		// is the checkpoint where the error is.
		defer close(batches)
		ended = l.read(ctx, reader, batches)
		return nil
	})
	group.Go(func() error { return l.apply(ctx, at, l.NewApplier(working), batches) })
	if err := group.Wait(); err != nil {
		return err
	}
	return ended
}

// read fills batches until an error. An applier that is busy holds it back.
func (l *Lane) read(ctx context.Context, reader stream.Reader, batches chan<- stream.Batch) error {
	for {
		batch, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		select {
		case batches <- batch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// apply applies batches in order. An idle stream's token is checkpointed now and then, so that it does not fall off the
// history and a reconciler finds a fresh position.
func (l *Lane) apply(ctx context.Context, at checkpoint.Checkpoint, applier Applier, batches <-chan stream.Batch) error {
	moved := time.Now()
	for {
		if ctx.Err() != nil { // a batch may be waiting as well
			return ctx.Err()
		}
		l.State.waiting()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case batch, open := <-batches:
			if !open {
				return nil
			}
			l.State.working()
			if len(batch.Events) == 0 {
				l.State.caughtUp(time.Now())
			}
			if len(batch.Events) > 0 || time.Since(moved) >= l.IdleCheckpoint && newer(batch, at) {
				var err error
				if at, err = applier.Apply(ctx, at, batch); err != nil {
					return err
				}
				moved, l.fenced = time.Now(), fencedPause
				l.failing.Reset()
				l.State.applied(at, len(batch.Events))
			}
			if len(l.broken) > 0 && !time.Now().Before(l.mendAt) {
				return errMend
			}
		}
	}
}

// newer reports whether an empty batch moves the position.
func newer(batch stream.Batch, at checkpoint.Checkpoint) bool {
	next, err := at.Next(batch.Token)
	return err == nil && at.Position.Before(next.Position)
}

// working are the definitions whose expressions are not known to fail.
func (l *Lane) working() []*counter.Definition {
	var ds []*counter.Definition
	for _, d := range l.Definitions {
		if l.broken[d.Name] == "" {
			ds = append(ds, d)
		}
	}
	return ds
}

// findBroken reads on from the checkpoint with each counter alone and sets apart those whose expression fails, so that
// the others can go on. It reports whether it found any.
func (l *Lane) findBroken(ctx context.Context) bool {
	at, err := l.Counters.Load(ctx, l.broken)
	if err != nil {
		return false
	}
	faults := map[string]string{}
	for _, d := range l.working() {
		if err := l.try(ctx, at, d); errors.Is(err, stream.ErrExpression) {
			faults[d.Name] = err.Error()
		}
	}
	// Where no reading works at all, the fault is the server's and not the counters'.
	if len(faults) == 0 || l.try(ctx, at) != nil {
		return false
	}
	maps.Copy(faults, l.broken)
	l.broken, l.mendAt = faults, time.Now().Add(l.brokenRetry())
	for _, d := range l.Definitions {
		if message, broken := faults[d.Name]; broken {
			l.Log.Error("counter set apart: its expression fails on the server, the others go on", logkey.Counter, d.Name,
				logkey.Lane, l.Name, logkey.Error, message, logkey.Action,
				"mend count_if or the rows it fails on; the counter is tried again every minute and recounted then")
		}
	}
	l.Metrics.restarted(l.Source, "expression")
	return true
}

// mend tries the broken counters again, each alone, and takes those out of broken that work.
func (l *Lane) mend(ctx context.Context, at checkpoint.Checkpoint) {
	still := map[string]string{}
	for _, d := range l.Definitions {
		message, broken := l.broken[d.Name]
		if !broken {
			continue
		}
		if l.try(ctx, at, d) != nil {
			still[d.Name] = message
			continue
		}
		l.Log.Info("counter taken up again: its expression works, a recount makes it right", logkey.Counter, d.Name, logkey.Lane, l.Name)
	}
	l.broken, l.mendAt = still, time.Now().Add(l.brokenRetry())
}

func (l *Lane) brokenRetry() time.Duration { return cmp.Or(l.BrokenRetry, brokenRetry) }

// try reads one batch with only the given counters in the pipeline.
func (l *Lane) try(ctx context.Context, at checkpoint.Checkpoint, only ...*counter.Definition) error {
	source, err := l.OpenSource(only)
	if err != nil {
		return err
	}
	reader, err := source.Open(ctx, at.Start())
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	l.State.waiting()
	defer l.State.working()
	_, err = reader.Next(ctx)
	return err
}

// reasonOf is the short name of an error's cause, as metrics label it.
func reasonOf(err error) string {
	for _, known := range []error{err, answered(err)} {
		for reason, sentinel := range restartReasons {
			if errors.Is(known, sentinel) {
				return reason
			}
		}
	}
	return reasonOther
}

// answered classifies what a server or the network said to a command that is not the stream's.
func answered(err error) error {
	var server mongo.ServerError
	if errors.As(err, &server) || mongo.IsNetworkError(err) || mongo.IsTimeout(err) {
		if c := stream.Classify(err); errors.Is(c, stream.ErrInterrupted) || errors.Is(c, stream.ErrUnauthorized) {
			return c
		}
	}
	return nil
}

const reasonOther = "other"

var restartReasons = map[string]error{
	"position_lost":      stream.ErrPositionLost,
	"collection_changed": stream.ErrCollectionChanged,
	"expression":         stream.ErrExpression,
	"unauthorized":       stream.ErrUnauthorized,
	"interrupted":        stream.ErrInterrupted,
	"refused":            counter.ErrRefused,
	"foreign_token":      stream.ErrForeignToken,
}

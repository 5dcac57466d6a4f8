// Package incrementer follows what happened to the rows and applies it to the counters: read, fold, apply.
package incrementer

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cenkalti/backoff/v4"
	"golang.org/x/sync/errgroup"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream"
)

// Counters is what a lane needs of the counters' side: where it is, and how batches are applied.
type Counters interface {
	// Load returns where the lane is once it applies the definitions less those in broken.
	Load(ctx context.Context, broken map[string]string) (checkpoint.Checkpoint, error)
	// Restart starts the lane afresh, records the gap and marks the counters for a recount.
	Restart(ctx context.Context, reason string, broken map[string]string) (checkpoint.Checkpoint, error)
	// Reached tells where the lane has got to since, so that a later Load knows a checkpoint that went back.
	Reached(at checkpoint.Checkpoint)
	// Check says why at does not stand any more for what is there, nil when it does, and whether images are on. It may
	// be called beside the others.
	Check(ctx context.Context, at checkpoint.Checkpoint) (images bool, err error)
}

// Applier applies batches in order and returns the checkpoint it got to, also with an error.
type Applier interface {
	Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error)
}

// Lane is one ordered stream and its checkpoint. Its functions open the two ends for a set of counters.
type Lane struct {
	ID             checkpoint.LaneID
	Definitions    []*counter.Definition
	Hold           func(context.Context) error // renews the lease, checkpoint.ErrNotHeld when another has it; nil for none
	Counters       Counters
	OpenSource     func([]*counter.Definition) (stream.Source, error)
	NewApplier     func([]*counter.Definition) Applier
	IdleCheckpoint time.Duration
	MaxBatchEvents int           // gathered while others are applied; 0 is 20,000
	BrokenRetry    time.Duration // how often broken counters are tried again; 0 is every minute
	CheckEvery     time.Duration // how often the identity of what is there is checked; 0 is every 5 s
	StopWhenLost   bool          // policy stop: a lost position ends the process
	State          *State
	Metrics        *Metrics
	Log            *slog.Logger

	broken   map[string]string // the server's message by counter; published, so replaced and never changed
	mendAt   time.Time         // when the broken ones are tried again
	searchAt time.Time         // not earlier is a broken one searched for again
	failing  *backoff.ExponentialBackOff
	fenced   time.Duration // the next pause after being fenced
}

// Run follows the lane until ctx ends. Everything that can be tried again is; a lost position ends it when the policy
// says so, and checkpoint.ErrNotHeld when another instance has the lane.
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

// follow reads and applies from the checkpoint on until something ends it.
func (l *Lane) follow(ctx context.Context) error {
	// First of all: what follows ends the transactions of whoever had the lane before.
	if l.Hold != nil {
		if err := l.Hold(ctx); err != nil {
			return err
		}
	}
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
	if at.Identity.Collection == "" && at.Topic == "" {
		l.Log.Warn("the collection of the rows does not exist: every count is 0 until it is made", logkey.Lane, l.ID.String())
	}
	l.Log.Info("following", logkey.Lane, l.ID.String(), logkey.Seq, at.Seq, "counters", len(working), "broken", len(l.broken))

	group, ctx := errgroup.WithContext(ctx)
	checking, stopChecking := context.WithCancel(ctx)
	batches := newWaiting(cmp.Or(l.MaxBatchEvents, 20_000))
	var ended error // why there is no more to read
	group.Go(func() error {
		// Not the group's error, which would cancel the applier: what was read before is applied first, and only then
		// is the checkpoint where the error is.
		defer batches.close()
		ended = l.read(ctx, reader, batches)
		return nil
	})
	group.Go(func() error {
		defer stopChecking()
		return l.apply(ctx, at, l.NewApplier(working), batches)
	})
	group.Go(func() error { return l.check(checking, at) })
	if err := group.Wait(); err != nil {
		return err
	}
	return ended
}

// checkEvery is how soon a collection that was replaced behind the stream's back is noticed, and images that are off.
const checkEvery = 5 * time.Second

// check looks now and then whether the checkpoint stands for what is there, until ctx ends. A server that does not answer
// is the reader's to judge.
func (l *Lane) check(ctx context.Context, at checkpoint.Checkpoint) error {
	ticker := time.NewTicker(cmp.Or(l.CheckEvery, checkEvery))
	defer ticker.Stop()
	for {
		images, err := l.Counters.Check(ctx, at)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, stream.ErrPositionLost), errors.Is(err, stream.ErrCollectionChanged), errors.Is(err, counter.ErrStates),
			errors.Is(err, counter.ErrCollectionMade):
			return err
		case err == nil:
			l.imagesAre(images)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// imagesAre publishes whether the rows' images are on, and says so when that has changed.
func (l *Lane) imagesAre(on bool) {
	switch was := l.State.images(on); {
	case !on && was:
		l.Log.Error("images are off: a change that needs one costs a recount", logkey.Lane, l.ID.String(),
			logkey.Action, "run `incrementer setup` to turn changeStreamPreAndPostImages on again")
	case on && !was:
		l.Log.Info("images are on again", logkey.Lane, l.ID.String())
	}
}

// read fills batches until an error. An applier that is busy holds it back.
func (l *Lane) read(ctx context.Context, reader stream.Reader, batches *waiting) error {
	for {
		batch, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		if err := batches.put(ctx, batch); err != nil {
			return err
		}
	}
}

// apply applies batches in order. An idle stream's token is checkpointed now and then, so that it does not fall off the
// history and a reconciler finds a fresh position.
func (l *Lane) apply(ctx context.Context, at checkpoint.Checkpoint, applier Applier, batches *waiting) error {
	moved := time.Now()
	for {
		if ctx.Err() != nil { // a batch may be waiting as well
			return ctx.Err()
		}
		l.State.waiting()
		batch, more, err := batches.take(ctx)
		if err != nil || !more {
			return err
		}
		l.State.working()
		l.State.behind(batch.Behind)
		if len(batch.Events) == 0 {
			l.State.caughtUp(time.Now())
		}
		if len(batch.Events) > 0 || time.Since(moved) >= l.IdleCheckpoint && newer(batch, at) {
			at, err = applier.Apply(ctx, at, batch)
			l.Counters.Reached(at)
			if err != nil {
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

// newer reports whether an empty batch moves the position.
func newer(batch stream.Batch, at checkpoint.Checkpoint) bool {
	next, err := at.Next(batch.Token)
	return err == nil && at.Position.Before(next.Position)
}

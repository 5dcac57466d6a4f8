package incrementer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream"
)

const (
	// retryAfter is the shortest pause after an error of the server or the network.
	retryAfter    = time.Second
	maxRetryAfter = 10 * time.Second
	// fencedPause is the first pause after losing to another owner. It doubles while nothing is applied in between, so
	// that two owners of one lane do not reopen in a tight loop.
	fencedPause = 50 * time.Millisecond
	// refusedRetry is how often a lane looks again whose counter documents must be mended: looking costs the server.
	refusedRetry = time.Minute
)

// recover decides what an ended reading means and how long to wait before the next.
func (l *Lane) recover(ctx context.Context, err error) (pause time.Duration, fatal error) {
	switch {
	case errors.Is(err, errMend), errors.Is(err, counter.ErrCollectionMade):
		return 0, nil
	case errors.Is(err, checkpoint.ErrNotHeld):
		return 0, err
	case errors.Is(err, checkpoint.ErrFenced):
		l.Metrics.fenced(l.ID.Source)
		pause = l.yield()
		l.Log.Warn("fenced by another owner, reloading", logkey.Lane, l.ID.String(), logkey.Error, err, "after", pause)
		return pause, nil
	case counter.IsConflict(err): // of the lanes of one source that start together, one starts them all
		pause = l.yield()
		l.Log.Info("another transaction was faster, reloading", logkey.Lane, l.ID.String(), logkey.Error, err, "after", pause)
		return pause, nil
	case errors.Is(err, stream.ErrPositionLost), errors.Is(err, stream.ErrCollectionChanged), errors.Is(err, checkpoint.ErrPartitions):
		return l.lost(ctx, err)
	case errors.Is(err, checkpoint.ErrNewer), errors.Is(err, counter.ErrContested):
		return l.standStill(err), nil
	case errors.Is(err, counter.ErrRefused):
		return l.refused(err), nil
	case errors.Is(err, stream.ErrExpression) && !time.Now().Before(l.searchAt):
		if found := l.findBroken(ctx); found {
			return 0, nil
		}
		l.searchAt = time.Now().Add(maxRetryAfter) // a search asks the server several times
	}
	l.State.failed(err)
	l.Metrics.restarted(l.ID.Source, reasonOf(err))
	pause = l.pause()
	l.Log.Warn("lane interrupted, reopening from its checkpoint", logkey.Lane, l.ID.String(), logkey.Error, err, "after", pause)
	return pause, nil
}

// yield is how long to wait for another owner: longer each time until something is applied.
func (l *Lane) yield() time.Duration {
	pause := l.fenced
	l.fenced = min(2*l.fenced, retryAfter)
	return pause
}

// pause is how long to wait after one more failure: longer each time, with jitter, and never less than retryAfter.
func (l *Lane) pause() time.Duration { return max(retryAfter, l.failing.NextBackOff()) }

// standStill answers what only an operator can end: the lane looks now and then, and says so once.
func (l *Lane) standStill(cause error) time.Duration {
	if before := l.State.View().LastErr; before == nil || before.Error() != cause.Error() {
		l.Metrics.restarted(l.ID.Source, reasonOf(cause))
		l.Log.Error("lane stands still: nothing is applied, and nothing is lost while the history reaches back",
			logkey.Lane, l.ID.String(), logkey.Error, cause)
	}
	l.State.failed(cause)
	return l.pause()
}

// refused answers documents that must be mended by hand: the lane stands still, and looks now and then.
func (l *Lane) refused(cause error) time.Duration {
	l.State.failed(cause)
	l.Metrics.restarted(l.ID.Source, reasonOf(cause))
	l.Log.Error("lane stands still: too many counter documents cannot take their increment", logkey.Lane, l.ID.String(),
		logkey.Error, cause, "after", refusedRetry, logkey.Action,
		"mend the documents or the counters' target fields; nothing is lost while the history reaches back")
	return refusedRetry
}

// lost answers a position that cannot be resumed, by the policy (I7).
func (l *Lane) lost(ctx context.Context, cause error) (time.Duration, error) {
	divided := errors.Is(cause, checkpoint.ErrPartitions)
	if l.StopWhenLost && !divided { // another number of lanes is what somebody asked for
		return 0, fmt.Errorf("lane %s cannot resume, and on_position_lost is stop: "+
			"set it to recount, which starts afresh and recounts every counter of source %s: %w", l.ID.String(), l.ID.Source, cause)
	}
	at, err := l.Counters.Restart(ctx, reasonOf(cause), l.broken)
	if errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrPartitions) { // another lane of the source is at it
		return l.yield(), nil
	}
	if err != nil {
		l.State.failed(errors.Join(cause, err))
		pause := l.pause()
		l.Log.Warn("fresh start not possible yet", logkey.Lane, l.ID.String(), logkey.Error, err, logkey.Cause, cause, "after", pause)
		return pause, nil
	}
	l.State.failed(cause)
	l.Metrics.restarted(l.ID.Source, reasonOf(cause))
	if divided {
		l.Log.Warn("source divided anew: its lanes start afresh, every counter of it is marked for a recount",
			logkey.Lane, l.ID.String(), logkey.Cause, cause, logkey.Position, stream.InWords(at.Position))
		return l.pause(), nil
	}
	l.Metrics.gap(l.ID.Source)
	l.Log.Error("position lost: started afresh, every counter of the source is marked for a recount",
		logkey.Lane, l.ID.String(), logkey.Error, cause, logkey.Position, stream.InWords(at.Position),
		logkey.Action, "run the reconciler; counters may be wrong until it has recounted them")
	return l.pause(), nil // a server that answers so every time leaves no gap every second
}

// reasonOf is the short name of an error's cause, as metrics and gaps say it.
func reasonOf(err error) string {
	for _, known := range []error{err, answered(err)} {
		for _, r := range restartReasons {
			if errors.Is(known, r.sentinel) {
				return r.name
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

// restartReasons are in the order in which they are looked for: what is said more precisely comes first.
var restartReasons = []struct {
	name     string
	sentinel error
}{
	{"checkpoint_missing", checkpoint.ErrMissing},
	{"checkpoint_went_back", checkpoint.ErrWentBack},
	{"state_restored", checkpoint.ErrRestored},
	{"other_cluster", checkpoint.ErrOtherCluster},
	{counter.ReasonPartitions, checkpoint.ErrPartitions},
	{"newer_version", checkpoint.ErrNewer},
	{"contested", counter.ErrContested},
	{"state_missing", counter.ErrStates},
	{"collection_changed", stream.ErrCollectionChanged},
	{"position_lost", stream.ErrPositionLost},
	{"expression", stream.ErrExpression},
	{"unauthorized", stream.ErrUnauthorized},
	{"interrupted", stream.ErrInterrupted},
	{"refused", counter.ErrRefused},
	{"foreign_token", stream.ErrForeignToken},
}

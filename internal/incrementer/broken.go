package incrementer

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream"
)

// brokenRetry is how often a counter whose expression failed is tried again.
const brokenRetry = time.Minute

// errMend ends a reading so that broken counters are tried again.
var errMend = errors.New("try broken counters again")

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
	faults := l.failAlone(ctx, at, l.working())
	// Where no reading works at all, or the same one works a moment later, the fault is not the counter's.
	if len(faults) == 0 || l.try(ctx, at) != nil {
		return false
	}
	faults = l.failAlone(ctx, at, slices.DeleteFunc(l.working(), func(d *counter.Definition) bool { return faults[d.Name] == "" }))
	if len(faults) == 0 {
		return false
	}
	maps.Copy(faults, l.broken)
	l.broken, l.mendAt = faults, time.Now().Add(l.brokenRetry())
	for _, d := range l.Definitions {
		if message, broken := faults[d.Name]; broken {
			l.Log.Error("counter set apart: its expression fails on the server, the others go on", logkey.Counter, d.Name,
				logkey.Lane, l.ID.String(), logkey.Error, message, logkey.Action,
				"mend count_if or the rows it fails on; the counter is tried again every minute and recounted then")
		}
	}
	l.Metrics.restarted(l.ID.Source, "expression")
	return true
}

// failAlone returns the server's message by counter for those whose expression fails.
func (l *Lane) failAlone(ctx context.Context, at checkpoint.Checkpoint, ds []*counter.Definition) map[string]string {
	faults := map[string]string{}
	for _, d := range ds {
		if err := l.try(ctx, at, d); errors.Is(err, stream.ErrExpression) {
			faults[d.Name] = err.Error()
		}
	}
	return faults
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
		l.Log.Info("counter taken up again: its expression works, a recount makes it right", logkey.Counter, d.Name, logkey.Lane, l.ID.String())
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

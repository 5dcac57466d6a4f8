package reconciler

import (
	"context"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// What a run pauses for, between two batches.
const (
	strainSlow        = "slow"        // the server takes long to answer
	strainReplication = "replication" // a majority of the members lags behind the primary
	strainIncrementer = "incrementer" // it lags behind the rows
)

var strains = []string{strainSlow, strainReplication, strainIncrementer}

// A server that takes longer than slowAnswer to say hello has other things to do. It is asked again every pauseStep.
const (
	slowAnswer = 500 * time.Millisecond
	pauseStep  = time.Second
)

// breathe pauses while the database or the incrementer is under strain, for at most the judge timeout: where it lasts, a run
// goes on little by little. An incrementer that has not caught up by then may as well be stopped, and is not waited for again
// in the pass: its position grows too old meanwhile. position is how far the incrementer is, zero for none.
func (p *pass) breathe(ctx context.Context, position bson.Timestamp) error {
	if !p.options.Key.IsZero() {
		return nil
	}
	began := time.Now()
	for {
		strain := p.strain(ctx, position)
		if strain == "" || strain == strainIncrementer && p.forsaken {
			return nil
		}
		if time.Since(began) > p.settings.JudgeTimeout {
			p.forsaken = p.forsaken || strain == strainIncrementer
			return nil
		}
		if !p.paused {
			p.paused = true
			p.log.Info("run pauses between batches", logkey.Counter, p.definition.Name, logkey.Reason, strain, logkey.Run, p.run)
		}
		if err := p.pause(ctx, strain); err != nil {
			return err
		}
		if lanes, err := p.checkpoints.Set(ctx, p.definition.Source); err == nil && !position.IsZero() {
			position = standing{lanes: lanes}.through()
		}
	}
}

// pause waits for one step.
func (p *pass) pause(ctx context.Context, strain string) error {
	p.beat()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(pauseStep):
		p.metrics.paused(strain, pauseStep)
		return nil
	}
}

// strain says what suffers, "" for nothing, or when nobody answers: the next batch finds out.
func (p *pass) strain(ctx context.Context, position bson.Timestamp) string {
	asked := time.Now()
	last, err := counter.LastWrites(ctx, p.client)
	if err != nil {
		return ""
	}
	return strainOf(time.Since(asked), last, position, p.settings.PauseWhenLagging)
}

// strainOf judges an answer: pure.
func strainOf(took time.Duration, last counter.Writes, position bson.Timestamp, lag time.Duration) string {
	behind := func(first, second bson.Timestamp) bool {
		return first.T > second.T && time.Duration(first.T-second.T)*time.Second > lag
	}
	switch {
	case took > slowAnswer:
		return strainSlow
	case behind(last.Primary, last.Majority):
		return strainReplication
	case !position.IsZero() && behind(last.Majority, position):
		return strainIncrementer
	default:
		return ""
	}
}

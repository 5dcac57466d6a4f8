package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
)

// notJudged says why a counter cannot be compared now. Waiting may help.
type notJudged struct{ reason, why string }

func (e *notJudged) Error() string { return "not judged: " + e.why }

// Reasons for which a counter is not judged.
const (
	skipNoCheckpoint = "no_checkpoint" // no incrementer has followed its source yet
	skipDefinition   = "definition"    // the incrementer counts by another definition
	skipBroken       = "broken"        // its expression fails on the server
	skipPosition     = "position"      // the incrementer took it up a moment ago
	skipTail         = "tail"          // a transaction too large to list is under way
	skipStale        = "stale"         // the position is older than the snapshots that the server keeps
	skipRaced        = "raced"         // repaired by somebody else meanwhile
)

// pass is one run's look at one counter.
type pass struct {
	*Reconciler
	options    Options
	definition *counter.Definition
	run        string
	started    time.Time // of the run
	report     *CounterReport

	state     counter.State
	through   bson.Timestamp // the earliest position that a batch was compared at
	described int            // drifted keys logged one by one
}

// view is one reading of a batch at one cut.
type view struct {
	at        checkpoint.Checkpoint
	documents map[string]counter.Document
	truths    map[string]counter.Truth
	tail      map[string]int64
}

// look compares what the options ask for: one key, all keys, or those touched since the last run.
func (p *pass) look(ctx context.Context) error {
	states, err := p.states.All(ctx)
	if err != nil {
		return err
	}
	p.state = states[p.definition.Name]
	if err := p.waitUntilJudged(ctx); err != nil {
		return err
	}
	switch {
	case !p.options.Key.IsZero():
		return p.keys(ctx, []counter.Touched{{Key: p.options.Key}})
	case p.options.Full || p.state.State == counter.Rebasing:
		return p.full(ctx)
	default:
		return p.definition.EachTouched(ctx, p.client, p.states, p.settings.BatchKeys,
			func(keys []counter.Touched) error { return p.keys(ctx, keys) })
	}
}

// full compares every key, range by range: keys of rows and of counter documents. When nothing was left out, the
// counter is active.
func (p *pass) full(ctx context.Context) error {
	// Marks first: those that a pass over the documents does not clear stand in the state database.
	if err := p.definition.EachTouched(ctx, p.client, p.states, p.settings.BatchKeys, func(keys []counter.Touched) error {
		return p.keys(ctx, withoutDocumentMarks(keys))
	}); err != nil {
		return err
	}
	ranges, err := p.definition.Ranges(ctx, p.client, rowsPerRange)
	if err != nil {
		return err
	}
	for _, r := range ranges {
		if err := p.batch(ctx, r, nil); err != nil {
			return err
		}
	}
	withoutKey, err := p.definition.RowsWithoutKey(ctx, p.client)
	if err != nil {
		return err
	}
	p.metrics.rowsWithoutKey(p.definition.Name, withoutKey)
	if p.options.DryRun || !p.report.complete || p.state.State != counter.Rebasing {
		return nil
	}
	_, err = p.states.Activate(ctx, p.state)
	return err
}

// withoutDocumentMarks keeps the keys whose mark the documents do not carry.
func withoutDocumentMarks(keys []counter.Touched) []counter.Touched {
	var kept []counter.Touched
	for _, k := range keys {
		if !k.Stamp.IsZero() {
			kept = append(kept, k)
		}
	}
	return kept
}

// keys compares listed keys, in smaller batches when a count was interrupted.
func (p *pass) keys(ctx context.Context, keys []counter.Touched) error {
	if len(keys) == 0 {
		return nil
	}
	list := make([]bson.RawValue, len(keys))
	for i, k := range keys {
		list[i] = k.Key
	}
	err := p.batch(ctx, counter.Listed(list), keys)
	var unjudged *notJudged
	if err == nil || errors.As(err, &unjudged) || ctx.Err() != nil {
		return err
	}
	if len(keys) > 1 {
		half := len(keys) / 2
		if err := p.keys(ctx, keys[:half]); err != nil {
			return err
		}
		return p.keys(ctx, keys[half:])
	}
	return err
}

// batch compares one selection and repairs what is wrong. marks are the listed keys, nil for a range.
func (p *pass) batch(ctx context.Context, which counter.Selection, marks []counter.Touched) error {
	var v view
	err := p.waitFor(ctx, func() (err error) {
		v, err = p.read(ctx, which)
		return err
	})
	if err != nil {
		return err
	}
	if p.through.IsZero() || v.at.Position.Before(p.through) {
		p.through = v.at.Position
	}
	return p.settle(ctx, v, p.judge(v, marks))
}

// read takes one cut: checkpoint, state and documents in one snapshot, the rows at the position that these reflect.
func (p *pass) read(ctx context.Context, which counter.Selection) (view, error) {
	var v view
	err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if v.at, err = p.judgeable(ctx); err != nil {
			return err
		}
		v.documents, err = p.definition.Documents(ctx, p.client, which)
		return err
	})
	if err != nil {
		return v, err
	}
	v.tail = tailOf(v.at, p.definition.Name)
	var rows int64
	err = counter.Snapshot(ctx, p.client, v.at.Position, func(ctx context.Context) (err error) {
		v.truths, rows, err = p.definition.Count(ctx, p.client, which)
		return err
	})
	p.report.rows += rows
	if counter.IsSnapshotGone(err) {
		age := time.Since(time.Unix(int64(v.at.Position.T), 0)).Round(time.Second)
		return v, &notJudged{skipStale, fmt.Sprintf(
			"the incrementer's position is %s old and the server keeps no snapshot of it: is the incrementer running?", age)}
	}
	return v, err
}

func tailOf(at checkpoint.Checkpoint, name string) map[string]int64 {
	tail := map[string]int64{}
	for _, d := range at.Tail.Deltas {
		if d.Counter == name {
			tail[counter.Canonical(d.Key)] += d.Delta
		}
	}
	return tail
}

// judgeable loads the checkpoint and says whether the counter can be judged at it (I4).
func (p *pass) judgeable(ctx context.Context) (checkpoint.Checkpoint, error) {
	d := p.definition
	at, err := p.checkpoints.Load(ctx, d.Source)
	if errors.Is(err, checkpoint.ErrNone) {
		return at, &notJudged{skipNoCheckpoint, fmt.Sprintf("no incrementer has followed source %s yet: start `incrementer run`", d.Source)}
	}
	if err != nil {
		return at, err
	}
	counting, ok := at.Counters[d.Name]
	switch {
	case !ok || counting.Hash != d.Hash:
		return at, &notJudged{skipDefinition, "the incrementer counts by another definition: restart it with this configuration file"}
	case counting.Broken != "":
		return at, &notJudged{skipBroken, "its expression fails on the server: " + counting.Broken}
	case at.Position.Before(counting.Since):
		return at, &notJudged{skipPosition, "the incrementer took it up in the middle of a transaction: waiting for a later position"}
	case at.Tail.TooLarge:
		return at, &notJudged{skipTail, "a large transaction is under way: waiting for a later position"}
	}
	return at, nil
}

// waitUntilJudged waits until the counter can be judged at all.
func (p *pass) waitUntilJudged(ctx context.Context) error {
	return p.waitFor(ctx, func() error {
		_, err := p.judgeable(ctx)
		return err
	})
}

// waitFor calls try again while it says notJudged, for at most the judge timeout.
func (p *pass) waitFor(ctx context.Context, try func() error) error {
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond), backoff.WithMaxElapsedTime(p.settings.JudgeTimeout))
	return backoff.Retry(func() error {
		err := try()
		var unjudged *notJudged
		if err != nil && !errors.As(err, &unjudged) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(policy, ctx))
}

// judge compares every key of the view, those seen by only one of the two readings included.
func (p *pass) judge(v view, marks []counter.Touched) []verdict {
	readings := make(map[string]reading, len(v.documents))
	for key, document := range v.documents {
		readings[key] = reading{document: document, truth: counter.Truth{Key: document.Key}}
	}
	for key, truth := range v.truths {
		r, known := readings[key]
		if !known && truth.N == 0 && truth.Bad == "" && marks == nil {
			continue // rows of which none counts, or that have no usable key, and nothing displayed
		}
		r.truth = truth
		readings[key] = r
	}
	for _, mark := range marks {
		key := counter.Canonical(mark.Key)
		r := readings[key]
		r.mark = mark
		if r.truth.Key.IsZero() {
			r.truth.Key = mark.Key
		}
		readings[key] = r
	}
	verdicts := make([]verdict, 0, len(readings))
	for key, r := range readings {
		if marks != nil && r.mark.Key.IsZero() {
			continue // a row whose key is an array that holds a listed key
		}
		r.tail = v.tail[key]
		verdicts = append(verdicts, compare(r, p.definition.Target.Upsert, p.reason()))
	}
	return verdicts
}

// reason is the cause that is on record for this counter.
func (p *pass) reason() Cause {
	if p.state.State != counter.Rebasing {
		return ""
	}
	switch p.state.Reason {
	case counter.ReasonGap:
		return CauseGap
	case counter.ReasonMissingImage:
		return CauseMissingImage
	default:
		return ""
	}
}

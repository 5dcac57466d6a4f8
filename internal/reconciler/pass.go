package reconciler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// maxLeftOut is how many keys a pass may leave out because their rows cannot be counted. Beyond it, something is wrong
// with more than a few rows.
const maxLeftOut = 100

// pass is one run's look at one counter.
type pass struct {
	*Reconciler
	options    Options
	definition *counter.Definition
	run        string
	described  *int // drifted keys that the run has logged one by one
	report     *CounterReport
	patience   time.Duration // how long to wait for a position that can be judged
	target     target
	hold       hold

	began    standing        // where the counter stood before its touched keys were listed
	compared map[string]bool // by canonical key, what this pass has compared of a counter that events increment
	seen     map[string]bool // keys compared by their mark in the state database, which a page or range may hold as well
	leftOut  int             // keys and ranges that could not be counted
	rested   bson.Timestamp  // where the touched keys that rest were compared at the earliest, zero for none
	undone   string          // a run whose repairs were taken back, of which a wrong key is kept
	paused   bool            // has told that it pauses
	forsaken bool            // the incrementer was waited for in vain
	full     bool            // every key is compared
	walk     *walk           // over the ranges of all keys, nil before it
	closer   closer          // of a counter that the application increments itself
	// counting lets one count of rows run at a time: it takes a whole core of the server.
	counting sync.Mutex
}

// look compares what the options ask for: one key, all keys, or those touched since the last run.
func (p *pass) look(ctx context.Context) error {
	if p.definition.ByApplication() {
		return p.lookApplication(ctx)
	}
	if p.target.err != nil {
		return p.target.err
	}
	var err error
	if p.began, err = p.waitUntilJudged(ctx); err != nil {
		return err
	}
	if !p.options.Key.IsZero() {
		return p.keys(ctx, []counter.Touched{{Key: p.options.Key}})
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	p.remembersHold()
	p.full = p.options.Full || p.asSighted(p.began.state).State == counter.Rebasing
	if p.full {
		err = p.everyKey(ctx)
	} else {
		err = p.pages(ctx, p.definition.Touched(p.client, p.states, p.settings.BatchKeys))
		if err == nil {
			err = p.changedRows(ctx)
		}
		if err == nil && !p.options.DryRun {
			err = p.sweep(ctx)
		}
	}
	if ctx.Err() == nil { // also what waits where the pass broke off
		err = errors.Join(err, p.decide(ctx, true))
	}
	if err == nil {
		err = p.sameTarget(ctx)
	}
	if err != nil || p.options.DryRun {
		return err
	}
	if err := p.concludeHold(ctx); err != nil || p.leftOut > 0 {
		return errors.Join(err, p.recordWalk(ctx))
	}
	return p.finish(ctx)
}

// finish records a pass in which every row could be counted. After a full one the counter is active: what was set apart
// is marked, and needs no second look at all the others.
func (p *pass) finish(ctx context.Context) error {
	if p.emptied() {
		return p.states.MarkLost(ctx, p.began.state)
	}
	if err := errors.Join(p.keepSighting(ctx, p.full), p.concludeWalk(ctx)); err != nil {
		return err
	}
	if p.began.state.State != counter.Rebasing {
		return nil
	}
	if p.through().Before(p.began.state.After) {
		return nil // what the recount is for lies beyond it: once more, with the next run
	}
	ended, err := p.states.Activate(ctx, p.began.state)
	if err == nil && ended {
		p.log.Info("every key was recounted, the counter is active", logkey.Counter, p.definition.Name, logkey.Reason, p.began.state.Reason,
			"checked", p.report.Checked, "rebased", p.report.Rebased, "drifted", p.report.Drift.Keys, logkey.Run, p.run)
	}
	return err
}

// through is the position through which a complete pass has compared what it had to: the one where it began, also when
// that was in an earlier run, or earlier by the keys that rest.
func (p *pass) through() bson.Timestamp {
	at := p.began.through()
	if p.full && p.walk != nil && p.walk.From.Before(at) {
		at = p.walk.From
	}
	if !p.rested.IsZero() && p.rested.Before(at) {
		at = p.rested
	}
	return at
}

// everyKey compares every key, range by range: keys of rows and of counter documents.
func (p *pass) everyKey(ctx context.Context) error {
	// Marks first: those that a pass over the documents does not clear stand in the state database.
	if err := p.pages(ctx, p.definition.MarkedApart(p.client, p.states, p.settings.BatchKeys)); err != nil {
		return err
	}
	return p.everyRange(ctx)
}

// pages compares a list of touched keys.
func (p *pass) pages(ctx context.Context, list *counter.TouchedKeys) error {
	for {
		var page []counter.Touched
		err := p.insist(ctx, func() (err error) {
			page, err = list.Next(ctx)
			return err
		})
		if errors.Is(err, counter.ErrNoTouchedIndex) {
			return &unjudgedError{skipNoIndex, err.Error()}
		}
		if err != nil || len(page) == 0 {
			return err
		}
		if err := p.page(ctx, p.due(page)); err != nil {
			return err
		}
	}
}

// page compares some listed keys, as many at once as their cost allows.
func (p *pass) page(ctx context.Context, page []counter.Touched) error {
	size := p.sizeOf(p.definition.Name)
	for len(page) > 0 {
		n := min(len(page), size.keys)
		if err := p.keys(ctx, page[:n]); err != nil {
			return err
		}
		page = page[n:]
	}
	return nil
}

// keys compares listed keys: fewer at once when a count fails, and at last without the one that it fails on.
func (p *pass) keys(ctx context.Context, keys []counter.Touched) error {
	list := make([]bson.RawValue, len(keys))
	for i, k := range keys {
		list[i] = k.Key
	}
	err := p.batch(ctx, counter.Listed(list), keys)
	var failed *uncountedError
	switch half := len(keys) / 2; {
	case !errors.As(err, &failed):
		return err
	case half == 0:
		return p.leaveOut(failed, logkey.Key, ExtendedJSON{keys[0].Key}.String())
	default:
		if err := p.keys(ctx, keys[:half]); err != nil {
			return err
		}
		return p.keys(ctx, keys[half:])
	}
}

// leaveOut goes on without something that cannot be counted.
func (p *pass) leaveOut(failed *uncountedError, what, which string) error {
	p.report.skip(failed.reason)
	p.log.Warn("rows not counted", logkey.Counter, p.definition.Name, what, which,
		logkey.Reason, failed.reason, logkey.Error, failed.err, logkey.Run, p.run)
	if p.leftOut++; p.leftOut > maxLeftOut {
		return fmt.Errorf("the rows of more than %d keys cannot be counted, the last time: %w", maxLeftOut, failed.err)
	}
	return nil
}

// batch compares one selection and repairs what is wrong. marks are the listed keys, nil for a range. It is safe to try
// again after *uncountedError alone: nothing has been reported then.
func (p *pass) batch(ctx context.Context, which counter.Selection, marks []counter.Touched) error {
	p.beat()
	if p.definition.ByApplication() {
		began, checked, rows := time.Now(), p.report.Checked, p.report.rows
		if err := p.firstLook(ctx, which, marks); err != nil {
			return err
		}
		return p.afterBatch(ctx, began, p.report.Checked-checked, p.report.rows-rows, bson.Timestamp{})
	}
	return p.compare(ctx, p.glimpse(ctx, which), marks)
}

func (p *pass) beat() {
	if p.heart != nil {
		p.heart.Beat()
	}
}

// compare judges what was read of a selection and repairs what is wrong.
func (p *pass) compare(ctx context.Context, g glimpse, marks []counter.Touched) error {
	if g.err != nil {
		return g.err
	}
	checked := p.report.Checked
	p.report.rows += g.view.rows
	if err := p.settle(ctx, g.view, p.judge(g.view, marks)); err != nil {
		return err
	}
	p.weigh(g.view)
	p.remember(g.view)
	if marks != nil {
		p.sizeOf(p.definition.Name).took(len(marks), g.view.took)
	}
	return p.afterBatch(ctx, g.began, p.report.Checked-checked, g.view.rows, g.view.through())
}

// afterBatch waits for what the limits ask, and for what is under strain. position is how far the incrementer is, zero
// for none.
func (p *pass) afterBatch(ctx context.Context, began time.Time, keys, rows int64, position bson.Timestamp) error {
	if err := p.pace.did(ctx, began, keys, rows, p.beat); err != nil {
		return err
	}
	return p.breathe(ctx, position)
}

// rowsWithoutKey publishes how many rows count for nothing. It is for information: a pass does not fail by it.
func (p *pass) rowsWithoutKey(ctx context.Context) {
	n, err := p.definition.RowsWithoutKey(ctx, p.client)
	if err != nil {
		p.log.Warn("rows without a key not counted", logkey.Counter, p.definition.Name, logkey.Error, err)
		return
	}
	p.report.RowsWithoutKey = n
	p.metrics.rowsWithoutKey(p.definition.Name, n)
}

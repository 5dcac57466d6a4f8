package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// Counters that the application increments itself have no position at which they could be judged. A pass compares all keys
// once, each range in one snapshot, and looks closer at those that differ: at two snapshots that lie further apart than a
// change may be under way. The server keeps snapshots of the last minutes, so that the earlier of the two needs no wait.

// restFactor is how many times as long as its last pass took a counter is left alone by the loop: there are no marks that
// would tell which keys to look at, and looking at all of them may take a tenth of the time.
const restFactor = 9

// closer is the part of a pass that looks closer.
type closer struct {
	suspects []bson.RawValue // differed at the first look
	first    bson.Timestamp  // of the first snapshot
	indexed  bool            // the rows of a key are found without reading all others
	forgets  bool            // the server keeps no snapshot from before a change may have been under way
	waited   time.Duration
	since    bson.Timestamp // the last write when the wait ended: what the looks after it have to know
}

// lookApplication compares what the options ask for: one key, or all of them.
func (p *pass) lookApplication(ctx context.Context) error {
	if err := p.insist(ctx, func() error { return p.present(ctx) }); err != nil {
		return err
	}
	if !p.options.DryRun { // a look may be that of a user who may read nothing of ours
		if err := p.insist(ctx, func() error { return p.ownRecord(ctx) }); err != nil {
			return err
		}
		p.remembersHold()
	}
	err := p.insist(ctx, func() (err error) {
		p.closer.indexed, err = p.definition.RangesIndexed(ctx, p.client)
		return err
	})
	switch {
	case err != nil:
		return err
	case !p.options.Key.IsZero():
		err = p.keys(ctx, []counter.Touched{{Key: p.options.Key}})
	default:
		p.full = true
		err = p.everyRange(ctx)
	}
	if err == nil {
		err = p.lookCloser(ctx)
	}
	if ctx.Err() == nil { // also what waits where the pass broke off
		err = errors.Join(err, p.decide(ctx, true))
	}
	if err != nil || p.options.DryRun {
		return err
	}
	return p.concludeHold(ctx)
}

// ownRecord reads the counter's record in the state database, and makes it where there is none, or one of an earlier
// definition.
func (p *pass) ownRecord(ctx context.Context) error {
	d := p.definition
	states, err := p.states.All(ctx)
	if err != nil {
		return err
	}
	state := states[d.Name]
	if state.Hash != d.Hash {
		rival, err := p.checkpoints.Rival(ctx, d.Source, d.Name, state.Hash)
		if err != nil {
			return err
		}
		if rival.Held {
			return &unjudgedError{skipDefinition, fmt.Sprintf("lane %s of instance %s counts a counter of this name with the same state database: "+
				"restart that one with this file, rename one of the two, or give one another mongodb.state_database", rival.Lane, rival.Owner)}
		}
		if state, err = p.states.Keep(ctx, d); err != nil {
			return err
		}
	}
	p.began.state = state
	return nil
}

// present returns *unjudgedError when one of the two collections is not there: a snapshot read of it finds nothing, and
// every counter would be wrong.
func (p *pass) present(ctx context.Context) error {
	d := p.definition
	for _, c := range []struct{ database, collection, what, skip string }{
		{d.Rows.Database, d.Rows.Collection, "rows", skipNoRows}, {d.Target.Database, d.Target.Collection, "counter documents", skipNoTarget},
	} {
		there, err := counter.Present(ctx, p.client, c.database, c.collection)
		if err != nil {
			return err
		}
		if !there {
			return &unjudgedError{c.skip, fmt.Sprintf("collection %s.%s of the %s does not exist, or the user may not read it: correct the name, or grant find on it",
				c.database, c.collection, c.what)}
		}
	}
	return nil
}

// firstLook compares one selection in one snapshot. What differs is looked at closer later.
func (p *pass) firstLook(ctx context.Context, which counter.Selection, listed []counter.Touched) error {
	var documents map[string]counter.Document
	var truths map[string]counter.Truth
	var rows int64
	err := p.waitFor(ctx, func() error {
		started := time.Now()
		err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
			if documents, err = p.definition.Documents(ctx, p.client, which); err != nil {
				return err
			}
			if p.closer.first.IsZero() {
				p.closer.first = mongo.SessionFromContext(ctx).SnapshotTime()
			}
			truths, rows, err = p.definition.Count(ctx, p.client, which)
			return err
		})
		if err == nil {
			err = p.present(ctx)
		}
		return p.verdictOn(err, bson.Timestamp{}, time.Since(started))
	})
	if err != nil {
		return err
	}
	p.report.rows += rows
	p.sift(readingsOf(view{documents: documents, truths: truths}, listed))
	return nil
}

// sift sorts out what needs no second look: what is right, and what cannot be compared.
func (p *pass) sift(readings map[string]reading) {
	for _, key := range slices.Sorted(maps.Keys(readings)) {
		r := readings[key]
		v := verdict{key: r.truth.Key, marked: true}
		if r.document.Exists || v.key.IsZero() {
			v.key = r.document.Key
		}
		v.skip, v.why = fitness(r.document, r.truth)
		switch {
		case v.skip != "":
			p.setApart(v)
		case r.document.Base+r.document.Live == r.truth.N:
			p.report.Checked++
			p.hold.checked++
		case !r.document.Exists && !p.definition.Target.Upsert:
			v.skip, v.why = skipNoDocument, fmt.Sprintf("there is no counter document for %d rows, and upsert is off", r.truth.N)
			p.setApart(v)
		default:
			p.closer.suspects = append(p.closer.suspects, v.key)
		}
	}
}

// lookCloser looks again at what differs: without a wait where the server keeps a snapshot from long enough ago, and
// after one at what had changed since then, unless the next run comes soon anyway.
func (p *pass) lookCloser(ctx context.Context) error {
	open, err := p.looks(ctx, p.closer.suspects, nil)
	if err == nil {
		err = p.decide(ctx, true) // by what is known: what is open may take long
	}
	if err != nil {
		return err
	}
	if len(open) > 0 && (p.options.Wait || p.closer.forgets) {
		if err := p.waitToSettle(ctx, open); err != nil {
			return err
		}
		if open, err = p.looks(ctx, keysOf(open), open); err != nil {
			return err
		}
	}
	for _, key := range slices.Sorted(maps.Keys(open)) {
		p.busy(open[key])
	}
	return nil
}

// seenAt is a look, when it was, and at which key.
type seenAt struct {
	look
	key bson.RawValue
	at  bson.Timestamp
}

// looks judges keys, in batches, and returns by canonical key what is not settled yet. before are earlier looks, for a
// server that keeps no snapshots long enough.
func (p *pass) looks(ctx context.Context, keys []bson.RawValue, before map[string]seenAt) (map[string]seenAt, error) {
	size := p.settings.BatchKeys
	if !p.closer.indexed {
		size *= counter.WholeScan // each batch reads all rows
	}
	p.hold.bounded, p.hold.open = true, int64(len(keys))
	open := map[string]seenAt{}
	for batch := range slices.Chunk(keys, size) {
		for _, chunk := range counter.ListedChunks(batch) {
			if err := p.lookAt(ctx, chunk, before, open); err != nil {
				return nil, err
			}
		}
	}
	return open, nil
}

// lookAt judges listed keys: fewer at once when their rows cannot be counted, and at last without the one.
func (p *pass) lookAt(ctx context.Context, keys []bson.RawValue, before, open map[string]seenAt) error {
	p.beat()
	began := time.Now()
	found, err := p.judgeAt(ctx, keys, before)
	var failed *uncountedError
	switch half := len(keys) / 2; {
	case err == nil:
		if err := p.conclusions(ctx, found, open); err != nil {
			return err
		}
		return p.afterBatch(ctx, began, int64(len(keys)), rowsOf(found), bson.Timestamp{})
	case !errors.As(err, &failed):
		return err
	case half == 0:
		return p.leaveOut(failed, logkey.Key, ExtendedJSON{keys[0]}.String())
	default:
		if err := p.lookAt(ctx, keys[:half], before, open); err != nil {
			return err
		}
		return p.lookAt(ctx, keys[half:], before, open)
	}
}

// judged is what looks at one key came to.
type judged struct {
	seenAt
	opinion opinion
}

// rowsOf is how many rows two looks have read.
func rowsOf(found []judged) (rows int64) {
	for _, f := range found {
		rows += 2 * f.detail.Rows
	}
	return rows
}

// judgeAt reads what the judgement of some keys takes. Nothing has been reported when it fails.
func (p *pass) judgeAt(ctx context.Context, keys []bson.RawValue, before map[string]seenAt) ([]judged, error) {
	now, at, err := p.glance(ctx, keys, bson.Timestamp{})
	if err != nil {
		return nil, err
	}
	var differ []bson.RawValue
	for _, key := range keys {
		if now[counter.Canonical(key)].off() != 0 {
			differ = append(differ, key)
		}
	}
	back := p.history
	if before != nil {
		back = func(ctx context.Context, keys []bson.RawValue, at bson.Timestamp) (map[string]*look, map[string][]int64, error) {
			return p.sinceBefore(ctx, keys, before, at)
		}
	}
	earlier, between, err := back(ctx, differ, at)
	if err != nil {
		return nil, err
	}
	found := make([]judged, len(keys))
	for i, key := range keys {
		canonical := counter.Canonical(key)
		found[i] = judged{seenAt{now[canonical], key, at}, judgeLooks(earlier[canonical], between[canonical], now[canonical])}
	}
	return found, nil
}

// settleSeconds is how long a change may be under way, in the whole seconds that cluster times are made of.
func (p *pass) settleSeconds() uint32 {
	return uint32(max(time.Second, p.settings.Settle+time.Second-1) / time.Second) //nolint:gosec // not negative, and years at most
}

// waitToSettle waits until what was under way at the looks has come to its end, and finds out which write a later look has
// to know to have seen that.
func (p *pass) waitToSettle(ctx context.Context, open map[string]seenAt) error {
	p.tell(fmt.Sprintf("%s: %d of the keys that differ may have changes under way; looking at them again in %s",
		p.definition.Name, len(open), p.settings.Settle))
	if p.heart != nil {
		p.heart.Waiting()
		defer p.heart.Beat()
	}
	timer := time.NewTimer(p.settings.Settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	p.closer.waited = p.settings.Settle
	return p.insist(ctx, func() error {
		last, err := counter.LastWrites(ctx, p.client)
		p.closer.since = last.Primary
		return err
	})
}

func keysOf(open map[string]seenAt) []bson.RawValue {
	keys := make([]bson.RawValue, 0, len(open))
	for _, key := range slices.Sorted(maps.Keys(open)) {
		keys = append(keys, open[key].key)
	}
	return keys
}

// tell says what a pass waits for, to whoever runs it by hand.
func (p *pass) tell(what string) {
	if p.options.Tell != nil {
		p.options.Tell(what)
	}
}

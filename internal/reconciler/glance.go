package reconciler

import (
	"context"
	"errors"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/counter"
	"driftless/internal/stream"
)

// sinceBefore returns the looks from before the wait, and what was displayed since.
func (p *pass) sinceBefore(ctx context.Context, keys []bson.RawValue, before map[string]seenAt, at bson.Timestamp) (map[string]*look, map[string][]int64, error) {
	earlier := map[string]*look{}
	var from bson.Timestamp
	for _, key := range keys {
		if b, known := before[counter.Canonical(key)]; known {
			earlier[counter.Canonical(key)] = &b.look
			if from.Before(b.at) {
				from = b.at
			}
		}
	}
	if len(earlier) == 0 || p.closer.forgets {
		return earlier, nil, nil
	}
	between, err := p.displayedBetween(ctx, keys, from.T, at.T)
	return earlier, between, err
}

// history looks back from a moment: at the keys as they were when a change under way then has come to its end by now, and
// at what was displayed since. Both are nil where the server keeps no such snapshot.
func (p *pass) history(ctx context.Context, keys []bson.RawValue, at bson.Timestamp) (map[string]*look, map[string][]int64, error) {
	span := p.settleSeconds()
	if len(keys) == 0 || p.closer.forgets || at.T <= span {
		return nil, nil, nil
	}
	then, _, err := p.glance(ctx, keys, bson.Timestamp{T: at.T - span})
	if isStale(err) {
		p.closer.forgets = true
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	earlier := make(map[string]*look, len(then))
	for key, l := range then {
		earlier[key] = &l
	}
	between, err := p.displayedBetween(ctx, keys, at.T-span, at.T)
	return earlier, between, err
}

// isStale reports whether the server keeps no such snapshot, or has lost it meanwhile.
func isStale(err error) bool {
	var unjudged *unjudgedError
	var uncounted *uncountedError
	return errors.As(err, &unjudged) && unjudged.reason == skipStale || errors.As(err, &uncounted) && uncounted.reason == skipStale
}

// displayedBetween lists what was displayed at some moments between two, as far back as the server keeps them.
func (p *pass) displayedBetween(ctx context.Context, keys []bson.RawValue, from, to uint32) (map[string][]int64, error) {
	between := map[string][]int64{}
	for _, t := range momentsBetween(from, to) {
		if err := p.displayedAt(ctx, keys, bson.Timestamp{T: t}, between); err != nil && !isStale(err) {
			return nil, err
		}
	}
	return between, nil
}

// glance looks at keys in one snapshot: at the given time, which is not waited for, or the latest.
func (p *pass) glance(ctx context.Context, keys []bson.RawValue, at bson.Timestamp) (looks map[string]look, taken bson.Timestamp, err error) {
	try := func() error {
		started := time.Now()
		err := counter.Snapshot(ctx, p.client, at, func(ctx context.Context) (err error) {
			looks, taken, err = p.glanceIn(ctx, keys)
			return err
		})
		if err == nil {
			err = p.present(ctx)
		}
		if err == nil && at.IsZero() && taken.Before(p.closer.since) {
			err = &unjudgedError{skipStale, "a majority of the members lags behind the primary"}
		}
		return p.verdictOn(err, at, time.Since(started))
	}
	if !at.IsZero() {
		err = p.insist(ctx, try)
		return looks, at, err
	}
	err = p.waitFor(ctx, try)
	return looks, taken, err
}

// glanceIn looks at keys in the session in ctx.
func (p *pass) glanceIn(ctx context.Context, keys []bson.RawValue) (map[string]look, bson.Timestamp, error) {
	which := counter.Listed(keys)
	documents, err := p.definition.Documents(ctx, p.client, which)
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	taken := mongo.SessionFromContext(ctx).SnapshotTime()
	details, err := p.definition.Details(ctx, p.client, which, stream.Clock(taken).Add(-p.settings.Settle))
	if err != nil {
		return nil, bson.Timestamp{}, err
	}
	looks := make(map[string]look, len(keys))
	for _, key := range keys {
		canonical := counter.Canonical(key)
		looks[canonical] = look{documents[canonical], details[canonical]}
	}
	return looks, taken, nil
}

// displayedAt adds what was displayed at a time.
func (p *pass) displayedAt(ctx context.Context, keys []bson.RawValue, at bson.Timestamp, to map[string][]int64) error {
	return p.insist(ctx, func() error {
		started := time.Now()
		var documents map[string]counter.Document
		err := counter.Snapshot(ctx, p.client, at, func(ctx context.Context) (err error) {
			documents, err = p.definition.Documents(ctx, p.client, counter.Listed(keys))
			return err
		})
		if err != nil {
			return p.verdictOn(err, at, time.Since(started))
		}
		for _, key := range keys {
			canonical := counter.Canonical(key)
			to[canonical] = append(to[canonical], look{document: documents[canonical]}.displayed())
		}
		return nil
	})
}

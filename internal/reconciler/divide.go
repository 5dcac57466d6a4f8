package reconciler

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// within compares a range of keys: a smaller one when its count fails, and at last without the key that it fails on.
func (p *pass) within(ctx context.Context, which counter.Selection) error {
	return p.divided(ctx, which, p.batch(ctx, which, nil))
}

// divided goes on with parts of a range whose comparison came to err, if that may help.
func (p *pass) divided(ctx context.Context, which counter.Selection, err error) error {
	var failed *uncountedError
	if !errors.As(err, &failed) {
		return err
	}
	if key, single := singleKey(which); single {
		if err := p.leaveOut(failed, logkey.Key, ExtendedJSON{key}.String()); err != nil || p.options.DryRun || p.definition.ByApplication() {
			return err
		}
		return p.definition.Touch(ctx, p.states, []bson.RawValue{key})
	}
	key, err := p.keyWithin(ctx, which)
	if err != nil {
		return err
	}
	if key.IsZero() { // nothing to divide by: once more as it is
		if err := p.batch(ctx, which, nil); !errors.As(err, &failed) {
			return err
		}
		return p.leaveOut(failed, "range", bson.D(which).String())
	}
	for _, part := range divide(which, key) {
		if err := p.within(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// divide splits a range at one of its keys: below it, the key itself, above it. NaN is neither, whatever the key.
func divide(which counter.Selection, at bson.RawValue) []counter.Selection {
	and := func(operator string, value any) counter.Selection {
		return append(slices.Clone(which), bson.E{Key: operator, Value: value})
	}
	parts := []counter.Selection{and("$lt", at), and("$eq", at), and("$gt", at)}
	if at.IsNumber() {
		parts = append(parts, and("$eq", math.NaN()))
	}
	return parts
}

// singleKey returns the key of a range that holds only one.
func singleKey(which counter.Selection) (bson.RawValue, bool) {
	last := which[len(which)-1]
	if last.Key != "$eq" {
		return bson.RawValue{}, false
	}
	kind, data, err := bson.MarshalValue(last.Value)
	return bson.RawValue{Type: kind, Value: data}, err == nil
}

// drawTries is how often a key is drawn to divide a range by.
const drawTries = 3

// keyWithin draws a random key of the rows or counter documents in a range, zero when there is none, or none can be
// drawn. A range is divided by it: exactness does not depend on it.
func (p *pass) keyWithin(ctx context.Context, which counter.Selection) (key bson.RawValue, err error) {
	d := p.definition
	rows := p.client.Database(d.Rows.Database).Collection(d.Rows.Collection)
	targets := p.client.Database(d.Target.Database, options.Database().SetReadPreference(readpref.Primary())).Collection(d.Target.Collection)
	for range drawTries {
		if key, err = drawKey(ctx, rows, which, d.Key); err == nil && key.IsZero() {
			key, err = drawKey(ctx, targets, which, "_id")
		}
		if err == nil || !isServers(err) {
			return key, err
		}
	}
	if isUnreachable(err) {
		return bson.RawValue{}, err
	}
	return bson.RawValue{}, nil // what keeps the rows from being counted keeps them from being drawn
}

func drawKey(ctx context.Context, c *mongo.Collection, which counter.Selection, path string) (bson.RawValue, error) {
	const drawn = 10 // some may be arrays that hold a key of the range
	cursor, err := c.Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: which.On(path)}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$" + path}}}},
		bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: drawn}}}},
	}, options.Aggregate().SetCollation(&options.Collation{Locale: "simple"}))
	if err != nil {
		return bson.RawValue{}, err
	}
	var keys []struct {
		ID bson.RawValue `bson:"_id"`
	}
	if err := cursor.All(ctx, &keys); err != nil {
		return bson.RawValue{}, err
	}
	for _, k := range keys {
		if isBound(k.ID) {
			return k.ID, nil
		}
	}
	return bson.RawValue{}, nil
}

// isBound reports whether a value can stand in a filter as a key, and others are below or above it.
func isBound(v bson.RawValue) bool {
	switch v.Type {
	case bson.TypeNull, bson.TypeUndefined, bson.TypeArray, bson.TypeRegex, 0:
		return false
	case bson.TypeEmbeddedDocument:
		elements, err := v.Document().Elements()
		return err == nil && !slices.ContainsFunc(elements, func(e bson.RawElement) bool { return strings.HasPrefix(e.Key(), "$") })
	case bson.TypeDouble:
		return !math.IsNaN(v.Double())
	default:
		return true
	}
}

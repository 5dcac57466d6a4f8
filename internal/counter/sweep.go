package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// SweepsCollection is the state database's collection of how far the sweeps over all keys are.
const SweepsCollection = "sweeps"

// Sweep is one walk over all keys of a counter, a slice of it at a time: what no event leads to is found by it.
type Sweep struct {
	Counter string         `bson:"_id"`
	Hash    string         `bson:"hash"`
	Started time.Time      `bson:"started_at"` // by the clock of the reconciler that began it
	From    bson.Timestamp `bson:"from"`       // position at its beginning: all keys are verified through it at the end
	Next    int            `bson:"next"`       // the first range that has not been compared
	Stored  []bson.Binary  `bson:"ranges"`     // each a selection as a document: its operators are no field names
	Ranges  []Selection    `bson:"-"`
}

// Done reports whether every range has been compared.
func (s Sweep) Done() bool { return s.Next >= len(s.Ranges) }

// Due is how many ranges are to be compared by a moment, so that all are within the given time and the load is even.
func (s Sweep) Due(now time.Time, within time.Duration) int {
	share := float64(now.Sub(s.Started)) / float64(within)
	return min(len(s.Ranges), max(0, int(share*float64(len(s.Ranges))))+1)
}

// Sweep returns the counter's sweep, one without ranges when there is none of this definition.
func (s *States) Sweep(ctx context.Context, d *Definition) (Sweep, error) {
	var sweep Sweep
	err := s.db.Collection(SweepsCollection).FindOne(ctx, bson.D{{Key: "_id", Value: d.Name}, {Key: "hash", Value: d.Hash}}).Decode(&sweep)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Sweep{}, nil
	}
	if err != nil {
		return sweep, fmt.Errorf("read sweep of counter %s: %w", d.Name, err)
	}
	for _, stored := range sweep.Stored {
		var which bson.D
		if err := bson.Unmarshal(stored.Data, &which); err != nil {
			return Sweep{}, fmt.Errorf("read sweep of counter %s: %w", d.Name, err)
		}
		sweep.Ranges = append(sweep.Ranges, Selection(which))
	}
	return sweep, nil
}

// BeginSweep records a new walk over the given ranges, of which the first ones are compared already.
func (s *States) BeginSweep(ctx context.Context, d *Definition, sweep Sweep) error {
	sweep.Counter, sweep.Hash, sweep.Stored = d.Name, d.Hash, make([]bson.Binary, len(sweep.Ranges))
	for i, which := range sweep.Ranges {
		raw, err := bson.Marshal(bson.D(which))
		if err != nil {
			return fmt.Errorf("record sweep of counter %s: %w", d.Name, err)
		}
		sweep.Stored[i] = bson.Binary{Subtype: 0x80, Data: raw}
	}
	_, err := s.db.Collection(SweepsCollection).ReplaceOne(ctx, one("_id", d.Name), sweep, options.Replace().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("record sweep of counter %s: %w", d.Name, err)
	}
	return nil
}

// Swept records that the ranges before next have been compared, unless another reconciler is further, or in another sweep.
func (s *States) Swept(ctx context.Context, d *Definition, sweep Sweep, next int) error {
	_, err := s.db.Collection(SweepsCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: d.Name}, {Key: "hash", Value: d.Hash}, {Key: "started_at", Value: sweep.Started}},
		one("$max", one("next", next)))
	if err != nil {
		return fmt.Errorf("record sweep of counter %s: %w", d.Name, err)
	}
	return nil
}

// SweptThrough records the position through which every key of a counter has been compared at least once.
func (s *States) SweptThrough(ctx context.Context, d *Definition, through bson.Timestamp) error {
	_, err := s.db.Collection(StatesCollection).UpdateOne(ctx, bson.D{{Key: "_id", Value: d.Name}, {Key: "hash", Value: d.Hash}},
		one("$max", one("swept_through", through)))
	if err != nil {
		return fmt.Errorf("record sweep of counter %s: %w", d.Name, err)
	}
	return nil
}

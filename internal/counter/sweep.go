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

// SweepsCollection is the state database's collection of how far the walks over all keys are.
const SweepsCollection = "sweeps"

// Sweep is one walk over all keys of a counter, range by range, that goes on where it stopped: by and by, so that what no
// event leads to is found, or at once, a recount.
type Sweep struct {
	ID      string         `bson:"_id"`
	Hash    string         `bson:"hash"`
	Epoch   bson.ObjectID  `bson:"epoch,omitempty"` // of a recount: the counter's, which is another when something has happened since
	Started time.Time      `bson:"started_at"`      // by the clock of the reconciler that began it
	From    bson.Timestamp `bson:"from"`            // position at its beginning: all keys are verified through it at the end
	Next    int            `bson:"next"`            // the first range that has not been compared
	LeftOut bool           `bson:"left_out"`        // something could not be counted: not all keys are verified at the end
	Stored  []bson.Binary  `bson:"ranges"`          // each a selection as a document: its operators are no field names
	Ranges  []Selection    `bson:"-"`
}

// Done reports whether every range has been compared.
func (s Sweep) Done() bool { return s.Next >= len(s.Ranges) }

// Due is how many ranges are to be compared by a moment, so that all are within the given time and the load is even.
func (s Sweep) Due(now time.Time, within time.Duration) int {
	share := float64(now.Sub(s.Started)) / float64(within)
	return min(len(s.Ranges), max(0, int(share*float64(len(s.Ranges))))+1)
}

// SweepID names the walk by and by of a counter.
func SweepID(d *Definition) string { return d.Name }

// RecountID names the walk at once.
func RecountID(d *Definition) string { return d.Name + "/recount" }

// Sweep returns a walk of the counter, one without ranges when there is none of this definition.
func (s *States) Sweep(ctx context.Context, d *Definition, id string) (Sweep, error) {
	sweep := Sweep{ID: id, Hash: d.Hash}
	err := s.db.Collection(SweepsCollection).FindOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "hash", Value: d.Hash}}).Decode(&sweep)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return sweep, nil
	}
	if err != nil {
		return sweep, fmt.Errorf("read sweep %s: %w", id, err)
	}
	for _, stored := range sweep.Stored {
		var which bson.D
		if err := bson.Unmarshal(stored.Data, &which); err != nil {
			return sweep, fmt.Errorf("read sweep %s: %w", id, err)
		}
		sweep.Ranges = append(sweep.Ranges, Selection(which))
	}
	return sweep, nil
}

// BeginSweep records a new walk over its ranges, of which the first ones may be compared already.
func (s *States) BeginSweep(ctx context.Context, sweep Sweep) error {
	sweep.Stored = make([]bson.Binary, len(sweep.Ranges))
	for i, which := range sweep.Ranges {
		raw, err := bson.Marshal(bson.D(which))
		if err != nil {
			return fmt.Errorf("record sweep %s: %w", sweep.ID, err)
		}
		sweep.Stored[i] = bson.Binary{Subtype: 0x80, Data: raw}
	}
	_, err := s.db.Collection(SweepsCollection).ReplaceOne(ctx, one("_id", sweep.ID), sweep, options.Replace().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("record sweep %s: %w", sweep.ID, err)
	}
	return nil
}

// Swept records how far a walk is, unless another reconciler is further with it, or has begun another one.
func (s *States) Swept(ctx context.Context, sweep Sweep) error {
	_, err := s.db.Collection(SweepsCollection).UpdateOne(ctx,
		bson.D{{Key: "_id", Value: sweep.ID}, {Key: "hash", Value: sweep.Hash}, {Key: "started_at", Value: sweep.Started}},
		bson.A{one("$set", bson.D{
			{Key: "next", Value: op("$max", "$next", sweep.Next)}, {Key: "left_out", Value: op("$or", "$left_out", sweep.LeftOut)},
		})})
	if err != nil {
		return fmt.Errorf("record sweep %s: %w", sweep.ID, err)
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

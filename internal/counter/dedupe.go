package counter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// DedupeCollection holds the ids of events that were applied of late, of sources that ask for it, until they expire.
const DedupeCollection = "dedupe"

// idsAtOnce bounds one command: a message of the server has 48 MB, a document 16 MB.
const idsAtOnce = 20_000

// withoutRepeated leaves out of the piece, inside its transaction, the events whose id was seen within the window, and notes
// the ids of the others in it. It comes after the compare-and-set of the checkpoint: an attempt whose predecessor came true
// must not find its own ids. What another lane writes at the same time is a conflict, and the transaction is tried again.
func (a *Applier) withoutRepeated(ctx context.Context, p *piece) error {
	if a.Window == 0 {
		return nil
	}
	now := time.Now()
	ids, seenIn := a.idsOf(p), make(map[string]bool)
	seen, expired, err := a.states.seen(ctx, ids, now)
	if err != nil {
		return err
	}
	kept := make([]stream.Event, 0, len(p.events))
	var fresh []string
	for i, e := range p.events {
		switch id := ids[i]; {
		case id == "":
		case seen[id] || seenIn[id]:
			continue
		default:
			seenIn[id] = true
			fresh = append(fresh, id)
		}
		kept = append(kept, e)
	}
	if err := a.states.remember(ctx, fresh, expired, now.Add(a.Window)); err != nil {
		return err
	}
	return p.keep(a.definitions, kept)
}

// idsOf are the ids of the piece's events as they stand in the collection, "" for none.
func (a *Applier) idsOf(p *piece) []string {
	ids, source := make([]string, len(p.events)), checkpoint.SourceOf(p.from.Lane)
	for i, e := range p.events {
		if id, ok := e.Doc.Lookup(fieldID).StringValueOK(); ok {
			sum := sha256.Sum256([]byte(id))
			ids[i] = source + "/" + hex.EncodeToString(sum[:16])
		}
	}
	return ids
}

// keep folds the events that are left of the piece. What was set apart before stays apart, as far as there is still something
// of it to apply.
func (p *piece) keep(definitions []*Definition, kept []stream.Event) error {
	folded, err := Fold(definitions, kept)
	if err != nil {
		return err
	}
	folded.Repeated = len(p.events) - len(kept)
	folded.Events, folded.Ended, folded.Missing = p.folded.Events, p.folded.Ended, p.folded.Missing
	p.folded = folded
	deltas := make(map[string]*Delta, len(p.apart))
	for i := range folded.Deltas {
		d := &folded.Deltas[i]
		deltas[keyID(d.Counter, d.Key)] = d
	}
	p.apart = slices.DeleteFunc(p.apart, func(x Apart) bool { return deltas[keyID(x.Delta.Counter, x.Delta.Key)] == nil })
	for i := range p.apart {
		p.apart[i].Delta = deltas[keyID(p.apart[i].Delta.Counter, p.apart[i].Delta.Key)]
	}
	return nil
}

// seen tells which ids were seen and have not expired, and which have and are still there.
func (s *States) seen(ctx context.Context, ids []string, now time.Time) (seen, expired map[string]bool, err error) {
	seen, expired = map[string]bool{}, map[string]bool{}
	for part := range slices.Chunk(ids, idsAtOnce) {
		cursor, err := s.db.Collection(DedupeCollection).Find(ctx, one("_id", one("$in", part)), options.Find().SetBatchSize(idsAtOnce))
		if err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", DedupeCollection, err)
		}
		for cursor.Next(ctx) {
			id := cursor.Current.Lookup("_id").StringValue()
			if cursor.Current.Lookup("expires_at").Time().After(now) {
				seen[id] = true
			} else {
				expired[id] = true
			}
		}
		if err := cursor.Err(); err != nil {
			return nil, nil, fmt.Errorf("read %s: %w", DedupeCollection, err)
		}
	}
	return seen, expired, nil
}

// remember notes ids that were not there, or had expired.
func (s *States) remember(ctx context.Context, ids []string, expired map[string]bool, until time.Time) error {
	collection := s.db.Collection(DedupeCollection)
	for part := range slices.Chunk(ids, idsAtOnce) {
		var again []string
		var rows []any
		for _, id := range part {
			if expired[id] {
				again = append(again, id)
			} else {
				rows = append(rows, bson.D{{Key: "_id", Value: id}, {Key: "expires_at", Value: until}})
			}
		}
		if len(again) > 0 {
			if _, err := collection.UpdateMany(ctx, one("_id", one("$in", again)), one("$set", one("expires_at", until))); err != nil {
				return fmt.Errorf("write %s: %w", DedupeCollection, err)
			}
		}
		if len(rows) > 0 {
			if _, err := collection.InsertMany(ctx, rows); err != nil {
				return fmt.Errorf("write %s: %w", DedupeCollection, err)
			}
		}
	}
	return nil
}

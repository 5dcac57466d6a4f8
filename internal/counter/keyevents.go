package counter

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// Fields of an event of one key, beside those of Pipeline.
const (
	fieldOperation = "o"
	fieldRow       = "i"
)

// Contribution is what one image of a row adds to a counter. A zero key: nothing.
type Contribution struct {
	Key    bson.RawValue
	Weight int64
}

// KeyEvent is one change as one key of a counter sees it.
type KeyEvent struct {
	At            bson.Timestamp // cluster time
	Operation     string         // the event's operationType
	Row           bson.RawValue  // _id of the row, zero when the event is not about one
	Before, After Contribution   // of either key, where a row moves from one to another
	// Unknown means: the change came without an image, so that it may be another key's.
	Unknown bool
	// Ended means: the collection was dropped, renamed or replaced.
	Ended bool
}

// KeyEvents reads the events that concern one key of a counter, with the expressions that count it (I3).
type KeyEvents struct {
	definition *Definition
	key        bson.RawValue
	reads      reads
}

// EventsOf reads the events of one key.
func (d *Definition) EventsOf(key bson.RawValue) *KeyEvents {
	return &KeyEvents{definition: d, key: key, reads: readsOf(d)}
}

// Pipeline returns the stages to stand behind $changeStream. They drop what changes nothing for the key; of a row that
// moves between two keys, each sees the event.
func (k *KeyEvents) Pipeline() (bson.A, error) {
	project, relevant, err := contributions([]*Definition{k.definition}, checkpoint.LaneID{})
	if err != nil {
		return nil, err
	}
	project = append(project, bson.E{Key: fieldOperation, Value: "$operationType"}, bson.E{Key: fieldRow, Value: "$documentKey._id"})
	mine := bson.A{
		one("b0.k", one("$eq", k.key)), one("a0.k", one("$eq", k.key)), one(fieldSpecial, one("$exists", true)),
	}
	return bson.A{one("$project", project), relevant, one("$match", one("$or", mine))}, nil
}

// Read reads one projected event. It reports false for a change without an image that cannot have concerned the key.
func (k *KeyEvents) Read(e stream.Event) (KeyEvent, bool, error) {
	at, err := stream.TokenTime(e.Token)
	if err != nil {
		return KeyEvent{}, false, err
	}
	folded, err := Fold([]*Definition{k.definition}, []stream.Event{e})
	if err != nil {
		return KeyEvent{}, false, err
	}
	event := KeyEvent{At: at, Row: cloned(e.Doc.Lookup(fieldRow)), Unknown: len(folded.Missing) > 0, Ended: folded.Ended != nil}
	event.Operation, _ = e.Doc.Lookup(fieldOperation).StringValueOK()
	if event.Before, err = contributionIn(e.Doc, "b0"); err != nil {
		return KeyEvent{}, false, err
	}
	if event.After, err = contributionIn(e.Doc, "a0"); err != nil {
		return KeyEvent{}, false, err
	}
	return event, !event.Unknown || k.mayConcern(folded.Missing[0], event), nil
}

// mayConcern reports whether a change without an image may be one of the key.
func (k *KeyEvents) mayConcern(c Change, e KeyEvent) bool {
	switch k.reads.effect(c) {
	case free:
		return false
	case ofKey: // the image that is there, if one is, names the key
		return !slices.ContainsFunc([]Contribution{e.Before, e.After}, func(c Contribution) bool {
			return !c.Key.IsZero() && Canonical(c.Key) != Canonical(k.key)
		})
	default:
		return true
	}
}

// contributionIn reads the contribution of one image.
func contributionIn(doc bson.Raw, field string) (Contribution, error) {
	found, ok := doc.Lookup(field).DocumentOK()
	if !ok {
		return Contribution{}, nil // null: the image does not count
	}
	c := Contribution{Key: cloned(found.Lookup("k")), Weight: 1}
	if weight, err := found.LookupErr("w"); err == nil {
		if c.Weight, ok = weight.Int64OK(); !ok {
			return Contribution{}, fmt.Errorf("decode event: contribution %s without a weight", field)
		}
	}
	return c, nil
}

// cloned is a value that does not keep its batch in memory.
func cloned(v bson.RawValue) bson.RawValue {
	return bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)}
}

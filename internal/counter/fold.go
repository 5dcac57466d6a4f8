package counter

import (
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"driftless/internal/stream"
)

// Delta is what a run of events does to one counter document.
type Delta struct {
	Counter *Definition
	Key     bson.RawValue // the first raw value of the key; aliases its batch
	N       int64         // after - before, summed; 0 still marks the key as touched
	Inc     int64         // sum of the events' rises
	Dec     int64         // sum of the events' falls, positive
}

// Folded is what a run of events comes to.
type Folded struct {
	Deltas  []Delta  // one per counter and key, in order of first appearance
	Missing []Change // changes of rows whose images are not there: nothing of them is in Deltas
	Ended   *Change  // the event that ended the run: the collection was dropped, renamed or replaced
	Events  int      // events folded, without Ended
	Oldest  time.Time
}

// Change is an event that is more, or less, than two contributions.
type Change struct {
	Operation string        // the event's operationType
	Row       bson.RawValue // _id of the row, zero when the event is not about one
}

// folder sums contributions per counter and canonical key.
type folder struct {
	definitions []*Definition
	index       []map[string]int
	out         Folded
	buffer      []byte
}

// Fold sums the contributions in events per counter and key. It stops at an event that ends the stream.
func Fold(definitions []*Definition, events []stream.Event) (Folded, error) {
	f := folder{definitions: definitions, index: make([]map[string]int, len(definitions))}
	for i := range f.index {
		f.index[i] = make(map[string]int)
	}
	for _, e := range events {
		if err := f.event(e.Doc); err != nil {
			return Folded{}, err
		}
		if f.out.Ended != nil {
			break
		}
		f.out.Events++
	}
	return f.out, nil
}

// event adds one projected event. The document is walked once: _id, t, s and the contributions in Pipeline's order.
func (f *folder) event(doc bson.Raw) error {
	length, rest, ok := bsoncore.ReadLength(doc)
	if !ok || int(length) > len(doc) {
		return fmt.Errorf("decode event: %w", bsoncore.ErrMissingNull)
	}
	for len(rest) > 1 {
		element, remaining, ok := bsoncore.ReadElement(rest)
		if !ok {
			return fmt.Errorf("decode event: element cut short in %d bytes", len(doc))
		}
		rest = remaining
		key := element.KeyBytes()
		switch {
		case len(key) > 1 && (key[0] == 'b' || key[0] == 'a'):
			if err := f.contribution(key, element); err != nil {
				return err
			}
		case string(key) == fieldSpecial:
			return f.special(element.Value().Document())
		case string(key) == fieldWallTime && f.out.Oldest.IsZero():
			if ms, ok := element.Value().DateTimeOK(); ok {
				f.out.Oldest = time.UnixMilli(ms)
			}
		}
	}
	return nil
}

// contribution adds one image's: its weight after the change, less its weight before.
func (f *folder) contribution(field []byte, element bsoncore.Element) error {
	value := element.Value()
	if value.Type != bsoncore.TypeEmbeddedDocument {
		return nil // null: the image does not count
	}
	i := 0
	for _, digit := range field[1:] {
		i = i*10 + int(digit-'0')
	}
	if i < 0 || i >= len(f.definitions) {
		return fmt.Errorf("decode event: contribution %s of %d counters", field, len(f.definitions))
	}
	k, rest, ok := bsoncore.ReadElement(value.Data[4:])
	if !ok {
		return fmt.Errorf("decode event: contribution %s without a key", field)
	}
	weight := int64(1)
	if len(rest) > 1 {
		w, _, ok := bsoncore.ReadElement(rest)
		if !ok {
			return fmt.Errorf("decode event: contribution %s without a weight", field)
		}
		weight = w.Value().AsInt64()
	}
	if field[0] == 'b' {
		weight = -weight
	}
	core := k.Value()
	f.add(i, bson.RawValue{Type: bson.Type(core.Type), Value: core.Data}, weight)
	return nil
}

func (f *folder) add(counter int, key bson.RawValue, weight int64) {
	f.buffer = appendCanonical(f.buffer[:0], key)
	at, ok := f.index[counter][string(f.buffer)]
	if !ok {
		at = len(f.out.Deltas)
		f.index[counter][string(f.buffer)] = at
		f.out.Deltas = append(f.out.Deltas, Delta{Counter: f.definitions[counter], Key: key})
	}
	d := &f.out.Deltas[at]
	d.N += weight
	if weight > 0 {
		d.Inc += weight
	} else {
		d.Dec -= weight
	}
}

// special records an event that has no contributions to give.
func (f *folder) special(doc bsoncore.Document) error {
	operation, ok := doc.Lookup("op").StringValueOK()
	if !ok {
		return errors.New("decode event: special event without an operation")
	}
	change := Change{Operation: operation}
	if row, err := doc.LookupErr("row"); err == nil {
		change.Row = bson.RawValue{Type: bson.Type(row.Type), Value: row.Data}
	}
	switch operation {
	case "insert", "update", "replace", "delete":
		f.out.Missing = append(f.out.Missing, change)
	default:
		f.out.Ended = &change
	}
	return nil
}

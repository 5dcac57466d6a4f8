package counter

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"driftless/internal/stream"
)

// Delta is what a run of events does to one counter document.
type Delta struct {
	Counter *Definition
	Key     bson.RawValue // the first raw value of the key; aliases its batch
	N       int64         // after - before, summed modulo 2^64; 0 still marks the key as touched
	Inc     int64         // weights that were added, at most the largest int64
	Dec     int64         // weights that were taken away, positive, at most the largest int64
	Recent  []Span        // N by the time of the events, where they come from a topic
}

// Span is what the events of one bucket have done.
type Span struct {
	Bucket
	N int64
}

// span brings a weight into that of a bucket. There are few of them.
func (d *Delta) span(b Bucket, n int64) {
	for i := range d.Recent {
		if d.Recent[i].Bucket == b {
			d.Recent[i].N += n
			return
		}
	}
	d.Recent = append(d.Recent, Span{b, n})
}

// moves reports whether the delta changes anything in the counter document besides its mark.
func (d *Delta) moves() bool {
	return d.N != 0 || slices.ContainsFunc(d.Recent, func(s Span) bool { return s.N != 0 })
}

// Folded is what a run of events comes to.
type Folded struct {
	Deltas   []Delta  // one per counter and key, in order of first appearance
	Dead     []Dead   // events that cannot be read: nothing of them is in Deltas
	Missing  []Change // changes of rows whose images are not there: nothing of them is in Deltas
	Ended    *Change  // the event that ended the run: the collection was dropped, renamed or replaced
	Events   int      // events folded, without Ended
	Repeated int      // of them, those whose id was seen before: nothing of them is in Deltas
	Oldest   time.Time
}

// Change is an event that is more, or less, than two contributions.
type Change struct {
	Operation string         // the event's operationType
	Row       bson.RawValue  // _id of the row, zero when the event is not about one
	Paths     []string       // of an update: what it changed, none when that is not known
	Token     bson.Raw       // of the event
	Recorded  bson.Timestamp // its cluster time, of a record that says so
}

// at is the cluster time of the change. Where neither the token nor the record says, it is the end of the second that the lane
// was in: a recount of before that has not seen it.
func (c Change) at() (bson.Timestamp, error) {
	if !c.Recorded.IsZero() {
		return c.Recorded, nil
	}
	at, err := stream.TokenTime(c.Token)
	if _, none := stream.TopicPositionOf(c.Token); none == nil {
		at.I = math.MaxUint32
	}
	return at, err
}

// Dead is an event from a topic that cannot be read.
type Dead struct {
	Reason     string // few, so that they can label a metric
	Why        string
	Key, Value []byte // what it was, as far as it is kept; nil for none
	Size       int64  // of both, in bytes, as they were
	Token      bson.Raw
}

// folder sums contributions per counter and canonical key.
type folder struct {
	definitions []*Definition
	index       []map[string]int
	out         Folded
	buffer      []byte
	bucket      Bucket // of the event at hand, zero for none
}

// Fold sums the contributions in events per counter and key. It stops at an event that ends the stream.
func Fold(definitions []*Definition, events []stream.Event) (Folded, error) {
	f := folder{definitions: definitions, index: make([]map[string]int, len(definitions))}
	for i := range f.index {
		f.index[i] = make(map[string]int)
	}
	for _, e := range events {
		if err := f.event(e); err != nil {
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
func (f *folder) event(e stream.Event) error {
	doc := e.Doc
	length, _, ok := bsoncore.ReadLength(doc)
	if !ok || length < 5 || int(length) > len(doc) {
		return fmt.Errorf("decode event: document cut short at %d bytes", len(doc))
	}
	f.bucket = Bucket{}
	for rest := []byte(doc[4:length]); len(rest) > 1; {
		element, remaining, ok := bsoncore.ReadElement(rest)
		if !ok {
			return fmt.Errorf("decode event: element cut short in %d bytes", len(doc))
		}
		rest = remaining
		key := element.KeyBytes()
		if len(key) > 1 && key[0] == 'b' {
			if after, remaining, ok := bsoncore.ReadElement(rest); ok && unchanged(element, after) {
				rest = remaining
				continue
			}
		}
		switch {
		case len(key) > 1 && (key[0] == 'b' || key[0] == 'a'):
			if err := f.contribution(key, element.Value()); err != nil {
				return err
			}
		case string(key) == fieldSpecial:
			return f.special(element.Value(), e.Token)
		case string(key) == fieldBucket:
			if err := f.within(element.Value()); err != nil {
				return err
			}
		case string(key) == fieldWallTime && f.out.Oldest.IsZero():
			if ms, ok := element.Value().DateTimeOK(); ok {
				f.out.Oldest = time.UnixMilli(ms)
			}
		}
	}
	return nil
}

// within notes the bucket of the event at hand: its start and width.
func (f *folder) within(value bsoncore.Value) error {
	doc, _ := value.DocumentOK()
	start, isStart := doc.Lookup("0").Int64OK()
	width, isWidth := doc.Lookup("1").Int64OK()
	if !isStart || !isWidth || width < 1 {
		return errors.New("decode event: its bucket is none")
	}
	f.bucket = Bucket{start, width}
	return nil
}

// unchanged reports whether two neighbours are one counter's contributions before and after, and the same. Of a change
// that concerns one counter the others have such a pair: it is none of theirs, and must not touch their documents.
func unchanged(before, after bsoncore.Element) bool {
	// An element is its type, its name and its value: b0 and a0 differ in one byte.
	return after[1] == 'a' && before[0] == after[0] && bytes.Equal(before[2:], after[2:])
}

// contribution adds one image's: its weight after the change, less its weight before.
func (f *folder) contribution(field []byte, value bsoncore.Value) error {
	if value.Type != bsoncore.TypeEmbeddedDocument {
		return nil // null: the image does not count
	}
	i := 0
	for _, digit := range field[1:] {
		if i = i*10 + int(digit) - '0'; digit < '0' || digit > '9' || i >= len(f.definitions) {
			return fmt.Errorf("decode event: contribution %q of %d counters", field, len(f.definitions))
		}
	}
	_, rest, _ := bsoncore.ReadLength(value.Data)
	k, rest, ok := bsoncore.ReadElement(rest)
	if !ok {
		return fmt.Errorf("decode event: contribution %s without a key", field)
	}
	weight := int64(1)
	if len(rest) > 1 {
		w, _, ok := bsoncore.ReadElement(rest)
		if ok {
			weight, ok = w.Value().Int64OK()
		}
		if !ok {
			return fmt.Errorf("decode event: contribution %s without a weight", field)
		}
	}
	key := k.Value()
	f.add(i, bson.RawValue{Type: bson.Type(key.Type), Value: key.Data}, weight, field[0] == 'b')
	return nil
}

// add brings a weight into a sum, or takes it away. Beyond 64 bits the sum wraps, as the key's true sum does: it is
// right again once that is back within 64 bits, which a recount reports until then.
func (f *folder) add(counter int, key bson.RawValue, weight int64, away bool) {
	f.buffer = appendCanonical(f.buffer[:0], key)
	at, ok := f.index[counter][string(f.buffer)]
	if !ok {
		at = len(f.out.Deltas)
		f.index[counter][string(f.buffer)] = at
		f.out.Deltas = append(f.out.Deltas, Delta{Counter: f.definitions[counter], Key: key})
	}
	d := &f.out.Deltas[at]
	n := weight
	if away {
		n = -weight
	}
	d.N += n
	if f.bucket.Width > 0 {
		d.span(f.bucket, n)
	}
	if away == (weight < 0) {
		d.Inc = saturated(d.Inc, weight)
	} else {
		d.Dec = saturated(d.Dec, weight)
	}
}

// saturated adds the size of weight to sum, which is not negative, and stops at the largest int64.
func saturated(sum, weight int64) int64 {
	size := max(weight, -weight)
	if size < 0 || sum > math.MaxInt64-size { // the smallest int64 has no positive counterpart
		return math.MaxInt64
	}
	return sum + size
}

// special records an event that has no contributions to give.
func (f *folder) special(value bsoncore.Value, token bson.Raw) error {
	doc, _ := value.DocumentOK()
	operation, ok := doc.Lookup("op").StringValueOK()
	if !ok {
		return errors.New("decode event: special event without an operation")
	}
	if operation == opDead {
		f.dead(doc, token)
		return nil
	}
	change := Change{Operation: operation, Token: token}
	if row, err := doc.LookupErr("row"); err == nil {
		change.Row = bson.RawValue{Type: bson.Type(row.Type), Value: row.Data}
	}
	if t, i, ok := doc.Lookup("at").TimestampOK(); ok {
		change.Recorded = bson.Timestamp{T: t, I: i}
	}
	var err error
	if change.Paths, err = pathsOf(doc); err != nil {
		return err
	}
	switch operation {
	case "insert", "update", "replace", "delete":
		f.out.Missing = append(f.out.Missing, change)
	default:
		f.out.Ended = &change
	}
	return nil
}

// dead notes a record that cannot be read.
func (f *folder) dead(doc bsoncore.Document, token bson.Raw) {
	dead := Dead{Token: token}
	dead.Reason, _ = doc.Lookup("reason").StringValueOK()
	dead.Why, _ = doc.Lookup("why").StringValueOK()
	dead.Size, _ = doc.Lookup("size").Int64OK()
	_, key, _ := doc.Lookup("key").BinaryOK()
	_, value, _ := doc.Lookup("value").BinaryOK()
	dead.Key, dead.Value = slices.Clone(key), slices.Clone(value)
	f.out.Dead = append(f.out.Dead, dead)
}

// pathsOf reads the names of the changed fields of a special event.
func pathsOf(doc bsoncore.Document) ([]string, error) {
	field, err := doc.LookupErr("p")
	if err != nil {
		return nil, nil //nolint:nilerr // not there: not an update
	}
	list, ok := field.ArrayOK()
	if !ok {
		return nil, fmt.Errorf("decode event: changed paths are of type %s", field.Type)
	}
	values, err := list.Values()
	if err != nil {
		return nil, fmt.Errorf("decode event: changed paths: %w", err)
	}
	paths := make([]string, len(values))
	for i, value := range values {
		if paths[i], ok = value.StringValueOK(); !ok {
			return nil, fmt.Errorf("decode event: a changed path is of type %s", value.Type)
		}
	}
	return paths, nil
}

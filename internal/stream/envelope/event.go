package envelope

import (
	"math"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// event reads JSON events of the user's own shape: a type, a key, a time and perhaps an id, each at a path.
type event struct {
	kind, key, time, id path
	deltas              map[string]int64
}

// Decode looks at the type first: of an event that is not in the table nothing else is asked.
func (e *event) Decode(_, data []byte) (Change, error) {
	if len(data) == 0 {
		return Change{Skip: SkipTombstone}, nil
	}
	record, err := parse(data)
	switch {
	case err != nil:
		return Change{}, err
	case record.kind() == null:
		return Change{Skip: SkipTombstone}, nil
	case record.kind() != object:
		return Change{}, notJSON("the record's value is %s, not a JSON object", record.excerpt())
	}
	found := record.first(e.kind, e.key, e.time, e.id)
	kind, err := e.typeOf(found[0])
	if err != nil {
		return Change{}, err
	}
	delta, known := e.deltas[kind]
	if !known {
		return Change{Skip: SkipUnknownType, Type: kind}, nil
	}
	c := Change{Op: Event, Type: kind, Delta: delta}
	if c.Key, err = e.keyOf(found[1]); err != nil {
		return Change{}, err
	}
	if c.Time, err = e.timeOf(found[2]); err != nil {
		return Change{}, err
	}
	c.ID, err = idOf(found[3], e.id)
	return c, err
}

// typeOf is a text, or a number or a truth value as it is written.
func (e *event) typeOf(m member) (string, error) {
	v, err := m.at(e.kind, 1)
	if err != nil {
		return "", err
	}
	switch v.kind() {
	case absent, null:
		return "", missing(e.kind.String(), "is missing: it holds the event's type")
	case text:
		return string(v.bytes()), nil
	case object, array:
		return "", malformed(e.kind.String(), "is %s: the event's type must be a text", v.excerpt())
	default:
		return string(v), nil
	}
}

func (e *event) keyOf(m member) (bson.RawValue, error) {
	v, err := m.at(e.key, 1)
	if err != nil {
		return bson.RawValue{}, err
	}
	if v.none() {
		return bson.RawValue{}, missing(e.key.String(), "is missing: it holds the counter's key")
	}
	key, err := raw(v)
	switch {
	case err != nil:
		return bson.RawValue{}, malformed(e.key.String(), "%v", err)
	case key.Type == bson.TypeArray, key.Type == bson.TypeRegex, key.Type == bson.TypeUndefined:
		return bson.RawValue{}, malformed(e.key.String(), "is %s, which cannot be the key of a counter", v.excerpt())
	}
	return key, nil
}

func (e *event) timeOf(m member) (time.Time, error) {
	v, err := m.at(e.time, 1)
	if err != nil {
		return time.Time{}, err
	}
	if v.none() {
		return time.Time{}, missing(e.time.String(), "is missing: it holds the event's time")
	}
	t, ok := readTime(v)
	if !ok {
		return time.Time{}, malformed(e.time.String(), "is %s: the event's time must be RFC 3339 with a time zone, or milliseconds since 1970", v.excerpt())
	}
	return t, nil
}

// Milliseconds outside of this are seconds or microseconds by mistake: 1973 as milliseconds is 5138 as seconds.
const (
	leastMillis = 1e11 // March 1973
	mostMillis  = 1e14 // November 5138
)

// readTime reads RFC 3339, milliseconds as a number or a text, and {$date: …}.
func readTime(v value) (time.Time, bool) {
	switch v.kind() {
	case number:
		return millis(string(v))
	case text:
		s := string(v.bytes())
		if t, err := time.Parse(time.RFC3339, s); err == nil {
			return t.UTC(), true
		}
		return millis(s)
	case object:
		date, err := raw(v)
		if err != nil || date.Type != bson.TypeDateTime {
			return time.Time{}, false
		}
		return date.Time().UTC(), true
	default:
		return time.Time{}, false
	}
}

func millis(s string) (time.Time, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil { // 1.7e12 is a whole number as well
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || f != math.Trunc(f) || math.Abs(f) >= mostMillis {
			return time.Time{}, false
		}
		n = int64(f)
	}
	if n < leastMillis || n >= mostMillis {
		return time.Time{}, false
	}
	return time.UnixMilli(n).UTC(), true
}

// idOf is what tells a record from all others: the text at a path, or the JSON of another value. None is asked for
// without a path.
func idOf(m member, p path) (string, error) {
	if p == nil {
		return "", nil
	}
	v, err := m.at(p, 1)
	switch {
	case err != nil:
		return "", err
	case v.none(), v.kind() == text && len(v) == len(`""`):
		return "", missing(p.String(), "is missing: it holds the id by which repeated events are told")
	case v.kind() == text:
		return string(v.bytes()), nil
	default:
		return string(v), nil
	}
}

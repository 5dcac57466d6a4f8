package counter

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"driftless/internal/config"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
)

// maxDeadBytes is how much of a record that cannot be read is kept, and of its key: as large as brokers take them by default.
const maxDeadBytes = 1 << 20

// Projector makes of the records of a topic what Pipeline makes of the events of a change stream: the contributions of the row
// before and after to every counter. It is used by one goroutine at a time.
type Projector struct {
	decoder    envelope.Decoder
	rows       []config.Rows // by counter
	evaluators []*Evaluator
	settle     time.Duration
	unseen     func() time.Duration
	room       []byte // where documents are made, many in one piece of memory
}

// roomSize is how much memory is taken at a time, and the room that is left for a document in it.
const (
	roomSize = 64 << 10
	roomLeft = 1 << 10
)

// NewProjector projects for definitions, all of one source, in their order. settle is how long an event may be under way, and
// unseen says how long ago the last reconcile was: see BucketOf.
func NewProjector(decoder envelope.Decoder, definitions []*Definition, settle time.Duration, unseen func() time.Duration) (*Projector, error) {
	p := &Projector{decoder: decoder, settle: settle, unseen: unseen, evaluators: make([]*Evaluator, len(definitions))}
	for i, d := range definitions {
		p.rows = append(p.rows, d.Rows)
		if d.ByTime() {
			continue // its events say themselves what they add
		}
		var err error
		if p.evaluators[i], err = Compile(d); err != nil {
			return nil, fmt.Errorf("counter %s: %w", d.Name, err)
		}
	}
	return p, nil
}

// deadError is why a record cannot be counted, for the dead letters.
type deadError struct{ reason, why string }

func (e *deadError) Error() string { return e.why }

// Project returns the projected event of a record at the given moment, nil when it does nothing, and the time that it tells. dead
// says why it cannot be counted: the event is then one for the dead letters.
func (p *Projector) Project(key, value []byte, now time.Time) (doc bson.Raw, at time.Time, dead error) {
	change, err := p.decoder.Decode(key, value)
	at = change.Time
	if !change.ClusterTime.IsZero() {
		at = stream.Clock(change.ClusterTime)
	}
	if err == nil && change.Op != envelope.Irrelevant {
		doc, err = p.event(change, at, now)
	}
	if err != nil {
		return deadEvent(err, key, value), time.Time{}, err
	}
	return doc, at, nil
}

// contribution is what one image does to one counter.
type contribution struct {
	side    byte // b or a
	counter int
	key     bson.RawValue
	weight  int64
}

// concerns reports whether a change is one of a counter's rows: a topic may hold those of several collections.
func (p *Projector) concerns(i int, c envelope.Change) bool {
	named := c.Database != "" && c.Collection != ""
	return !named || c.Database == p.rows[i].Database && c.Collection == p.rows[i].Collection
}

// concernsAny reports whether a change is one of any counter's rows.
func (p *Projector) concernsAny(c envelope.Change) bool {
	for i := range p.rows {
		if p.concerns(i, c) {
			return true
		}
	}
	return false
}

func (p *Projector) event(c envelope.Change, at, now time.Time) (bson.Raw, error) {
	if !p.concernsAny(c) {
		return nil, nil
	}
	contributions, err := p.contributions(c)
	switch {
	case err != nil:
		return nil, err
	case c.BeforeUnknown, c.AfterUnknown, c.Op == envelope.Drop, c.Op == envelope.Rename, c.Op == envelope.DropDatabase, c.Op == envelope.Invalidate:
		return specialDocument(c), nil
	case len(contributions) == 0:
		return nil, nil
	case at.IsZero():
		return nil, &deadError{envelope.ReasonMissing, "the record does not say when its change was"}
	case at.After(now.Add(p.settle)):
		return nil, &deadError{"time_ahead", fmt.Sprintf("the time %s is %s ahead of now, more than reconciler.settle: no run would come to it",
			at.Format(time.RFC3339), at.Sub(now).Round(time.Second))}
	}
	return p.document(c.ID, at, BucketOf(at, FinestBucket(p.settle), max(now.Sub(at), p.unseen())), contributions), nil
}

// contributions of a change whose images are known.
func (p *Projector) contributions(c envelope.Change) (all []contribution, err error) {
	if c.Op == envelope.Event {
		return p.byTable(c)
	}
	for i, e := range p.evaluators {
		if e == nil || !p.concerns(i, c) {
			continue
		}
		before, after := contribution{side: 'b', counter: i}, contribution{side: 'a', counter: i}
		before.key, before.weight = e.Contribution(c.Before)
		after.key, after.weight = e.Contribution(c.After)
		switch {
		case c.Op == envelope.Snapshot && after.weight != 0: // taken off again: it only marks the key
			all = append(all, after, contribution{'b', i, after.key, after.weight})
			continue
		case before.weight == after.weight && before.key.Equal(after.key):
			continue
		}
		for _, one := range []contribution{before, after} {
			if one.weight != 0 {
				all = append(all, one)
			}
		}
	}
	return all, nil
}

// byTable is what an event adds by the table of its source.
func (p *Projector) byTable(c envelope.Change) ([]contribution, error) {
	if !Usable(c.Key) {
		return nil, &deadError{envelope.ReasonMalformed, "the key cannot be the _id of a counter document"}
	}
	if c.Delta == 0 {
		return nil, nil
	}
	side, weight := byte('a'), c.Delta
	if c.Delta < 0 {
		side, weight = 'b', -c.Delta
	}
	all := make([]contribution, len(p.evaluators))
	for i := range all {
		all[i] = contribution{side, i, c.Key, weight}
	}
	return all, nil
}

// document has the form that Fold reads.
func (p *Projector) document(id string, at time.Time, bucket Bucket, contributions []contribution) bson.Raw {
	if cap(p.room)-len(p.room) < roomLeft {
		p.room = make([]byte, 0, roomSize)
	}
	start, dst := bsoncore.AppendDocumentStart(p.room)
	if id != "" {
		dst = bsoncore.AppendStringElement(dst, fieldID, id)
	}
	dst = bsoncore.AppendDateTimeElement(dst, fieldWallTime, at.UnixMilli())
	within, dst := bsoncore.AppendDocumentElementStart(dst, fieldBucket)
	dst = bsoncore.AppendInt64Element(bsoncore.AppendInt64Element(dst, "0", bucket.Start), "1", bucket.Width)
	dst, _ = bsoncore.AppendDocumentEnd(dst, within) // fails beyond 2 GiB
	for _, c := range contributions {
		dst = c.append(dst)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start)
	p.room = dst
	return bson.Raw(dst[start:len(dst):len(dst)])
}

// append appends an element: the side and the number of the counter, the key, and the weight unless it is 1.
func (c contribution) append(dst []byte) []byte {
	dst = append(dst, byte(bsoncore.TypeEmbeddedDocument), c.side)
	dst = append(strconv.AppendInt(dst, int64(c.counter), 10), 0)
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendValueElement(dst, "k", bsoncore.Value{Type: bsoncore.Type(c.key.Type), Data: c.key.Value})
	if c.weight != 1 {
		dst = bsoncore.AppendInt64Element(dst, "w", c.weight)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails beyond 2 GiB
	return dst
}

// specialDocument has the form that Fold reads: a change whose images are not known, or one that is not about a row.
func specialDocument(c envelope.Change) bson.Raw {
	special := bsoncore.NewDocumentBuilder().AppendString("op", string(c.Op))
	if !c.ClusterTime.IsZero() {
		special.AppendTimestamp("at", c.ClusterTime.T, c.ClusterTime.I)
	}
	if !c.Row.IsZero() {
		special.AppendValue("row", bsoncore.Value{Type: bsoncore.Type(c.Row.Type), Data: c.Row.Value})
	}
	if len(c.Paths) > 0 {
		paths := bsoncore.NewArrayBuilder()
		for _, path := range c.Paths {
			paths.AppendString(path)
		}
		special.AppendArray("p", paths.Build())
	}
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendDocument(fieldSpecial, special.Build()).Build())
}

// deadEvent has the form that Fold reads.
func deadEvent(err error, key, value []byte) bson.Raw {
	reason, why := faultOfRecord(err)
	special := bsoncore.NewDocumentBuilder().AppendString("op", opDead).AppendString("reason", reason).AppendString("why", why).
		AppendInt64("size", int64(len(key)+len(value)))
	kept := func(name string, data []byte) {
		if data != nil { // none is not the same as an empty one
			special.AppendBinary(name, 0, data[:min(len(data), maxDeadBytes)])
		}
	}
	kept("key", key)
	kept("value", value)
	return bson.Raw(bsoncore.NewDocumentBuilder().AppendDocument(fieldSpecial, special.Build()).Build())
}

// faultOfRecord is why a record cannot be counted: one reason of few, and in words.
func faultOfRecord(err error) (reason, why string) {
	undecoded, uncounted := (*envelope.Error)(nil), (*deadError)(nil)
	switch {
	case errors.As(err, &undecoded):
		return undecoded.Reason, err.Error()
	case errors.As(err, &uncounted):
		return uncounted.reason, err.Error()
	default:
		return "other", err.Error()
	}
}

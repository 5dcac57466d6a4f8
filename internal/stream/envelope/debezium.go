package envelope

import (
	"math"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// debezium reads the envelope of Debezium's MongoDB connector.
// https://debezium.io/documentation/reference/stable/connectors/mongodb.html#mongodb-events
type debezium struct{ id path }

// debeziumOps are the operations of a document. A replace comes as an update.
var debeziumOps = map[string]Op{"c": Insert, "r": Snapshot, "u": Update, "d": Delete}

type debeziumEnvelope struct{ op, before, after, source, description, deleted value }

func readDebezium(payload value) (e debeziumEnvelope) {
	for name, v := range payload.members() {
		switch string(name) {
		case "op":
			e.op = v
		case "before":
			e.before = v
		case "after":
			e.after = v
		case "source":
			e.source = v
		case "updateDescription":
			e.description = v
		case "__deleted":
			e.deleted = v
		}
	}
	return e
}

// Decode reads a record with or without the schema around it.
func (d debezium) Decode(key, data []byte) (Change, error) {
	payload, skip, err := unwrap(data)
	if err != nil || skip != "" {
		return Change{Skip: skip}, err
	}
	e := readDebezium(payload)
	if e.op == nil {
		return d.flat(key, payload, e.deleted)
	}
	op, known := debeziumOps[string(e.op.content())]
	if !known {
		return Change{}, malformed("op", "is %s: it must be c, r, u or d", e.op.excerpt())
	}
	c := Change{Op: op}
	if err := c.readSource(e.source); err != nil {
		return Change{}, err
	}
	if err := c.readImages(image{"before", e.before}, image{"after", e.after}, e.description); err != nil {
		return Change{}, err
	}
	if c.Row.IsZero() {
		c.Row = debeziumRow(key)
	}
	c.ID, err = idOf(payload.first(d.id)[0], d.id)
	return c, err
}

// flat reads what the transform ExtractNewDocumentState leaves of a record. Of a delete that it rewrote the row's _id is
// enough to mark what it may have counted for; of any other the types of the fields, and so of the key, are gone.
func (d debezium) flat(key []byte, payload, deleted value) (Change, error) {
	switch string(deleted.content()) {
	case "true":
		id, err := idOf(payload.first(d.id)[0], d.id)
		return Change{Op: Delete, BeforeUnknown: true, Row: debeziumRow(key), ID: id}, err
	case "false":
		return Change{}, unsupported("op", "is missing: the transform ExtractNewDocumentState took the envelope away, and with it the types of the fields: remove the transform")
	default:
		return Change{}, missing("op", "is missing: the record is no envelope of Debezium's MongoDB connector")
	}
}

// debeziumRow is the _id in a record's key, which is extended JSON in a string; zero where it cannot be told.
func debeziumRow(key []byte) bson.RawValue {
	record, err := parse(key)
	if err != nil {
		return bson.RawValue{}
	}
	for name, v := range record.payload().members() {
		if string(name) != "id" && string(name) != "_id" {
			continue
		}
		if inner, ok := v.opened(); ok {
			if row, err := raw(inner); err == nil {
				return row
			}
		}
	}
	return bson.RawValue{}
}

// debeziumSource is what a record says about where and when.
type debeziumSource struct{ connector, database, collection, time, ordinal, wallTime value }

func readDebeziumSource(v value) (s debeziumSource) {
	for name, v := range v.members() {
		switch string(name) {
		case "connector":
			s.connector = v
		case "db":
			s.database = v
		case "collection":
			s.collection = v
		case "ts_ms":
			s.time = v
		case "ord":
			s.ordinal = v
		case "wallTime":
			s.wallTime = v
		}
	}
	return s
}

// readSource takes the cluster time: its seconds stand in ts_ms, as milliseconds, and its increment in ord. A snapshot's
// is none of the row's changes.
func (c *Change) readSource(v value) error {
	s := readDebeziumSource(v)
	if connector := s.connector.name(); connector != "" && connector != "mongodb" {
		return unsupported("source.connector", "is %s: only records of the MongoDB connector are read", s.connector.excerpt())
	}
	c.Database, c.Collection = s.database.name(), s.collection.name()
	if s.time.none() {
		return missing("source.ts_ms", "is missing: it holds the time of the change")
	}
	at, err := strconv.ParseInt(string(s.time), 10, 64)
	if err != nil || at < 0 || at >= mostMillis || at == 0 && c.Op != Snapshot {
		return malformed("source.ts_ms", "is %s: it must be milliseconds since 1970", s.time.excerpt())
	}
	if at > 0 {
		c.Time = time.UnixMilli(at).UTC()
	}
	if wall, ok := millis(string(s.wallTime)); ok { // to the millisecond
		c.Time = wall
	}
	increment, err := strconv.ParseUint(string(s.ordinal), 10, 32)
	if err == nil && at%1000 == 0 && at/1000 <= math.MaxUint32 && c.Op != Snapshot {
		c.ClusterTime = bson.Timestamp{T: uint32(at / 1000), I: uint32(increment)}
	}
	return nil
}

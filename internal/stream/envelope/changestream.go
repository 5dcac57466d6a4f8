package envelope

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/stream"
)

// changeStream reads change events as the MongoDB Kafka source connector publishes them, in its formats json and schema.
// https://www.mongodb.com/docs/manual/reference/change-events/
type changeStream struct{ id path }

// Of the operations that a change stream knows, those about the rows and those that leave them alone.
var (
	rowOps = map[Op]bool{Insert: true, Update: true, Replace: true, Delete: true}
	endOps = map[Op]bool{Drop: true, Rename: true, DropDatabase: true, Invalidate: true}
	// With showExpandedEvents.
	otherOps = map[Op]bool{
		"create": true, "createIndexes": true, "dropIndexes": true, "modify": true, "shardCollection": true,
		"refineCollectionShardKey": true, "reshardCollection": true,
	}
)

type changeEvent struct {
	id, operation, namespace, row, before, after, description, clusterTime, wallTime, split value
}

func readChangeEvent(payload value) (e changeEvent) {
	for name, v := range payload.members() {
		switch string(name) {
		case "_id":
			e.id = v
		case "operationType":
			e.operation = v
		case "ns":
			e.namespace = v
		case "documentKey":
			e.row = v
		case "fullDocumentBeforeChange":
			e.before = v
		case "fullDocument":
			e.after = v
		case "updateDescription":
			e.description = v
		case "clusterTime":
			e.clusterTime = v
		case "wallTime":
			e.wallTime = v
		case "splitEvent":
			e.split = v
		}
	}
	return e
}

// Decode reads a record whose value is the event, or a string with it, with or without the schema around it.
func (d changeStream) Decode(_, data []byte) (Change, error) {
	payload, skip, err := unwrap(data)
	if err != nil || skip != "" {
		return Change{Skip: skip}, err
	}
	e := readChangeEvent(payload)
	c, err := e.begin()
	if err != nil || c.Skip != "" {
		return c, err
	}
	if err := c.readTimes(e); err != nil {
		return Change{}, err
	}
	if rowOps[c.Op] {
		err = e.readRow(&c)
	}
	if err != nil {
		return Change{}, err
	}
	c.ID, err = idOf(payload.first(d.id)[0], d.id)
	return c, err
}

// begin tells what kind of event it is, and of which collection.
func (e changeEvent) begin() (Change, error) {
	c := Change{Op: Op(e.operation.content())}
	switch {
	case e.operation.none():
		return Change{}, missing("operationType", "is missing: the record is no change event; the connector must publish whole events (publish.full.document.only: false)")
	case otherOps[c.Op]:
		return Change{Skip: SkipOperation}, nil
	case !rowOps[c.Op] && !endOps[c.Op]:
		return Change{}, malformed("operationType", "is %s, which is not known", e.operation.excerpt())
	case !e.split.none():
		return Change{}, unsupported("splitEvent", "is there: a part of an event does not say what the whole did; leave out $changeStreamSplitLargeEvent")
	}
	namespace, _ := e.namespace.opened()
	for name, v := range namespace.members() {
		switch string(name) {
		case "db":
			c.Database = v.name()
		case "coll":
			c.Collection = v.name()
		}
	}
	return c, nil
}

// readRow reads _id and images. A row that the connector copied when it began comes as an insert.
func (e changeEvent) readRow(c *Change) error {
	key, err := document(e.row)
	switch {
	case err != nil:
		return malformed("documentKey", "%v", err)
	case key == nil:
		return missing("documentKey", "is missing: it holds the row's _id")
	}
	if c.Row = key.Lookup("_id"); c.Row.IsZero() {
		return missing("documentKey._id", "is missing")
	}
	if c.Op == Insert && e.copied() {
		c.Op, c.ClusterTime = Snapshot, bson.Timestamp{}
	}
	return c.readImages(image{"fullDocumentBeforeChange", e.before}, image{"fullDocument", e.after}, e.description)
}

// copied reports whether the event is none of a change stream, but made by the connector's startup.mode copy_existing.
func (e changeEvent) copied() bool {
	id, _ := e.id.opened()
	for name, v := range id.members() {
		if string(name) == "copyingData" && string(v) == "true" {
			return true
		}
	}
	return false
}

// readTimes reads when it was. Rows that were copied and no change have no time.
func (c *Change) readTimes(e changeEvent) error {
	if !e.clusterTime.none() {
		at, ok := e.clusterTime.as(bson.TypeTimestamp)
		if !ok {
			return malformed("clusterTime", "is %s: it must be a timestamp as extended JSON", e.clusterTime.excerpt())
		}
		c.ClusterTime.T, c.ClusterTime.I = at.Timestamp()
		c.Time = stream.Clock(c.ClusterTime)
	}
	if !e.wallTime.none() {
		at, ok := e.wallTime.as(bson.TypeDateTime)
		if !ok {
			return unsupported("wallTime", "is %s and not {$date: …}: the connector's formatter loses the types of the fields; set output.json.formatter to DefaultJson or ExtendedJson", e.wallTime.excerpt())
		}
		c.Time = at.Time().UTC()
	}
	if c.Time.IsZero() && !e.copied() {
		return missing("clusterTime", "is missing: it holds the time of the change")
	}
	return nil
}

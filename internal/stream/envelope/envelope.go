// Package envelope reads what the bytes of one Kafka record say about a row. It is pure: bytes in, a Change out, and it
// knows neither Kafka nor a database nor counters.
package envelope

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
)

// Op is what happened, named as MongoDB's change streams name it.
type Op string

// What a record may tell. Drop to Invalidate end the collection of the rows.
const (
	Irrelevant   Op = ""         // nothing that is counted: see Change.Skip
	Event        Op = "event"    // a delta of a key, from the table of the configuration
	Insert       Op = "insert"   // a row came
	Update       Op = "update"   // fields of a row changed, or all of them
	Replace      Op = "replace"  // a row was put in the place of another
	Delete       Op = "delete"   // a row went
	Snapshot     Op = "snapshot" // a row that was there before the connector began: its key is to be marked, never incremented
	Drop         Op = "drop"
	Rename       Op = "rename"
	DropDatabase Op = "dropDatabase"
	Invalidate   Op = "invalidate"
)

// Why a record is irrelevant.
const (
	SkipTombstone   = "tombstone"    // a record without a value, for the log's compaction
	SkipUnknownType = "unknown_type" // an event whose type is not in the table
	SkipOperation   = "operation"    // a change of the collection that leaves its rows alone, such as a new index
)

// Change is what one record says. It shares no memory with the record.
type Change struct {
	Op   Op
	Skip string // of Irrelevant: why

	// The row before and after the change: nil where there was none, and where it is not known. An update's After is made
	// from Before and the changed fields when both are there, because an image that a connector looked up may be of a
	// later moment (then only the order of its fields is not sure). Without them it is as published, and may be later than
	// the change.
	Before, After               bson.Raw
	BeforeUnknown, AfterUnknown bool
	Row                         bson.RawValue // _id of the row, zero when not known
	Paths                       []string      // of an update: the paths that it changed; none when not known
	Database, Collection        string        // of the row; "" when not known

	// Of an Event: its key with the type that extended JSON gives it, and its delta from the table. The key is never null,
	// undefined, an array or a regular expression; a document may still be no _id.
	Type  string
	Delta int64
	Key   bson.RawValue

	Time        time.Time      // of the change, UTC; zero when not known
	ClusterTime bson.Timestamp // of the change in its replica set; zero when not known
	ID          string         // what tells it from all others, of decoders that are to find one
}

// Decoder reads records of one format.
type Decoder interface {
	// Decode reads a record's key and value, either of which may be nil. The error is an *Error. It never panics, whatever
	// the bytes.
	Decode(key, value []byte) (Change, error)
}

// New returns the decoder of a source's format.
func New(k *config.Kafka) Decoder {
	switch id := split(k.Dedupe.Field); k.Format {
	case "debezium":
		return debezium{id: id}
	case "change_stream":
		return changeStream{id: id}
	default:
		return &event{
			kind: split(k.Event.Type), key: split(k.Event.Key), time: split(k.Event.Time), id: id, deltas: k.Event.Deltas,
		}
	}
}

// path is a dotted path, in its parts; nil for none.
type path []string

func split(dotted string) path {
	if dotted == "" {
		return nil
	}
	return strings.Split(dotted, ".")
}

func (p path) String() string { return strings.Join(p, ".") }

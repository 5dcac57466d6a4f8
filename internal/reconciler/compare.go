package reconciler

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// Cause of a drift: what the evidence says, and "unknown" where it says nothing.
type Cause string

// Causes.
const (
	CauseUnknown      Cause = "unknown"
	CauseEdited       Cause = "edited"        // base or live was written by somebody else: total bears witness
	CauseNoDocument   Cause = "no document"   // there are rows, and nothing to display them
	CauseGap          Cause = "gap"           // events were lost, and it is recorded
	CauseMissingImage Cause = "missing image" // an event came without the image that tells what it did
	CauseSetApart     Cause = "set apart"     // the document could not take an increment
)

// reading is everything about one key at one position.
type reading struct {
	document counter.Document
	truth    counter.Truth
	tail     int64 // applied beyond the position
	mark     counter.Touched
}

// verdict is what a comparison comes to.
type verdict struct {
	key              bson.RawValue
	displayed, truth int64 // at the position
	drift            int64 // displayed - truth: positive is too high
	cause            Cause
	recurring        bool   // wrong although it has been repaired before
	skip             string // why the key could not be judged
	repair           *counter.Repair
	clear            bool // nothing to write but the mark in the state database
}

// Reasons for which a key is not judged.
const (
	skipBadField   = "bad_field"   // a field of the counter document is not an integer
	skipBadSum     = "bad_sum"     // the rows add up to more than 64 bits
	skipNoDocument = "no_document" // upsert is off and there is none
)

// compare judges one key: pure, so that it is tested without a database. A key that is right and was not touched is not
// written at all.
func compare(r reading, upsert bool, reason Cause) verdict {
	d := r.document
	liveAt := d.Live - r.tail
	v := verdict{key: r.truth.Key, displayed: d.Base + liveAt, truth: r.truth.N}
	if d.Exists || v.key.IsZero() {
		v.key = d.Key
	}
	v.drift = v.displayed - v.truth
	switch {
	case d.Bad != "":
		v.skip = skipBadField
	case r.truth.Bad != "":
		v.skip = skipBadSum
	case !d.Exists && v.truth == 0 && r.tail == 0:
		v.drift, v.clear = 0, true
	case !d.Exists && !upsert:
		v.skip = skipNoDocument
	case v.drift != 0 || d.Touched || !r.mark.Stamp.IsZero():
		d.Key = v.key
		v.repair = &counter.Repair{
			Read: d, Base: v.truth - d.Base, Live: -liveAt, Total: v.truth - (d.Total - r.tail),
			Drifted: v.drift != 0, Mark: r.mark,
		}
	}
	if v.drift != 0 {
		v.recurring = d.Drifted
		v.cause = cause(r, v, upsert, reason)
	}
	return v
}

// cause names what the evidence points to. total is moved by the very updates that move base and live: where it
// differs from their sum, somebody else wrote one of them.
func cause(r reading, v verdict, upsert bool, reason Cause) Cause {
	switch {
	case r.document.HasTotal && r.document.Total-r.tail != v.displayed:
		return CauseEdited
	case reason != "":
		return reason
	case upsert && !r.mark.Stamp.IsZero():
		// The document could carry its own mark, and did not.
		return CauseSetApart
	case !r.document.Exists:
		return CauseNoDocument
	default:
		return CauseUnknown
	}
}

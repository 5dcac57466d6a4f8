package reconciler

import (
	"cmp"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// reading is everything about one key at one position.
type reading struct {
	document counter.Document
	truth    counter.Truth
	tail     int64 // applied beyond the position
	mark     counter.Touched
	pending  bool // the mark is for a change beyond the position, and stays
	division      // of a counter that events increment
}

// division is how a document is divided at the cut, zero where there is none.
type division struct {
	cut    int64          // in Unix seconds
	passed counter.Recent // the buckets before it
	late   int64          // of these, what came after an earlier reconcile had gone past its time
	open   bool           // there are buckets beyond it, which a later run has to see
	unfit  string         // why it cannot be divided there
}

// divideAt divides a document at a cut. What lies beyond it is its tail.
func divideAt(d counter.Document, cut int64) (beyond int64, at division) {
	beyond, passed, ok := d.Recent.Split(cut)
	at = division{cut: cut, passed: passed, late: d.Recent.Late(d.Cut), open: len(passed) < len(d.Recent)}
	switch {
	case !ok:
		at.unfit = "its events were counted in a coarse span of time, since no run had come for long: a later run can divide it"
	case d.Cut > cut:
		at.unfit = "it was divided at a later moment already"
	}
	return beyond, at
}

// spent is the mark that the comparison answers, zero when there is none.
func (r reading) spent() counter.Touched {
	if r.pending {
		return counter.Touched{}
	}
	return r.mark
}

// verdict is what a comparison comes to.
type verdict struct {
	key              bson.RawValue
	displayed, truth int64 // at the position
	drift            int64 // displayed - truth: positive is too high
	late             int64 // of the drift, what events did that came after their time: known, and no fault of the counter
	cause            Cause
	totalAlone       bool   // base + live is right, and displayed is total
	recurring        bool   // wrong although it has been repaired before
	anew             bool   // wrong, and without a document, or with one that increments alone have made since the last run
	excused          bool   // wrong, and not by a fault of the recount: nothing was displayed, or the reason is on record
	skip, why        string // why the key could not be judged: the reason, and in words
	marked           bool   // something makes the next run look at it
	repair           *counter.Repair
	mend             *counter.Mend   // the repair of a counter that the application increments itself
	clear            counter.Touched // nothing to write but this mark in the state database, if it has a stamp
}

// unexplained is the drift that late events do not account for.
func (v verdict) unexplained() int64 { return v.drift - v.late }

// Reasons for which a key is not judged, or not repaired.
const (
	skipBadField   = "bad_field"   // a field of the counter document is not an integer
	skipBadSum     = "bad_sum"     // the rows add up to more than 64 bits
	skipNoDocument = "no_document" // upsert is off and there is none
	skipRaced      = "raced"       // repaired by somebody else meanwhile
	skipRefused    = "refused"     // its document refuses the repair
	skipHeld       = "held"        // too many have drifted: it waits for an approval
	skipUndone     = "undone"      // its last repair was taken back, and it is not released
	skipUnsettled  = "unsettled"   // a row may count or not as of the moment to judge at
	skipCostly     = "costly"      // its recount is costly and not due yet
	skipBusy       = "busy"        // its document, or its rows, are written to all the time
)

// largest bounds what is judged: four such numbers still add up within 64 bits, here and on the server, which would
// make a double of a larger sum.
const largest = 1 << 61

// compare judges one key of a counter in the given state: pure, so that it is tested without a database. A key that is
// right and was not touched is not written at all.
func compare(r reading, upsert bool, state counter.State) verdict {
	d := r.document
	liveAt := d.Live - r.tail
	v := verdict{
		key: r.truth.Key, displayed: d.Base + liveAt, truth: r.truth.N,
		marked: d.Touched || !r.mark.Stamp.IsZero(),
	}
	if d.Exists || v.key.IsZero() {
		v.key = d.Key
	}
	switch {
	case d.Bad != "":
		v.skip, v.why = skipBadField, d.Bad
		return v
	case max(d.Base, d.Live, d.Total) > largest, min(d.Base, d.Live, d.Total) < -largest:
		v.skip, v.why = skipBadField, "a field is too large to add to"
		return v
	case r.unfit != "":
		v.skip, v.why, v.marked = skipPosition, r.unfit, true // its mark stays
		return v
	case r.truth.Unsettled:
		v.skip, v.why, v.marked = skipUnsettled, "a row of it has been changed since the moment to judge at, or lies too close to it: a later run can tell", true
		return v
	case r.truth.Bad != "", v.truth > largest, v.truth < -largest:
		v.skip, v.why = skipBadSum, cmp.Or(r.truth.Bad, "the sum is too large to add to")
		return v
	case !d.Exists && v.truth == 0 && r.tail == 0:
		v.clear = r.spent()
		return v
	case !d.Exists && !upsert:
		v.skip, v.why = skipNoDocument, "there is no counter document, and upsert is off"
		return v
	}
	if total := d.Total - r.tail; d.Exists && v.displayed == v.truth && total != v.truth {
		v.displayed, v.totalAlone = total, true // users read it, too
	}
	v.drift = v.displayed - v.truth
	if reasonOf(state) != CauseReset { // which has events read once more that are long counted
		v.late = r.late
	}
	if v.drift != 0 {
		v.recurring, v.anew = d.Drifted, d.Repair.IsZero() && d.Base == 0
		v.excused = v.anew || v.unexplained() == 0 || state.State == counter.Rebasing || r.mark.Reason != "" || upsert && r.mark.ByLane()
		v.cause = cause(r, v, upsert, reasonOf(state))
	}
	if v.drift != 0 || v.marked {
		d.Key = v.key
		v.repair = &counter.Repair{
			Read: d, Base: v.truth - d.Base, Live: -liveAt, Total: v.truth - (d.Total - r.tail),
			Drifted: v.drift != v.late && !state.Rebased(), Mark: r.spent(), Passed: r.passed, Cut: r.cut, Open: r.open,
		}
	}
	return v
}

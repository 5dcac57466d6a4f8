package reconciler

import (
	"bytes"
	"cmp"
	"encoding/json"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Results of a run.
const (
	ResultOK      = "ok"
	ResultPartial = "partial" // some keys or counters could not be judged
	ResultSkipped = "skipped" // nothing could be judged
	ResultHeld    = "held"    // so many keys of a counter drifted that it was not repaired
	ResultFailed  = "failed"
)

// Report is what one run found.
type Report struct {
	Run      string           `json:"run"`
	Result   string           `json:"result"`
	Counters []*CounterReport `json:"counters"`
}

// CounterReport is what one run found for one counter. Drift is displayed - truth.
type CounterReport struct {
	Counter  string           `json:"counter"`
	Checked  int64            `json:"checked"`
	Repaired int64            `json:"repaired"`
	Rebased  int64            `json:"rebased,omitempty"` // changed by the first count of a new or changed counter
	Skipped  map[string]int64 `json:"skipped"`           // keys not judged, by reason
	Why      string           `json:"why,omitempty"`     // why the counter, or what is left of it, could not be judged
	// RowsWithoutKey is how many rows have no usable key and count for nothing, as a full pass found.
	RowsWithoutKey int64      `json:"rows_without_key,omitempty"`
	SetApart       []SetApart `json:"set_apart,omitempty"` // the first of the skipped keys
	// Allowed is how many of the checked keys differ by no more than changes under way may explain.
	Allowed int64 `json:"allowed,omitempty"`
	// HeldBy is the run that has held the repairs of the counter when this one began, "" for none.
	HeldBy string `json:"held_by,omitempty"`
	// Late is by how much counts were off because events came after a run had gone past their time: known, and no drift.
	Late            int64     `json:"late,omitempty"`
	Drift           Drift     `json:"drift"`
	Drifted         []Drifted `json:"drifted"` // the largest
	VerifiedThrough time.Time `json:"verified_through,omitzero"`

	rows      int64
	recurring int64 // keys that drifted although they had been repaired before
	anew      int64 // repaired keys that had no document, or one that increments alone had made
	complete  bool  // every key that was to be judged has been
}

// Drift sums absolute sizes by direction.
type Drift struct {
	Over  int64 `json:"over"`
	Under int64 `json:"under"`
	Keys  int64 `json:"keys"`
	Max   int64 `json:"max"`

	overKeys, underKeys int64
}

// Drifted is one wrong counter.
type Drifted struct {
	Key       ExtendedJSON `json:"key"`
	Displayed int64        `json:"displayed"`
	Truth     int64        `json:"truth"`
	Drift     int64        `json:"drift"`
	Cause     Cause        `json:"cause"`
}

// SetApart is a key that could not be judged.
type SetApart struct {
	Key    ExtendedJSON `json:"key"`
	Reason string       `json:"reason"`
	Why    string       `json:"why"`
}

// maxSetApart bounds the skipped keys that a report lists.
const maxSetApart = 100

// ExtendedJSON is a BSON value, written as relaxed extended JSON.
type ExtendedJSON struct{ bson.RawValue }

// MarshalJSON implements json.Marshaler.
func (v ExtendedJSON) MarshalJSON() ([]byte, error) {
	document, err := bson.MarshalExtJSON(bson.D{{Key: "v", Value: v.RawValue}}, false, false)
	if err != nil {
		return nil, err
	}
	var wrapped struct{ V json.RawMessage }
	if err := json.Unmarshal(document, &wrapped); err != nil {
		return nil, err
	}
	return bytes.TrimSpace(wrapped.V), nil
}

// String is the same for logs.
func (v ExtendedJSON) String() string {
	text, err := v.MarshalJSON()
	if err != nil {
		return v.RawValue.String()
	}
	return string(text)
}

func abs(n int64) int64 { return max(n, -n) }

// add counts one drifted key.
func (d *Drift) add(drift int64) {
	d.Keys++
	d.Max = max(d.Max, abs(drift))
	if drift > 0 {
		d.Over += drift
		d.overKeys++
	} else {
		d.Under -= drift
		d.underKeys++
	}
}

// keepLargest adds to the drifted keys and keeps the limit largest, 0 for all.
func (r *CounterReport) keepLargest(d Drifted, limit int) {
	r.Drifted = append(r.Drifted, d)
	if limit > 0 && len(r.Drifted) >= 2*limit {
		r.trim(limit)
	}
}

// trim sorts the drifted keys by size, then by key, and cuts them to limit, 0 for all.
func (r *CounterReport) trim(limit int) {
	slices.SortStableFunc(r.Drifted, func(a, b Drifted) int {
		return cmp.Or(cmp.Compare(abs(b.Drift), abs(a.Drift)), bytes.Compare(a.Key.Value, b.Key.Value))
	})
	if limit > 0 && len(r.Drifted) > limit {
		r.Drifted = r.Drifted[:limit]
	}
}

// skip counts a key, or a whole counter, that was not judged. Where there is no document and none is to be made, nothing
// is displayed that could be wrong: rows without their document do not make a run partial. Nor do costly keys that are not
// due.
func (r *CounterReport) skip(reason string) {
	r.Skipped[reason]++
	r.complete = r.complete && (reason == skipNoDocument || reason == skipCostly)
}

// Drifted reports whether any counter of the run was wrong.
func (r *Report) Drifted() bool {
	return slices.ContainsFunc(r.Counters, func(c *CounterReport) bool { return c.Drift.Keys > 0 })
}

// Held lists the counters of the run whose repairs were held.
func (r *Report) Held() (names []string) {
	for _, c := range r.Counters {
		if c.Skipped[skipHeld] > 0 {
			names = append(names, c.Counter)
		}
	}
	return names
}

// Complete reports whether everything that was to be judged has been.
func (r *Report) Complete() bool { return r.Result == ResultOK }

// conclude derives the run's result from its counters'.
func (r *Report) conclude(limit int) {
	judged, whole, held := false, true, false
	for _, c := range r.Counters {
		c.trim(limit)
		whole = whole && c.complete
		judged = judged || c.complete || c.Checked > 0
		held = held || c.Skipped[skipHeld] > 0
	}
	switch {
	case held:
		r.Result = ResultHeld
	case whole:
		r.Result = ResultOK
	case judged:
		r.Result = ResultPartial
	default:
		r.Result = ResultSkipped
	}
}

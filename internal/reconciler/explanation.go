package reconciler

import (
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Explanation is what one key of one counter is made of. What does not apply is left out.
type Explanation struct {
	Counter  string       `json:"counter"`
	Key      ExtendedJSON `json:"key"`
	Verdict  Verdict      `json:"verdict"`
	Shown    Shown        `json:"shown"`
	Recount  *Recount     `json:"recount,omitempty"`    // nil when it could not be judged
	Unjudged *Unjudged    `json:"not_judged,omitempty"` // why not
	Now      *Now         `json:"now,omitempty"`        // nil when the rows could not be counted
	State    *KeyState    `json:"state,omitempty"`      // nil for a counter of the application without a run yet
	Marks    Marks        `json:"marks"`
	Repairs  []KeyRepair  `json:"repairs"` // the latest first
	Events   Events       `json:"events"`
	Lane     *KeyLane     `json:"lane,omitempty"`
	// Others are keys of another type that look the same, and that something is counted for.
	Others []ExtendedJSON `json:"other_keys,omitempty"`
	// Unread are the parts that could not be read, and why: what they hold is not in here.
	Unread []Unread `json:"not_read,omitempty"`
}

// Moment is a cluster time.
type Moment struct {
	Time      time.Time `json:"time"` // to the second
	Seconds   uint32    `json:"seconds"`
	Increment uint32    `json:"increment"`
}

func momentOf(t bson.Timestamp) Moment {
	return Moment{Time: stream.Clock(t), Seconds: t.T, Increment: t.I}
}

// IsZero reports whether it is no moment at all.
func (m Moment) IsZero() bool { return m.Seconds == 0 && m.Increment == 0 }

// Shown is what readers of the counter document see.
type Shown struct {
	Document  bool  `json:"document"` // there is one
	Displayed int64 `json:"displayed"`
	// Base and Live are nil for a counter that the application keeps in one field.
	Base *int64 `json:"base,omitempty"`
	Live *int64 `json:"live,omitempty"`
	// Total is the witness, moved by the very updates that move the two; nil when the document has none.
	Total        *int64    `json:"total,omitempty"`
	Bad          string    `json:"bad_field,omitempty"`    // a field that is no number; it is 0 in here
	TotalAgrees  bool      `json:"total_agrees,omitempty"` // with base + live
	ReconciledAt time.Time `json:"reconciled_at,omitzero"`
}

// Recount is what the key was judged by: its rows, and its document, at one position.
type Recount struct {
	Position  Moment `json:"position"`
	Truth     int64  `json:"truth"`
	Rows      int64  `json:"rows"`      // those that do not count included
	Displayed int64  `json:"displayed"` // at the position: without the tail
	Tail      int64  `json:"tail"`      // already applied beyond it
	Drift     int64  `json:"drift"`     // displayed - truth
	Direction string `json:"direction,omitempty"`
	Cause     Cause  `json:"cause,omitempty"`
	// TotalAlone means: base + live is right, and the field that holds their total is not.
	TotalAlone bool `json:"total_alone,omitempty"`
	// NoDocument means: there are rows and no document, and none is to be made. Nothing is displayed that could be wrong.
	NoDocument bool `json:"no_document,omitempty"`
	// Low and High are how much too low and too high the display may be for changes that may be under way, of a
	// counter that the application keeps.
	Low  int64 `json:"allowed_low,omitempty"`
	High int64 `json:"allowed_high,omitempty"`
}

// Unjudged says why the key could not be compared.
type Unjudged struct {
	Reason string `json:"reason"`
	Why    string `json:"why"`
}

// Now is a count of the rows as a majority has them, wherever the lane is.
type Now struct {
	Truth    int64  `json:"truth"`
	Rows     int64  `json:"rows"` // those that do not count included
	Position Moment `json:"position"`
}

// KeyStateUnknown is the state of a counter that is not on record as it is declared.
const KeyStateUnknown = "unknown"

// KeyState is what is on record about the counter as a whole.
type KeyState struct {
	State  string   `json:"state"`            // active, rebasing, or unknown
	Reason string   `json:"reason,omitempty"` // of the recount it waits for
	Held   string   `json:"held,omitempty"`   // the run that has held its repairs
	Gap    *LaneGap `json:"last_gap,omitempty"`
	// Verified is the position through which every touched key has been compared.
	Verified time.Time `json:"verified_through,omitzero"`
}

// LaneGap is the latest stretch of history that the lane did not see.
type LaneGap struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
	Healed bool      `json:"healed"` // every key has been recounted since
}

// Marks are what makes the next run look at the key, or keeps it from repair.
type Marks struct {
	Touched    bool        `json:"touched"` // since it was last compared
	TouchedAt  time.Time   `json:"touched_at,omitzero"`
	Mark       *Mark       `json:"mark,omitempty"`        // in the state database
	DeadLetter *DeadLetter `json:"dead_letter,omitempty"` // what its document could not take
	Undone     string      `json:"undone,omitempty"`      // the run whose repair was taken back
}

// Mark is one in the state database.
type Mark struct {
	Reason string    `json:"reason,omitempty"` // "" for an increment
	At     time.Time `json:"at,omitzero"`
	After  *Moment   `json:"after,omitempty"` // a recount at an earlier position does not answer it
}

// DeadLetter is what a document could not take, added up.
type DeadLetter struct {
	Reason string    `json:"reason"`
	Delta  int64     `json:"delta"`
	Times  int64     `json:"times"`
	LastAt time.Time `json:"last_at"`
}

// KeyRepair is one repair of the key in the journal. Before and After are base + live.
type KeyRepair struct {
	At       time.Time `json:"at"`
	Run      string    `json:"run"`
	Before   int64     `json:"before"`
	After    int64     `json:"after"`
	Truth    int64     `json:"truth"`
	Drift    int64     `json:"drift"`
	Cause    Cause     `json:"cause"`
	Rebased  bool      `json:"rebased,omitempty"` // the first count of a new or changed counter
	Position Moment    `json:"position"`
	Undone   bool      `json:"undone"`
	UndoneAt time.Time `json:"undone_at,omitzero"`
	Kept     bool      `json:"kept,omitempty"` // and the key is not repaired until released
}

func repairOf(e counter.Entry) KeyRepair {
	r := KeyRepair{
		At: e.At.UTC(), Run: e.Run, Before: e.Before.Base + e.Before.Live, After: e.After.Base + e.After.Live, Truth: e.Truth,
		Drift: e.Drift, Cause: Cause(e.Cause), Rebased: e.Rebased, Position: momentOf(e.Position), Undone: !e.Undo.IsZero(), Kept: e.Kept,
	}
	if r.Undone {
		r.UndoneAt = e.Undo.Timestamp().UTC()
	}
	return r
}

// Events are the last changes of rows that moved the key, as far as the server still has them.
type Events struct {
	Since   Moment    `json:"since,omitzero"`   // nothing before was read
	Through Moment    `json:"through,omitzero"` // nothing after was read
	Found   int64     `json:"found"`
	List    []Changed `json:"list"` // the last of them, in their order
	// Unknown is how many changes came without their image: they may be this key's or another's.
	Unknown int64  `json:"unknown,omitempty"`
	Note    string `json:"note,omitempty"` // what is missing, and why
}

// Changed is one change of a row.
type Changed struct {
	At        Moment       `json:"at"`
	Operation string       `json:"operation"`
	Row       ExtendedJSON `json:"row"`
	Before    *Counted     `json:"before"` // nil: it did not count
	After     *Counted     `json:"after"`
	Change    int64        `json:"change"`           // of this key
	Beyond    bool         `json:"beyond,omitempty"` // the position of the key's lane: the recount there knows nothing of it
}

// Counted is what a row adds, and to which key.
type Counted struct {
	Key    ExtendedJSON `json:"key"`
	Weight int64        `json:"weight"`
}

// KeyLane is the lane that applies the key's events.
type KeyLane struct {
	Lane     string    `json:"lane"`            // "" for one of several, as long as there is nothing of the key
	Lanes    int       `json:"lanes"`           // of the source
	Owner    string    `json:"owner,omitempty"` // the instance that follows it
	Position Moment    `json:"position"`
	Behind   int64     `json:"behind_seconds"` // the server's last write
	MovedAt  time.Time `json:"moved_at"`
}

// Unread says why a part could not be read.
type Unread struct {
	Part string `json:"part"`
	Why  string `json:"why"`
}

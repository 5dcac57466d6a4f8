package reconciler

import (
	"fmt"
	"time"

	"driftless/internal/counter"
)

// Standings of a key.
const (
	KeyRight    = "right"
	KeyDrifted  = "drifted"
	KeyHeld     = "held"        // drifted, and its counter's repairs wait for an approval
	KeyUndone   = "undone"      // drifted, and its repair was taken back
	KeyRebasing = "rebasing"    // its counter waits for a recount, which changes it
	KeyNothing  = "nothing"     // neither rows nor a document
	KeyBare     = "no_document" // rows, and nothing to display them
	KeyUnjudged = "not_judged"
)

// Verdict is what an explanation comes to.
type Verdict struct {
	Standing string `json:"standing"`
	Text     string `json:"text"` // one sentence
	// Command is what to run, "" for nothing.
	Command string `json:"command,omitempty"`
	Hint    string `json:"hint,omitempty"` // where the key may have been another than was meant
}

// verdict sums an explanation up: pure, so that it is tested without a database.
func (x *Explanation) verdict() Verdict {
	v := x.standing()
	v.Hint = x.hint()
	return v
}

func (x *Explanation) standing() Verdict {
	r := x.Recount
	once := "reconciler run --once --counter " + x.Counter
	thisKey := once + " --key " + counter.KeyArgument(x.Key.RawValue)
	switch {
	case x.Unjudged != nil:
		text := "it cannot be judged: " + x.Unjudged.Why
		if x.Unjudged.Reason == skipBadField {
			text += "; remove the field, or set it to an integer, and the next run makes it right"
		}
		return Verdict{Standing: KeyUnjudged, Text: text, Command: x.startCommand()}
	case r == nil: // for safety: a judgement that was broken off is an error
		return Verdict{Standing: KeyUnjudged, Text: "it was not judged"}
	case !x.Shown.Document && r.Rows == 0 && r.Drift == 0:
		return Verdict{Standing: KeyNothing, Text: "nothing is counted for this key: there are no rows of it and no counter document"}
	case r.NoDocument:
		return Verdict{Standing: KeyBare, Text: fmt.Sprintf("its rows come to %d, and there is no counter document to show it, since upsert is off: "+
			"nothing to repair until somebody makes the document", r.Truth)}
	case r.Drift != 0 && x.Marks.Undone != "":
		return Verdict{Standing: KeyUndone, Text: x.off() + ", and kept from repair since the repair of run " + x.Marks.Undone + " was taken back",
			Command: "reconciler undo " + x.Marks.Undone + " --release"}
	case x.rebasing() && r.Drift != 0:
		return Verdict{Standing: KeyRebasing, Text: fmt.Sprintf("it shows %d and should show %d, which the recount of the whole counter will make it (%s)",
			r.Displayed, r.Truth, x.State.Reason), Command: once}
	case r.Drift != 0 && x.State != nil && x.State.Held != "":
		return Verdict{Standing: KeyHeld, Text: x.off() + ", and the repairs of its counter are held by run " + x.State.Held,
			Command: "reconciler approve " + x.State.Held}
	case r.Drift != 0:
		return Verdict{Standing: KeyDrifted, Text: x.off(), Command: thisKey}
	}
	return x.right()
}

// right says that there is nothing to do, and what the next run does all the same.
func (x *Explanation) right() Verdict {
	r := x.Recount
	text := fmt.Sprintf("it is right: it shows %d, and its rows come to %d", r.Displayed, r.Truth)
	if r.Displayed != r.Truth {
		text = fmt.Sprintf("it is right as far as can be told: it shows %d for %d, which changes under way allow", r.Displayed, r.Truth)
	}
	text += x.asOf()
	switch {
	case x.rebasing():
		return Verdict{Standing: KeyRight, Text: text + fmt.Sprintf("; its counter waits for a recount (%s), which the next run makes", x.State.Reason),
			Command: "reconciler run --once --counter " + x.Counter}
	case x.Marks.Touched, x.Marks.Mark != nil:
		text += "; the next run compares it and ends its mark"
	}
	if x.Lane != nil && x.Lane.Owner == "" && time.Duration(x.Lane.Behind)*time.Second >= LateAfter {
		return Verdict{Standing: KeyRight, Text: text + "; but nobody follows its rows, so it falls behind them", Command: "incrementer run"}
	}
	return Verdict{Standing: KeyRight, Text: text}
}

func (x *Explanation) rebasing() bool { return x.State != nil && x.State.State == counter.Rebasing }

// off says how wrong it is.
func (x *Explanation) off() string {
	r, size, which := x.Recount, abs(x.Recount.Drift), "high"
	if r.Drift < 0 {
		which = "low"
	}
	what := "shows"
	if r.TotalAlone {
		what = "shows as its total"
	}
	return fmt.Sprintf("it is too %s by %d: it %s %d, and its rows come to %d%s (cause: %s)", which, size, what, r.Displayed, r.Truth, x.asOf(), r.Cause)
}

// asOf says what the comparison leaves out, "" for nothing.
func (x *Explanation) asOf() string {
	switch {
	case x.Lane != nil && time.Duration(x.Lane.Behind)*time.Second >= LateAfter:
		return fmt.Sprintf(", as of %s ago, where its incrementer is", time.Duration(x.Lane.Behind)*time.Second)
	case x.Recount.Tail != 0:
		return fmt.Sprintf(", without the %+d that came a moment after", x.Recount.Tail)
	default:
		return ""
	}
}

// LateAfter is how old a position may be that a lane at work has.
const LateAfter = 15 * time.Second

// startCommand is what to start where that is what judging waits for.
func (x *Explanation) startCommand() string {
	if x.Unjudged.Reason == skipNoCheckpoint || x.Unjudged.Reason == skipStale && x.Lane != nil {
		return "incrementer run"
	}
	return ""
}

// hint says how keys of other types are written, where there is nothing of this one.
func (x *Explanation) hint() string {
	switch {
	case len(x.Others) == 1:
		return "there is a key of another type: --key " + counter.KeyArgument(x.Others[0].RawValue)
	case len(x.Others) > 1:
		hint := "there are keys of other types:"
		for _, other := range x.Others {
			hint += " --key " + counter.KeyArgument(other.RawValue)
		}
		return hint
	case x.Shown.Document, x.Now == nil, x.Now.Rows > 0:
		return ""
	}
	return `a key is of the type that it is written in: --key 42, --key '"42"' for a text of digits, --key '{"$oid": "…"}', --key '{"$uuid": "…"}'`
}

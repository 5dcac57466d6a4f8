package reconciler

import (
	"strings"
	"testing"

	"driftless/internal/counter"
)

// TestTheVerdictFollowsFromWhatWasRead holds the order of what may be said of one key.
func TestTheVerdictFollowsFromWhatWasRead(t *testing.T) {
	t.Parallel()
	high := func() *Recount { return &Recount{Truth: 4, Rows: 4, Displayed: 7, Drift: 3, Cause: CauseUnknown} }
	active, rebasing := &KeyState{State: counter.Active}, &KeyState{State: counter.Rebasing, Reason: counter.ReasonGap}
	held := &KeyState{State: counter.Active, Held: "R2"}
	document := Shown{Document: true}
	const once = "reconciler run --once --counter c"
	for name, tt := range map[string]struct {
		e              Explanation
		want, command  string
		words, without string
	}{
		"right":       {Explanation{Shown: document, Recount: &Recount{Truth: 4, Displayed: 4, Rows: 4}, State: active}, KeyRight, "", "shows 4", "mark"},
		"right, zero": {Explanation{Shown: document, Recount: &Recount{}, State: active}, KeyRight, "", "shows 0", ""},
		"right, touched": {Explanation{Shown: document, Recount: &Recount{}, State: active, Marks: Marks{Touched: true}}, KeyRight, "",
			"the next run compares it", ""},
		"right, marked apart": {Explanation{Shown: document, Recount: &Recount{}, State: active, Marks: Marks{Mark: &Mark{}}}, KeyRight, "",
			"the next run compares it", ""},
		"right, undone before": {Explanation{Shown: document, Recount: &Recount{}, State: active, Marks: Marks{Undone: "R"}}, KeyRight, "", "", "R"},
		"right, held":          {Explanation{Shown: document, Recount: &Recount{}, State: held}, KeyRight, "", "", "R2"},
		"right, rebasing":      {Explanation{Shown: document, Recount: &Recount{}, State: rebasing}, KeyRight, once, "(gap)", ""},
		"right, rows do not count": {Explanation{Recount: &Recount{Rows: 2}, Now: &Now{Rows: 2}, State: active}, KeyRight, "",
			"shows 0, and its rows come to 0", "--key"},
		"right, late": {Explanation{Shown: document, Recount: &Recount{}, Lane: &KeyLane{Owner: "a", Behind: 120}}, KeyRight, "", "as of 2m0s ago", ""},
		"right, and nobody follows": {Explanation{Shown: document, Recount: &Recount{}, Lane: &KeyLane{Behind: 120}}, KeyRight,
			"incrementer run", "nobody follows its rows", ""},
		"right, tail": {Explanation{Shown: document, Recount: &Recount{Tail: 2}, Lane: &KeyLane{}}, KeyRight, "", "without the +2", ""},
		"allowed": {Explanation{Shown: document, Recount: &Recount{Displayed: 3, Truth: 4, Rows: 4, Low: -1}}, KeyRight, "",
			"as far as can be told", ""},
		"high": {Explanation{Shown: document, Recount: high(), State: active}, KeyDrifted, once + " --key '\"42\"'", "too high by 3: it shows 7, and its rows come to 4", ""},
		"low": {Explanation{Shown: document, Recount: &Recount{Truth: 4, Displayed: 1, Drift: -3}, State: active}, KeyDrifted, once + " --key '\"42\"'",
			"too low by 3", ""},
		"total alone": {Explanation{Shown: document, Recount: &Recount{Truth: 4, Displayed: 7, Drift: 3, TotalAlone: true}}, KeyDrifted, once + " --key '\"42\"'",
			"shows as its total 7", ""},
		"high, held":     {Explanation{Shown: document, Recount: high(), State: held}, KeyHeld, "reconciler approve R2", "held by run R2", ""},
		"high, undone":   {Explanation{Shown: document, Recount: high(), State: held, Marks: Marks{Undone: "R"}}, KeyUndone, "reconciler undo R --release", "run R was taken back", ""},
		"high, rebasing": {Explanation{Shown: document, Recount: high(), State: rebasing}, KeyRebasing, once, "shows 7 and should show 4", ""},
		"undone, rebasing": {Explanation{Shown: document, Recount: high(), State: rebasing, Marks: Marks{Undone: "R"}}, KeyUndone, "reconciler undo R --release",
			"", ""},
		"no document": {Explanation{Recount: &Recount{Truth: 4, Rows: 4, NoDocument: true}, State: active}, KeyBare, "", "rows come to 4", ""},
		"document lost": {Explanation{Recount: &Recount{Truth: 4, Rows: 4, Drift: -4, Cause: CauseNoDocument}, State: active}, KeyDrifted,
			once + " --key '\"42\"'", "too low by 4", ""},
		"nothing": {Explanation{Recount: &Recount{}, Now: &Now{}, State: active}, KeyNothing, "", `--key '{"$oid": "…"}'`, ""},
		"nothing but another": {Explanation{Recount: &Recount{}, Now: &Now{}, State: active, Others: []ExtendedJSON{{raw(42)}}}, KeyNothing, "",
			"there is a key of another type: --key 42", "$oid"},
		"unjudged": {Explanation{Shown: document, Unjudged: &Unjudged{skipBroken, "its expression fails"}, State: held}, KeyUnjudged, "",
			"it cannot be judged: its expression fails", "approve"},
		"never followed":                 {Explanation{Unjudged: &Unjudged{skipNoCheckpoint, "nobody"}, State: &KeyState{}}, KeyUnjudged, "incrementer run", "", ""},
		"stale":                          {Explanation{Unjudged: &Unjudged{skipStale, "old"}, State: active, Lane: &KeyLane{}}, KeyUnjudged, "incrementer run", "", ""},
		"stale, kept by the application": {Explanation{Unjudged: &Unjudged{skipStale, "old"}, State: active}, KeyUnjudged, "", "", ""},
		"busy":                           {Explanation{Shown: document, Unjudged: &Unjudged{skipBusy, "written to"}}, KeyUnjudged, "", "written to", ""},
	} {
		tt.e.Counter, tt.e.Key = "c", ExtendedJSON{raw("42")}
		v := tt.e.verdict()
		text := v.Text + " " + v.Hint
		if v.Standing != tt.want || v.Command != tt.command || !strings.Contains(text, tt.words) || tt.without != "" && strings.Contains(text, tt.without) {
			t.Errorf("%s: %+v, want %s with %q and %q", name, v, tt.want, tt.command, tt.words)
		}
	}
}

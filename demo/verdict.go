package main

import (
	"fmt"
	"strings"
)

// outcome is what the demo comes to.
type outcome struct {
	judged   bool // the last recount and the comparison took place
	kills    int64
	totals   totals
	counters int64   // of driftless
	wrong    []wrong // of them
	open     []entry // keys whose edits and drift found differ
	usual    distance
	problems []string // anything that kept the demo from its end
}

// wrong is one counter of driftless that differs from a plain count of its live rows.
type wrong struct {
	post                   int64
	displayed, total, rows int64 // base + live; the same as one field
}

func (o outcome) ok() bool {
	return o.judged && len(o.wrong) == 0 && len(o.open) == 0 && len(o.problems) == 0
}

// sentence is the verdict. kept is the folder that stays when something was wrong.
func (o outcome) sentence(kept string) string {
	if o.ok() {
		return fmt.Sprintf("OK: after %s and %s, %s of driftless %s, and the drift of %s that it reported is what was edited; %s.",
			number(o.kills, "kill"), number(o.totals.edits, "hand edit"), all(o.counters),
			exact(o.counters), thousands(o.totals.repaired), o.usualSentence())
	}
	text := "FAILED: " + strings.Join(o.faults(), "; ")
	if kept != "" {
		text += "; logs are kept in " + kept
	}
	return text + "."
}

func (o outcome) usualSentence() string {
	if o.usual.posts == 0 {
		return "the usual counter happened to be right as well"
	}
	return fmt.Sprintf("the usual counter was wrong on %s by %s in all", number(o.usual.posts, "post"), thousands(o.usual.sum))
}

func (o outcome) faults() []string {
	var faults []string
	if len(o.wrong) > 0 {
		var off int64
		for _, w := range o.wrong {
			off += abs(w.displayed - w.rows)
		}
		faults = append(faults, fmt.Sprintf("%s of %s of driftless wrong by %s in all",
			thousands(int64(len(o.wrong))), number(o.counters, "counter"), thousands(off)))
	}
	if len(o.open) > 0 {
		faults = append(faults, fmt.Sprintf("drift reported and drift edited differ on %s", number(int64(len(o.open)), "post")))
	}
	faults = append(faults, o.problems...)
	if !o.judged && len(o.problems) == 0 {
		faults = append(faults, "it did not come to a verdict")
	}
	return faults
}

// maxDetails is how many keys of a kind are listed.
const maxDetails = 20

// details are the lines behind a verdict that is not OK, empty when there are none.
func (o outcome) details() string {
	var text strings.Builder
	for _, w := range o.wrong[:min(maxDetails, len(o.wrong))] {
		fmt.Fprintf(&text, "post %d: base + live is %d, total is %d, live rows are %d\n", w.post, w.displayed, w.total, w.rows)
	}
	for _, e := range o.open[:min(maxDetails, len(o.open))] {
		fmt.Fprintf(&text, "post %s: edited by %+d, reported as %+d\n", e.key, e.injected, e.found)
	}
	return text.String()
}

// number writes "1 kill", "14 kills"; plural is for nouns that want more than an s.
func number(n int64, noun string, plural ...string) string {
	switch {
	case n == 1:
	case len(plural) > 0:
		noun = plural[0]
	default:
		noun += "s"
	}
	return thousands(n) + " " + noun
}

func all(n int64) string {
	if n == 1 {
		return "the 1 counter"
	}
	return "all " + number(n, "counter")
}

func exact(n int64) string {
	if n == 1 {
		return "is exact"
	}
	return "are exact"
}

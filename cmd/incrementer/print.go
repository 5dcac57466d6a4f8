package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"driftless/internal/command"
	"driftless/internal/counter"
	"driftless/internal/daemon"
)

// printer prints a status for people, with ages as of now. An idle lane moves its checkpoint every idle.
type printer struct {
	w    io.Writer
	now  time.Time
	idle time.Duration
}

func (p printer) status(s status) error {
	lanes := daemon.NewTable(p.w, "LANE", "OWNER", "POSITION", "LAG", "HEADROOM", "TAIL", "SEQ", "MOVED", "GAPS", "NOTE")
	for _, l := range s.Lanes {
		if l.Position.IsZero() {
			lanes.Row(l.Lane, orNone(l.Owner), "-", "-", "-", "-", "-", "-", l.Gaps, l.Error)
			continue
		}
		lanes.Row(l.Lane, orNone(l.Owner), l.Position.Format(time.RFC3339), p.age(l.Position), headroomOf(l), tail(l.Tail), l.Seq,
			p.ago(l.UpdatedAt), l.Gaps, p.note(l))
	}
	if err := lanes.Flush(); err != nil {
		return err
	}
	if err := p.instances(s.Instances); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(p.w); err != nil {
		return err
	}
	counters := daemon.NewTable(p.w, "COUNTER", "STATE", "REASON", "VERIFIED THROUGH", "AGE", "ALL KEYS")
	for _, c := range s.Counters {
		counters.Row(c.Counter, c.State, reason(c), orNever(c.VerifiedThrough), p.age(c.VerifiedThrough), p.agoOrNever(c.SweptThrough))
	}
	if err := counters.Flush(); err != nil {
		return err
	}
	if err := p.held(s.Held); err != nil {
		return err
	}
	if err := p.undone(s.Undone); err != nil {
		return err
	}
	return p.letters(s.DeadLetters)
}

// instances lists those that stand by as well, unless there is one that follows everything.
func (p printer) instances(all []instanceState) error {
	if len(all) == 0 || len(all) == 1 && len(all[0].Lanes) > 0 {
		return nil
	}
	if _, err := fmt.Fprintln(p.w); err != nil {
		return err
	}
	table := daemon.NewTable(p.w, "INSTANCE", "STARTED", "LANES")
	for _, i := range all {
		table.Row(i.Instance, p.ago(i.StartedAt), orStandby(strings.Join(i.Lanes, ", ")))
	}
	return table.Flush()
}

// undone says which keys are not repaired, and how that ends.
func (p printer) undone(all []counter.KeptBack) error {
	if len(all) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(p.w, "\nkept from repair, since their repairs were taken back:"); err != nil {
		return err
	}
	table := daemon.NewTable(p.w, "COUNTER", "KEYS", "RELEASED BY")
	for _, u := range all {
		table.Row(u.Counter, u.Keys, "reconciler undo "+u.Run+" --release")
	}
	return table.Flush()
}

// held says which counters wait for an approval, and how it is given.
func (p printer) held(all []command.Held) error {
	if len(all) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(p.w, "\nso many keys have drifted that none was repaired; if rows and definition are right:")
	if err != nil {
		return err
	}
	table := daemon.NewTable(p.w, "HELD", "REPAIRED BY")
	for _, h := range all {
		table.Row(h.Counter, h.Approve)
	}
	return table.Flush()
}

func orStandby(lanes string) string {
	if lanes == "" {
		return "on standby"
	}
	return lanes
}

func orNone(owner string) string {
	if owner == "" {
		return "none"
	}
	return owner
}

// headroomOf is how much further a position may fall behind.
func headroomOf(l laneState) string {
	if l.HeadroomSecs == nil {
		return "-"
	}
	return short(time.Duration(*l.HeadroomSecs) * time.Second)
}

func (p printer) letters(n int64) error {
	if n == 0 {
		return nil
	}
	_, err := fmt.Fprintf(p.w, "\ndead letters: %d (records that could not be read, and increments that their document could not take): `incrementer deadletters list` shows them\n", n)
	return err
}

// tail is how many deltas are applied beyond the position.
func tail(n int) any {
	if n < 0 {
		return "large"
	}
	return n
}

// note says what an operator should look at, "" for nothing.
func (p printer) note(l laneState) string {
	var notes []string
	if l.Error != "" {
		notes = append(notes, l.Error)
	}
	if l.Owner == "" {
		notes = append(notes, "no instance follows it")
	}
	if l.CollectionMissing {
		notes = append(notes, "the collection of the rows does not exist: every count is 0 until it is made")
	}
	// A lane at work moves more often than an idle one.
	if silent := p.now.Sub(l.UpdatedAt); silent > 10*time.Second+5*p.idle {
		notes = append(notes, "has not moved for "+short(silent)+": is `incrementer run` running?")
	}
	if g := l.LastGap; g != nil {
		notes = append(notes, fmt.Sprintf("last gap %s (%s)", p.ago(g.At), g.Reason))
	}
	for _, name := range slices.Sorted(maps.Keys(l.Broken)) {
		notes = append(notes, fmt.Sprintf("%s is broken: %s", name, l.Broken[name]))
	}
	return strings.Join(notes, "; ")
}

// reasons say in words why a counter waits for a recount.
var reasons = map[string]string{
	counter.ReasonNew:          "new: not recounted yet",
	counter.ReasonChanged:      "changed: not recounted yet",
	counter.ReasonGap:          "gap: events were lost",
	counter.ReasonMissingImage: "missing image: a change could not be told",
	counter.ReasonBroken:       "broken: its expression failed",
	counter.ReasonPartitions:   "partitions: its source was divided anew",
	counter.ReasonReset:        "reset: its checkpoint was moved",
	counter.ReasonTarget:       "target changed: its documents are gone",
}

func reason(c counterState) string {
	switch {
	case c.State == unknown && c.Kept:
		return "the application keeps it, and no run has compared it yet"
	case c.State == unknown:
		return "no incrementer has taken it up yet"
	case c.Reason == "" && c.Held != "":
		return "repairs held"
	case c.Reason == "":
		return "-"
	case reasons[c.Reason] == "":
		return c.Reason
	default:
		return reasons[c.Reason]
	}
}

func orNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format(time.RFC3339)
}

// age is how long ago a time was, as kubectl writes it.
func (p printer) age(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return short(p.now.Sub(t))
}

func (p printer) agoOrNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return p.ago(t)
}

func (p printer) ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return p.age(t) + " ago"
}

// short is a duration with one unit that suits it. One that lies ahead, by another machine's clock, is 0.
func short(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	default:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	}
}

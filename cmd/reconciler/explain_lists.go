package main

import (
	"fmt"
	"time"

	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// repairs are those of the journal.
func (p explained) repairs() *daemon.Table {
	switch {
	case p.lacks("repairs"):
		return nil
	case len(p.e.Repairs) == 0:
		return daemon.NewTable(p.w, "no repairs in the last 30 days")
	}
	table := daemon.NewTable(p.w, "repaired at", "run", "before", "after", "drift", "cause")
	for _, r := range p.e.Repairs {
		table.Row(r.At.Format(time.RFC3339), r.Run, r.Before, r.After, signed(r.Drift), causeOf(r))
	}
	return table
}

// causeOf is why a repair was made, and what became of it.
func causeOf(r reconciler.KeyRepair) string {
	cause := string(r.Cause)
	if r.Rebased {
		cause = "first count"
	}
	if r.Undone {
		cause += ", undone"
	}
	return cause
}

// events are the last changes of rows that moved the key.
func (p explained) events() *daemon.Table {
	e := p.e.Events
	if len(e.List) == 0 {
		if e.Since.IsZero() {
			return daemon.NewTable(p.w, "events")
		}
		return daemon.NewTable(p.w, "no events"+since(e))
	}
	table := daemon.NewTable(p.w, "at", "change", "row", "before", "after", "by", "")
	for _, c := range e.List {
		note := ""
		if c.Beyond {
			note = "beyond the position"
		}
		table.Row(c.At.Time.Format(time.RFC3339), c.Operation, short(c.Row, longestRow), p.side(c.Before), p.side(c.After),
			signed(c.Change), note)
	}
	return table
}

func since(e reconciler.Events) string {
	if e.Since.IsZero() {
		return ""
	}
	return " since " + e.Since.Time.Format(time.RFC3339)
}

// side is what one image of a row counts, and for which key where that is another.
func (p explained) side(c *reconciler.Counted) string {
	switch {
	case c == nil:
		return "-"
	case counter.Canonical(c.Key.RawValue) != counter.Canonical(p.e.Key.RawValue):
		return fmt.Sprintf("%d of %s", c.Weight, short(c.Key, longestOther))
	default:
		return fmt.Sprint(c.Weight)
	}
}

// missing says what the list of events lacks, each in a line.
func (p explained) missing() (lines string) {
	e := p.e.Events
	if more := e.Found - int64(len(e.List)); more > 0 {
		lines += fmt.Sprintf("and %d before these%s\n", more, since(e))
	}
	if e.Unknown > 0 {
		lines += fmt.Sprintf("%s came without an image, and may be this key's or another's\n", count(e.Unknown, "change"))
	}
	if e.Note != "" {
		lines += daemon.Printable(e.Note) + "\n"
	}
	return lines
}

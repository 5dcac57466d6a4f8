package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// explained prints an explanation for people, with ages as of now.
type explained struct {
	w          io.Writer
	e          *reconciler.Explanation
	definition *counter.Definition
	now        time.Time
}

func (p explained) print() error {
	sections := []struct {
		table *daemon.Table // nil for nothing to say
		below string
	}{
		{p.shown(), ""}, {p.counted(), ""}, {p.onRecord(), ""}, {p.lane(), ""}, {p.repairs(), ""}, {p.events(), p.missing()}, {p.unread(), ""},
	}
	if _, err := fmt.Fprintln(p.w, daemon.Printable(fmt.Sprintf("%s, key %s", p.e.Counter, short(p.e.Key, longest)))); err != nil {
		return err
	}
	for _, s := range sections {
		if s.table == nil {
			continue
		}
		if _, err := fmt.Fprintln(p.w); err != nil {
			return err
		}
		if err := s.table.Flush(); err != nil {
			return err
		}
		if _, err := io.WriteString(p.w, s.below); err != nil {
			return err
		}
	}
	return p.verdict()
}

// shown is what readers of the document see.
func (p explained) shown() *daemon.Table {
	s, t := p.e.Shown, p.definition.Target
	where := t.Database + "." + t.Collection
	table := daemon.NewTable(p.w, "shown", "", "")
	switch {
	case !s.Document:
		table.Row("displayed", "-", "no document in "+where)
		return table
	case s.Bad != "":
		table.Row("displayed", "?", s.Bad)
	case s.Base == nil:
		table.Row("displayed", s.Displayed, t.Count+" of its document in "+where)
	default:
		table.Row("displayed", s.Displayed, fmt.Sprintf("%s %d + %s %d", t.Base, *s.Base, t.Live, *s.Live))
	}
	switch {
	case s.Total != nil && s.TotalAgrees:
		table.Row("total", *s.Total, "as it should be: base + live")
	case s.Total != nil:
		table.Row("total", *s.Total, "differs from base + live: somebody else wrote one of them")
	}
	if t.ReconciledAt != "" {
		table.Row("reconciled", "", p.at(s.ReconciledAt))
	}
	return table
}

// counted is the true count, and how far the display is from it.
func (p explained) counted() *daemon.Table {
	table := daemon.NewTable(p.w, "counted", "", "")
	if r := p.e.Recount; r != nil {
		table.Row("true count", r.Truth, fmt.Sprintf("of %s, as of %s", count(r.Rows, "row"), moment(r.Position)))
		displayed := "at that position"
		if r.Tail != 0 {
			displayed = fmt.Sprintf("at that position: the last %+d came after it", r.Tail)
		}
		table.Row("displayed", r.Displayed, displayed)
		table.Row("drift", signed(r.Drift), p.direction())
	} else {
		table.Row("true count", "-", "not judged")
	}
	if n := p.e.Now; n != nil {
		table.Row("right now", n.Truth, fmt.Sprintf("of %s, as of %s", count(n.Rows, "row"), moment(n.Position)))
	}
	return table
}

// direction says what a drift means, and what it may come from.
func (p explained) direction() string {
	r := p.e.Recount
	switch {
	case r.Drift > 0:
		return fmt.Sprintf("too high; cause: %s", r.Cause)
	case r.Drift < 0:
		return fmt.Sprintf("too low; cause: %s", r.Cause)
	case r.Displayed != r.Truth && !r.NoDocument:
		return fmt.Sprintf("changes under way allow %+d to %+d", r.Low, r.High)
	default:
		return "displayed - true count"
	}
}

// onRecord is what makes the next run look at the key, or keeps it from repair.
func (p explained) onRecord() *daemon.Table {
	table := daemon.NewTable(p.w, "on record", "")
	m := p.e.Marks
	if s := p.e.State; s != nil {
		table.Row("counter", stateOf(s))
		if s.Gap != nil {
			table.Row("last gap", fmt.Sprintf("%s (%s), %s", p.at(s.Gap.At), s.Gap.Reason, healed(s.Gap.Healed)))
		}
	}
	if !p.definition.ByApplication() {
		table.Row("touched", p.touched())
	}
	if m.Mark != nil {
		table.Row("marked", p.mark(m.Mark))
	}
	if l := m.DeadLetter; l != nil {
		table.Row("set apart", fmt.Sprintf("%+d in %s, the last %s: %s", l.Delta, count(l.Times, "increment"), p.at(l.LastAt), l.Reason))
	}
	if m.Undone != "" {
		table.Row("undone", "not repaired until `reconciler undo "+m.Undone+" --release`")
	}
	if p.e.State == nil && m == (reconciler.Marks{}) {
		return nil
	}
	return table
}

func stateOf(s *reconciler.KeyState) string {
	text := s.State
	if s.State == reconciler.KeyStateUnknown {
		text += ": the state database has no record of it as it is declared"
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	if s.Held != "" {
		text += ", its repairs are held by run " + s.Held
	}
	if !s.Verified.IsZero() {
		text += ", verified through " + s.Verified.Format(time.RFC3339)
	}
	return text
}

func healed(healed bool) string {
	if healed {
		return "healed"
	}
	return "not healed: the next run recounts every key"
}

func (p explained) touched() string {
	switch m := p.e.Marks; {
	case !m.Touched:
		return "not since it was last compared"
	case m.TouchedAt.IsZero():
		return "since it was last compared"
	default:
		return p.at(m.TouchedAt) + ", and not compared since"
	}
}

func (p explained) mark(m *reconciler.Mark) string {
	text := "in the state database"
	if !m.At.IsZero() {
		text += " " + p.at(m.At)
	}
	if m.Reason != "" {
		text += ": " + m.Reason
	}
	if m.After != nil {
		text += ", for a change at " + moment(*m.After)
	}
	return text
}

// lane is where the key's events are applied.
func (p explained) lane() *daemon.Table {
	l := p.e.Lane
	if l == nil {
		return nil
	}
	table := daemon.NewTable(p.w, "lane", "")
	name := l.Lane
	if name == "" {
		name = fmt.Sprintf("any of %d: this is the one that is furthest behind", l.Lanes)
	}
	table.Row("name", name)
	if l.Lane != "" {
		table.Row("followed by", p.owner())
	}
	table.Row("position", fmt.Sprintf("%s, %s behind", moment(l.Position), time.Duration(l.Behind)*time.Second))
	table.Row("moved", p.at(l.MovedAt))
	return table
}

func (p explained) owner() string {
	switch owner := p.e.Lane.Owner; {
	case owner != "":
		return owner
	case p.lacks("owner"):
		return "not known"
	default:
		return "nobody: start `incrementer run`"
	}
}

// lacks reports whether a part could not be read.
func (p explained) lacks(part string) bool {
	return slices.ContainsFunc(p.e.Unread, func(u reconciler.Unread) bool { return u.Part == part })
}

// unread are the parts that could not be read.
func (p explained) unread() *daemon.Table {
	if len(p.e.Unread) == 0 {
		return nil
	}
	table := daemon.NewTable(p.w, "not read", "")
	for _, u := range p.e.Unread {
		table.Row(u.Part, u.Why)
	}
	return table
}

func (p explained) verdict() error {
	v := p.e.Verdict
	text := v.Text
	if !strings.HasSuffix(text, "?") {
		text += "."
	}
	lines := "\nverdict: " + daemon.Printable(text) + "\n"
	if v.Hint != "" {
		lines += daemon.Printable(v.Hint) + "\n"
	}
	if v.Command != "" {
		lines += "    " + daemon.Printable(v.Command) + "\n"
	}
	_, err := io.WriteString(p.w, lines)
	return err
}

// signed is a difference with its sign, and 0 without one.
func signed(n int64) string {
	if n == 0 {
		return "0"
	}
	return fmt.Sprintf("%+d", n)
}

// at is a time, and how long ago it was.
func (p explained) at(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return fmt.Sprintf("%s, %s ago", t.UTC().Format(time.RFC3339), max(0, p.now.Sub(t)).Round(time.Second))
}

// moment is a cluster time as a date and as what the server has.
func moment(m reconciler.Moment) string {
	return fmt.Sprintf("%s (%d/%d)", m.Time.Format(time.RFC3339), m.Seconds, m.Increment)
}

// How much of a value is shown, in characters.
const (
	longest      = 200
	longestRow   = 24 // an ObjectId
	longestOther = 24
)

// short is a value for people: the digits of an ObjectId, else extended JSON, cut where it is long.
func short(v reconciler.ExtendedJSON, most int) string {
	if v.IsZero() {
		return "-"
	}
	text := v.String()
	if v.Type == bson.TypeObjectID {
		text = v.ObjectID().Hex()
	}
	if runes := []rune(text); len(runes) > most {
		text = string(runes[:most-1]) + "…"
	}
	return text
}

package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// scope is what a run was to look at.
type scope struct {
	reconciler.Options
	definitions []*counter.Definition
	settle      time.Duration
}

// printReport is a report for people on what was asked for. Why a counter was not judged is told by the last
// line, on stderr.
func printReport(w io.Writer, report *reconciler.Report, asked scope) error {
	table := daemon.NewTable(w, "COUNTER", "CHECKED", "WRONG", "OVER", "UNDER", "LARGEST", "REPAIRED", "REBASED", "NOT JUDGED", "VERIFIED THROUGH")
	for _, c := range report.Counters {
		table.Row(c.Counter, c.Checked, c.Drift.Keys, c.Drift.Over, c.Drift.Under, c.Drift.Max, c.Repaired, c.Rebased,
			orDash(skipped(c)), through(c.VerifiedThrough))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printDrifted(w, report); err != nil {
		return err
	}
	if err := printSetApart(w, report); err != nil {
		return err
	}
	if err := printAge(w, report, asked, time.Now()); err != nil {
		return err
	}
	return printScope(w, report, asked)
}

// printSetApart lists the keys that could not be judged, and how many rows have no key at all.
func printSetApart(w io.Writer, report *reconciler.Report) error {
	for _, c := range report.Counters {
		if c.RowsWithoutKey > 0 {
			if _, err := fmt.Fprintf(w, "\n%s: %s without a usable key, which count for nothing.\n", c.Counter, count(c.RowsWithoutKey, "row")); err != nil {
				return err
			}
		}
		if len(c.SetApart) == 0 {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s: keys left as they are; the next run looks at them again:\n", c.Counter); err != nil {
			return err
		}
		table := daemon.NewTable(w, "KEY", "REASON", "WHY")
		for _, s := range c.SetApart[:min(maxPrinted, len(c.SetApart))] {
			table.Row(s.Key.String(), s.Reason, s.Why)
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return nil
}

// printAge says that counters were compared as of a while ago: what has happened since is in neither number.
func printAge(w io.Writer, report *reconciler.Report, asked scope, now time.Time) error {
	for _, c := range report.Counters {
		if slices.ContainsFunc(asked.definitions, func(d *counter.Definition) bool { return d.Name == c.Counter && d.ByApplication() }) {
			continue // it is compared as of now
		}
		age := now.Sub(c.VerifiedThrough).Round(time.Second)
		if c.VerifiedThrough.IsZero() || age < reconciler.LateAfter {
			continue
		}
		_, err := fmt.Fprintf(w, "\n%s was compared as of %s ago, where its incrementer is: what has happened since is not counted yet, "+
			"nor judged. `incrementer status` shows whether one follows it.\n", c.Counter, age)
		if err != nil {
			return err
		}
	}
	return nil
}

// printScope says what was left out, so that nobody takes no news about few keys for good news about all, and what is
// assumed of counters that the application keeps.
func printScope(w io.Writer, report *reconciler.Report, asked scope) error {
	touchedOnly := !asked.Full && asked.Key.IsZero()
	lines := ""
	for _, d := range asked.definitions {
		switch told := slices.ContainsFunc(report.Counters, func(c *reconciler.CounterReport) bool { return c.Counter == d.Name }); {
		case told && d.ByApplication():
			lines += allowed(report, d.Name)
			lines += fmt.Sprintf("\n%s: a change may be under way for %s; %s.\n", d.Name, asked.settle, createdAt(d))
		case told && touchedOnly:
			lines += "\nCounters that are active were checked only where touched since the last run; --full checks every key.\n"
			touchedOnly = false
		}
	}
	_, err := io.WriteString(w, lines)
	return err
}

// allowed says how many keys count as right although they differ.
func allowed(report *reconciler.Report, name string) string {
	for _, c := range report.Counters {
		if c.Counter == name && c.Allowed > 0 {
			return fmt.Sprintf("\n%s: %s of those checked by what young rows may explain, which counts as right: compare again when they are older.\n",
				name, differs(c.Allowed))
		}
	}
	return ""
}

func differs(n int64) string {
	if n == 1 {
		return "1 key differs"
	}
	return fmt.Sprintf("%d keys differ", n)
}

// createdAt says how young rows are told.
func createdAt(d *counter.Definition) string {
	if d.Rows.CreatedAt != "" {
		return "young rows are told by " + d.Rows.CreatedAt
	}
	return "young rows are told by the time in their _id where it is an ObjectId (created_at names a field), else by a second look alone"
}

// skipped lists the reasons for which keys were not judged, "" for none.
func skipped(c *reconciler.CounterReport) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(c.Skipped)) {
		parts = append(parts, fmt.Sprintf("%s: %d", reason, c.Skipped[reason]))
	}
	return strings.Join(parts, ", ")
}

// leftOut is skipped without what was held.
func leftOut(c *reconciler.CounterReport) string {
	others := *c
	others.Skipped = maps.Clone(c.Skipped)
	delete(others.Skipped, "held")
	return skipped(&others)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func through(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Format(time.RFC3339)
}

// maxPrinted bounds the list for people; -o json gives all that --limit asks for.
const maxPrinted = 20

func printDrifted(w io.Writer, report *reconciler.Report) error {
	if !report.Drifted() {
		return nil
	}
	if _, err := fmt.Fprintln(w, "\nThe largest drifts (displayed - truth): too high points to duplicates or missed decrements, too low to lost events."); err != nil {
		return err
	}
	table := daemon.NewTable(w, "COUNTER", "KEY", "DISPLAYED", "TRUTH", "DRIFT", "CAUSE")
	for _, c := range report.Counters {
		shown := c.Drifted[:min(maxPrinted, len(c.Drifted))]
		for _, d := range shown {
			table.Row(c.Counter, d.Key.String(), d.Displayed, d.Truth, fmt.Sprintf("%+d", d.Drift), d.Cause)
		}
		if more := c.Drift.Keys - int64(len(shown)); more > 0 {
			table.Row(c.Counter, fmt.Sprintf("(and %d more)", more), "", "", "", "")
		}
	}
	return table.Flush()
}

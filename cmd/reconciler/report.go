package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// printReport is a report for people.
func printReport(w io.Writer, report *reconciler.Report) error {
	table := daemon.NewTable(w, "COUNTER", "CHECKED", "WRONG", "OVER", "UNDER", "LARGEST", "REPAIRED", "REBASED", "NOT JUDGED")
	for _, c := range report.Counters {
		table.Row(c.Counter, c.Checked, c.Drift.Keys, c.Drift.Over, c.Drift.Under, c.Drift.Max, c.Repaired, c.Rebased, skipped(c))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if err := printDrifted(w, report); err != nil {
		return err
	}
	for _, c := range report.Counters {
		if c.Why == "" {
			continue
		}
		if _, err := fmt.Fprintf(w, "\n%s was not judged: %s\n", c.Counter, c.Why); err != nil {
			return err
		}
	}
	return nil
}

func skipped(c *reconciler.CounterReport) string {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(c.Skipped)) {
		parts = append(parts, fmt.Sprintf("%s: %d", reason, c.Skipped[reason]))
	}
	if len(parts) == 0 {
		return "-"
	}
	return strings.Join(parts, ", ")
}

// maxPrinted bounds the list for people; -o json gives all that --limit asks for.
const maxPrinted = 20

func printDrifted(w io.Writer, report *reconciler.Report) error {
	if !report.Drifted() {
		return nil
	}
	if _, err := fmt.Fprintln(w, "\ndrift = displayed - truth"); err != nil {
		return err
	}
	table := daemon.NewTable(w, "COUNTER", "KEY", "DISPLAYED", "TRUTH", "DRIFT", "CAUSE")
	for _, c := range report.Counters {
		for _, d := range c.Drifted[:min(maxPrinted, len(c.Drifted))] {
			table.Row(c.Counter, d.Key.String(), d.Displayed, d.Truth, fmt.Sprintf("%+d", d.Drift), d.Cause)
		}
		if more := c.Drift.Keys - maxPrinted; more > 0 {
			table.Row(c.Counter, fmt.Sprintf("(and %d more)", more), "", "", "", "")
		}
	}
	return table.Flush()
}

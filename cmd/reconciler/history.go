package main

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

func reportCommand() *cobra.Command {
	var last int
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Recent runs and the largest drifts",
		Long: "report tells what the latest runs have found and repaired, the latest first. They are kept for 30 days. As json it is one\n" +
			"run a line, as csv one run and counter a line.",
		Example: "  reconciler report\n  reconciler report --last 1000 --format csv > runs.csv",
	}
	format := daemon.FormatFlag(cmd, "format", "", daemon.Text, daemon.JSON, daemon.CSV)
	cmd.Flags().IntVar(&last, "last", 20, "how many `runs`")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if last < 1 {
			return daemon.Usagef("--last %d: it must be at least 1", last)
		}
		c, _, err := command.Load(cmd)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		client, err := deployment.ConnectToRead(ctx, c, program)
		if err != nil {
			return err
		}
		defer deployment.Close(ctx, client)
		runs, err := reconciler.NewHistory(client, c.MongoDB.StateDatabase).Last(ctx, last)
		if err != nil {
			return err
		}
		return printRuns(cmd.OutOrStdout(), runs, *format)
	}
	return cmd
}

func printRuns(w io.Writer, runs []reconciler.Run, format daemon.Output) error {
	switch format {
	case daemon.JSON:
		for _, run := range runs {
			if err := daemon.WriteJSONLine(w, run); err != nil {
				return err
			}
		}
		return nil
	case daemon.CSV:
		return runsAsCSV(w, runs)
	}
	if len(runs) == 0 {
		_, err := fmt.Fprintln(w, "no runs yet: `reconciler run` makes them")
		return err
	}
	if err := runsAsTable(w, runs); err != nil {
		return err
	}
	if err := heldRuns(w, runs); err != nil {
		return err
	}
	return largestDrifts(w, runs)
}

// runsAsTable draws a bar for each counter of a run: how many of its checked keys had drifted.
func runsAsTable(w io.Writer, runs []reconciler.Run) error {
	table := daemon.NewTable(w, "RUN", "STARTED", "RESULT", "COUNTER", "CHECKED", "WRONG", "", "OVER", "UNDER", "REPAIRED")
	for _, run := range runs {
		id, started, result := run.ID, run.Started.UTC().Format(time.DateTime), run.Result
		if len(run.Counters) == 0 {
			table.Row(id, started, result, "-", "", "", "", "", "", "")
		}
		for _, c := range run.Counters {
			table.Row(id, started, result, c.Counter, c.Checked, c.Drift.Keys, bar(c.Drift.Keys, c.Checked), c.Drift.Over, c.Drift.Under, c.Repaired)
			id, started, result = "", "", ""
		}
	}
	return table.Flush()
}

// heldRuns says how the newest run that held repairs is approved.
func heldRuns(w io.Writer, runs []reconciler.Run) error {
	for _, run := range runs {
		if run.Result == reconciler.ResultHeld {
			_, err := fmt.Fprintf(w, "\nheld: too many keys of %s had drifted; `reconciler approve %s` repairs what is still held\n", strings.Join(run.Held, ", "), run.ID)
			return err
		}
	}
	return nil
}

// bar is a share of the whole in tenths, at least one where it is not nothing.
func bar(part, whole int64) string {
	const tenths = 10
	if part <= 0 || whole <= 0 {
		return ""
	}
	return strings.Repeat("█", int(min(tenths, max(1, part*tenths/whole))))
}

// largestDrifts lists the largest drifts of all the runs.
func largestDrifts(w io.Writer, runs []reconciler.Run) error {
	type found struct {
		run, counter string
		reconciler.RunDrift
	}
	var all []found
	for _, run := range runs {
		for _, c := range run.Counters {
			for _, d := range c.Drifted {
				all = append(all, found{run.ID, c.Counter, d})
			}
		}
	}
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b found) int { return cmp.Compare(magnitude(b.Drift), magnitude(a.Drift)) })
	if _, err := fmt.Fprintln(w, "\nThe largest drifts (drift = displayed - truth):"); err != nil {
		return err
	}
	table := daemon.NewTable(w, "RUN", "COUNTER", "KEY", "DISPLAYED", "TRUTH", "DRIFT", "", "CAUSE")
	for _, f := range all[:min(maxPrinted, len(all))] {
		table.Row(f.run, f.counter, f.Key, f.Displayed, f.Truth, fmt.Sprintf("%+d", f.Drift), bar(magnitude(f.Drift), magnitude(all[0].Drift)), f.Cause)
	}
	return table.Flush()
}

func magnitude(n int64) int64 { return max(n, -n) }

// runsAsCSV is one line a run and counter, with a header.
func runsAsCSV(w io.Writer, runs []reconciler.Run) error {
	out := csv.NewWriter(w)
	lines := [][]string{{"run", "started", "finished", "result", "counter", "checked", "repaired", "rebased", "skipped",
		"drift_over", "drift_under", "drift_keys", "drift_max", "verified_through"}}
	for _, run := range runs {
		if len(run.Counters) == 0 {
			line := []string{run.ID, date(run.Started), date(run.Finished), run.Result}
			lines = append(lines, append(line, make([]string, len(lines[0])-len(line))...))
		}
		for _, c := range run.Counters {
			var skipped int64
			for _, n := range c.Skipped {
				skipped += n
			}
			line := []string{run.ID, date(run.Started), date(run.Finished), run.Result, c.Counter}
			for _, n := range []int64{c.Checked, c.Repaired, c.Rebased, skipped, c.Drift.Over, c.Drift.Under, c.Drift.Keys, c.Drift.Max} {
				line = append(line, strconv.FormatInt(n, 10))
			}
			lines = append(lines, append(line, date(c.VerifiedThrough)))
		}
	}
	return out.WriteAll(lines)
}

// date is a time for a program to read, "" for none.
func date(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

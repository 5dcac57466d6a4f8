package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// outcome is what one run came to, for the exit code and the last line.
type outcome struct {
	report      *reconciler.Report
	failure     error // why it broke off
	failOnDrift bool
	dryRun      bool
	full        bool
	key         string // the only one that was looked at, as a command line has it; "" for many
	mend        string // how drift is repaired, "" for the verbs
}

// err returns one error for all that is to be told, nil when there is nothing. Drift found counts more than something
// that could not be judged: it is a fact.
func (o outcome) err() error {
	var told []string
	drifted := o.failOnDrift && o.report.Drifted()
	if drifted {
		told = append(told, o.drift())
	}
	held := o.report.Held()
	if len(held) > 0 {
		told = append(told, o.held(held))
	}
	if o.failure == nil && !o.report.Complete() {
		told = append(told, unjudged(o.report)...)
	}
	if o.dryRun {
		told = append(told, waiting(o.report)...)
	}
	err := o.failure
	switch {
	case len(told) > 0 && err != nil:
		err = fmt.Errorf("%s; %w", strings.Join(told, "; "), err)
	case len(told) > 0:
		err = errors.New(strings.Join(told, "; "))
	}
	if drifted || len(held) > 0 {
		return daemon.WithExitCode(err, daemon.Drift)
	}
	return err
}

// held says of which counters nothing was repaired, and what to do.
func (o outcome) held(names []string) string {
	return fmt.Sprintf("so many keys of %s have drifted that none was repaired: look whether rows and definition are what they should be, "+
		"then `reconciler approve %s` repairs them", strings.Join(names, ", "), o.report.Run)
}

func (o outcome) drift() string {
	var keys, undone int64
	var names []string
	repaired, heldBy := true, ""
	for _, c := range o.report.Counters {
		if c.Drift.Keys > 0 {
			keys += c.Drift.Keys
			undone += c.Skipped["undone"]
			heldBy = cmp.Or(heldBy, c.HeldBy)
			names = append(names, c.Counter)
			repaired = repaired && c.Repaired >= c.Drift.Keys
		}
	}
	text := fmt.Sprintf("drift found in %s of %s", count(keys, "key"), strings.Join(names, ", "))
	switch {
	case o.mend != "":
		return text + ": " + o.mend
	case o.dryRun && undone >= keys:
		return text + ", kept from repair by an undo"
	case o.dryRun && o.key != "":
		return text + ": `reconciler run --once --key " + o.key + "` repairs it"
	case o.dryRun && heldBy != "":
		return text + ": its repair is held, and `reconciler approve " + heldBy + "` makes it"
	case o.dryRun && o.full:
		return text + ": `reconciler run --once --full` repairs it"
	case o.dryRun:
		return text + ": `reconciler run --once` repairs it"
	case repaired:
		return text + ", and repaired"
	default:
		return text + ", not all of it repaired"
	}
}

// waiting names the counters that a run would change by their first recount: nobody has promised their values yet, so
// that is no drift, but they are not right either.
func waiting(report *reconciler.Report) (told []string) {
	for _, c := range report.Counters {
		if c.Rebased > 0 {
			told = append(told, fmt.Sprintf("%s is new or changed and waits for its first recount, which will change %s: "+
				"`reconciler run --once` does it", c.Counter, count(c.Rebased, "key")))
		}
	}
	return told
}

// unjudged says what could not be judged and why, counters with the same reason together. What was held is told already.
func unjudged(report *reconciler.Report) []string {
	var reasons []string // in the order of their first counter
	names := map[string][]string{}
	for _, c := range report.Counters {
		reason := c.Why
		if reason == "" {
			reason = leftOut(c)
		}
		if reason == "" {
			continue
		}
		if names[reason] == nil {
			reasons = append(reasons, reason)
		}
		names[reason] = append(names[reason], c.Counter)
	}
	for i, reason := range reasons {
		reasons[i] = fmt.Sprintf("%s not judged: %s", strings.Join(names[reason], ", "), reason)
	}
	if len(reasons) == 0 && report.Result != reconciler.ResultHeld {
		reasons = append(reasons, "not everything could be judged: the run is "+report.Result)
	}
	return reasons
}

// count is a number with its noun.
func count(n int64, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

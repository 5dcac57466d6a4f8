package main

import (
	"bytes"
	"errors"
	"testing"

	"go.uber.org/goleak"

	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestExitCodeAndLastLineOfARun(t *testing.T) {
	right := &reconciler.CounterReport{Counter: "right", Checked: 5}
	wrong := &reconciler.CounterReport{Counter: "wrong", Checked: 5, Drift: reconciler.Drift{Over: 3, Keys: 2, Max: 2}}
	repaired := &reconciler.CounterReport{Counter: "wrong", Checked: 5, Repaired: 2, Drift: reconciler.Drift{Over: 3, Keys: 2, Max: 2}}
	unseen := &reconciler.CounterReport{Counter: "unseen", Why: "no incrementer", Skipped: map[string]int64{"no_checkpoint": 1}}
	other := &reconciler.CounterReport{Counter: "other", Why: "no incrementer", Skipped: map[string]int64{"no_checkpoint": 1}}
	some := &reconciler.CounterReport{Counter: "some", Checked: 5, Skipped: map[string]int64{"raced": 1, "bad_field": 2}}
	kept := &reconciler.CounterReport{Counter: "kept", Checked: 200, Skipped: map[string]int64{"held": 90}, Drift: reconciler.Drift{Over: 90, Keys: 90, Max: 1}}
	broke := errors.New("no route")
	of := func(result string, counters ...*reconciler.CounterReport) *reconciler.Report {
		return &reconciler.Report{Result: result, Counters: counters}
	}
	for name, tt := range map[string]struct {
		outcome outcome
		code    int
		line    string
	}{
		"all right":              {outcome{report: of("ok", right), failOnDrift: true}, 0, ""},
		"drift, and nobody asks": {outcome{report: of("ok", right, repaired)}, 0, ""},
		"verify finds drift": {outcome{report: of("ok", right, wrong), failOnDrift: true, dryRun: true}, 3,
			"drift found in 2 keys of wrong: `reconciler run --once` repairs it"},
		"run finds drift":      {outcome{report: of("ok", repaired), failOnDrift: true}, 3, "drift found in 2 keys of wrong, and repaired"},
		"run leaves drift":     {outcome{report: of("partial", wrong), failOnDrift: true}, 3, "drift found in 2 keys of wrong, not all of it repaired; not everything could be judged: the run is partial"},
		"nothing judged":       {outcome{report: of("skipped", unseen, other), failOnDrift: true}, 1, "unseen, other not judged: no incrementer"},
		"some keys not judged": {outcome{report: of("partial", right, some)}, 1, "some not judged: bad_field: 2, raced: 1"},
		"drift and not judged": {outcome{report: of("partial", wrong, unseen), failOnDrift: true, dryRun: true}, 3, "drift found in 2 keys of wrong: `reconciler run --once` repairs it; unseen not judged: no incrementer"},
		"held": {outcome{report: &reconciler.Report{Run: "R", Result: "held", Counters: []*reconciler.CounterReport{right, kept}}}, 3,
			"so many keys of kept have drifted that none was repaired: look whether rows and definition are what they should be, then `reconciler approve R` repairs them"},
		"held, and some keys not judged": {outcome{report: &reconciler.Report{Run: "R", Result: "held", Counters: []*reconciler.CounterReport{kept, some}}}, 3,
			"so many keys of kept have drifted that none was repaired: look whether rows and definition are what they should be, then `reconciler approve R` repairs them; some not judged: bad_field: 2, raced: 1"},
		"broke off":              {outcome{report: of("failed", right), failure: broke, failOnDrift: true}, 1, "no route"},
		"broke off after drift":  {outcome{report: of("failed", wrong), failure: broke, failOnDrift: true, dryRun: true}, 3, "drift found in 2 keys of wrong: `reconciler run --once` repairs it; no route"},
		"several, their reasons": {outcome{report: of("partial", unseen, some)}, 1, "unseen not judged: no incrementer; some not judged: bad_field: 2, raced: 1"},
	} {
		err := tt.outcome.err()
		line := ""
		if err != nil {
			line = err.Error()
		}
		if code := daemon.ExitCode(err); code != tt.code || line != tt.line {
			t.Errorf("%s: exit %d, %q\nwant %d, %q", name, code, line, tt.code, tt.line)
		}
		if tt.outcome.failure != nil && !errors.Is(err, broke) {
			t.Errorf("%s: %v hides why it broke off", name, err)
		}
	}
}

func TestALongListOfDriftIsCutForPeople(t *testing.T) {
	c := &reconciler.CounterReport{Counter: "a", Drift: reconciler.Drift{Keys: 1500}}
	for range 1000 { // as many as --limit left
		c.Drifted = append(c.Drifted, reconciler.Drifted{Drift: 1})
	}
	var out bytes.Buffer
	if err := printDrifted(&out, &reconciler.Report{Counters: []*reconciler.CounterReport{c}}); err != nil {
		t.Fatal(err)
	}
	if lines := bytes.Count(out.Bytes(), []byte("\n")); lines != maxPrinted+4 || !bytes.Contains(out.Bytes(), []byte("(and 1480 more)\n")) {
		t.Errorf("%d lines:\n%s", lines, &out)
	}
}

func TestOnlySomebodyWhoReadsTheReportIsSparedTheLog(t *testing.T) {
	for _, tt := range []struct {
		level string
		quiet bool
		want  string
	}{{"info", true, "error"}, {"warn", true, "error"}, {"debug", true, "debug"}, {"info", false, "info"}} {
		if got := quietLevel(tt.level, tt.quiet); got != tt.want {
			t.Errorf("quietLevel(%q, %v) = %q", tt.level, tt.quiet, got)
		}
	}
}

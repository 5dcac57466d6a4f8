package cmd_test

import (
	"encoding/json"
	"strings"
	"testing"

	"driftless/internal/deployment"
)

// explanation is the part of `explain -o json` that scripts rely on first.
type explanation struct {
	Counter string
	Key     any
	Verdict struct{ Standing, Text, Command, Hint string }
	Shown   struct {
		Document              bool
		Displayed, Base, Live int64
		TotalAgrees           bool `json:"total_agrees"`
	}
	Recount *struct {
		Position         struct{ Time, Seconds, Increment any }
		Truth, Drift     int64
		Direction, Cause string
	}
	NotJudged *struct{ Reason, Why string } `json:"not_judged"`
	Now       struct{ Truth int64 }
	Repairs   []struct{ Run string }
	Events    struct {
		Found int64
		List  []struct {
			Operation string
			Change    int64
		}
		Note string
	}
	Lane    struct{ Lane, Owner string }
	NotRead []any `json:"not_read"`
}

func (p *place) explain(args ...string) explanation {
	p.t.Helper()
	r := p.want(0, "reconciler", append(append([]string{"explain"}, args...), "-o", "json")...)
	var got explanation
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		p.t.Fatalf("%v in %s", err, r.stdout)
	}
	return got
}

func TestExplainShowsAKeyAndNamesTheCommandThatRepairsIt(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	args := []string{"--counter", "comments_per_post", "--key", "1"}
	p.want(0, "incrementer", "setup")
	const why = "reconciler: comments_per_post not judged: no incrementer has followed source comments yet: start `incrementer run`\n"
	if r := p.want(1, "reconciler", append([]string{"explain"}, args...)...); r.stderr != why || !strings.Contains(r.stdout, "\n    incrementer run\n") {
		t.Errorf("%+v", r)
	}
	p.following()
	e := p.explain(args...)
	if e.Counter != "comments_per_post" || e.Key != 1.0 || e.Verdict.Standing != "right" || e.Verdict.Command != "" || e.Shown.Displayed != 2 ||
		!e.Shown.TotalAgrees || e.Recount.Truth != 2 || e.Recount.Position.Seconds == nil || e.Now.Truth != 2 || e.Events.Found != 2 ||
		e.Events.List[0].Operation != "insert" || e.Lane.Lane != "comments" || e.Lane.Owner == "" || e.NotJudged != nil || e.NotRead != nil {
		t.Errorf("%+v", e)
	}
	p.spoil(5)
	e = p.explain(args...)
	if e.Verdict.Standing != "drifted" || e.Recount.Drift != 5 || e.Recount.Direction != "over" || e.Recount.Cause != "edited" {
		t.Errorf("%+v", e)
	}
	r := p.want(0, "reconciler", append([]string{"explain"}, args...)...)
	if !strings.HasSuffix(r.stdout, "(cause: edited).\n    "+e.Verdict.Command+"\n") || r.stderr != "" {
		t.Errorf("%+v", r)
	}
	for line := range strings.Lines(r.stdout) {
		line = strings.TrimSuffix(line, "\n")
		if line != strings.TrimRight(line, " ") || len(line) > 80 && !strings.HasPrefix(line, "verdict: ") {
			t.Errorf("blanks at the end, or too wide: %q", line)
		}
	}
	p.want(0, strings.Fields(e.Verdict.Command)[0], strings.Fields(e.Verdict.Command)[1:]...)
	if e = p.explain(args...); e.Verdict.Standing != "right" || len(e.Repairs) != 1 {
		t.Errorf("after the command of the verdict: %+v", e)
	}
	if e = p.explain("--counter", "comments_per_post", "--key", `"1"`, "--since", "0s"); e.Verdict.Standing != "nothing" ||
		e.Verdict.Hint != "there is a key of another type: --key 1" || e.Events.Note != "not looked for" {
		t.Errorf("%+v", e)
	}
}

// To explain takes what verify takes: a right that is missing costs the part that needs it.
func TestExplainDoesWithoutTheRightToAChangeStream(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	p.following()
	verify := p.privileges(deployment.Verify)
	args := []string{"--counter", "comments_per_post", "--key", "1"}
	p.as(m, "explain", verify)
	e := p.explain(args...)
	if e.Verdict.Standing != "right" || e.Events.Note != "not read: the user may not open a change stream: grant it changeStream on "+p.app+".comments" ||
		len(e.Events.List) != 0 || e.NotRead != nil || e.Lane.Owner == "" {
		t.Errorf("%+v", e)
	}
	p.as(m, "stream", append(verify, deployment.Privilege{Database: p.app, Collection: "comments", Actions: []string{"changeStream"}}))
	if e = p.explain(args...); e.Events.Found != 2 || e.Events.Note != "" {
		t.Errorf("%+v", e.Events)
	}
}

// A counter that the application keeps is explained without a state database, and as a user that may read nothing of ours.
func TestExplainOfWhatTheApplicationKeepsNeedsNoSetup(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := keeping(t, m)
	if e := p.explain("--key", "2"); e.Verdict.Standing != "drifted" || e.Recount.Drift != 3 || e.NotRead != nil || e.Shown.Displayed != 5 {
		t.Errorf("%+v", e)
	}
	if names := p.names(p.state); len(names) != 0 {
		t.Errorf("explain made %v", names)
	}
	p.as(m, "explain", p.privileges(deployment.Verify))
	p.kept("mongodb://explain_" + p.app + ":" + password + "@" + m.Addr() + "/?replicaSet=rs0")
	e := p.explain("--key", "2")
	if e.Verdict.Standing != "drifted" || len(e.NotRead) != 2 || e.Events.Note == "" {
		t.Errorf("%+v", e)
	}
}

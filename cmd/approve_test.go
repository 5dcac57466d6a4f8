package cmd_test

import (
	"encoding/csv"
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// guarded holds repairs when more than a fifth of at least two checked keys has drifted.
func (p *place) guarded() {
	p.t.Helper()
	p.env = append(p.env, "DRIFTLESS_RECONCILER_HOLD_MIN_KEYS=2")
}

func TestAHeldRunIsApprovedAndUndoneByTheirVerbs(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	following := p.following()
	p.guarded()
	p.wantLine(2, []string{"there is no run nope, and none that has held a repair"}, "reconciler", "approve", "nope")
	p.spoil(5)

	held := p.report(3, "run", "--once", "--full")
	if held.Result != "held" || held.Counters[0].Skipped["held"] != 1 || held.Counters[0].Repaired != 0 || p.displayed("post_counters", 1) != 7 {
		t.Fatalf("report: %+v", held)
	}
	approve := "reconciler approve " + held.Run
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "comments_per_post  "+approve+"\n") || !strings.Contains(r.stdout, "repairs held") {
		t.Errorf("status says\n%s", r.stdout)
	}
	if r := p.want(0, "incrementer", "status", "-o", "json"); !strings.Contains(r.stdout, `"approve": "`+approve+`"`) || !strings.Contains(r.stdout, `"held": "`+held.Run+`"`) {
		t.Errorf("status says\n%s", r.stdout)
	}
	following.becomes("/status", 200, `"approve": "`+approve+`"`)
	r := p.want(3, "reconciler", "run", "--once")
	if !strings.Contains(r.stderr, "repairs held: too many keys have drifted") ||
		!strings.Contains(r.stderr, "\nreconciler: so many keys of comments_per_post have drifted that none was repaired") ||
		strings.Contains(r.stderr, "not judged: held") {
		t.Errorf("stderr says %s", r.stderr)
	}
	p.wantLine(2, []string{"there is no run nope: those that held a repair last are ", held.Run + " (comments_per_post)"}, "reconciler", "approve", "nope")
	p.wantLine(2, []string{"approve takes one run"}, "reconciler", "approve")

	approved := p.report(0, "approve", held.Run)
	if len(approved.Counters) != 1 || approved.Counters[0].Repaired != 1 || approved.Result != "ok" || p.displayed("post_counters", 1) != 2 {
		t.Errorf("report: %+v", approved)
	}
	if r := p.want(0, "incrementer", "status"); strings.Contains(strings.ToLower(r.stdout), "held") {
		t.Errorf("status says after the approval\n%s", r.stdout)
	}
	for _, run := range []string{held.Run, approved.Run} {
		if r := p.want(0, "reconciler", "approve", run); !strings.HasPrefix(r.stdout, "nothing to approve") {
			t.Errorf("a second approval says %q", r.stdout)
		}
	}

	p.wantLine(2, []string{"there is no run nope"}, "reconciler", "undo", "nope")
	if r := p.want(0, "reconciler", "undo", held.Run); !strings.HasPrefix(r.stdout, "nothing to undo") {
		t.Errorf("undo of a run that repaired nothing says %q", r.stdout)
	}
	if r := p.want(0, "reconciler", "undo", approved.Run); !strings.Contains(r.stdout, "comments_per_post") || p.displayed("post_counters", 1) != 7 {
		t.Errorf("undo says %q, displayed %d", r.stdout, p.displayed("post_counters", 1))
	}
	if r := p.want(0, "reconciler", "undo", approved.Run); !strings.HasPrefix(r.stdout, "nothing to undo") || p.displayed("post_counters", 1) != 7 {
		t.Errorf("a second undo says %q, displayed %d", r.stdout, p.displayed("post_counters", 1))
	}
	p.wantLine(3, []string{"drift found in 1 key of comments_per_post, kept from repair by an undo", "comments_per_post not judged: undone: 1"}, "reconciler", "verify", "--full")
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "comments_per_post  1     reconciler undo "+approved.Run+" --release\n") {
		t.Errorf("status says after the undo\n%s", r.stdout)
	}
	if got := p.report(1, "run", "--once", "--full"); got.Counters[0].Skipped["undone"] != 1 || p.displayed("post_counters", 1) != 7 {
		t.Errorf("report: %+v", got)
	}
	if r := p.want(0, "reconciler", "undo", approved.Run, "--release", "-o", "json"); !strings.Contains(r.stdout, `"released": 1`) {
		t.Errorf("release says %q", r.stdout)
	}
	if r := p.want(0, "reconciler", "undo", approved.Run, "--release"); !strings.HasPrefix(r.stdout, "nothing to release") {
		t.Errorf("a second release says %q", r.stdout)
	}
	p.wantLine(2, []string{"there is no run nope"}, "reconciler", "undo", "nope", "--release")
	p.env = nil
	if got := p.report(0, "run", "--once"); got.Counters[0].Repaired != 1 || p.displayed("post_counters", 1) != 2 {
		t.Errorf("report: %+v", got)
	}
}

// A run that looked at touched keys alone may be the first to hold; what is found after it waits for the same approval.
func TestAnApprovalRepairsWhatIsHeldAndNotOnlyWhatTheNamedRunSaw(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	p.env = append(p.env, "DRIFTLESS_RECONCILER_HOLD_MIN_KEYS=1")
	p.comment()
	p.spoil(5)
	held := p.report(3, "run", "--once")
	if held.Result != "held" || held.Counters[0].Skipped["held"] != 1 {
		t.Fatalf("report: %+v", held)
	}
	other := bson.D{{Key: "$inc", Value: bson.D{{Key: "live_delta", Value: 3}}}}
	if _, err := p.client.Database(p.app).Collection("post_counters").UpdateByID(t.Context(), 2, other); err != nil {
		t.Fatal(err)
	}
	if r := p.want(3, "reconciler", "verify", "--full"); !strings.Contains(r.stderr, "`reconciler approve "+held.Run+"`") {
		t.Errorf("verify says %s", r.stderr)
	}
	if r := p.want(0, "reconciler", "report"); !strings.Contains(r.stdout, "`reconciler approve "+held.Run+"`") {
		t.Errorf("the report says %s", r.stdout)
	}
	if got := p.report(0, "approve", held.Run); got.Counters[0].Repaired != 2 {
		t.Errorf("report: %+v", got)
	}
	p.want(0, "reconciler", "verify", "--full")
}

// What the loop holds shows in its metrics.
func TestHeldRunsAreCounted(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	p.guarded()
	p.spoil(5)
	held := p.report(3, "run", "--once", "--full")
	s := p.start("reconciler")
	s.becomes("/status", 200, `"approve": "reconciler approve `+held.Run+`"`)
	s.becomes("/metrics", 200, `reconciler_keys_skipped_total{counter="comments_per_post",reason="held"} 1`)
	s.becomes("/metrics", 200, `reconciler_runs_total{result="held"}`)
	s.becomes("/metrics", 200, `reconciler_keys_skipped_total{counter="likes_per_user",reason="undone"} 0`)
}

func TestReportTellsOfRecentRunsInEveryForm(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	if r := p.want(0, "reconciler", "report"); r.stdout != "no runs yet: `reconciler run` makes them\n" {
		t.Errorf("before any run: %q", r.stdout)
	}
	p.following()
	p.spoil(-5)
	run := p.report(0, "run", "--once", "--full").Run
	p.want(0, "reconciler", "verify", "--full") // leaves no record

	text := p.want(0, "reconciler", "report").stdout
	if !strings.Contains(text, run) || !strings.Contains(text, "█") || !strings.Contains(text, "The largest drifts") || !strings.Contains(text, "-5") {
		t.Errorf("the report:\n%s", text)
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(line) > 131 || line != strings.TrimRight(line, " \n")+"\n" {
			t.Errorf("the line %q", line)
		}
	}
	lines := strings.Split(strings.TrimSpace(p.want(0, "reconciler", "report", "--format", "json", "--last", "1").stdout), "\n")
	var got struct {
		report
		Started, Finished string
	}
	if err := json.Unmarshal([]byte(lines[0]), &got); err != nil || len(lines) != 1 {
		t.Fatalf("%v in %q", err, lines)
	}
	c := got.Counters[0]
	if got.Run != run || got.Result != "ok" || got.Started == "" || got.Finished == "" || c.Checked != 2 || c.Repaired != 1 || c.Drift.Under != 5 ||
		len(c.Drifted) != 1 || c.Drifted[0].Key != 1.0 || c.Drifted[0].Drift != -5 || c.Drifted[0].Displayed != -3 || c.Drifted[0].Truth != 2 {
		t.Errorf("the report: %+v", got)
	}
	records, err := csv.NewReader(strings.NewReader(p.want(0, "reconciler", "report", "--format", "csv").stdout)).ReadAll()
	if err != nil || len(records) < 5 || records[0][0] != "run" || records[1][0] != run || records[1][4] != "comments_per_post" || records[1][10] != "5" {
		t.Errorf("%v in %v", err, records)
	}
	p.wantLine(2, []string{"must be text or json or csv"}, "reconciler", "report", "--format", "xml")
	p.wantLine(2, []string{"--last 0: it must be at least 1"}, "reconciler", "report", "--last", "0")

	// A run whose process was killed is not forgotten: what it repaired is in the journal.
	_, err = p.client.Database(p.state).Collection("runs").UpdateByID(t.Context(), run,
		bson.D{{Key: "$set", Value: bson.D{{Key: "result", Value: "unfinished"}, {Key: "counters", Value: bson.A{}}}}, {Key: "$unset", Value: bson.D{{Key: "finished", Value: ""}}}})
	if err != nil {
		t.Fatal(err)
	}
	if text := p.want(0, "reconciler", "report").stdout; !strings.Contains(text, "unfinished") || !strings.Contains(text, "-5") {
		t.Errorf("of a run that was cut off:\n%s", text)
	}
}

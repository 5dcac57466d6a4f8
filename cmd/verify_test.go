package cmd_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// report is what `run --once -o json` and `verify -o json` print.
type report struct {
	Run, Result string
	Counters    []struct {
		Counter           string
		Checked, Repaired int64
		Late              int64
		Skipped           map[string]int64
		Drift             struct{ Over, Under, Keys, Max int64 }
		Drifted           []struct {
			Key                     any
			Displayed, Truth, Drift int64
			Cause                   string
		}
		VerifiedThrough string `json:"verified_through"`
	}
}

func (p *place) report(code int, args ...string) report {
	p.t.Helper()
	r := p.want(code, "reconciler", append(args, "-o", "json")...)
	var got report
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		p.t.Fatalf("%v in %s", err, r.stdout)
	}
	return got
}

func TestVerifyFindsDriftChangesNothingAndRunRepairs(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	if r := p.want(0, "reconciler", "verify", "--full"); r.stderr != "" {
		t.Errorf("nothing is wrong, and stderr says %q", r.stderr)
	}
	p.spoil(5)
	p.wantLine(3, []string{"drift found in 1 key of comments_per_post: `reconciler run --once --full` repairs it"}, "reconciler", "verify", "--full")
	got := p.report(3, "verify", "--key", "1", "--counter", "comments_per_post")
	if len(got.Counters) != 1 || len(got.Counters[0].Drifted) != 1 || got.Result != "ok" || got.Counters[0].VerifiedThrough == "" {
		t.Fatalf("report: %+v", got)
	}
	c := got.Counters[0]
	if d := c.Drifted[0]; d.Key != 1.0 || d.Displayed != 7 || d.Truth != 2 || d.Drift != 5 || d.Cause != "edited" ||
		c.Drift.Over != 5 || c.Drift.Under != 0 || c.Drift.Keys != 1 || c.Drift.Max != 5 || c.Repaired != 0 {
		t.Errorf("report: %+v", c)
	}
	p.want(0, "reconciler", "run", "--once", "--full", "--dry-run")
	p.wantLine(3, []string{"drift found"}, "reconciler", "run", "--once", "--full", "--dry-run", "--fail-on-drift")
	if n := p.displayed("post_counters", 1); n != 7 {
		t.Errorf("something that only looks changed the counter to %d", n)
	}
	if r := p.want(3, "reconciler", "run", "--once", "--full", "--fail-on-drift"); !strings.HasSuffix(r.stderr,
		"\nreconciler: drift found in 1 key of comments_per_post, and repaired\n") {
		t.Errorf("stderr says %q", r.stderr)
	}
	if n := p.displayed("post_counters", 1); n != 2 {
		t.Errorf("after the repair: %d", n)
	}
	if got := p.report(0, "run", "--once", "--full", "--fail-on-drift"); got.Result != "ok" || got.Run == "" {
		t.Errorf("report: %+v", got)
	}
}

func TestARunLeavesItsMetricsInAFile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	p.want(0, "reconciler", "run", "--once") // the first count
	p.spoil(5)
	file := filepath.Join(t.TempDir(), "driftless.prom")
	p.want(3, "reconciler", "run", "--once", "--full", "--fail-on-drift", "--metrics-file", file)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		`counter_drift{counter="comments_per_post",direction="over"} 5`, `counter_drift_keys{counter="comments_per_post",direction="over"} 1`,
		`counter_drift_threshold{counter="comments_per_post"} 0`, `reconciler_keys_repaired_total{counter="comments_per_post"} 1`,
		`reconciler_runs_total{result="ok"} 1`,
	} {
		if !strings.Contains(string(text), line+"\n") {
			t.Errorf("no %s in\n%s", line, text)
		}
	}
	p.spoil(5)
	missing := filepath.Join(t.TempDir(), "not there", "driftless.prom")
	p.wantLine(2, []string{"--metrics-file", "create " + filepath.Dir(missing)}, "reconciler", "run", "--once", "--full", "--metrics-file", missing)
	if n := p.displayed("post_counters", 1); n != 7 {
		t.Errorf("a run whose metrics would be lost has repaired: %d", n)
	}
	p.wantLine(2, []string{"--metrics-file needs --once"}, "reconciler", "run", "--metrics-file", file)
}

func TestTheTableAlignsAndNamesTheDrift(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	p.spoil(-5)
	r := p.want(3, "reconciler", "verify", "--full")
	lines := strings.Split(r.stdout, "\n")
	if len(lines) < 7 || strings.Join(strings.Fields(lines[6]), " ") != "comments_per_post 1 -3 2 -5 edited" ||
		strings.Index(lines[0], "CHECKED") != strings.Index(lines[1], "2 ") {
		t.Errorf("the table:\n%s", r.stdout)
	}
	for _, line := range lines {
		if line != strings.TrimRight(line, " ") {
			t.Errorf("blanks at the end of %q", line)
		}
	}
}

func TestWhatCannotBeJudgedIsNoSuccess(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	const why = "comments_per_post, likes_per_user not judged: no incrementer has followed source comments yet: start `incrementer run`"
	p.wantLine(1, []string{why}, "reconciler", "verify")
	if r := p.want(1, "reconciler", "run", "--once"); !strings.HasSuffix(r.stderr, "\nreconciler: "+why+"\n") {
		t.Errorf("stderr says %q", r.stderr)
	}
	if got := p.report(1, "run", "--once"); got.Result != "skipped" {
		t.Errorf("report: %+v", got)
	}
}

// A fact counts more than a doubt: drift found in one counter is told although another could not be judged.
func TestDriftFoundWinsOverNotJudged(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	_, err := p.client.Database(p.app).Collection("user_counters").UpdateByID(t.Context(), "a",
		bson.D{{Key: "$set", Value: bson.D{{Key: "base_count", Value: "many"}}}})
	if err != nil {
		t.Fatal(err)
	}
	p.wantLine(1, []string{"likes_per_user not judged: bad_field: 1"}, "reconciler", "verify", "--full")
	p.spoil(1)
	p.wantLine(3, []string{"drift found in 1 key of comments_per_post", "likes_per_user not judged: bad_field: 1"}, "reconciler", "verify", "--full")
	if got := p.report(1, "run", "--once", "--full"); got.Result != "partial" || got.Counters[0].Repaired != 1 || got.Counters[1].Skipped["bad_field"] != 1 {
		t.Errorf("report: %+v", got)
	}
}

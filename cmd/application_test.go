package cmd_test

import (
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// keeping is a place whose application keeps its counter by itself, declared in a file without sources.
func keeping(t *testing.T, m *realtest.Mongod) *place {
	t.Helper()
	p := stranger(t, m)
	p.state, p.env = realtest.DatabaseOn(t, p.client), nil
	p.like(1, 2, 2)
	p.like(2, 2, 5)
	p.kept(m.URI())
	return p
}

// kept writes the configuration.
func (p *place) kept(uri string) {
	p.t.Helper()
	p.write(fmt.Sprintf(`mongodb: {uri: %q, state_database: %s}
counters:
  likes_per_post:
    source: application
    rows: {database: %s, collection: likes, created_at: created_at}
    key: post_id
    target: {database: %[3]s, collection: posts, count: like_count}
reconciler: {listen: 127.0.0.1:0, every: 1s, settle: 1s, lease: 2s}
`, uri, p.state, p.app))
}

func (p *place) shows(post any) (n any) {
	p.t.Helper()
	var doc bson.M
	if err := p.collection("posts").FindOne(p.t.Context(), bson.D{{Key: "_id", Value: post}}).Decode(&doc); err != nil {
		p.t.Fatal(err)
	}
	return doc["like_count"]
}

func TestACounterThatTheApplicationKeepsIsVerifiedAndRepaired(t *testing.T) {
	t.Parallel()
	p := keeping(t, plain.start(t))
	for _, program := range []string{"incrementer", "reconciler"} {
		p.want(0, program, "validate")
	}
	// Comparing alone needs no setup.
	r := p.want(3, "reconciler", "verify")
	if !strings.HasSuffix(r.stderr, "reconciler: drift found in 1 key of likes_per_post: `reconciler run --once` repairs it\n") ||
		!strings.Contains(r.stdout, "young rows are told by created_at") || strings.Contains(r.stdout, "--full checks every key") {
		t.Errorf("%+v", r)
	}
	if names := p.names(p.state); len(names) != 0 {
		t.Errorf("verify made %v", names)
	}
	p.wantLine(1, []string{"not set up: run `incrementer setup` first"}, "reconciler", "run", "--once")
	if r := p.want(0, "incrementer", "setup"); !strings.Contains(r.stdout, "create collection "+p.state+".repairs\n") || !strings.Contains(r.stdout, p.app+".likes\n") ||
		strings.Contains(r.stdout, "_touched") {
		t.Errorf("setup: %s", r.stdout)
	}
	if r := p.want(0, "reconciler", "check"); strings.Contains(r.stdout, "WARN") {
		t.Errorf("check: %s", r.stdout)
	}
	if got := p.report(3, "run", "--once", "--dry-run", "--fail-on-drift"); got.Counters[0].Repaired != 0 {
		t.Errorf("report: %+v", got)
	}
	got := p.report(3, "run", "--once", "--fail-on-drift")
	if c := got.Counters[0]; got.Result != "ok" || c.Checked != 2 || c.Repaired != 1 || len(c.Drifted) != 1 || c.Drifted[0].Drift != 3 {
		t.Errorf("report: %+v", got)
	}
	if n := p.shows(2); n != int32(2) {
		t.Errorf("shows %v (%T) after the repair", n, n)
	}
	p.want(0, "reconciler", "verify")
	if n, err := p.client.Database(p.state).Collection("repairs").CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 {
		t.Errorf("%d entries in the journal: %v", n, err)
	}
}

// A recount that finds most of the application's counts wrong may be wrong itself: a file that looks at the wrong rows.
func TestHeldRepairsOfWhatTheApplicationKeepsShowAndAreApproved(t *testing.T) {
	t.Parallel()
	p := keeping(t, plain.start(t))
	p.guarded()
	p.want(0, "incrementer", "setup")
	held := p.report(3, "run", "--once")
	if held.Result != "held" || held.Counters[0].Skipped["held"] != 1 || held.Counters[0].Repaired != 0 || p.shows(2) != int32(5) {
		t.Fatalf("report: %+v", held)
	}
	p.wantLine(3, []string{"drift found in 1 key of likes_per_post"}, "reconciler", "verify")
	if got := p.report(0, "run", "--once", "--dry-run"); got.Result != "ok" || got.Counters[0].Drift.Keys != 1 {
		t.Errorf("report: %+v", got)
	}
	approve := "reconciler approve " + held.Run
	for _, args := range [][]string{{"status"}, {"status", "-o", "json"}} {
		if r := p.want(0, "incrementer", args...); !strings.Contains(r.stdout, approve) {
			t.Errorf("%v says\n%s", args, r.stdout)
		}
	}
	if r := p.want(0, "reconciler", "report"); !strings.Contains(r.stdout, held.Run) || !strings.Contains(r.stdout, "held") {
		t.Errorf("the report:\n%s", r.stdout)
	}
	s := p.start("reconciler")
	s.becomes("/status", 200, `"approve": "`+approve+`"`)
	s.becomes("/metrics", 200, `reconciler_runs_total{result="held"} `)
	if n := p.shows(2); n != int32(5) {
		t.Errorf("the loop made %v of it", n)
	}
	if got := p.report(0, "approve", held.Run); got.Result != "ok" || got.Counters[0].Repaired != 1 || p.shows(1) != int32(2) || p.shows(2) != int32(2) {
		t.Errorf("report: %+v", got)
	}
	s.becomes("/status", 200, `"held": []`)
}

func TestTheLoopRepairsWhatTheApplicationKeeps(t *testing.T) {
	t.Parallel()
	p := keeping(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	s := p.start("reconciler")
	realtest.Eventually(t, patience, "the counter is repaired", func() bool { return p.shows(2) == int32(2) })
	s.becomes("/metrics", 200, `reconciler_keys_repaired_total{counter="likes_per_post"} 1`)
	s.becomes("/metrics", 200, `reconciler_verified_through_timestamp_seconds{counter="likes_per_post"} 1`)
	s.becomes("/readyz", 200, `"ready": true`)
}

func TestTheIncrementerHasNothingToFollowThere(t *testing.T) {
	t.Parallel()
	p := keeping(t, plain.start(t))
	p.wantLine(78, []string{"there is nothing to follow: the configuration declares no sources, only counters that the application keeps, which `reconciler run` looks after"},
		"incrementer", "run")
	p.want(0, "incrementer", "setup")
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "likes_per_post  unknown  the application keeps it, and no run has compared it yet  ") {
		t.Errorf("status waits for an incrementer:\n%s", r.stdout)
	}
	p.want(0, "reconciler", "run", "--once")
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "likes_per_post  active  -  ") {
		t.Errorf("status after a run:\n%s", r.stdout)
	}
	if r := p.want(1, "incrementer", "check"); !strings.Contains(r.stdout, "none are declared: there is nothing to follow") {
		t.Errorf("check: %s", r.stdout)
	}
}

func TestLeastPrivilegesForWhatTheApplicationKeeps(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := keeping(t, m)
	as := func(name string, use deployment.Use) {
		p.as(m, name, p.privileges(use))
		p.kept("mongodb://" + name + "_" + p.app + ":" + password + "@" + m.Addr() + "/?replicaSet=rs0")
	}
	as("verify", deployment.Verify)
	p.want(3, "reconciler", "verify")
	p.kept(m.URI())
	as("setup", deployment.Setup)
	p.want(0, "incrementer", "setup")
	p.kept(m.URI())
	as("reconcile", deployment.Reconcile)
	p.want(0, "reconciler", "run", "--once")
	if n := p.shows(2); n != int32(2) {
		t.Errorf("shows %v after the repair", n)
	}
	p.start("reconciler").leads()
	p.kept(m.URI())
	p.kept("mongodb://verify_" + p.app + ":" + password + "@" + m.Addr() + "/?replicaSet=rs0")
	p.start("reconciler", "--dry-run").becomes("/readyz", 200, `"ready": true`)
	p.kept(m.URI())
	if got := p.privileges(deployment.Verify); len(got) != 3 {
		t.Errorf("verify takes %v, want rows, target and their database", got)
	}
}

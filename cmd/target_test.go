package cmd_test

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// rebuilt waits until every counter document is there again.
func (p *place) rebuilt(post1, userA int64) {
	p.t.Helper()
	realtest.Eventually(p.t, patience, "the counters are there again", func() bool {
		return p.displayed("post_counters", 1) == post1 && p.displayed("user_counters", "a") == userA
	})
}

func (p *place) drop(collection string) {
	p.t.Helper()
	p.must(p.app, bson.D{{Key: "drop", Value: collection}})
}

// hasIndex reports whether the index of the touched posts is there.
func (p *place) hasIndex() bool {
	p.t.Helper()
	indexes, err := p.client.Database(p.app).Collection("post_counters").Indexes().ListSpecifications(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	for _, index := range indexes {
		if strings.HasSuffix(index.Name, "_touched") {
			return true
		}
	}
	return false
}

// Nobody has to do anything: the programs that run bring the documents back, and so do those that are started later.
func TestADroppedTargetIsRebuiltByTheProgramsThemselves(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	incrementer := p.following()
	reconciler := p.start("reconciler")
	p.drop("post_counters")
	p.drop("user_counters")
	p.rebuilt(2, 4)
	p.comment() // the incrementer goes on
	p.rebuilt(4, 8)
	if incrementer.logged("lane interrupted, reopening from its checkpoint") != nil {
		t.Error("the lane was interrupted")
	}
	reconciler.logs("counter documents are gone: every key is recounted")

	for _, s := range []*service{incrementer, reconciler} {
		s.terminate()
		if code := s.ended(); code != 0 {
			t.Errorf("exit %d\n%s", code, s.log)
		}
	}
	p.drop("post_counters")
	p.start("incrementer").becomes("/readyz", 200, `"ready": true`)
	if r := p.want(3, "reconciler", "verify"); !strings.Contains(r.stdout, "target_changed") {
		t.Errorf("verify says\n%s", r.stdout)
	}
	p.start("reconciler").becomes("/readyz", 200, `"ready": true`)
	p.rebuilt(4, 8)
	realtest.Eventually(t, patience, "the index is there again", func() bool { return p.hasIndex() })
	p.want(0, "reconciler", "verify", "--full")
	if r := p.want(0, "incrementer", "setup"); r.stdout != "nothing to do: everything is there\n" {
		t.Errorf("setup had to do\n%s", r.stdout)
	}
}

// A user that may not make the index has the documents back all the same. Then touched keys cannot be listed: that is told
// with the remedy, and the other counters go on.
func TestADroppedTargetIsRebuiltWithoutTheRightToMakeItsIndex(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	p.following()
	p.drop("post_counters")
	p.as(m, "leastreconcile", p.privileges(deployment.Reconcile))
	if r := p.want(0, "reconciler", "run", "--once"); !strings.Contains(r.stderr, "index of the touched keys is gone and not made again") {
		t.Errorf("stderr says %s", r.stderr)
	}
	if n := p.displayed("post_counters", 1); n != 2 || p.hasIndex() {
		t.Errorf("post 1 displays %d", n)
	}
	p.want(0, "reconciler", "run", "--once") // the collection was made by a repair, and is compared with none
	const told = "comments_per_post not judged: list touched keys of comments_per_post: the index of the touched keys is gone: run `incrementer setup`"
	r := p.want(1, "reconciler", "run", "--once")
	if !strings.Contains(r.stderr, told) || strings.Contains(r.stderr, "likes_per_user not judged") {
		t.Errorf("stderr says %s", r.stderr)
	}

	// With createIndex it makes it itself.
	may := p.privileges(deployment.Reconcile)
	may = append(may, deployment.Privilege{Database: p.app, Collection: "post_counters", Actions: []string{"createIndex"}})
	p.as(m, "makesindex", may)
	p.want(0, "reconciler", "run", "--once")
	if !p.hasIndex() {
		t.Error("the index was not made")
	}
	p.drop("post_counters")
	p.want(0, "reconciler", "run", "--once")
	if n := p.displayed("post_counters", 1); n != 2 || !p.hasIndex() {
		t.Errorf("post 1 displays %d", n)
	}
	if got := p.report(0, "run", "--once"); got.Counters[0].Checked != 0 {
		t.Errorf("want one recount: %+v", got)
	}
}

package cmd_test

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// oplog is what the headroom takes: the one privilege that nothing else needs.
var oplog = deployment.Privilege{Database: "local", Collection: "oplog.rs", Actions: []string{"find"}}

// privileges are the least for a use of the place's configuration.
func (p *place) privileges(use deployment.Use) []deployment.Privilege {
	p.t.Helper()
	c, definitions := p.loaded()
	return deployment.Privileges(c, definitions, use)
}

// optional are those that a use can do without.
func (p *place) optional(use deployment.Use) []deployment.Privilege {
	p.t.Helper()
	_, definitions := p.loaded()
	return deployment.Optional(definitions, use)
}

func (p *place) loaded() (*config.Config, []*counter.Definition) {
	p.t.Helper()
	c, err := config.Load(config.Options{File: p.file})
	if err != nil {
		p.t.Fatal(err)
	}
	definitions, err := counter.DefineAll(c.Counters)
	if err != nil {
		p.t.Fatal(err)
	}
	return c, definitions
}

// without takes one action away.
func without(all []deployment.Privilege, action string) []deployment.Privilege {
	all = slices.Clone(all)
	for i := range all {
		all[i].Actions = slices.DeleteFunc(slices.Clone(all[i].Actions), func(a string) bool { return a == action })
	}
	return slices.DeleteFunc(all, func(p deployment.Privilege) bool { return len(p.Actions) == 0 })
}

// as makes a user with exactly these privileges and configures it.
func (p *place) as(m *realtest.Mongod, name string, privileges []deployment.Privilege) {
	p.t.Helper()
	uri := p.user(m, name, privileges)
	p.edit(func(text string) string { return uriInFile.ReplaceAllString(text, strconv.Quote(uri)) })
}

var uriInFile = regexp.MustCompile(`"mongodb://[^"]*"`)

// user makes one with exactly these privileges, and returns where it connects to.
func (p *place) user(m *realtest.Mongod, name string, privileges []deployment.Privilege) (uri string) {
	p.t.Helper()
	list := make(bson.A, len(privileges))
	for i, g := range privileges {
		resource := bson.D{{Key: "db", Value: g.Database}, {Key: "collection", Value: g.Collection}}
		if g.Database == "" {
			resource = bson.D{{Key: "cluster", Value: true}}
		}
		list[i] = bson.D{{Key: "resource", Value: resource}, {Key: "actions", Value: g.Actions}}
	}
	name += "_" + p.app
	p.must("admin", bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: list}, {Key: "roles", Value: bson.A{}}})
	p.must("admin", bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: password}, {Key: "roles", Value: bson.A{name}}})
	return "mongodb://" + name + ":" + password + "@" + m.Addr() + "/?replicaSet=rs0"
}

// Each program works as a user that may do exactly what deployment.Privileges lists for it, and nothing else.
func TestLeastPrivilegesAreEnough(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	setup, follow := p.privileges(deployment.Setup), p.privileges(deployment.Follow)
	verify, reconcile := p.privileges(deployment.Verify), p.privileges(deployment.Reconcile)
	p.as(m, "setup", setup)
	p.want(0, "incrementer", "setup", "--dry-run")
	p.want(0, "incrementer", "setup")

	p.as(m, "follow", append(follow, oplog))
	s := p.start("incrementer")
	s.becomes("/readyz", 200, `"ready": true`)
	p.comment()
	realtest.Eventually(t, patience, "the comments are counted", func() bool { return p.displayed("post_counters", 1) == 2 })
	s.becomes("/metrics", 200, "incrementer_resume_headroom_seconds{")
	if _, body := s.get("/metrics"); strings.Contains(body, "NaN\n") {
		t.Error("a user that may read the oplog sees no headroom")
	}
	p.want(0, "incrementer", "status")

	p.as(m, "reconcile", reconcile)
	p.many(20_001) // so many that a full pass divides them
	realtest.Eventually(t, patience, "many comments are counted", func() bool { return p.displayed("post_counters", 3) == 20_001 })
	p.want(0, "reconciler", "run", "--once")
	p.spoil(1)
	p.want(0, "reconciler", "run", "--once", "--full")
	if n := p.displayed("post_counters", 1); n != 2 {
		t.Errorf("after the repair: %d", n)
	}

	loop := p.start("reconciler")
	loop.leads()
	loop.terminate()
	if code := loop.ended(); code != 0 || loop.logged("lease not given back, a standby leads when it runs out") != nil {
		t.Errorf("the loop ends with %d:\n%s", code, loop.log)
	}

	p.as(m, "verify", verify)
	p.start("reconciler", "--dry-run").becomes("/readyz", 200, `"ready": true`)
	p.want(0, "reconciler", "verify", "--full")
	p.wantLine(1, []string{"lacks privileges: grant it insert, update on " + p.app + ".post_counters, " + p.app + ".user_counters; insert, remove, update on " +
		p.state + ".checkpoints"}, "reconciler", "run", "--once")
}

// many inserts rows of post 3.
func (p *place) many(n int) {
	p.t.Helper()
	rows := make([]any, n)
	for i := range rows {
		rows[i] = bson.D{{Key: "post_id", Value: 3}}
	}
	if _, err := p.client.Database(p.app).Collection("comments").InsertMany(p.t.Context(), rows); err != nil {
		p.t.Fatal(err)
	}
}

func TestMissingPrivilegesAreToldInOneLine(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	setup, follow := p.privileges(deployment.Setup), p.privileges(deployment.Follow)

	p.as(m, "nocollmod", without(setup, "collMod"))
	p.wantLine(1, []string{"turn on changeStreamPreAndPostImages for " + p.app + ".comments: the user of mongodb.uri may not: grant it collMod on " +
		p.app + ".comments, or run setup as one who has it"}, "incrementer", "setup")
	p.as(m, "nolist", without(setup, "listCollections"))
	p.wantLine(1, []string{"lacks privileges: grant it listCollections on database " + p.app + ", database " + p.state}, "incrementer", "setup")

	p.configure(m.URI(), "")
	p.want(0, "incrementer", "setup")
	p.as(m, "nostream", without(follow, "changeStream"))
	p.wantLine(1, []string{`the user "nostream_`, "lacks privileges: grant it changeStream on " + p.app + ".comments"}, "incrementer", "run")
	p.as(m, "noupdate", without(follow, "update"))
	p.wantLine(1, []string{"lacks privileges: grant it update on " + p.app + ".post_counters"}, "incrementer", "run")
	p.as(m, "reader", without(without(without(follow, "update"), "insert"), "remove"))
	p.wantLine(1, []string{"lacks privileges: grant it insert, update on " + p.app + ".post_counters"}, "incrementer", "run")
	p.as(m, "stranger", []deployment.Privilege{oplog})
	p.everyAsker("lacks privileges: grant it ")
}

// Without the right to read the oplog there is one warning and no figure, and everything else works.
func TestNoRightToTheOplogIsOneWarning(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	p.want(0, "incrementer", "setup")
	p.as(m, "nooplog", p.privileges(deployment.Follow))
	s := p.start("incrementer")
	s.becomes("/readyz", 200, `"ready": true`)
	s.becomes("/metrics", 200, `incrementer_resume_headroom_seconds{lane="comments",source="comments"} NaN`)
	const warning = "how far a position may fall behind is not known: incrementer_resume_headroom_seconds has no value"
	s.logs(warning)
	s.becomes("/status", 200, `"state": "rebasing"`) // the watch has looked once more
	if n := strings.Count(s.log.String(), warning); n != 1 {
		t.Errorf("%d warnings:\n%s", n, s.log)
	}
}

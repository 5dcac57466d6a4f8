package cmd_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// askers are the verbs that connect.
var askers = map[string][]string{
	"incrementer": {"run", "setup --dry-run", "setup", "status", "checkpoint list", "checkpoint reset comments --to now"},
	"reconciler":  {"run", "run --once", "verify"},
}

// everyAsker fails the test unless every verb that connects ends with 1 and tells why in the same line.
func (p *place) everyAsker(texts ...string) {
	p.t.Helper()
	for program, verbs := range askers {
		for _, verb := range verbs {
			p.wantLine(1, texts, program, strings.Fields(verb)...)
		}
	}
}

func TestADeploymentThatCannotServeIsRefusedInOneLine(t *testing.T) {
	t.Parallel()
	standalone := alone.start(t).Addr()
	member := plain.start(t).Addr()
	const soon = "&serverSelectionTimeoutMS=300"
	for name, tt := range map[string]struct {
		uri   string
		texts []string
	}{
		"standalone": {"mongodb://" + standalone + "/?directConnection=true",
			[]string{"mongodb.uri leads to a standalone mongod, which has neither change streams nor transactions: restart it with --replSet rs0"}},
		"standalone, as a member of a set": {"mongodb://" + standalone + "/?replicaSet=rs0" + soon,
			[]string{"no usable MongoDB at mongodb.uri", standalone + " is a standalone mongod"}},
		"another set": {"mongodb://" + member + "/?replicaSet=other" + soon,
			[]string{member + ` belongs to replica set "rs0", not to "other": check host, port, replicaSet and TLS`}},
		"nobody there": {"mongodb://u:" + password + "@127.0.0.1:1/?replicaSet=rs0" + soon,
			[]string{"mongodb://***@127.0.0.1:1/", "127.0.0.1:1 does not answer (connection refused): check host, port"}},
		"TLS where there is none": {"mongodb://" + member + "/?tls=true" + soon,
			[]string{member + " closes the connection, as one does that wants TLS, or does not know it"}},
		"a time limit for everything": {"mongodb://" + member + "/?timeoutMS=100",
			[]string{"mongodb.uri sets timeoutMS", "remove it"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &place{t: t, app: "app", state: "state"}
			p.configure(tt.uri, "")
			started := time.Now()
			p.everyAsker(tt.texts...)
			if took := time.Since(started); took > 15*time.Second {
				t.Errorf("took %s: serverSelectionTimeoutMS is not respected", took)
			}
		})
	}
}

func TestAUserThatIsNotKnownIsToldInOneLine(t *testing.T) {
	t.Parallel()
	address := guarded.start(t).Addr()
	for name, tt := range map[string]struct{ user, text string }{
		"wrong password": {"root:" + password + "@", "MongoDB refuses the user name or password of mongodb.uri (mongodb://***@" + address},
		"unknown user":   {"nobody:" + password + "@", "MongoDB refuses the user name or password of mongodb.uri (mongodb://***@" + address},
		"no user":        {"", "MongoDB asks for a user, and mongodb.uri (mongodb://" + address},
	} {
		t.Run(name, func(t *testing.T) {
			p := &place{t: t, app: "app", state: "state"}
			p.configure("mongodb://"+tt.user+address+"/?replicaSet=rs0", "")
			p.everyAsker(tt.text)
		})
	}
}

func TestACollectionThatCannotServeIsRefusedAndNothingIsDone(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	create := func(name string, options ...bson.E) bson.D {
		return append(bson.D{{Key: "create", Value: name}}, options...)
	}
	for name, tt := range map[string]struct {
		prepare []bson.D
		text    string
	}{
		"rows are missing": {[]bson.D{{{Key: "drop", Value: "comments"}}},
			"source comments: collection APP.comments does not exist: create it, or correct the name"},
		"rows are a view": {[]bson.D{{{Key: "drop", Value: "comments"}}, create("all"),
			create("comments", bson.E{Key: "viewOn", Value: "all"}, bson.E{Key: "pipeline", Value: bson.A{}})},
			"source comments: APP.comments is a view, which has no change stream of its own: name its collection"},
		"counters have a collation": {[]bson.D{
			create("post_counters", bson.E{Key: "collation", Value: bson.D{{Key: "locale", Value: "fr"}}})},
			`counter comments_per_post: target collection APP.post_counters has the default collation "fr", by which two keys may be one`},
		"counters are a view": {[]bson.D{
			create("post_counters", bson.E{Key: "viewOn", Value: "comments"}, bson.E{Key: "pipeline", Value: bson.A{}})},
			"counter comments_per_post: target collection APP.post_counters is a view, which cannot hold counter documents"},
		"counters are capped": {[]bson.D{
			create("post_counters", bson.E{Key: "capped", Value: true}, bson.E{Key: "size", Value: 4096})},
			"counter comments_per_post: target collection APP.post_counters is capped, and no transaction can write to it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t, m)
			for _, command := range tt.prepare {
				p.must(p.app, command)
			}
			before := p.names(p.app)
			text := strings.ReplaceAll(tt.text, "APP", p.app)
			p.wantLine(1, []string{text, p.file + ":"}, "incrementer", "setup")
			p.wantLine(1, []string{text}, "incrementer", "run")
			p.wantLine(1, []string{text}, "reconciler", "verify")
			if after := p.names(p.app); len(after) != len(before) || len(p.names(p.state)) > 0 {
				t.Errorf("setup made something: %v, %v", after, p.names(p.state))
			}
		})
	}
}

func TestRunBeforeSetupSaysSo(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.wantLine(1, []string{"not set up: run `incrementer setup` first, it would turn on changeStreamPreAndPostImages for " + p.app + ".comments (and "},
		"incrementer", "run")
	for _, verb := range []string{"run", "run --once", "verify"} {
		p.wantLine(1, []string{"not set up: run `incrementer setup` first, it would create collection"}, "reconciler", strings.Fields(verb)...)
	}
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "never started: run `incrementer run`") || r.stderr != "" {
		t.Errorf("status says %q and %q", r.stdout, r.stderr)
	}
}

func TestSetupDoesWhatItSaysOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	announced := p.want(0, "incrementer", "setup", "--dry-run")
	if len(p.names(p.state)) > 0 {
		t.Errorf("--dry-run made %v", p.names(p.state))
	}
	done := p.want(0, "incrementer", "setup")
	if want := strings.ReplaceAll(announced.stdout, "would ", "done: "); done.stdout != want || done.stderr != "" {
		t.Errorf("setup does\n%s%s, but announced\n%s", done.stdout, done.stderr, want)
	}
	for _, args := range [][]string{{"setup"}, {"setup", "--dry-run"}} {
		if r := p.want(0, "incrementer", args...); r.stdout != "nothing to do: everything is there\n" {
			t.Errorf("the second setup says %q", r.stdout)
		}
	}
}

// The driver would tell a server that only listens about its sessions until that answers.
func TestAServerThatOnlyListensIsGivenUp(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{})
	p := newPlace(t, m)
	p.configure(m.URI()+"&serverSelectionTimeoutMS=500&connectTimeoutMS=500", "")
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Resume)
	p.wantLine(1, []string{"no usable MongoDB at mongodb.uri"}, "incrementer", "status")
}

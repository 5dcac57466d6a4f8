package cmd_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// backup is the state database as it was once.
type backup map[string][]bson.D

func (p *place) backup() backup {
	p.t.Helper()
	kept := backup{}
	for _, name := range p.names(p.state) {
		kept[name] = p.dump(p.state, name)
	}
	return kept
}

// back restores the state database from a backup with drop, as mongorestore does.
func (p *place) back(kept backup) {
	p.t.Helper()
	// The checkpoints last: what their return leads to must not be dropped again.
	names := slices.DeleteFunc(slices.Sorted(maps.Keys(kept)), func(name string) bool { return name == "checkpoints" })
	for _, name := range append(names, "checkpoints") {
		p.must(p.state, bson.D{{Key: "drop", Value: name}})
		const exists = 48 // a program that runs has written to it since
		err := p.client.Database(p.state).CreateCollection(p.t.Context(), name)
		if server := mongo.ServerError(nil); err != nil && (!errors.As(err, &server) || !server.HasErrorCode(exists)) {
			p.t.Fatal(err)
		}
		p.restore(p.state, name, kept[name])
	}
}

func (p *place) checkpoints() *mongo.Collection {
	return p.client.Database(p.state).Collection("checkpoints")
}

func (p *place) deleteCheckpoint() {
	p.t.Helper()
	if _, err := p.checkpoints().DeleteOne(p.t.Context(), bson.D{{Key: "_id", Value: "comments"}}); err != nil {
		p.t.Fatal(err)
	}
}

// countMore inserts rows and waits until they are counted.
func (p *place) countMore() {
	p.t.Helper()
	p.comment()
	realtest.Eventually(p.t, patience, "the comments are counted", func() bool { return p.displayed("post_counters", 1) == p.counted(1) })
}

// A state database that is not what this process left there leads to a gap and a recount, and never to a wrong count.
func TestAStateDatabaseThatIsNotAsWeLeftItIsRecordedAndRecounted(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	for name, tt := range map[string]struct {
		running, stopped func(p *place, old backup) // one of them
		lost             []string                   // reasons that the one gap may have: what is noticed first
		known            bool                       // where the lane was before
	}{
		"checkpoint deleted": {
			running: func(p *place, _ backup) { p.deleteCheckpoint() }, lost: []string{"checkpoint_missing"}, known: true,
		},
		"checkpoint deleted while stopped": {
			stopped: func(p *place, _ backup) { p.deleteCheckpoint() }, lost: []string{"checkpoint_missing"},
		},
		"older checkpoint put back in place": {
			running: func(p *place, old backup) {
				if _, err := p.checkpoints().ReplaceOne(p.t.Context(), bson.D{{Key: "_id", Value: "comments"}}, old["checkpoints"][0]); err != nil {
					p.t.Fatal(err)
				}
			}, lost: []string{"checkpoint_went_back"}, known: true,
		},
		"restored": {
			running: (*place).back, lost: []string{"state_restored", "checkpoint_went_back", "checkpoint_missing"}, known: true,
		},
		"restored while stopped": {
			stopped: (*place).back, lost: []string{"state_restored"}, known: true,
		},
		"dropped": {
			running: func(p *place, _ backup) { p.must(p.state, bson.D{{Key: "dropDatabase", Value: 1}}) }, lost: []string{"state_restored", "checkpoint_missing"}, known: true,
		},
		"dropped while stopped": {
			stopped: func(p *place, _ backup) {
				p.must(p.state, bson.D{{Key: "dropDatabase", Value: 1}})
				p.want(0, "incrementer", "setup")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newPlace(t, m).atWork()
			old := b.backup()
			b.countMore() // and the backup is an old one
			if tt.running != nil {
				tt.running(b.place, old)
			} else {
				b.incrementer.stop()
				b.comment() // nobody has seen them
				tt.stopped(b.place, old)
				b.incrementer = b.start("incrementer")
			}
			b.comment()
			if tt.lost != nil {
				realtest.Eventually(t, patience, "a gap is on record", func() bool { return len(b.gaps()) > 0 })
			}
			b.wantSetUp()
			b.wantRight()
			gaps := b.gaps()
			if tt.lost == nil && len(gaps) != 0 {
				t.Errorf("on record are %+v", gaps)
			}
			if tt.lost != nil && (len(gaps) != 1 || !slices.Contains(tt.lost, gaps[0].Reason) || gaps[0].To.IsZero() || gaps[0].From.IsZero() == tt.known) {
				t.Errorf("on record are %+v, want one of %v", gaps, tt.lost)
			}
			b.countMore()
			b.wantRight()
		})
	}
}

// wantSetUp makes again what went with the state database, which nobody needs to count right.
func (p *place) wantSetUp() {
	p.t.Helper()
	p.want(0, "incrementer", "setup")
}

func TestACheckpointOfANewerVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	b := newPlace(t, plain.start(t)).atWork()
	b.incrementer.stop()
	version := func(n int) {
		if _, err := b.checkpoints().UpdateByID(t.Context(), "comments", bson.D{{Key: "$set", Value: bson.D{{Key: "version", Value: n}}}}); err != nil {
			t.Fatal(err)
		}
	}
	version(99)
	before := b.dump(b.state, "checkpoints")
	b.comment()
	b.incrementer = b.start("incrementer")
	b.incrementer.becomes("/readyz", 503, "checkpoint of a newer version of driftless: upgrade this instance")
	if code, body := b.incrementer.get("/healthz"); code != 200 {
		t.Errorf("standing still is no reason to restart: %d %s", code, body)
	}
	b.incrementer.logs("lane stands still: nothing is applied, and nothing is lost while the history reaches back")
	r := b.want(1, "reconciler", "run", "--once", "-o", "json")
	if !strings.Contains(r.stdout, `"definition": 1`) || !strings.Contains(r.stdout+r.stderr, "newer version") {
		t.Errorf("the reconciler says %s%s", r.stdout, r.stderr)
	}
	if r := b.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "newer version") {
		t.Errorf("status says %s", r.stdout)
	}
	b.incrementer.becomes("/readyz", 503, "newer version") // still
	if after := b.dump(b.state, "checkpoints"); after[0].String() != before[0].String() {
		t.Errorf("the checkpoint was %v and is %v", before, after)
	}
	if n := strings.Count(b.incrementer.log.String(), "lane stands still"); n != 1 {
		t.Errorf("said %d times", n)
	}
	version(1)
	b.wantRight()
	if gaps := b.gaps(); len(gaps) != 0 {
		t.Errorf("on record are %+v", gaps)
	}
}

// Another replica set of the same name answers at the address, with a copy of the state database.
func TestAnotherClusterAtTheSameAddressIsNotTakenForTheOld(t *testing.T) {
	t.Parallel()
	old, other := realtest.Private(t, realtest.Options{CacheGB: 0.25}), realtest.Private(t, realtest.Options{CacheGB: 0.25})
	proxy := realtest.NewProxy(t, old.Addr())
	p := newPlace(t, old)
	p.configure(proxy.URI(), "")
	b := p.atWork()
	b.countMore()
	rows, kept := b.dump(b.app, "comments"), b.backup()

	there := *b.place
	there.client = realtest.Client(t, other.URI())
	images := options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})
	if err := there.client.Database(there.app).CreateCollection(t.Context(), "comments", images); err != nil {
		t.Fatal(err)
	}
	there.restore(there.app, "comments", rows[1:]) // its rows are not quite the same
	for name, documents := range kept {
		there.must(there.state, bson.D{{Key: "create", Value: name}})
		there.restore(there.state, name, documents)
	}
	proxy.Cut()
	proxy.Lead(other.Addr())
	there.comment()
	proxy.Heal()

	b.place = &there
	realtest.Eventually(t, 2*patience, "a gap is on record", func() bool { return len(b.gaps()) > 0 })
	there.wantSetUp()
	b.wantRight()
	gaps := b.gaps()
	if len(gaps) != 1 || gaps[0].Reason != "other_cluster" || gaps[0].From.IsZero() || gaps[0].To.IsZero() {
		t.Errorf("on record are %+v", gaps)
	}
}

// beside is a second deployment with the state database of the first, rows of its own and, by edit, another configuration.
func (p *place) beside(m *realtest.Mongod, edit func(string) string) *place {
	p.t.Helper()
	second := newPlace(p.t, m)
	second.state = p.state
	second.configure(m.URI(), "")
	second.edit(edit)
	second.want(0, "incrementer", "setup")
	return second
}

func TestTwoDeploymentsWithACounterOfTheSameNameAreTold(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	first := newPlace(t, m)
	running := first.following()
	second := first.beside(m, strings.NewReplacer("comments: ", "reviews: ", "  comments:\n", "  reviews:\n", "source: comments", "source: reviews").Replace)
	late := second.start("incrementer")
	late.becomes("/readyz", 503, "counter comments_per_post of source reviews: lane comments of instance ")
	late.becomes("/readyz", 503, "rename one of the two counters, or give one deployment another mongodb.state_database")
	first.countMore()
	running.becomes("/readyz", 200, `"ready": true`)
	if !first.active() {
		t.Errorf("the counters of the first are %v", first.dump(first.state, "counters"))
	}
	// Whoever remains goes on.
	running.stop()
	late.becomes("/readyz", 200, `"ready": true`)
	second.countMore()
	if gaps := first.gaps(); len(gaps) != 0 {
		t.Errorf("on record are %+v", gaps)
	}
}

func TestTwoDeploymentsWithASourceOfTheSameNameAreTold(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	first := newPlace(t, m)
	running := first.following()
	second := first.beside(m, func(text string) string { return text })
	late := second.start("incrementer")
	running.becomes("/readyz", 503, "which started later, has another configuration of source comments")
	late.becomes("/status", 200, `"following": true`)
	second.countMore()
}

func TestACounterThatIsRemovedAndAddedAgainIsRebasedAlone(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	s := p.following()
	states := func() map[string]string {
		all := map[string]string{}
		for _, d := range p.dump(p.state, "counters") {
			var state struct {
				ID     string `bson:"_id"`
				State  string
				Reason string
			}
			raw, err := bson.Marshal(d)
			if err == nil {
				err = bson.Unmarshal(raw, &state)
			}
			if err != nil {
				t.Fatal(err)
			}
			all[state.ID] = strings.TrimSpace(state.State + " " + state.Reason)
		}
		return all
	}
	whole, err := p.text()
	if err != nil {
		t.Fatal(err)
	}
	from := strings.Index(whole, "  likes_per_user:")
	alone := whole[:from] + whole[strings.Index(whole, "incrementer:"):]
	for _, step := range []struct{ what, text, likes string }{
		{"removed", alone, "active"}, // nobody looks at it
		{"added again", whole, "rebasing new"},
		{"changed", strings.Replace(whole, "sum: likes", "soft_delete: deleted_at", 1), "rebasing changed"},
		{"changed back", whole, "rebasing changed"},
	} {
		s.stop()
		p.write(step.text)
		s = p.start("incrementer")
		s.becomes("/readyz", 200, `"ready": true`)
		p.comment() // not counted for the one that is gone
		realtest.Eventually(t, patience, "the others go on", func() bool { return p.displayed("post_counters", 1) == p.counted(1) })
		if got := states(); got["likes_per_user"] != step.likes || got["comments_per_post"] != "active" {
			t.Errorf("%s: %v", step.what, got)
		}
		r := p.report(0, "run", "--once", "--reconciler-judge-timeout", "15s")
		for _, c := range r.Counters {
			if c.Drift.Keys > 0 {
				t.Errorf("%s: reported as drift: %+v", step.what, c)
			}
		}
	}
	if n := p.displayed("user_counters", "a"); n != 20 || !p.active() {
		t.Errorf("user a has 20 likes and displays %d; %v", n, states())
	}
	if gaps := p.gaps(); len(gaps) != 0 {
		t.Errorf("on record are %+v", gaps)
	}
}

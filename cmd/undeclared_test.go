package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// stranger is somebody with two collections of an application, likes and posts, and no configuration file.
func stranger(t *testing.T, m *realtest.Mongod) *place {
	t.Helper()
	client := realtest.Client(t, m.URI())
	p := &place{t: t, client: client, app: realtest.DatabaseOn(t, client), state: "none"}
	p.env = []string{"DRIFTLESS_MONGODB_URI=" + m.URI()}
	return p
}

// reader makes a user that may read likes and posts and nothing else.
func (p *place) reader(m *realtest.Mongod) {
	p.t.Helper()
	uri := p.user(m, "reader", []deployment.Privilege{{Database: p.app, Collection: "likes", Actions: []string{"find"}}, {Database: p.app, Collection: "posts", Actions: []string{"find"}}})
	p.file = ""
	p.env = []string{"DRIFTLESS_MONGODB_URI=" + uri}
}

func (p *place) collection(name string) *mongo.Collection {
	return p.client.Database(p.app).Collection(name)
}

// like inserts n likes of a post, and the post with the count that it shows.
func (p *place) like(post any, n int, shows any) {
	p.t.Helper()
	rows := make([]any, n)
	for i := range rows {
		rows[i] = bson.D{{Key: "post_id", Value: post}}
	}
	if n > 0 {
		if _, err := p.collection("likes").InsertMany(p.t.Context(), rows); err != nil {
			p.t.Fatal(err)
		}
	}
	if _, err := p.collection("posts").InsertOne(p.t.Context(), bson.D{{Key: "_id", Value: post}, {Key: "like_count", Value: shows}}); err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) indexed() {
	p.t.Helper()
	if _, err := p.collection("likes").Indexes().CreateOne(p.t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "post_id", Value: 1}}}); err != nil {
		p.t.Fatal(err)
	}
}

// compare are the arguments of a verify without a file.
func (p *place) compare(more ...string) []string {
	return append([]string{"verify", "--rows", p.app + ".likes", "--key", "post_id", "--count", p.app + ".posts.like_count", "--settle", "1s"}, more...)
}

func TestVerifyWithoutAFileAsAUserThatMayOnlyRead(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := stranger(t, m)
	p.like(1, 2, 2)
	p.like(2, 0, 0)
	p.indexed()
	p.reader(m)
	if r := p.want(0, "reconciler", p.compare()...); r.stderr != "" || !strings.Contains(r.stdout, "a change may be under way for 1s") {
		t.Errorf("%+v", r)
	}
	p.like(3, 2, 5)
	r := p.want(3, "reconciler", p.compare()...)
	if !strings.Contains(r.stderr, p.app+".posts.like_count: 1 of the keys that differ may have changes under way; looking at them again in 1s\n") ||
		!strings.HasSuffix(r.stderr, "drift found in 1 key of "+p.app+".posts.like_count: declare the counter in driftless.yaml, with source: application, and `reconciler run --once` repairs it\n") {
		t.Errorf("stderr: %s", r.stderr)
	}
	got := p.report(3, p.compare()...)
	if c := got.Counters[0]; got.Result != "ok" || c.Checked != 3 || len(c.Drifted) != 1 || c.Drifted[0].Key != 3.0 || c.Drifted[0].Displayed != 5 ||
		c.Drifted[0].Truth != 2 || c.Drifted[0].Drift != 3 || c.Drift.Over != 3 || c.VerifiedThrough == "" {
		t.Errorf("report: %+v", got)
	}
	p.like("x", 1, "many")
	if got := p.report(3, p.compare("--soft-delete", "deleted_at")...); got.Result != "partial" || got.Counters[0].Skipped["bad_field"] != 1 {
		t.Errorf("report: %+v", got)
	}
	// Nothing but what is compared has been made.
	if names := p.names(p.app); len(names) != 2 {
		t.Errorf("collections: %v", names)
	}
}

func TestWhatVerifyWithoutAFileCannotDoIsTold(t *testing.T) {
	t.Parallel()
	p := stranger(t, plain.start(t))
	p.like(1, 1, "one")
	p.wantLine(1, []string{"collection " + p.app + ".dislikes of the rows does not exist, or the user may not read it: correct the name, or grant find on it"},
		"reconciler", append(p.compare(), "--rows", p.app+".dislikes")...)
	p.indexed()
	p.wantLine(1, []string{"collection " + p.app + ".pots of the counter documents does not exist"}, "reconciler", append(p.compare(), "--count", p.app+".pots.n")...)
	if err := p.collection("likes").Indexes().DropAll(t.Context()); err != nil {
		t.Fatal(err)
	}
	r := p.want(1, "reconciler", p.compare("--soft-delete", "deleted_at")...)
	if !strings.Contains(r.stderr, `no index finds the rows of a key, so all of them are read several times; this makes it fast: db.getSiblingDB("`+
		p.app+`").getCollection("likes").createIndex({"post_id":1,"deleted_at":1})`+"\n") || !strings.HasSuffix(r.stderr, "not judged: bad_field: 1\n") {
		t.Errorf("stderr: %s", r.stderr)
	}
	p.wantLine(2, []string{`--count: is "posts.n": must be DATABASE.COLLECTION.FIELD, such as app.posts.like_count`}, "reconciler", "verify", "--rows", "a.b", "--key", "c", "--count", "posts.n")
	p.wantLine(2, []string{"--count: is missing: to compare without a configuration file takes --rows, --key and --count; --key: is missing"}, "reconciler", "verify", "--rows", "a.b")
	p.wantLine(2, []string{"--counter is for counters that a configuration file declares"}, "reconciler", "verify", "--rows", "a.b", "--counter", "c")
	p.wantLine(2, []string{"--config is for counters that a configuration file declares"}, "reconciler", "verify", "--rows", "a.b", "--config", "c")
	p.wantLine(2, []string{"--settle -1s is negative"}, "reconciler", p.compare("--settle", "-1s")...)
}

// Snapshot reads, which both looks need, take a replica set of one member at least.
func TestVerifyWithoutAFileNeedsAReplicaSet(t *testing.T) {
	t.Parallel()
	m := alone.start(t)
	p := stranger(t, m)
	p.like(1, 1, 1)
	p.env = []string{"DRIFTLESS_MONGODB_URI=mongodb://" + m.Addr() + "/?directConnection=true"}
	p.wantLine(1, []string{"a standalone mongod, which has neither change streams nor transactions: restart it with --replSet rs0"}, "reconciler", p.compare()...)
	session, err := p.client.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer session.EndSession(t.Context())
	err = p.client.Database(p.app).RunCommand(mongo.NewSessionContext(t.Context(), session),
		bson.D{{Key: "find", Value: "posts"}, {Key: "readConcern", Value: bson.D{{Key: "level", Value: "snapshot"}}}}).Err()
	if err == nil {
		t.Error("a standalone server takes snapshot reads, and is refused for nothing")
	}
}

func TestAFieldWithDotsIsFound(t *testing.T) {
	t.Parallel()
	p := stranger(t, plain.start(t))
	for _, collection := range []string{"posts", "posts.archive"} {
		if _, err := p.collection(collection).InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "stats", Value: bson.D{{Key: "likes", Value: 1}}}}); err != nil {
			t.Fatal(err)
		}
	}
	// Its _id tells no time, so that it explains nothing.
	if _, err := p.collection("likes").InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "post_id", Value: 1}}); err != nil {
		t.Fatal(err)
	}
	p.indexed()
	for _, place := range []string{".posts.stats.likes", ".posts.archive.stats.likes"} {
		want := 0
		if place == ".posts.archive.stats.likes" {
			want = 3 // the first collection that is there is taken, where the field is missing
		}
		p.want(want, "reconciler", p.compare("--count", p.app+place)...)
	}
}

// Users that like, unlike and take back while somebody who may only read verifies: every planted drift is found, and
// nothing else is taken for one.
func TestVerifyUnderLoadFindsWhatIsPlantedAndNothingElse(t *testing.T) {
	t.Parallel()
	keys, planted := 5_000, 50
	if os.Getenv("DRIFTLESS_SOAK") != "" {
		keys, planted = 100_000, 1000
	}
	m := guarded.start(t)
	p := stranger(t, m)
	posts, likes := make([]any, keys), []any{}
	for i := range posts {
		shows := i % 4
		if i < planted {
			shows += 1 + i%3
		}
		posts[i] = bson.D{{Key: "_id", Value: i}, {Key: "like_count", Value: shows}}
		for range i % 4 {
			likes = append(likes, bson.D{{Key: "post_id", Value: i}, {Key: "deleted_at", Value: nil}})
		}
	}
	for name, documents := range map[string][]any{"posts": posts, "likes": likes} {
		for chunk := range slices.Chunk(documents, 20_000) {
			if _, err := p.collection(name).InsertMany(t.Context(), chunk); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.indexed()
	p.reader(m)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var users sync.WaitGroup
	writes := make([]int, 16)
	for i := range writes {
		users.Go(func() { // not at the planted ones, which are to be found
			for ctx.Err() == nil {
				if err := p.use(ctx, planted+rand.IntN(keys-planted)); err != nil && !errors.Is(err, context.Canceled) {
					t.Error(err)
					return
				}
				writes[i]++
			}
		})
	}
	got := p.report(3, p.compare("--soft-delete", "deleted_at", "--settle", "3s", "--limit", "0")...)
	stop()
	users.Wait()
	c := got.Counters[0]
	t.Logf("%d keys checked, %d drifted, skipped %v, beside %v writes", c.Checked, c.Drift.Keys, c.Skipped, writes)
	if c.Drift.Keys != int64(planted) || len(c.Drifted) != planted {
		t.Errorf("%d keys drifted, want %d", c.Drift.Keys, planted)
	}
	for _, d := range c.Drifted {
		if key, is := d.Key.(float64); !is || int(key) >= planted || d.Drift != int64(1+int(key)%3) {
			t.Errorf("a false alarm: %+v", d)
		}
	}
}

// use does something to one post as an application does: the row, and a little later its count.
func (p *place) use(ctx context.Context, post int) error {
	likes, one := p.collection("likes"), bson.D{{Key: "post_id", Value: post}, {Key: "deleted_at", Value: nil}}
	var n int
	switch rand.IntN(4) {
	case 0, 1:
		if _, err := likes.InsertOne(ctx, one); err != nil {
			return err
		}
		n = 1
	case 2:
		changed, err := likes.UpdateOne(ctx, one, bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
		if err != nil {
			return err
		}
		n = -int(changed.ModifiedCount)
	default:
		gone, err := likes.DeleteOne(ctx, one)
		if err != nil {
			return err
		}
		n = -int(gone.DeletedCount)
	}
	timer := time.NewTimer(time.Duration(rand.IntN(50)) * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	if n == 0 {
		return nil
	}
	// What has begun comes to its end, as in an application that is stopped in order.
	_, err := p.collection("posts").UpdateByID(context.WithoutCancel(ctx), post, bson.D{{Key: "$inc", Value: bson.D{{Key: "like_count", Value: n}}}})
	if err != nil {
		return fmt.Errorf("count a like: %w", err)
	}
	return nil
}

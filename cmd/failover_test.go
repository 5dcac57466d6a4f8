package cmd_test

import (
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/realtest"
)

const loadPosts = 20

// load inserts, deletes and undeletes comments until the returned function is called. A failover fails some of it.
func (p *place) load() (stop func()) {
	rows := p.client.Database(p.app).Collection("comments")
	var enough atomic.Bool
	var writing sync.WaitGroup
	for range 2 {
		writing.Go(func() {
			for !enough.Load() && p.t.Context().Err() == nil {
				of := bson.D{{Key: "post_id", Value: rand.IntN(loadPosts)}}
				switch rand.IntN(5) {
				default:
					_, _ = rows.InsertOne(p.t.Context(), append(of, bson.E{Key: "user_id", Value: "a"}, bson.E{Key: "likes", Value: 1}))
				case 3:
					_, _ = rows.UpdateOne(p.t.Context(), of, bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: time.Now()}}}})
				case 4:
					_, _ = rows.DeleteOne(p.t.Context(), append(of, bson.E{Key: "deleted_at", Value: bson.D{{Key: "$ne", Value: nil}}}))
				}
			}
		})
	}
	stop = func() {
		enough.Store(true)
		writing.Wait()
	}
	p.t.Cleanup(stop)
	return stop
}

// counted is a plain count of a post's comments.
func (p *place) counted(post int) int64 {
	p.t.Helper()
	n, err := p.client.Database(p.app).Collection("comments").CountDocuments(p.t.Context(),
		bson.D{{Key: "post_id", Value: post}, {Key: "deleted_at", Value: nil}})
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// alive asks /healthz all the time until the returned function is called, which fails the test if it was ever not well.
func (s *service) alive() (stop func()) {
	var enough atomic.Bool
	var asking sync.WaitGroup
	var asked, unwell int
	asking.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
		for !enough.Load() {
			asked++
			response, err := client.Get(s.url + "/healthz")
			if err != nil || response.StatusCode != http.StatusOK {
				unwell++
			}
			if err == nil {
				_ = response.Body.Close()
			}
			<-ticker.C
		}
	})
	return sync.OnceFunc(func() {
		enough.Store(true)
		asking.Wait()
		if asked < 10 || unwell > 0 {
			s.t.Errorf("of %d times /healthz was not well %d times", asked, unwell)
		}
	})
}

func TestAFailoverIsRiddenOutAliveAndReadyAgainAfterIt(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	p := newPlaceAt(t, set.URI())
	s := p.following()
	stopAsking := s.alive()
	t.Cleanup(stopAsking)
	calm := p.load()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// It follows again, whatever it says: a comment of after the failover is counted.
	marks := 1000
	wantGoingOn := func(after string) {
		t.Helper()
		marks++
		s.becomes("/readyz", 200, `"ready": true`)
		realtest.Eventually(t, patience, "a comment is inserted after "+after, func() bool {
			_, err := p.client.Database(p.app).Collection("comments").InsertOne(t.Context(), bson.D{{Key: "_id", Value: marks}, {Key: "post_id", Value: marks}})
			return err == nil || mongo.IsDuplicateKeyError(err)
		})
		realtest.Eventually(t, patience, "a comment is counted after "+after, func() bool { return p.displayed("post_counters", marks) == 1 })
		s.becomes("/readyz", 200, `"ready": true`)
		select {
		case <-s.done:
			t.Fatalf("it ended with %d after %s", s.cmd.ProcessState.ExitCode(), after)
		default:
		}
	}
	wantGoingOn("the start")

	_, err := set.StepDown(t.Context(), 3*time.Second)
	ok(err)
	wantGoingOn("a stepdown")

	primary, err := set.Primary(t.Context())
	ok(err)
	primary.Kill()
	wantGoingOn("the primary was killed")
	ok(primary.Restart(t.Context()))
	wantGoingOn("it was started again")

	others, err := set.Secondaries(t.Context())
	ok(err)
	realtest.Pause(t, others...)
	s.becomes("/readyz", 503, `"mongodb": {`+"\n"+`      "ok": false`)
	for _, m := range others {
		m.Resume()
	}
	wantGoingOn("the majority was lost and is back")

	calm()
	stopAsking()
	for post := range loadPosts {
		realtest.Eventually(t, patience, "every comment is counted", func() bool { return p.displayed("post_counters", post) == p.counted(post) })
	}
	p.want(0, "reconciler", "verify", "--reconciler-judge-timeout", "15s")
	s.terminate()
	if code := s.ended(); code != 0 || s.logged("position lost: started afresh, every counter of the source is marked for a recount") != nil {
		t.Errorf("exit %d\n%s", code, s.log)
	}
}

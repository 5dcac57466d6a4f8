package incrementer_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/checkpoint"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
)

const (
	// stepDown is how long a member cannot be elected after it stepped down; a test steps down more often than that.
	stepDown = 5 * time.Second
	// lagLimit and within: so little may a lane lag so soon after the last failover.
	lagLimit = 5 * time.Second
	within   = 30 * time.Second
	// recovery is how long a set may take until it serves again: a member that fails to follow another one does not try
	// that one again for up to a minute.
	recovery = 2 * time.Minute
)

// shaken is a world on a set of three members, a lane that follows it, and writers that go on whatever happens.
type shaken struct {
	*world
	set   *realtest.ReplicaSet
	owner *owner
	calm  func() // ends the writing
	began time.Time
	away  time.Duration // the longest time until a majority took a write again
}

func newShaken(t *testing.T) *shaken {
	t.Helper()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	w := newWorldOn(t, set.URI(), realtest.Client(t, set.URI()))
	w.begin()
	w.activate()
	w.faulty = true
	s := &shaken{world: w, set: set, began: time.Now()}
	s.owner = w.follow(following{client: realtest.Client(t, set.URI()), batchEvents: 50})
	writers := []func(){w.keepChurning(), w.keepChurning()}
	s.calm = func() {
		for _, stop := range writers {
			stop()
		}
	}
	return s
}

// waitServing waits until the set takes writes, which is no business of the lane's.
func (s *shaken) waitServing() {
	s.t.Helper()
	began := time.Now()
	realtest.Eventually(s.t, recovery, "a majority takes a write", func() bool {
		s.owner.wantRunning(s.t)
		ctx, cancel := context.WithTimeout(s.t.Context(), within)
		defer cancel()
		_, err := s.database().Collection("times").InsertOne(ctx, bson.D{})
		return err == nil
	})
	s.away = max(s.away, time.Since(began))
}

// wantMoves waits until the lane has committed n times more, as it says itself, in time once the set serves.
func (s *shaken) wantMoves(n int64) {
	s.t.Helper()
	s.waitServing()
	from := s.owner.State.View().At.Seq
	realtest.Eventually(s.t, within, fmt.Sprintf("the lane moves %d times", n), func() bool {
		s.owner.wantRunning(s.t)
		return s.owner.State.View().At.Seq >= from+n
	})
}

// wantSteady holds the lane to its promises after n failovers: it has caught up in time, under load as it is; then, with
// the writers stopped, every counter is exact, and nothing was given up on the way.
func (s *shaken) wantSteady(n int) {
	s.t.Helper()
	s.waitServing()
	last := time.Now()
	s.wantMoves(2)
	var view incrementer.View
	realtest.Eventually(s.t, within-time.Since(last), fmt.Sprint("a lag below ", lagLimit), func() bool {
		view = s.owner.State.View()
		return view.Owned && view.LastErr == nil && view.Lag < lagLimit
	})
	after := time.Since(last)
	s.calm()
	s.wantExact()
	s.owner.wantRunning(s.t)
	s.wantUnmarked()
	s.t.Logf("%d failovers in %v, the set was away for up to %v; %v events; a lag of %v was seen %v after the last; the lane was opened again %v times", n,
		time.Since(s.began).Round(time.Second), s.away.Round(time.Millisecond), s.owner.metric(s.t, "incrementer_events_consumed_total"),
		view.Lag.Round(time.Millisecond), after.Round(time.Millisecond), s.owner.metric(s.t, "incrementer_stream_restarts_total"))
	s.check(ignoreCancelled(s.owner.stop()))
	s.wantEqual()
}

func (s *shaken) primary() *realtest.Mongod {
	s.t.Helper()
	primary, err := s.set.Primary(s.t.Context())
	s.check(err)
	return primary
}

func (s *shaken) secondaries() []*realtest.Mongod {
	s.t.Helper()
	secondaries, err := s.set.Secondaries(s.t.Context())
	s.check(err)
	return secondaries
}

func TestStepdownsUnderLoadLoseNoEventAndApplyNoneTwice(t *testing.T) {
	t.Parallel()
	s := newShaken(t)
	n := soak(3, 7)
	for range n {
		s.wantMoves(3)
		_, err := s.set.StepDown(t.Context(), stepDown)
		s.check(err)
	}
	s.wantSteady(n)
}

func TestAPrimaryThatIsKilledUnderLoadLosesNoEventAndAppliesNoneTwice(t *testing.T) {
	t.Parallel()
	s := newShaken(t)
	n := soak(3, 7)
	for range n {
		s.wantMoves(3)
		killed := s.primary()
		killed.Kill() // what it had not replicated is rolled back when it comes again
		s.wantMoves(3)
		s.check(killed.Restart(t.Context()))
	}
	s.wantSteady(n)
}

// committed is the checkpoint that a majority is known to have, as one member knows it, be it alone.
func (s *shaken) committed(member *realtest.Mongod) checkpoint.Checkpoint {
	s.t.Helper()
	at, err := checkpoint.NewStore(realtest.Client(s.t, member.URI()), s.stateName).Load(s.t.Context(), source)
	s.check(err)
	return at
}

func TestALaneThatLosesTheMajorityClaimsNothingAndGoesOnWhenItIsBack(t *testing.T) {
	t.Parallel()
	s := newShaken(t)
	lose := []struct {
		what    string
		knowing bool // the one that is left knows what a majority has
		away    func(t *testing.T, primary *realtest.Mongod, others []*realtest.Mongod) (lonely *realtest.Mongod, back func())
	}{
		{"both secondaries are paused", true, func(t *testing.T, primary *realtest.Mongod, others []*realtest.Mongod) (*realtest.Mongod, func()) {
			realtest.Pause(t, others...)
			return primary, func() {
				for _, m := range others {
					m.Resume()
				}
			}
		}},
		{"the primary and a secondary are killed", false, func(t *testing.T, primary *realtest.Mongod, others []*realtest.Mongod) (*realtest.Mongod, func()) {
			primary.Kill()
			others[0].Kill()
			return others[1], func() {
				// Both at once: neither gets ready while it is alone with the third.
				errs := make(chan error, 2)
				for _, m := range []*realtest.Mongod{primary, others[0]} {
					go func() { errs <- m.Restart(t.Context()) }()
				}
				s.check(<-errs)
				s.check(<-errs)
			}
		}},
	}
	n := soak(2, 3)
	for i := range n {
		s.wantMoves(3)
		primary := s.primary()
		lonely, back := lose[i%2].away(t, primary, s.secondaries())
		direct := realtest.Client(t, lonely.URI())
		realtest.Eventually(t, within, "no member takes writes", func() bool {
			var hello struct {
				Primary bool `bson:"isWritablePrimary"`
			}
			return direct.Database("admin").RunCommand(t.Context(), bson.D{{Key: "hello", Value: 1}}).Decode(&hello) == nil && !hello.Primary
		})
		until := time.Now().Add(3 * time.Second)
		realtest.Eventually(t, within, "some seconds have passed", func() bool {
			view, committed := s.owner.State.View(), s.committed(lonely)
			if lose[i%2].knowing && committed.Seq < view.At.Seq {
				t.Fatalf("the lane says that it is at %d, a majority has %d", view.At.Seq, committed.Seq)
			}
			s.owner.wantRunning(t)
			return time.Now().After(until)
		})
		standing := s.owner.State.View().At
		back()
		s.wantMoves(1)
		if now := s.at(); now.Seq < standing.Seq || now.Position.Before(standing.Position) {
			t.Errorf("%s: the lane had said %d, %v and goes on from %d, %v", lose[i%2].what, standing.Seq, standing.Position, now.Seq, now.Position)
		}
	}
	s.wantSteady(n)
}

func TestRowsThatAreRolledBackWereNeverCounted(t *testing.T) {
	t.Parallel()
	s := newShaken(t)
	n := soak(1, 5)
	began := s.now()
	for i := range n {
		s.wantMoves(3)
		ghost := fmt.Sprint("ghost ", i)
		primary, others := s.primary(), s.secondaries()
		direct := realtest.Client(t, primary.URI()).Database(s.name).Collection(source,
			options.Collection().SetWriteConcern(&writeconcern.WriteConcern{W: 1, Journal: new(true)}).SetReadConcern(readconcern.Local()))
		release := realtest.HoldReplication(t, others...)
		rows := s.someRows(20)
		for j := range rows {
			rows[j][1].Value, rows[j][2].Value = ghost, ghost // post, author
		}
		_, err := direct.InsertMany(t.Context(), rows)
		s.check(err)
		of := bson.D{{Key: "post", Value: ghost}}
		there, err := direct.CountDocuments(t.Context(), of)
		s.check(err)
		if there != 20 {
			t.Fatalf("of 20 rows the isolated primary has %d", there)
		}
		during(t, time.Second) // the lane has the time to do what it must not
		primary.Kill()
		release()
		s.wantMoves(3) // of another primary: what it commits is later than all that the killed one has
		s.check(primary.Restart(t.Context()))
		realtest.Eventually(t, recovery, "the rows are rolled back", func() bool {
			there, err := direct.CountDocuments(t.Context(), of)
			return err == nil && there == 0
		})
	}
	s.wantSteady(n)
	counted := s.keysCounted(began)
	if len(counted) < posts {
		t.Errorf("of the posts and authors, only %d were counted", len(counted))
	}
	for key := range counted {
		if strings.HasPrefix(key, "ghost") {
			t.Errorf("a majority has seen a count of %q, whose rows were rolled back", key)
		}
	}
}

// now is a cluster time that a majority has.
func (w *world) now() bson.Timestamp {
	w.t.Helper()
	session, err := w.client.StartSession()
	w.check(err)
	defer session.EndSession(w.t.Context())
	_, err = w.database().Collection("times").InsertOne(mongo.NewSessionContext(w.t.Context(), session), bson.D{})
	w.check(err)
	return *session.OperationTime()
}

// keysCounted are the keys of all counter documents that a majority has ever had since then, whatever became of them.
func (w *world) keysCounted(since bson.Timestamp) map[string]bool {
	w.t.Helper()
	end := w.now()
	changes, err := w.database().Watch(w.t.Context(), mongo.Pipeline{}, options.ChangeStream().SetStartAtOperationTime(&since))
	w.check(err)
	defer func() { _ = changes.Close(w.t.Context()) }()
	keys := map[string]bool{}
	for changes.Next(w.t.Context()) {
		change := changes.Current
		if t, i := change.Lookup("clusterTime").Timestamp(); !(bson.Timestamp{T: t, I: i}).Before(end) {
			return keys
		}
		if strings.HasPrefix(change.Lookup("ns", "coll").StringValue(), target) {
			id := change.Lookup("documentKey", "_id")
			if text, ok := id.StringValueOK(); ok {
				keys[text] = true
			} else {
				keys[id.String()] = true
			}
		}
	}
	w.check(changes.Err())
	w.t.Fatal("the changes have ended")
	return nil
}

func TestAConnectionThatGoesSilentIsGivenUpAndNothingIsLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	proxy := realtest.NewProxy(t, hostOf(t, w.uri))
	cleared := make(chan struct{}, 1)
	o := w.follow(following{batchEvents: 50, client: realtest.Client(t, proxy.URI(), options.Client().
		SetConnectTimeout(500*time.Millisecond).SetServerSelectionTimeout(time.Second).
		SetPoolMonitor(&event.PoolMonitor{Event: func(e *event.PoolEvent) {
			if e.Type == event.ConnectionPoolCleared {
				select {
				case cleared <- struct{}{}:
				default:
				}
			}
		}}))})
	stop := w.keepChurning()
	for range soak(2, 5) {
		w.wantMoves(3)
		// Half open: what either side sends is lost, in the middle of whatever goes on.
		proxy.Silence()
		waitFor(t, cleared, "the client has given up its connections")
		proxy.Heal()
	}
	w.wantMoves(3)
	stop()
	w.wantExact()
	o.wantRunning(t)
	w.check(ignoreCancelled(o.stop()))
	w.wantEqual()
}

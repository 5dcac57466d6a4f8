package checkpoint

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"pgregory.net/rapid"

	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// token is a resume token of the given cluster time.
func token(at bson.Timestamp) bson.Raw {
	data := []byte{
		0x82, byte(at.T >> 24), byte(at.T >> 16), byte(at.T >> 8), byte(at.T), byte(at.I >> 24), byte(at.I >> 16), byte(at.I >> 8), byte(at.I),
	}
	raw, err := bson.Marshal(bson.D{{Key: "_data", Value: hex.EncodeToString(data)}})
	if err != nil {
		panic(err)
	}
	return raw
}

func TestTheNextStateIsCompleteThroughTheInstantBeforeItsToken(t *testing.T) {
	tail := Tail{Deltas: []Delta{{Counter: "a", Delta: 1}}}
	from := Checkpoint{Lane: "l", Seq: 7, Batch: bson.NewObjectID(), Position: bson.Timestamp{T: 10, I: 4}, Tail: tail, Token: token(bson.Timestamp{T: 10, I: 5})}
	for _, c := range []struct {
		what     string
		token    bson.Raw
		position bson.Timestamp
		tail     int
		fails    bool
	}{
		{"the same cluster time keeps the tail", token(bson.Timestamp{T: 10, I: 5}), bson.Timestamp{T: 10, I: 4}, 1, false},
		{"the next one empties it", token(bson.Timestamp{T: 10, I: 6}), bson.Timestamp{T: 10, I: 5}, 0, false},
		{"a second later", token(bson.Timestamp{T: 11, I: 0}), bson.Timestamp{T: 10, I: 1<<32 - 1}, 0, false},
		{"an older one", token(bson.Timestamp{T: 10, I: 4}), bson.Timestamp{}, 0, true},
		{"one of another product", bson.Raw("\x05\x00\x00\x00\x00"), bson.Timestamp{}, 0, true},
	} {
		to, err := from.Next(c.token)
		if c.fails {
			if err == nil || !to.Same(from) {
				t.Errorf("%s: %+v, %v", c.what, to, err)
			}
			continue
		}
		if err != nil || to.Position != c.position || len(to.Tail.Deltas) != c.tail || to.Seq != 8 || to.Batch == from.Batch || string(to.Token) != string(c.token) {
			t.Errorf("%s: %+v, %v", c.what, to, err)
		}
	}
}

func TestAPositionNeverGoesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := Checkpoint{Lane: "l", Seq: 1, Position: bson.Timestamp{T: 5, I: 0}}
		for range rapid.IntRange(1, 20).Draw(t, "moves") {
			to := bson.Timestamp{T: uint32(rapid.IntRange(4, 8).Draw(t, "T")), I: uint32(rapid.IntRange(0, 3).Draw(t, "I"))}
			next, err := at.Next(token(to))
			if older := stream.Before(to).Before(at.Position); older != (err != nil) {
				t.Fatalf("from %v to a token of %v: %v", at.Position, to, err)
			}
			if next.Position.Before(at.Position) || err == nil && next.Same(at) {
				t.Fatalf("from %v to %v", at.Position, next.Position)
			}
			at = next
		}
	})
}

// place is a store of its own on the shared server.
func place(t testing.TB) (*Store, *mongo.Client, string) {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	name := realtest.DatabaseOn(t, client)
	return NewStore(client, name), client, name
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// begin starts a lane as an owner does.
func begin(t testing.TB, s *Store, lane string) Checkpoint {
	t.Helper()
	position, err := s.Now(t.Context(), lane)
	check(t, err)
	from := Checkpoint{Lane: lane}
	to := Checkpoint{Lane: lane, Seq: 1, Batch: bson.NewObjectID(), Position: position, Counters: map[string]Counting{"a": {Hash: "h", Since: position}}}
	check(t, move(t.Context(), s, from, to))
	return to
}

// move commits one compare-and-set.
func move(ctx context.Context, s *Store, from, to Checkpoint) error {
	return s.client.UseSession(ctx, func(ctx context.Context) error {
		session := mongo.SessionFromContext(ctx)
		check := session.StartTransaction(options.Transaction().SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority()))
		if check != nil {
			return check
		}
		if err := s.Advance(ctx, from, to); err != nil {
			return errors.Join(err, session.AbortTransaction(ctx))
		}
		return session.CommitTransaction(ctx)
	})
}

func TestACheckpointMovesFromExactlyTheStateThatWasRead(t *testing.T) {
	s, _, _ := place(t)
	if _, err := s.Load(t.Context(), "l"); !errors.Is(err, ErrNone) {
		t.Errorf("a lane that has never started loads as %v", err)
	}
	at := begin(t, s, "l")
	next := func(from Checkpoint) Checkpoint {
		to, err := from.Next(token(bson.Timestamp{T: from.Position.T + 1, I: 1}))
		check(t, err)
		to.Tail = Tail{Deltas: []Delta{{Counter: "a", Key: bson.RawValue{Type: bson.TypeInt32, Value: []byte{7, 0, 0, 0}}, Delta: -3}}}
		return to
	}
	to := next(at)
	number, batch, fresh, gone := at, at, at, at
	number.Seq++
	batch.Batch = bson.NewObjectID()
	fresh.Seq = 0
	gone.Lane = "another"
	for what, from := range map[string]Checkpoint{"another number": number, "another batch": batch, "a first start": fresh, "another lane": gone} {
		if err := move(t.Context(), s, from, to); !errors.Is(err, ErrFenced) {
			t.Errorf("from %s: %v", what, err)
		}
	}
	check(t, move(t.Context(), s, at, to))
	stored, err := s.Load(t.Context(), "l")
	check(t, err)
	if !stored.Same(to) || stored.Position != to.Position || string(stored.Token) != string(to.Token) ||
		stored.Tail.Deltas[0].Delta != -3 || stored.Tail.Deltas[0].Key.Int32() != 7 || stored.Counters["a"] != to.Counters["a"] {
		t.Errorf("stored is %+v, want %+v", stored, to)
	}
	if time.Since(stored.UpdatedAt) > time.Minute {
		t.Errorf("updated at %v", stored.UpdatedAt)
	}
	if err := move(t.Context(), s, at, to); !errors.Is(err, ErrFenced) {
		t.Errorf("the same move twice: %v", err)
	}
	// A restart leaves no token behind.
	back := to
	back.Seq, back.Batch, back.Token = to.Seq+1, bson.NewObjectID(), nil
	check(t, move(t.Context(), s, to, back))
	if stored, err = s.Load(t.Context(), "l"); err != nil || stored.Token != nil || stored.Start().Token != nil || stored.Start().Position != back.Position {
		t.Errorf("a restart starts at %+v, %v", stored.Start(), err)
	}
}

func TestOfManyWhoMoveTheSameStateOneDoes(t *testing.T) {
	s, _, _ := place(t)
	at := begin(t, s, "l")
	for range 10 {
		var moving sync.WaitGroup
		var won atomic.Int64
		var winner atomic.Value
		for range 6 {
			moving.Go(func() {
				to, err := at.Next(token(bson.Timestamp{T: at.Position.T + 1, I: 1}))
				if err != nil {
					t.Error(err)
					return
				}
				err = move(t.Context(), s, at, to)
				var server mongo.ServerError
				switch {
				case err == nil:
					won.Add(1)
					winner.Store(to)
				case errors.Is(err, ErrFenced), errors.As(err, &server) && server.HasErrorCode(112): // WriteConflict
				default:
					t.Errorf("a loser got %v", err)
				}
			})
		}
		moving.Wait()
		stored, err := s.Load(t.Context(), "l")
		check(t, err)
		if won.Load() != 1 || !stored.Same(winner.Load().(Checkpoint)) {
			t.Fatalf("%d moves from %d, stored is %d", won.Load(), at.Seq, stored.Seq)
		}
		at = stored
	}
}

func TestAllListsTheLanesThatHaveStarted(t *testing.T) {
	s, client, _ := place(t)
	for _, lane := range []string{"b", "a", "c/1"} {
		begin(t, s, lane)
	}
	_, err := s.Now(t.Context(), "never started")
	check(t, err)
	all, err := s.All(t.Context())
	check(t, err)
	names := ""
	for _, c := range all {
		names += c.Lane + " "
	}
	if names != "a b c/1 " {
		t.Errorf("listed are %s", names)
	}
	// In a snapshot, as of it.
	before := *must(t, client).OperationTime()
	begin(t, s, "d")
	session, err := client.StartSession(options.Session().SetSnapshot(true).SetSnapshotTime(before))
	check(t, err)
	defer session.EndSession(context.WithoutCancel(t.Context()))
	if all, err = s.All(mongo.NewSessionContext(t.Context(), session)); err != nil || len(all) != 3 {
		t.Errorf("in a snapshot before the last start %d are listed, %v", len(all), err)
	}
}

// must is a session that knows the present cluster time.
func must(t testing.TB, client *mongo.Client) *mongo.Session {
	t.Helper()
	session, err := client.StartSession()
	check(t, err)
	t.Cleanup(func() { session.EndSession(context.WithoutCancel(t.Context())) })
	check(t, client.Ping(mongo.NewSessionContext(t.Context(), session), nil))
	return session
}

func TestTakingALaneNeedsNoPrivilegeBesideItsOwnCollections(t *testing.T) {
	server := realtest.Private(t, realtest.Options{Auth: true})
	root := realtest.Client(t, server.URI())
	const state = "state"
	check(t, root.Database(state).CreateCollection(t.Context(), Collection))
	check(t, root.Database("admin").RunCommand(t.Context(), bson.D{
		{Key: "createUser", Value: "plain"}, {Key: "pwd", Value: "secret"},
		{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "readWrite"}, {Key: "db", Value: state}}}},
	}).Err())
	plain := func() *Store {
		return NewStore(realtest.Client(t, server.URI(), options.Client().SetAuth(options.Credential{Username: "plain", Password: "secret"})), state)
	}
	dead, alive := plain(), plain()
	at := begin(t, dead, "l")
	check(t, dead.Take(t.Context(), "l"))
	session, err := dead.Session("l")
	check(t, err)
	check(t, session.StartTransaction())
	to, err := at.Next(token(bson.Timestamp{T: at.Position.T + 1, I: 1}))
	check(t, err)
	check(t, dead.Advance(mongo.NewSessionContext(t.Context(), session), at, to))

	check(t, alive.Take(t.Context(), "l"))
	realtest.Eventually(t, 10*time.Second, "the dead owner's transaction is gone", func() bool {
		return move(t.Context(), alive, at, to) == nil
	})
	session.EndSession(t.Context())
}

func TestTheLastOwnersOfALaneAreRemembered(t *testing.T) {
	s, client, name := place(t)
	var stores []*Store
	for range keptSessions + 3 {
		stores = append(stores, NewStore(client, name))
	}
	remembered := func() []bson.Raw {
		var lease struct{ Sessions []bson.Raw }
		check(t, client.Database(name).Collection(LeasesCollection).FindOne(t.Context(), bson.D{{Key: "_id", Value: "l"}}).Decode(&lease))
		return lease.Sessions
	}
	for i, store := range stores {
		check(t, store.Take(t.Context(), "l"))
		check(t, store.Take(t.Context(), "l")) // again, as every reopening does
		mine, err := store.Session("l")
		check(t, err)
		if got := remembered(); len(got) != min(i+1, keptSessions) || fmt.Sprint(got[0]) != fmt.Sprint(mine.ID()) {
			t.Fatalf("after %d owners %d are remembered, the last one %v", i+1, len(got), got[0])
		}
	}
	check(t, s.Take(t.Context(), "another"))
	if one, err := s.Session("another"); err != nil {
		t.Error(err)
	} else if two, _ := s.Session("another"); one != two {
		t.Error("a lane has two sessions in one process")
	}
}

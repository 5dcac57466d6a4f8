package counter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// onCommit is a client that calls do before it sends its first commit, with the session's id.
func onCommit(t testing.TB, uri string, do func(session bson.Raw)) *mongo.Client {
	t.Helper()
	var once sync.Once
	return realtest.Client(t, uri, options.Client().SetServerSelectionTimeout(5*time.Second).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "commitTransaction" {
				once.Do(func() { do(e.Command.Lookup("lsid").Document()) })
			}
		},
	}))
}

func proxyTo(t testing.TB, uri string) *realtest.Proxy {
	t.Helper()
	parsed, err := url.Parse(uri)
	if err != nil {
		t.Fatal(err)
	}
	return realtest.NewProxy(t, parsed.Host)
}

func TestALostCommitIsNotTakenForAnotherOwnersOfTheSameNumber(t *testing.T) {
	for _, sameEvents := range []bool{true, false} {
		t.Run(fmt.Sprint("same events ", sameEvents), func(t *testing.T) {
			r := newRig(t, 1, 1000)
			one, two := r.after(1), r.after(2)
			mine := batchOf(rise(eventToken(one, 1), "x"), rise(eventToken(one, 2), "y"))
			theirs := mine
			if !sameEvents { // the other one had read further
				theirs = batchOf(append(mine.Events, rise(eventToken(two, 1), "z"))...)
			}
			proxy := proxyTo(t, realtest.Shared(t).URI())
			other := r.another(r.client, 1000)
			// Our commit never reaches the server, which gives the transaction up; the other owner commits the number.
			client := onCommit(t, proxy.URI(), func(session bson.Raw) {
				proxy.Cut()
				r.check(r.client.Database("admin").RunCommand(context.WithoutCancel(t.Context()),
					bson.D{{Key: "killSessions", Value: bson.A{session}}}).Err())
				other.at = r.at
				other.apply(theirs)
				proxy.Heal()
			})
			us := r.another(client, 1000)
			at, err := us.applier.Apply(t.Context(), r.at, mine)
			if !errors.Is(err, checkpoint.ErrFenced) || !at.Same(r.at) {
				t.Fatalf("at %d with %v, want to be fenced at %d", at.Seq, err, r.at.Seq)
			}
			if len(us.applied) != 0 {
				t.Errorf("%d transactions of ours counted as applied", len(us.applied))
			}
			if other.at.Seq != r.at.Seq+1 {
				t.Fatalf("the other owner committed number %d", other.at.Seq)
			}
			us.load()
			if !us.at.Same(other.at) {
				t.Errorf("reloaded at %d, want the other owner's %d", us.at.Seq, other.at.Seq)
			}
			us.apply(batchOf(rise(eventToken(two, 2), "x")))
			want := map[string]int64{`"x"`: 2, `"y"`: 1}
			if !sameEvents {
				want[`"z"`] = 1
			}
			r.wantLive(want)
		})
	}
}

func TestACommitThatCameTrueBehindALostAnswerIsKnownByItsBatchID(t *testing.T) {
	r := newRig(t, 1, 1000)
	proxy := proxyTo(t, realtest.Shared(t).URI())
	healing := make(chan struct{})
	client := onCommit(t, proxy.URI(), func(bson.Raw) {
		proxy.Drop(0)
		go func() {
			defer close(healing)
			// Only when the commit is there, so that no retry of it brings the answer.
			for there := false; !there && t.Context().Err() == nil; {
				stored, err := r.checkpoints.Load(t.Context(), rigLane)
				there = err == nil && stored.Seq == r.at.Seq+1
			}
			proxy.Heal()
		}()
	})
	us := r.another(client, 1000)
	us.at = r.at
	us.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	<-healing
	if len(us.applied) != 1 || us.at.Seq != r.at.Seq+1 {
		t.Errorf("applied %d times, at %d", len(us.applied), us.at.Seq)
	}
	r.wantLive(map[string]int64{`"x"`: 1})
}

func TestACommitThatTimedOutLeavesTheSessionUsable(t *testing.T) {
	r := newRig(t, 1, 1000)
	const name = "timed out"
	us := r.another(realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetAppName(name)), 1000)
	us.at = r.at
	// MaxTimeMSExpired: the driver leaves the session inside the transaction. More often than one commit is tried.
	realtest.FailCommand(t, r.client, realtest.Failure{Commands: []string{"commitTransaction"}, AppName: name, Code: 50, Times: 2 * commitRetries})
	us.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	us.apply(batchOf(rise(eventToken(r.after(2), 1), "x")))
	r.wantLive(map[string]int64{`"x"`: 2})
}

func TestATransactionIsLimitedWithoutADeadlineInItsContext(t *testing.T) {
	ctx, cancel := limit(t.Context(), time.Millisecond)
	defer cancel()
	if _, has := ctx.Deadline(); has {
		t.Error("with a deadline the driver repeats a commit without a pause")
	}
	<-ctx.Done()
	again, cancel := limit(t.Context(), time.Hour)
	cancel()
	<-again.Done()
}

func TestConflictsHalveTheTransactionAndSuccessLetsItGrowAgain(t *testing.T) {
	const keys = 2000
	r := newRig(t, 1, keys)
	targets := r.client.Database(r.name).Collection("targets")
	documents := make([]any, keys)
	events := make([]stream.Event, keys)
	for i := range keys {
		documents[i] = bson.D{{Key: "_id", Value: i}}
		events[i] = rise(eventToken(r.after(1), i+1), i)
	}
	_, err := targets.InsertMany(t.Context(), documents)
	r.check(err)

	// The application updates the same documents, each write by itself, well over a hundred times a second.
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	var written atomic.Int64
	for writer := range 2 {
		writing.Go(func() {
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for i := writer; ctx.Err() == nil; i += 7919 {
				_, err := targets.UpdateOne(ctx, bson.D{{Key: "_id", Value: i % keys}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "views", Value: 1}}}})
				if ctx.Err() == nil {
					if err != nil {
						t.Errorf("update a counter document: %v", err)
					}
					written.Add(1)
				}
				<-tick.C
			}
		})
	}
	realtest.Eventually(t, 10*time.Second, "the application is at it", func() bool { return written.Load() > 10 })
	began, rounds := time.Now(), 0
	for ; len(r.retried) == 0 && rounds < 20; rounds++ {
		for i := range events {
			events[i] = rise(eventToken(r.after(1+rounds), i+1), i)
		}
		r.apply(batchOf(events...))
	}
	took := time.Since(began)
	cancel()
	writing.Wait()
	t.Logf("%d transactions in %v, beside %d updates; %d attempts failed", len(r.applied), took, written.Load(), len(r.retried))
	if len(r.retried) == 0 || len(r.applied) < 2 {
		t.Error("no conflict: the test proves nothing")
	}
	r.applied = nil
	const more = 6 // transactions, of twice as many events each
	for n := range more {
		for i := range events {
			events[i] = rise(eventToken(r.after(30+n), i+1), i)
		}
		r.apply(batchOf(events...))
	}
	if last := r.applied[len(r.applied)-1]; last.Events != keys {
		t.Errorf("after the application has stopped a transaction holds %d of %d events", last.Events, keys)
	}
	for key, n := range r.live() {
		if n != int64(rounds+more) {
			t.Fatalf("%s is %d, want %d", key, n, rounds+more)
		}
	}
}

func TestATransactionThatIsTooLargeForTheServerIsHalved(t *testing.T) {
	const name = "too large"
	r := newRig(t, 1, 8)
	us := r.another(realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetAppName(name)), 8)
	us.at = r.at
	var events []stream.Event
	for i := range 8 {
		events = append(events, rise(eventToken(r.after(1), i+1), i))
	}
	// TransactionTooLargeForCache. It fails a second time when it is no smaller.
	realtest.FailCommand(t, r.client, realtest.Failure{Commands: []string{"update"}, AppName: name, Code: 388, Times: 2})
	us.apply(batchOf(events...))
	if first := us.applied[0].Events; first != 2 {
		t.Errorf("after two failures the first transaction holds %d of 8 events", first)
	}
	if got := len(r.live()); got != 8 {
		t.Errorf("%d of 8 keys counted", got)
	}
}

func TestTwoThatInsertTheSameKeyAtOnceBothCount(t *testing.T) {
	// Each inserts its counter's field into a document that neither finds: a duplicate key, which is nobody's fault.
	r := newRig(t, 1, 1000)
	targets := r.client.Database(r.name).Collection("targets")
	at := r.after(1)
	var inserting sync.WaitGroup
	for key := range 300 {
		inserting.Go(func() {
			_, _ = targets.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: key}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "views", Value: 1}}}}, options.UpdateOne().SetUpsert(true))
		})
	}
	for key := range 300 {
		r.apply(batchOf(rise(eventToken(at, key+1), key)))
	}
	inserting.Wait()
	if got := r.live(); len(got) != 300 {
		t.Errorf("%d of 300 keys counted", len(got))
	}
	for _, a := range r.applied {
		if len(a.Apart) > 0 {
			t.Fatalf("set apart: %s", a.Apart[0].Reason)
		}
	}
}

// badDocuments are counter documents that cannot take their increment, by key.
func badDocuments() map[string]bson.D {
	return map[string]bson.D{
		"text":     {{Key: "live_a", Value: "12"}},
		"null":     {{Key: "live_a", Value: nil}},
		"ours":     {{Key: "driftless", Value: 5}},
		"overflow": {{Key: "live_a", Value: int64(math.MaxInt64)}},
		"inside":   {{Key: "driftless", Value: bson.A{}}},
		"refused":  {{Key: "refuse", Value: true}},
	}
}

func TestDocumentsThatRefuseTheirIncrementAreSetApartAndTheOthersGoOn(t *testing.T) {
	r := newRig(t, 1, 1000)
	db := r.client.Database(r.name)
	targets := db.Collection("targets")
	for key, document := range badDocuments() {
		_, err := targets.InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: key}}, document...))
		r.check(err)
	}
	// A validator refuses one, and a unique index refuses to insert a second document without the field.
	r.check(db.RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "targets"}, {Key: "validator", Value: bson.D{
		{Key: "$expr", Value: bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$and", Value: bson.A{"$refuse", "$live_a"}}}}}}},
	}}}).Err())
	_, err := targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "first"}})
	r.check(err)
	_, err = targets.Indexes().CreateOne(t.Context(), mongo.IndexModel{
		Keys:    bson.D{{Key: "slug", Value: 1}},
		Options: options.Index().SetUnique(true).SetPartialFilterExpression(bson.D{{Key: "live_a", Value: bson.D{{Key: "$gte", Value: 1}}}}),
	})
	r.check(err)
	_, err = targets.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: "overflow"}}, bson.D{{Key: "$set", Value: bson.D{{Key: "slug", Value: "taken"}}}})
	r.check(err)
	_, err = targets.InsertMany(t.Context(), []any{
		bson.D{{Key: "_id", Value: "duplicate"}, {Key: "slug", Value: "taken"}},
		bson.D{{Key: "_id", Value: "double"}, {Key: "slug", Value: 1}, {Key: "live_a", Value: 0.5}},
	})
	r.check(err)
	bad := []string{"text", "null", "ours", "overflow", "inside", "refused", "duplicate"}

	var events []stream.Event
	for n := range 3 {
		for _, key := range append([]string{"good", "double"}, bad...) {
			if key == "good" {
				key = fmt.Sprint("good ", n)
			}
			events = append(events, rise(eventToken(r.after(1), len(events)+1), key))
		}
	}
	for i, key := range []string{"good 0", "good 1", "good 2"} { // each has its own slug, but for the bad
		_, err := targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: key}, {Key: "slug", Value: fmt.Sprint(i)}})
		r.check(err)
	}
	r.apply(batchOf(events...))
	if len(r.applied) != 1 || len(r.applied[0].Apart) != len(bad) {
		t.Fatalf("%d transactions, the first with %d set apart", len(r.applied), len(r.applied[0].Apart))
	}
	for _, d := range r.at.Tail.Deltas {
		for _, key := range bad {
			if d.Key.StringValue() == key {
				t.Errorf("%s is in the tail of what is applied", key)
			}
		}
	}
	var found []bson.M
	cursor, err := db.Collection(DeadLettersCollection).Find(t.Context(), bson.D{})
	r.check(err)
	r.check(cursor.All(t.Context(), &found))
	letters := map[string]bson.M{}
	for _, letter := range found {
		letters[fmt.Sprint(letter["key"])] = letter
	}
	for _, key := range bad {
		letter := letters[fmt.Sprintf("%q", key)]
		if letter == nil || letter["delta"] != int64(3) || letter["reason"] == "" || letter["lane"] != rigLane {
			t.Errorf("%s has the dead letter %v", key, letter)
		}
		n, err := db.Collection(TouchedCollection).CountDocuments(t.Context(), bson.D{{Key: "_id", Value: keyID(r.definitions[0], rawText(key))}})
		if err != nil || n != 1 {
			t.Errorf("%s is not marked: %d, %v", key, n, err)
		}
	}
	for _, key := range []string{"good 0", "good 1", "good 2"} {
		if r.live()[fmt.Sprintf("%q", key)] != 1 {
			t.Errorf("%s was not counted", key)
		}
	}
	// $inc keeps a double: a reconciler sets it apart.
	var double struct {
		Live float64 `bson:"live_a"`
	}
	r.check(targets.FindOne(t.Context(), bson.D{{Key: "_id", Value: "double"}}).Decode(&double))
	if double.Live != 3.5 {
		t.Errorf("double is %v", double.Live)
	}

	// A second batch adds to the same letter.
	r.apply(batchOf(rise(eventToken(r.after(2), 1), "text")))
	var again struct{ Delta, Times int64 }
	r.check(db.Collection(DeadLettersCollection).FindOne(t.Context(), bson.D{{Key: "key", Value: `"text"`}}).Decode(&again))
	if again.Delta != 4 || again.Times != 2 {
		t.Errorf("after two batches the letter says %+v", again)
	}
}

func rawText(s string) bson.RawValue {
	kind, data, err := bson.MarshalValue(s)
	if err != nil {
		panic(err)
	}
	return bson.RawValue{Type: kind, Value: data}
}

func TestMoreBadDocumentsThanAFewStopTheLaneWithTheReason(t *testing.T) {
	r := newRig(t, 1, 20000)
	r.applier.MaxApart = 50 // the full number takes a while
	if os.Getenv("DRIFTLESS_SOAK") != "" {
		r.applier.MaxApart = maxApart
	}
	few := r.applier.MaxApart
	insert := func(from, to int) (events []stream.Event) {
		var documents []any
		for i := from; i < to; i++ {
			documents = append(documents, bson.D{{Key: "_id", Value: i}, {Key: "live_a", Value: "text"}})
			events = append(events, rise(eventToken(r.after(1), i+1), i))
		}
		_, err := r.client.Database(r.name).Collection("targets").InsertMany(t.Context(), documents)
		r.check(err)
		return events
	}
	events := insert(0, few)
	began := time.Now()
	r.apply(batchOf(append(events, rise(eventToken(r.after(1), few+1), "good"))...))
	t.Logf("%d set apart in %v", len(r.applied[0].Apart), time.Since(began))
	r.wantLive(map[string]int64{`"good"`: 1})

	events = append(events, insert(few+1, few+2)...)
	before := len(r.retried)
	at, err := r.applier.Apply(t.Context(), r.at, batchOf(events...))
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "Cannot apply $inc") || !at.Same(r.at) {
		t.Fatalf("at %d: %v", at.Seq, err)
	}
	if n := len(r.retried) - before; n > 0 {
		t.Errorf("tried again %d times", n)
	}
}

func TestAMoveThatNoMajorityHasYetIsNotTakenForAnotherOwners(t *testing.T) {
	r := newRig(t, 1, 1000)
	p := &piece{from: r.at, to: r.at}
	p.to.Seq, p.to.Batch = r.at.Seq+1, bson.NewObjectID()
	if err := r.applier.once.taken(t.Context(), p); err == nil || errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("the state before our own move comes to %v", err)
	}
	r.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	if err := r.applier.once.taken(t.Context(), p); !errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("another move of the same number comes to %v", err)
	}
	p.to = r.at
	if err := r.applier.once.taken(t.Context(), p); err != nil {
		t.Errorf("our own move comes to %v", err)
	}
	_, err := r.client.Database(r.name).Collection(checkpoint.Collection).DeleteMany(t.Context(), bson.D{})
	r.check(err)
	if err := r.applier.once.taken(t.Context(), p); !errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("a checkpoint that is gone comes to %v", err)
	}
}

func TestACancelledContextEndsBetweenTransactionsAndNotInsideOne(t *testing.T) {
	r := newRig(t, 1, 1)
	ctx, cancel := context.WithCancel(t.Context())
	us := r.another(onCommit(t, realtest.Shared(t).URI(), func(bson.Raw) { cancel() }), 1)
	one := r.after(1)
	at, err := us.applier.Apply(ctx, r.at, batchOf(rise(eventToken(one, 1), "x"), rise(eventToken(one, 2), "y")))
	if !errors.Is(err, context.Canceled) || at.Seq != r.at.Seq+1 {
		t.Errorf("at %d after one of two transactions, %v", at.Seq, err)
	}
	r.wantLive(map[string]int64{`"x"`: 1})
}

package counter

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// rig is a lane's applier on a real server, fed with batches made by hand: nothing else follows anything here.
type rig struct {
	t           testing.TB
	client      *mongo.Client
	name        string // of the one database
	definitions []*Definition
	checkpoints *checkpoint.Store
	states      *States
	lane        *Lane
	applier     *Applier
	at          checkpoint.Checkpoint

	mutex   sync.Mutex
	applied []Applied
	retried []error
}

const rigLane = "rows"

// newRig declares counters a, b and so on over keys of any kind, all in one target collection, and starts their lane.
func newRig(t testing.TB, counters int, maxEvents int) *rig {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	r := &rig{t: t, client: client, name: realtest.DatabaseOn(t, client)}
	for i := range counters {
		name := string(rune('a' + i))
		d, err := Define(config.Counter{
			Name: name, Source: rigLane, Key: name, Rows: config.Rows{Database: r.name, Collection: "rows"},
			Target: config.Target{Database: r.name, Collection: "targets", Base: "base_" + name, Live: "live_" + name, Upsert: true},
		})
		r.check(err)
		r.definitions = append(r.definitions, d)
	}
	for _, collection := range []string{
		"targets", checkpoint.Collection, StatesCollection, TouchedCollection, DeadLettersCollection, GapsCollection,
	} {
		r.check(client.Database(r.name).CreateCollection(t.Context(), collection))
	}
	r.join(client, maxEvents)
	r.load()
	return r
}

// join makes this rig's parts those of a process of its own, with its own client.
func (r *rig) join(client *mongo.Client, maxEvents int) {
	r.client = client
	r.checkpoints, r.states = checkpoint.NewStore(client, r.name), NewStates(client, r.name)
	r.lane = NewLane(checkpoint.LaneID{Source: rigLane}, client, r.checkpoints, r.states, r.definitions)
	r.applier = NewApplier(client, r.checkpoints, r.states, r.definitions, r.definitions, maxEvents, r)
}

// another is a second process at the same lane.
func (r *rig) another(client *mongo.Client, maxEvents int) *rig {
	r.t.Helper()
	other := &rig{t: r.t, name: r.name, definitions: r.definitions}
	other.join(client, maxEvents)
	return other
}

func (r *rig) check(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) Applied(a Applied) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.applied = append(r.applied, a)
}

func (r *rig) Retried(_ string, err error) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.retried = append(r.retried, err)
}

// load goes on at the stored checkpoint.
func (r *rig) load() {
	r.t.Helper()
	var err error
	r.at, err = r.lane.Load(r.t.Context(), nil)
	r.check(err)
}

// apply applies a batch, which must go through.
func (r *rig) apply(batch stream.Batch) {
	r.t.Helper()
	var err error
	r.at, err = r.applier.Apply(r.t.Context(), r.at, batch)
	r.check(err)
}

// after is the cluster time n ticks after the lane's start.
func (r *rig) after(n int) bson.Timestamp {
	start := r.at.Counters["a"].Since
	return bson.Timestamp{T: start.T + 1 + uint32(n/10), I: 1 + uint32(n%10)}
}

// eventToken is the token of the n-th event of a cluster time; 0 is the high-water mark, before all its events.
func eventToken(at bson.Timestamp, n int) bson.Raw {
	data := []byte{
		0x82, byte(at.T >> 24), byte(at.T >> 16), byte(at.T >> 8), byte(at.T),
		byte(at.I >> 24), byte(at.I >> 16), byte(at.I >> 8), byte(at.I), byte(n >> 8), byte(n),
	}
	return mustRaw(bson.D{{Key: "_data", Value: hex.EncodeToString(data)}})
}

func mustRaw(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

// rise is an event that adds one to the key of counter a.
func rise(token bson.Raw, key any) stream.Event { return change(token, nil, key) }

// change is an event that takes one off a key of counter a and adds one to another; nil is no key.
func change(token bson.Raw, from, to any) stream.Event {
	doc := bson.D{{Key: "_id", Value: token}}
	for _, side := range []struct {
		name string
		key  any
	}{{"b0", from}, {"a0", to}} {
		if side.key == nil {
			doc = append(doc, bson.E{Key: side.name, Value: nil})
		} else {
			doc = append(doc, bson.E{Key: side.name, Value: bson.D{{Key: "k", Value: side.key}}})
		}
	}
	return stream.Event{Token: token, Doc: mustRaw(doc)}
}

// special is an event without contributions.
func specialOf(token bson.Raw, operation string) stream.Event {
	return stream.Event{Token: token, Doc: mustRaw(bson.D{{Key: "_id", Value: token}, {Key: "s", Value: bson.D{{Key: "op", Value: operation}}}})}
}

// batchOf ends with the token of its last event, as a full answer of the server does.
func batchOf(events ...stream.Event) stream.Batch {
	return stream.Batch{Events: events, Token: events[len(events)-1].Token}
}

// live is live_delta of counter a by key, zeros left out. total must say the same.
func (r *rig) live() map[string]int64 {
	r.t.Helper()
	cursor, err := r.client.Database(r.name).Collection("targets").Find(context.WithoutCancel(r.t.Context()), bson.D{})
	r.check(err)
	found := map[string]int64{}
	for cursor.Next(r.t.Context()) {
		n, _ := cursor.Current.Lookup("live_a").AsInt64OK()
		total, counted := cursor.Current.Lookup("driftless", "a", "total").AsInt64OK()
		if counted && n != total {
			r.t.Errorf("%v: live is %d, total %d", cursor.Current, n, total)
		}
		if n != 0 {
			found[cursor.Current.Lookup("_id").String()] = n
		}
	}
	r.check(cursor.Err())
	return found
}

func (r *rig) wantLive(want map[string]int64) {
	r.t.Helper()
	if got := r.live(); fmt.Sprint(got) != fmt.Sprint(want) {
		r.t.Errorf("live is %v, want %v", got, want)
	}
}

// tailBy is the tail of the lane's checkpoint for counter a by key, zeros left out.
func tailBy(at checkpoint.Checkpoint) map[string]int64 {
	sums := map[string]int64{}
	for _, d := range at.Tail.Deltas {
		if sums[d.Key.String()] += d.Delta; sums[d.Key.String()] == 0 {
			delete(sums, d.Key.String())
		}
	}
	return sums
}

func TestThePositionIsTheInstantBeforeTheLastEventAndTheTailListsWhatIsBeyond(t *testing.T) {
	r := newRig(t, 1, 1000)
	one, two, three := r.after(1), r.after(2), r.after(3)
	for _, step := range []struct {
		what     string
		batch    stream.Batch
		position bson.Timestamp
		tail     map[string]int64
	}{
		{
			"a batch that may end inside a transaction", batchOf(rise(eventToken(one, 1), "x"), rise(eventToken(one, 2), "y")),
			stream.Before(one), map[string]int64{`"x"`: 1, `"y"`: 1},
		},
		{
			"more of the same transaction adds to the tail", batchOf(rise(eventToken(one, 3), "x"), change(eventToken(one, 4), "y", "z")),
			stream.Before(one), map[string]int64{`"x"`: 2, `"z"`: 1},
		},
		{
			"a later event starts a new tail", batchOf(rise(eventToken(one, 5), "x"), rise(eventToken(two, 1), "y")),
			stream.Before(two), map[string]int64{`"y"`: 1},
		},
		{
			"a token beyond the last event empties it",
			stream.Batch{Events: []stream.Event{rise(eventToken(two, 2), "y")}, Token: eventToken(three, 0)},
			stream.Before(three), map[string]int64{},
		},
		{
			"and so does an empty answer", stream.Batch{Token: eventToken(r.after(9), 0)}, stream.Before(r.after(9)), map[string]int64{},
		},
	} {
		seq := r.at.Seq
		r.apply(step.batch)
		stored, err := r.checkpoints.Load(t.Context(), rigLane)
		r.check(err)
		if stored.Position != step.position || fmt.Sprint(tailBy(stored)) != fmt.Sprint(step.tail) || stored.Seq != seq+1 {
			t.Errorf("%s: position %v, tail %v, want %v, %v", step.what, stored.Position, tailBy(stored), step.position, step.tail)
		}
		if !stored.Same(r.at) {
			t.Errorf("%s: the checkpoint returned is not the one stored", step.what)
		}
	}
	r.wantLive(map[string]int64{`"x"`: 3, `"y"`: 2, `"z"`: 1})
}

func TestATailThatIsTooLargeToListIsSaidToBeUntilTheNextClusterTime(t *testing.T) {
	long := string(make([]byte, 12<<10))
	for _, c := range []struct {
		what string
		keys int
		key  func(int) any
		ok   bool
	}{
		{"as many keys as are listed", maxTail, func(i int) any { return i }, true},
		{"one key more", maxTail + 1, func(i int) any { return i }, false},
		// 2,000 of them would not fit into the checkpoint, and the lane would be stuck for good.
		{"keys that are too long together", 100, func(i int) any { return fmt.Sprint(i, long) }, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			r := newRig(t, 1, 10000)
			at := r.after(1)
			events := make([]stream.Event, c.keys)
			for i := range events {
				events[i] = rise(eventToken(at, i+1), c.key(i))
			}
			r.apply(batchOf(events[:c.keys/2]...))
			r.apply(batchOf(events[c.keys/2:]...))
			if r.at.Tail.TooLarge == c.ok || c.ok && len(r.at.Tail.Deltas) != c.keys {
				t.Errorf("%d keys: too large %v, %d listed", c.keys, r.at.Tail.TooLarge, len(r.at.Tail.Deltas))
			}
			r.apply(batchOf(rise(eventToken(at, c.keys+1), "one more")))
			if !r.at.Tail.TooLarge && !c.ok {
				t.Error("a tail that was too large has been taken for a complete one")
			}
			r.apply(batchOf(rise(eventToken(r.after(2), 1), "x")))
			if r.at.Tail.TooLarge || len(r.at.Tail.Deltas) != 1 {
				t.Errorf("the next cluster time has the tail %+v", r.at.Tail)
			}
			if got := len(r.live()); got != c.keys+2 {
				t.Errorf("%d keys counted", got)
			}
		})
	}
}

func TestWhatEndsTheStreamIsNotPassed(t *testing.T) {
	r := newRig(t, 1, 1000)
	one, two := r.after(1), r.after(2)
	end := batchOf(rise(eventToken(one, 1), "x"), specialOf(eventToken(two, 1), "drop"), rise(eventToken(two, 2), "never"))
	at, err := r.applier.Apply(t.Context(), r.at, end)
	if !errors.Is(err, stream.ErrCollectionChanged) {
		t.Fatal(err)
	}
	if string(at.Token) != string(eventToken(one, 1)) || at.Position != stream.Before(one) || len(at.Tail.Deltas) != 1 {
		t.Errorf("the checkpoint is %+v", at)
	}
	again, err := r.applier.Apply(t.Context(), at, batchOf(specialOf(eventToken(two, 1), "drop")))
	if !errors.Is(err, stream.ErrCollectionChanged) || again.Position != at.Position || len(again.Tail.Deltas) != 1 {
		t.Errorf("once more: %+v, %v", again, err)
	}
	r.wantLive(map[string]int64{`"x"`: 1})
}

func TestAStreamThatEndsBeforeItsFirstEventHasNoToken(t *testing.T) {
	r := newRig(t, 1, 1000)
	start := r.at
	at, err := r.applier.Apply(t.Context(), r.at, batchOf(specialOf(eventToken(r.after(1), 1), "drop")))
	if !errors.Is(err, stream.ErrCollectionChanged) || at.Token != nil || at.Position != start.Position {
		t.Errorf("the checkpoint is %+v, %v", at, err)
	}
}

func TestAMissingImageIsNotGuessedAtAndMarksEveryCounter(t *testing.T) {
	r := newRig(t, 2, 1000)
	r.activate()
	one := r.after(1)
	// An update that carries the image after it and not the one before: the old key cannot be known.
	half := stream.Event{Token: eventToken(one, 2), Doc: mustRaw(bson.D{
		{Key: "_id", Value: eventToken(one, 2)},
		{Key: "s", Value: bson.D{{Key: "op", Value: "update"}, {Key: "row", Value: 7}}},
		{Key: "b0", Value: nil}, {Key: "a0", Value: bson.D{{Key: "k", Value: "half"}}},
	})}
	r.apply(batchOf(rise(eventToken(one, 1), "x"), half, rise(eventToken(one, 3), "y")))
	r.wantLive(map[string]int64{`"x"`: 1, `"y"`: 1})
	// The lane's position is the instant before it: a recount there sees nothing of it yet.
	if at := r.stateOf()["a"].After; at != one || !r.at.Position.Before(at) {
		t.Errorf("at %v, a recount after %v is asked for, want %v", r.at.Position, at, one)
	}
	if got := r.applied[0].Missing; len(got) != 1 || got[0].Operation != "update" || got[0].Row.AsInt64() != 7 {
		t.Errorf("missing is %+v", got)
	}
	for name, state := range r.stateOf() {
		if state.State != Rebasing || state.Reason != ReasonMissingImage {
			t.Errorf("counter %s is %s because of %q", name, state.State, state.Reason)
		}
	}
}

func (r *rig) stateOf() map[string]State {
	r.t.Helper()
	all, err := r.states.All(r.t.Context())
	r.check(err)
	return all
}

// activate ends the recounts that a fresh start asks for.
func (r *rig) activate() {
	r.t.Helper()
	for _, state := range r.stateOf() {
		ok, err := r.states.Activate(r.t.Context(), state)
		r.check(err)
		if !ok {
			r.t.Fatalf("counter %s cannot be activated", state.Name)
		}
	}
}

// history is what a lane has been told, for the properties.
type history struct {
	events []stream.Event
	times  []bson.Timestamp
	deltas []map[string]int64
}

// drawHistory draws events in groups of one cluster time, as transactions make them.
func (r *rig) drawHistory(t *rapid.T, from int) history {
	var h history
	for group := range rapid.IntRange(1, 6).Draw(t, "groups") {
		at := r.after(from + group)
		for n := range rapid.IntRange(1, 6).Draw(t, "events") {
			key := func(name string) any {
				if k := rapid.IntRange(-2, 3).Draw(t, name); k >= 0 {
					return k
				}
				return nil
			}
			before, after := key("before"), key("after")
			h.events = append(h.events, change(eventToken(at, n+1), before, after))
			h.times = append(h.times, at)
			delta := map[string]int64{}
			add := func(key any, by int64) {
				if key != nil {
					delta[fmt.Sprintf(`{"$numberInt":"%d"}`, key)] += by
				}
			}
			add(before, -1)
			add(after, 1)
			h.deltas = append(h.deltas, delta)
		}
	}
	return h
}

// sums adds up the deltas of events from..to.
func (h history) sums(from, to int) map[string]int64 {
	sums := map[string]int64{}
	for _, delta := range h.deltas[from:to] {
		for key, n := range delta {
			if sums[key] += n; sums[key] == 0 {
				delete(sums, key)
			}
		}
	}
	return sums
}

// group is the index of the first event that shares the time of event i.
func (h history) group(i int) int {
	for i > 0 && h.times[i-1] == h.times[i] {
		i--
	}
	return i
}

func TestHoweverAHistoryIsCutPositionTailAndCountersAgree(t *testing.T) {
	r := newRig(t, 1, 1000)
	began := 1
	rapid.Check(t, func(t *rapid.T) {
		h := r.drawHistory(t, began)
		began += 10
		before := r.live()
		r.applier.size = rapid.IntRange(1, 8).Draw(t, "size")
		for done := 0; done < len(h.events); {
			n := rapid.IntRange(1, len(h.events)-done).Draw(t, "batch")
			batch := batchOf(h.events[done : done+n]...)
			done += n
			r.apply(batch)
			last := h.times[done-1]
			if r.at.Position != stream.Before(last) {
				t.Fatalf("position %v after an event of %v", r.at.Position, last)
			}
			want, got := h.sums(h.group(done-1), done), tailBy(r.at)
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("tail is %v, applied beyond the position is %v", got, want)
			}
			if rapid.Bool().Draw(t, "reload") {
				r.load()
			}
		}
		after := r.live()
		for key, n := range h.sums(0, len(h.events)) {
			if after[key]-before[key] != n {
				t.Fatalf("%s moved by %d, want %d", key, after[key]-before[key], n)
			}
		}
	})
}

func TestKeysThatTheServerHoldsForOneAreCountedAsOne(t *testing.T) {
	r := newRig(t, 1, 1000)
	one := r.after(1)
	decimal, err := bson.ParseDecimal128("7.00")
	r.check(err)
	keys := []any{int32(7), 7.0, int64(7), decimal}
	var events []stream.Event
	for i, key := range keys {
		events = append(events, rise(eventToken(one, i+1), key))
	}
	r.apply(batchOf(events[:2]...))
	r.apply(batchOf(events[2:]...))
	r.wantLive(map[string]int64{`{"$numberInt":"7"}`: 4})
}

func TestACounterWithoutUpsertIsMarkedInTheStateDatabase(t *testing.T) {
	r := newRig(t, 1, 1000)
	r.definitions[0].Target.Upsert = false
	_, err := r.client.Database(r.name).Collection("targets").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "there"}, {Key: "live_a", Value: int64(5)}})
	r.check(err)
	one := r.after(1)
	r.apply(batchOf(rise(eventToken(one, 1), "there"), rise(eventToken(one, 2), "not there"),
		rise(eventToken(one, 3), "both"), change(eventToken(one, 4), "both", nil)))
	var there struct {
		Live int64 `bson:"live_a"`
	}
	targets := r.client.Database(r.name).Collection("targets")
	r.check(targets.FindOne(t.Context(), bson.D{{Key: "_id", Value: "there"}}).Decode(&there))
	if n, err := targets.CountDocuments(t.Context(), bson.D{}); err != nil || n != 1 || there.Live != 6 {
		t.Errorf("%d documents, live is %d, %v", n, there.Live, err)
	}
	marked, err := r.client.Database(r.name).Collection(TouchedCollection).CountDocuments(t.Context(), bson.D{}, options.Count())
	if err != nil || marked != 3 {
		t.Errorf("%d keys are marked, %v", marked, err)
	}
}

package counter

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

func TestAFreshStartIsAtAMajorityWriteOfItsOwn(t *testing.T) {
	r := newRig(t, 1, 1000)
	var entry struct {
		NS string `bson:"ns"`
	}
	oplog := r.client.Database("local").Collection("oplog.rs")
	r.check(oplog.FindOne(t.Context(), bson.D{{Key: "ts", Value: r.at.Position}}).Decode(&entry))
	if want := r.name + "." + checkpoint.Collection; entry.NS != want {
		t.Errorf("at the start's position the oplog has a write to %q, want %s", entry.NS, want)
	}
	if r.at.Seq != 1 || r.at.Token != nil || r.at.Batch.IsZero() || len(r.at.Tail.Deltas) != 0 {
		t.Errorf("a fresh start is %+v", r.at)
	}
	state := r.stateOf()["a"]
	if state.State != Rebasing || state.Reason != ReasonNew || state.Hash != r.definitions[0].Hash {
		t.Errorf("a new counter is %+v", state)
	}
	if gaps := r.gaps(); len(gaps) != 0 {
		t.Errorf("a first start records the gaps %v", gaps)
	}
}

func TestAStartBesideWritesUnderWayCountsEachOfThemOnce(t *testing.T) {
	r := newRig(t, 1, 1000)
	rows := r.client.Database(r.name).Collection("rows")
	r.check(r.client.Database(r.name).CreateCollection(t.Context(), "rows",
		options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	for range 4 {
		writing.Go(func() {
			for ctx.Err() == nil {
				_, _ = rows.InsertOne(ctx, bson.D{{Key: "a", Value: 1}})
			}
		})
	}
	for n := range 15 {
		lane := r.laneOf(fmt.Sprint("lane", n))
		at, err := lane.Load(t.Context(), nil)
		r.check(err)
		var before int64
		r.check(Snapshot(t.Context(), r.client, at.Position, func(ctx context.Context) error {
			before, err = rows.CountDocuments(ctx, bson.D{})
			return err
		}))
		// From the start up to a later position, which is that of another write of ours.
		end, err := r.checkpoints.Now(t.Context(), "end")
		r.check(err)
		var after int64
		r.check(Snapshot(t.Context(), r.client, end, func(ctx context.Context) error {
			after, err = rows.CountDocuments(ctx, bson.D{})
			return err
		}))
		if counted := r.countUpTo(at.Start(), end); before+counted != after {
			t.Fatalf("%d rows at the start and %d events after it, but %d rows at the end", before, counted, after)
		}
	}
}

// laneOf is the lane of another source that feeds the like counters, which nobody knows yet.
func (r *rig) laneOf(source string) *Lane {
	r.t.Helper()
	var definitions []*Definition
	for _, d := range r.definitions {
		c := d.Counter
		c.Source, c.Name = source, c.Name+"_of_"+source
		other, err := Define(c)
		r.check(err)
		definitions = append(definitions, other)
	}
	return NewLane(checkpoint.LaneID{Source: source}, r.client, r.checkpoints, r.states, definitions)
}

// countUpTo is how many events the stream delivers from start through end.
func (r *rig) countUpTo(start stream.Start, end bson.Timestamp) (events int64) {
	r.t.Helper()
	stages, err := Pipeline(r.definitions, checkpoint.LaneID{})
	r.check(err)
	reader, err := stream.NewChangeStream(r.client, r.name, "rows", stages, 1000).Open(r.t.Context(), start)
	r.check(err)
	defer reader.Close(r.t.Context())
	for {
		batch, err := reader.Next(r.t.Context())
		r.check(err)
		for _, e := range batch.Events {
			at, err := stream.TokenTime(e.Token)
			r.check(err)
			if !at.After(end) {
				events++
			}
		}
		if at, err := stream.TokenTime(batch.Token); err != nil || at.After(end) {
			r.check(err)
			return events
		}
	}
}

func TestAStartThatDiedAfterItsFirstWriteIsMadeAgain(t *testing.T) {
	r := newRig(t, 1, 1000)
	first, err := r.checkpoints.Now(t.Context(), "another")
	r.check(err)
	if _, err := r.checkpoints.Load(t.Context(), "another"); !errors.Is(err, checkpoint.ErrNone) {
		t.Errorf("the first write alone loads as %v", err)
	}
	if all, err := r.checkpoints.All(t.Context()); err != nil || len(all) != 1 {
		t.Errorf("the first write alone is listed: %v, %v", all, err)
	}
	at, err := r.laneOf("another").Load(t.Context(), nil)
	if err != nil || at.Seq != 1 || !first.Before(at.Position) {
		t.Errorf("the second start is at %+v, %v", at, err)
	}
}

func TestOfSeveralStartersAtOnceOneStartsTheLane(t *testing.T) {
	r := newRig(t, 2, 1000)
	for n := range 5 {
		name := fmt.Sprint("lane", n)
		var starting sync.WaitGroup
		lanes := make([]*Lane, 4)
		for i := range lanes {
			other := r.another(r.client, 1000)
			lanes[i] = other.laneOf(name)
			starting.Go(func() {
				_, err := lanes[i].Load(t.Context(), nil)
				if err != nil && !errors.Is(err, checkpoint.ErrFenced) && !retryable(err) {
					t.Errorf("a starter that was late got %v", err)
				}
			})
		}
		starting.Wait()
		first, err := lanes[0].Load(t.Context(), nil)
		r.check(err)
		for _, lane := range lanes {
			at, err := lane.Load(t.Context(), nil)
			if err != nil || !at.Same(first) || at.Seq != 1 {
				t.Errorf("a starter is at %d, another at %d, %v", at.Seq, first.Seq, err)
			}
		}
	}
}

// retryable is what a transaction may meet that another one, or a takeover, gets in the way of: NoSuchTransaction and
// Interrupted, for the latter.
func retryable(err error) bool {
	return hasLabel(err, "TransientTransactionError") || stream.HasCode(err, 251, 11601)
}

// with opens the rig's lane for other definitions, as a process does that has another configuration.
func (r *rig) with(broken map[string]string, definitions ...*Definition) checkpoint.Checkpoint {
	r.t.Helper()
	at, err := NewLane(checkpoint.LaneID{Source: rigLane}, r.client, r.checkpoints, r.states, definitions).Load(r.t.Context(), broken)
	r.check(err)
	return at
}

// rebasing are the counters that wait for a recount, with the reason.
func (r *rig) rebasing() map[string]string {
	r.t.Helper()
	waiting := map[string]string{}
	for name, state := range r.stateOf() {
		if state.State == Rebasing {
			waiting[name] = state.Reason
		}
	}
	return waiting
}

func changed(t testing.TB, d *Definition) *Definition {
	t.Helper()
	c := d.Counter
	c.SoftDelete = "gone"
	other, err := Define(c)
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func TestOnlyTheCounterThatIsNewOrChangedIsMarked(t *testing.T) {
	r := newRig(t, 3, 1000)
	a, b, c := r.definitions[0], r.definitions[1], r.definitions[2]
	r.activate()
	r.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	t1 := r.after(1)

	for _, step := range []struct {
		what        string
		definitions []*Definition
		broken      map[string]string
		marked      map[string]string // with the reason
		moved       bool
	}{
		{"the same again", []*Definition{a, b, c}, nil, nil, false},
		{"in another order", []*Definition{c, a, b}, nil, nil, false},
		{"one removed", []*Definition{a, b}, nil, nil, true},
		{"without it once more", []*Definition{a, b}, nil, nil, false},
		{"and added again", []*Definition{a, b, c}, nil, map[string]string{"c": ReasonNew}, true},
		{"one changed", []*Definition{a, changed(t, b), c}, nil, map[string]string{"b": ReasonChanged}, true},
		{"and changed back", []*Definition{a, b, c}, nil, map[string]string{"b": ReasonChanged}, true},
		{"one removed, one changed", []*Definition{changed(t, a), c}, nil, map[string]string{"a": ReasonChanged}, true},
		{"one replaced by another", []*Definition{changed(t, a), b}, nil, map[string]string{"b": ReasonNew}, true},
		{"all as at first", []*Definition{a, b, c}, nil, map[string]string{"a": ReasonChanged, "c": ReasonNew}, true},
		{"one broken", []*Definition{a, b, c}, map[string]string{"b": "boom"}, map[string]string{"b": ReasonBroken}, true},
		{"still broken", []*Definition{a, b, c}, map[string]string{"b": "boom"}, nil, false},
		{"a second one broken", []*Definition{a, b, c}, map[string]string{"b": "boom", "c": "bang"}, map[string]string{"c": ReasonBroken}, true},
		{"one mended", []*Definition{a, b, c}, map[string]string{"c": "bang"}, map[string]string{"b": ReasonBroken}, true},
		{"the other changed", []*Definition{a, b, changed(t, c)}, nil, map[string]string{"c": ReasonChanged}, true},
	} {
		r.activate()
		before, err := r.checkpoints.Load(t.Context(), rigLane)
		r.check(err)
		at := r.with(step.broken, step.definitions...)
		stored, err := r.checkpoints.Load(t.Context(), rigLane)
		r.check(err)
		if !stored.Same(at) || at.Same(before) == step.moved {
			t.Errorf("%s: at %d after %d, stored %d", step.what, at.Seq, before.Seq, stored.Seq)
		}
		if got := r.rebasing(); !maps.Equal(got, step.marked) {
			t.Errorf("%s: marked are %v, want %v", step.what, got, step.marked)
		}
		if at.Position != before.Position || string(at.Token) != string(before.Token) || len(at.Tail.Deltas) != len(before.Tail.Deltas) {
			t.Errorf("%s: the position has changed", step.what)
		}
		if len(at.Counters) != len(step.definitions) {
			t.Errorf("%s: counts for %v", step.what, slices.Sorted(maps.Keys(at.Counters)))
		}
		for _, d := range step.definitions {
			counting := at.Counters[d.Name]
			// The events of t1 that came before were not counted for a counter taken up now: judge it from t1 on.
			_, marked := step.marked[d.Name]
			if counting.Hash != d.Hash || counting.Broken != step.broken[d.Name] || marked && counting.Since != t1 ||
				!marked && counting != before.Counters[d.Name] {
				t.Errorf("%s: counter %s counts as %+v", step.what, d.Name, counting)
			}
		}
	}
}

func TestACounterTakenUpInsideATransactionIsJudgedAfterItOnly(t *testing.T) {
	const size, batch = 50, 7
	r := newRig(t, 2, batch)
	db := r.client.Database(r.name)
	r.check(db.CreateCollection(t.Context(), "rows",
		options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
	r.check(r.client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			for i := range size {
				if _, err := db.Collection("rows").InsertOne(ctx, bson.D{{Key: "a", Value: i % 3}, {Key: "b", Value: "key"}}); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		return err
	}))

	only := r.definitions[:1]
	at := r.with(nil, only...)
	reader := r.open(at, only, batch)
	applier := NewApplier(r.client, r.checkpoints, r.states, only, only, batch, r)
	for at.Token == nil || len(at.Tail.Deltas) == 0 {
		next, err := reader.Next(t.Context())
		r.check(err)
		at, err = applier.Apply(t.Context(), at, next)
		r.check(err)
	}
	inside, err := stream.TokenTime(at.Token)
	r.check(err)

	at = r.with(nil, r.definitions...)
	if at.Counters["b"].Since != inside || !at.Position.Before(inside) {
		t.Fatalf("taken up inside %v at position %v, judged since %v", inside, at.Position, at.Counters["b"].Since)
	}
	reader = r.open(at, r.definitions, batch)
	applier = NewApplier(r.client, r.checkpoints, r.states, r.definitions, r.definitions, batch, r)
	for read := 0; read < size-batch; {
		if !at.Position.Before(at.Counters["b"].Since) {
			t.Fatalf("judged at %v after %d events, in the middle of the transaction", at.Position, read)
		}
		next, err := reader.Next(t.Context())
		r.check(err)
		read += len(next.Events)
		at, err = applier.Apply(t.Context(), at, next)
		r.check(err)
	}
	_, err = db.Collection("rows").InsertOne(t.Context(), bson.D{{Key: "a", Value: 1}, {Key: "b", Value: "later"}})
	r.check(err)
	for at.Position.Before(inside) {
		next, err := reader.Next(t.Context())
		r.check(err)
		at, err = applier.Apply(t.Context(), at, next)
		r.check(err)
	}
	// Position and tail are now such that a recount there makes b right: what it has applied for the transaction is at
	// or before the position, whole or not.
	for _, d := range at.Tail.Deltas {
		if d.Counter == "b" && d.Key.StringValue() != "later" {
			t.Errorf("the tail still holds %v", d)
		}
	}
}

// open reads the rows from a checkpoint on.
func (r *rig) open(at checkpoint.Checkpoint, definitions []*Definition, batch int) stream.Reader {
	r.t.Helper()
	stages, err := Pipeline(definitions, checkpoint.LaneID{})
	r.check(err)
	reader, err := stream.NewChangeStream(r.client, r.name, "rows", stages, batch).Open(r.t.Context(), at.Start())
	r.check(err)
	r.t.Cleanup(func() { reader.Close(context.WithoutCancel(r.t.Context())) })
	return reader
}

func TestARestartRecordsTheGapAndMarksEveryCounterOfTheLane(t *testing.T) {
	r := newRig(t, 2, 1000)
	r.apply(batchOf(rise(eventToken(r.after(1), 1), "x")))
	r.activate()
	before := r.at
	at, err := r.lane.Restart(t.Context(), "position_lost", map[string]string{"b": "boom"})
	r.check(err)
	if at.Seq != before.Seq+1 || at.Token != nil || len(at.Tail.Deltas) != 0 || !r.at.Counters["a"].Since.Before(at.Position) {
		t.Errorf("restarted at %+v", at)
	}
	for _, d := range r.definitions {
		if c := at.Counters[d.Name]; c.Since != at.Position || c.Hash != d.Hash {
			t.Errorf("counter %s counts as %+v", d.Name, c)
		}
	}
	if at.Counters["b"].Broken != "boom" || at.Counters["a"].Broken != "" {
		t.Errorf("broken is kept as %+v", at.Counters)
	}
	if got := r.rebasing(); got["a"] != ReasonGap || got["b"] != ReasonGap {
		t.Errorf("marked are %v", got)
	}
	gaps := r.gaps()
	if len(gaps) != 1 || gaps[0].Lane != rigLane || gaps[0].Reason != "position_lost" || gaps[0].From != before.Position ||
		gaps[0].To != at.Position || time.Since(gaps[0].At) > time.Minute {
		t.Errorf("recorded are %+v", gaps)
	}
	// The applier of the life before is fenced.
	if _, err := r.applier.Apply(t.Context(), before, batchOf(rise(eventToken(r.after(2), 1), "x"))); !errors.Is(err, checkpoint.ErrFenced) {
		t.Errorf("the life before goes on with %v", err)
	}
	r.wantLive(map[string]int64{`"x"`: 1})
}

func TestACounterThatWaitsForItsFirstCountKeepsThatReason(t *testing.T) {
	r := newRig(t, 2, 1000)
	_, err := r.lane.Restart(t.Context(), "position_lost", nil)
	r.check(err)
	if got := r.rebasing(); got["a"] != ReasonNew || got["b"] != ReasonNew {
		t.Errorf("after a gap before the first count, marked are %v", got)
	}
}

func TestARecountThatBeganBeforeAnotherWasAskedForDoesNotEndIt(t *testing.T) {
	r := newRig(t, 1, 1000)
	asked := r.stateOf()["a"]
	r.check(r.states.Mark(t.Context(), r.definitions[0], ReasonGap))
	if ended, err := r.states.Activate(t.Context(), asked); err != nil || ended {
		t.Errorf("an earlier recount ended a later one: %v, %v", ended, err)
	}
}

func TestTakingALaneEndsTheTransactionsOfThoseBefore(t *testing.T) {
	r := newRig(t, 1, 1000)
	// Three owners before, each of them dead in the middle of a transaction that has moved the checkpoint.
	for range 3 {
		dead := r.another(r.client, 1000)
		dead.load()
		session, err := dead.checkpoints.Session(rigLane)
		r.check(err)
		r.check(session.StartTransaction(transactionOptions()))
		to := dead.at
		to.Seq, to.Batch = to.Seq+1, bson.NewObjectID()
		r.check(dead.checkpoints.Advance(mongo.NewSessionContext(t.Context(), session), dead.at, to))
		t.Cleanup(func() { session.EndSession(context.WithoutCancel(t.Context())) })
	}
	r.load()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // well below the server's own minute
	defer cancel()
	at, err := r.applier.Apply(ctx, r.at, batchOf(rise(eventToken(r.after(1), 1), "x")))
	if err != nil || at.Seq != r.at.Seq+1 {
		t.Errorf("at %d, %v", at.Seq, err)
	}
}

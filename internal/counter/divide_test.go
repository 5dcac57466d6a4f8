package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
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

// newDivided is a rig whose source has n lanes that have just started.
func newDivided(t testing.TB, counters, n int) *rig {
	t.Helper()
	r := newRig(t, counters, 1000)
	r.activate()
	r.divide(n)
	r.check(r.client.Database(r.name).Collection(GapsCollection).Drop(t.Context()))
	return r
}

// lanes are those of a process of its own that is told to divide the source into n.
func (r *rig) lanes(n int) []*Lane {
	r.t.Helper()
	other := r.another(r.client, 1000)
	lanes := make([]*Lane, n)
	for i, id := range checkpoint.Lanes(rigLane, n) {
		lanes[i] = NewLane(id, other.client, other.checkpoints, other.states, other.definitions)
	}
	return lanes
}

// loadOrRestart does for a lane what an incrementer does.
func (r *rig) loadOrRestart(l *Lane) (checkpoint.Checkpoint, error) {
	at, err := l.Load(r.t.Context(), nil)
	if errors.Is(err, checkpoint.ErrPartitions) {
		return l.Restart(r.t.Context(), ReasonPartitions, nil)
	}
	return at, err
}

// divide has a new process divide the source into n lanes, and takes all of them up.
func (r *rig) divide(n int) []*Lane {
	r.t.Helper()
	lanes := r.lanes(n)
	for _, l := range lanes {
		_, err := r.loadOrRestart(l)
		r.check(err)
	}
	return lanes
}

// set are the checkpoints of the source's lanes, all of which must be there.
func (r *rig) set() []checkpoint.Checkpoint {
	r.t.Helper()
	set, err := r.checkpoints.Set(r.t.Context(), rigLane)
	r.check(err)
	all, err := r.checkpoints.All(r.t.Context())
	r.check(err)
	if len(all) != len(set) {
		r.t.Errorf("%d checkpoints of %d lanes", len(all), len(set))
	}
	return set
}

func (r *rig) gaps() (gaps []Gap) {
	r.t.Helper()
	cursor, err := r.client.Database(r.name).Collection(GapsCollection).Find(r.t.Context(), bson.D{})
	r.check(err)
	r.check(cursor.All(r.t.Context(), &gaps))
	return gaps
}

// oneStart fails unless all lanes are at one fresh start.
func oneStart(t testing.TB, set []checkpoint.Checkpoint, n int) {
	t.Helper()
	if len(set) != n {
		t.Fatalf("%d lanes, want %d", len(set), n)
	}
	for i, at := range set {
		if at.Lane != checkpoint.Lanes(rigLane, n)[i].String() || at.Partitions != n || at.Position != set[0].Position || at.Token != nil ||
			at.Identity != set[0].Identity || len(at.Tail.Deltas) != 0 {
			t.Errorf("lane %d of %d starts at %+v, the first at %+v", i, n, at, set[0])
		}
		for name, counting := range at.Counters {
			if counting.Since != at.Position {
				t.Errorf("lane %s counts for %s since %v, and starts at %v", at.Lane, name, counting.Since, at.Position)
			}
		}
	}
}

func TestAllLanesOfASourceStartAtOnePosition(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2, 1000)
	r.check(r.client.Database(r.name).Collection(checkpoint.Collection).Drop(t.Context()))
	r.check(r.client.Database(r.name).Collection(StatesCollection).Drop(t.Context()))
	lanes := r.lanes(4)
	first, err := lanes[2].Load(t.Context(), nil)
	r.check(err)
	epoch := r.stateOf()["a"].Epoch
	for _, l := range lanes {
		at, err := l.Load(t.Context(), nil)
		if r.check(err); at.Position != first.Position || at.Seq != 1 {
			t.Errorf("lane %s starts at %+v", l.ID, at)
		}
	}
	oneStart(t, r.set(), 4)
	if got := r.rebasing(); got["a"] != ReasonNew || got["b"] != ReasonNew || len(r.gaps()) != 0 {
		t.Errorf("marked are %v, gaps %v", got, r.gaps())
	}
	if r.stateOf()["a"].Epoch != epoch {
		t.Error("a lane that was started by another marks the counters again")
	}
}

// TestLanesThatStartAtOnceStartOnce, in one process or in several: what comes late finds its lane started.
func TestLanesThatStartAtOnceStartOnce(t *testing.T) {
	t.Parallel()
	for name, prepare := range map[string]func(*rig){
		"a source that was never followed": func(r *rig) {
			r.check(r.client.Database(r.name).Collection(checkpoint.Collection).Drop(t.Context()))
			r.check(r.client.Database(r.name).Collection(StatesCollection).Drop(t.Context()))
		},
		"one that had a single lane": func(*rig) {},
		"one that had two":           func(r *rig) { r.divide(2) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 1, 1000)
			r.activate()
			prepare(r)
			before := len(r.gaps())
			followed := r.stateOf()["a"].Hash != ""
			var starting sync.WaitGroup
			lanes := append(r.lanes(4), r.lanes(4)...)
			for _, l := range lanes {
				starting.Go(func() {
					realtest.Eventually(t, 30*time.Second, "lane "+l.ID.String()+" to start", func() bool {
						_, err := r.loadOrRestart(l)
						expected := errors.Is(err, checkpoint.ErrFenced) || errors.Is(err, checkpoint.ErrPartitions) || retryable(err)
						if err != nil && !expected {
							t.Errorf("lane %s: %v", l.ID, err)
						}
						return err == nil
					})
				})
			}
			starting.Wait()
			set := r.set()
			oneStart(t, set, 4)
			want := before
			if followed {
				want++
			}
			if gaps := r.gaps(); len(gaps) != want {
				t.Errorf("%d gaps recorded, want %d: %+v", len(gaps), want, gaps)
			}
			for _, l := range lanes {
				if at, err := l.Load(t.Context(), nil); err != nil || at.Seq != set[0].Seq {
					t.Errorf("lane %s is at %d, want %d, %v", l.ID, at.Seq, set[0].Seq, err)
				}
			}
		})
	}
}

// TestALaneThatIsStartedWhileItLooksTakesNothingUpAnew: its counters would be recounted twice.
func TestALaneThatIsStartedWhileItLooksTakesNothingUpAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1000)
	r.check(r.client.Database(r.name).Collection(checkpoint.Collection).Drop(t.Context()))
	r.check(r.client.Database(r.name).Collection(StatesCollection).Drop(t.Context()))
	other := r.lanes(2)[0]
	var before sync.Once
	client := realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if name, _ := e.Command.Lookup("find").StringValueOK(); name == checkpoint.Collection {
				before.Do(func() {
					_, err := other.Load(t.Context(), nil)
					r.check(err)
				})
			}
		},
	}))
	late := r.another(client, 1000)
	lane := NewLane(checkpoint.Lanes(rigLane, 2)[1], client, late.checkpoints, late.states, late.definitions)
	at, err := lane.Load(t.Context(), nil)
	if r.check(err); at.Seq != 1 {
		t.Errorf("the lane is at %d, want the start that the other made", at.Seq)
	}
}

func TestAnotherNumberOfLanesIsANewSetOfThem(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after int }{{1, 4}, {4, 2}, {4, 1}, {2, 4}, {3, 2}} {
		t.Run(fmt.Sprint(c.before, " to ", c.after), func(t *testing.T) {
			t.Parallel()
			r := newDivided(t, 2, c.before)
			r.activate()
			// One lane is ahead of the others, and one counter has never been recounted.
			lanes := r.lanes(c.before)
			ahead := r.lanes(c.before)[c.before-1]
			_, err := ahead.Restart(t.Context(), "position_lost", nil)
			r.check(err)
			r.activate()
			c2 := r.definitions[1].Counter
			c2.Name, c2.Key = "c", "c"
			fresh, err := Define(c2)
			r.check(err)
			former := r.set()
			r.check(r.client.Database(r.name).Collection(GapsCollection).Drop(t.Context()))

			r.definitions = append(r.definitions, fresh)
			for i, l := range r.divide(c.after) {
				if _, err := l.Load(t.Context(), nil); err != nil {
					t.Errorf("lane %d: %v", i, err)
				}
			}
			set := r.set()
			oneStart(t, set, c.after)
			oldest, seq := former[0].Position, int64(0)
			for _, at := range former {
				if at.Position.Before(oldest) {
					oldest = at.Position
				}
				seq = max(seq, at.Seq)
			}
			for _, at := range set {
				if at.Seq <= seq {
					t.Errorf("lane %s is at %d, and one before was at %d: it seems to have gone back", at.Lane, at.Seq, seq)
				}
			}
			gaps := r.gaps()
			if len(gaps) != 1 || gaps[0].Reason != ReasonPartitions || gaps[0].From != oldest || gaps[0].To != set[0].Position {
				t.Errorf("recorded are %+v, want one from %v", gaps, oldest)
			}
			want := map[string]string{"a": ReasonPartitions, "b": ReasonPartitions, "c": ReasonNew}
			if got := r.rebasing(); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("marked are %v, want %v", got, want)
			}
			// Those of before know that they are out of it.
			for _, l := range lanes {
				if _, err := l.Load(t.Context(), nil); !errors.Is(err, checkpoint.ErrPartitions) {
					t.Errorf("lane %s of before: %v", l.ID, err)
				}
			}
		})
	}
}

// TestAnOwnerOfBeforeAppliesNothingOnceTheSourceIsDividedAnew, whether its lane's name goes on or not, and whether it is
// between two batches or in the middle of one.
func TestAnOwnerOfBeforeAppliesNothingOnceTheSourceIsDividedAnew(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, partition int }{{1, 4, 0}, {4, 2, 0}, {4, 2, 3}, {4, 1, 0}, {2, 4, 0}, {2, 4, 1}} {
		t.Run(fmt.Sprintf("lane %d of %d, to %d", c.partition, c.before, c.after), func(t *testing.T) {
			t.Parallel()
			r := newDivided(t, 1, c.before)
			set := r.set()
			old := r.another(r.client, 1000)
			old.at = set[c.partition]
			old.apply(batchOf(rise(eventToken(old.after(1), 1), "x")))
			between := old.at

			// Another owner is in the middle of a transaction that has moved the checkpoint of the same lane.
			middle := r.another(r.client, 1000)
			session, err := middle.checkpoints.Session(old.at.Lane)
			r.check(err)
			_, err = NewLane(checkpoint.Lanes(rigLane, c.before)[c.partition], r.client, middle.checkpoints, middle.states, r.definitions).Load(t.Context(), nil)
			r.check(err)
			r.check(session.StartTransaction(transactionOptions()))
			to := between
			to.Seq, to.Batch = to.Seq+1, bson.NewObjectID()
			inside := mongo.NewSessionContext(t.Context(), session)
			r.check(middle.checkpoints.Advance(inside, between, to))
			t.Cleanup(func() { session.EndSession(context.WithoutCancel(t.Context())) })

			// It is dead or paused: nobody waits for its minute to end.
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			lane := r.lanes(c.after)[0]
			realtest.Eventually(t, 20*time.Second, "the new lanes to start", func() bool {
				_, err := lane.Load(ctx, nil)
				if errors.Is(err, checkpoint.ErrPartitions) {
					_, err = lane.Restart(ctx, ReasonPartitions, nil)
				}
				return err == nil
			})
			oneStart(t, r.set(), c.after)

			if err := session.CommitTransaction(inside); err == nil {
				t.Error("the transaction of the owner before came true")
			}
			batch := batchOf(rise(eventToken(old.after(2), 1), "y"))
			if _, err := old.applier.Apply(t.Context(), between, batch); !errors.Is(err, checkpoint.ErrFenced) {
				t.Errorf("the owner before goes on with %v", err)
			}
			r.wantLive(map[string]int64{`"x"`: 1})
			oneStart(t, r.set(), c.after)
		})
	}
}

func TestALostPositionOfOneLaneLeavesTheOthersWhereTheyAre(t *testing.T) {
	t.Parallel()
	r := newDivided(t, 2, 3)
	lanes := r.divide(3)
	r.activate()
	before := r.set()
	at, err := lanes[1].Restart(t.Context(), "position_lost", nil)
	r.check(err)
	after := r.set()
	for i := range after {
		if same := after[i].Same(before[i]) && after[i].Position == before[i].Position; same == (i == 1) {
			t.Errorf("lane %d is at %+v after %+v", i, after[i], before[i])
		}
	}
	if after[1].Seq != before[1].Seq+1 || !before[1].Position.Before(at.Position) || after[1].Position != at.Position {
		t.Errorf("restarted at %+v", after[1])
	}
	if got := r.rebasing(); got["a"] != ReasonGap || got["b"] != ReasonGap {
		t.Errorf("marked are %v, want every counter of the source", got)
	}
	if gaps := r.gaps(); len(gaps) != 1 || gaps[0].Lane != "rows/1" || gaps[0].From != before[1].Position || gaps[0].To != at.Position {
		t.Errorf("recorded are %+v", gaps)
	}
	for i, l := range lanes {
		if got, err := l.Load(t.Context(), nil); err != nil || !got.Same(after[i]) {
			t.Errorf("lane %d loads at %d, want %d, %v", i, got.Seq, after[i].Seq, err)
		}
	}
}

func TestADeletedCheckpointOfOneLaneIsALostPosition(t *testing.T) {
	t.Parallel()
	r := newDivided(t, 1, 3)
	lanes := r.divide(3)
	r.activate()
	before := r.set()
	_, err := r.client.Database(r.name).Collection(checkpoint.Collection).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "rows/1"}})
	r.check(err)
	if _, err := r.checkpoints.Set(t.Context(), rigLane); !errors.Is(err, checkpoint.ErrNone) {
		t.Errorf("the lanes without one of them: %v", err)
	}
	// A process that knows where the lane was, and one that does not, say the same. The others are not disturbed.
	for _, l := range []*Lane{lanes[1], r.lanes(3)[1]} {
		if _, err := l.Load(t.Context(), nil); !errors.Is(err, stream.ErrPositionLost) || !errors.Is(err, checkpoint.ErrMissing) {
			t.Errorf("loads as %v", err)
		}
	}
	if at, err := lanes[0].Load(t.Context(), nil); err != nil || !at.Same(before[0]) {
		t.Errorf("another lane: %+v, %v", at, err)
	}
	at, err := lanes[1].Restart(t.Context(), "checkpoint_missing", nil)
	r.check(err)
	after := r.set()
	if !after[1].Same(at) || after[1].Seq <= before[1].Seq || !after[0].Same(before[0]) || !after[2].Same(before[2]) {
		t.Errorf("the lanes are at %+v", after)
	}
	if gaps := r.gaps(); len(gaps) != 1 || gaps[0].From != before[1].Position || r.rebasing()["a"] != ReasonGap {
		t.Errorf("recorded are %+v, marked %v", gaps, r.rebasing())
	}
}

// TestACounterOfADividedSourceIsTakenUpByEveryLane: until the last has done so, it is not the same in all of them.
func TestACounterOfADividedSourceIsTakenUpByEveryLane(t *testing.T) {
	t.Parallel()
	r := newDivided(t, 2, 3)
	r.activate()
	r.definitions[1] = changed(t, r.definitions[1])
	for i, l := range r.lanes(3) {
		_, err := l.Load(t.Context(), nil)
		r.check(err)
		for n, at := range r.set() {
			if taken := at.Counters["b"].Hash == r.definitions[1].Hash; taken != (n <= i) {
				t.Errorf("after lane %d, lane %d counts b by %+v", i, n, at.Counters["b"])
			}
		}
		if got := r.rebasing(); len(got) != 1 || got["b"] != ReasonChanged {
			t.Errorf("after lane %d, marked are %v", i, got)
		}
	}
}

// TestSourcesWhoseNamesBeginAlikeDoNotMeet: their lanes lie beside each other.
func TestSourcesWhoseNamesBeginAlikeDoNotMeet(t *testing.T) {
	t.Parallel()
	r := newRig(t, 1, 1000)
	for _, source := range []string{"row", "rows-2", "rows_2", "rows2", "rowsa"} {
		for _, id := range checkpoint.Lanes(source, 2) {
			_, err := r.laneOf(source).as(id).Load(t.Context(), nil)
			r.check(err)
		}
	}
	before, err := r.checkpoints.All(t.Context())
	r.check(err)
	r.divide(3)
	after, err := r.checkpoints.All(t.Context())
	r.check(err)
	for _, at := range before {
		if at.Lane != rigLane && !slices.ContainsFunc(after, at.Same) {
			t.Errorf("lane %s of another source has moved", at.Lane)
		}
	}
	if len(after) != len(before)-1+3 {
		t.Errorf("%d checkpoints, want %d", len(after), len(before)-1+3)
	}
}

// as is the lane of that id for the same counters.
func (l *Lane) as(id checkpoint.LaneID) *Lane {
	return NewLane(id, l.client, l.checkpoints, l.states, l.definitions)
}

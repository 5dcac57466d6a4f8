package incrementer_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

const fourLanes = 4

var inFour = joining{partitions: fourLanes}

func TestInstancesComeAndGoUnderLoadAndEveryEventIsAppliedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	first := w.join("1", inFour)
	all := []*member{first}
	w.wantShared(4, first)
	stop := w.keepChurning()
	stays := first
	for round := range soak(1, 10) {
		four := []*member{stays}
		for n := range 3 {
			four = append(four, w.join(fmt.Sprintf("%d.%d", round, n), inFour))
		}
		all = append(all, four[1:]...)
		t.Logf("four after %v", w.wantShared(1, four...))
		w.wantProgress(fourLanes)

		// One leaves in order, one dies. The one that has been here longest may be among them.
		leaves, dies := four[0], four[1]
		if round%2 == 1 {
			leaves, dies = four[2], four[0]
		}
		dies.cutOff()
		dies.abandon()
		wantStopped(t, leaves)
		var left []*member
		for _, m := range four {
			if m != leaves && m != dies {
				left = append(left, m)
			}
		}
		t.Logf("two after %v", w.wantShared(2, left...))
		w.wantProgress(fourLanes)
		wantStopped(t, left[1])
		stays = left[0]
		w.wantShared(4, stays)
	}
	stop()
	w.wantAppliedOnce(fourLanes, all...)
	wantStopped(t, stays)
	w.wantEqual()
	for lane, lease := range w.leases().Leases {
		if lease.Held {
			t.Errorf("all have stopped, and %s is %s's", lane, lease.Owner)
		}
	}
}

func TestAnInstanceThatCrashesAnywhereAndIsRestartedHasItsLanesBackAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// Nothing runs out: only its name gives the restarted one its lanes.
	long := joining{partitions: fourLanes, term: longTerm}
	a := w.join("a", long)
	w.wantShared(4, a)
	b := w.join("b", long)
	w.wantShared(2, a, b)
	stop := w.keepChurning()
	for n := range soak(3, 10) {
		victim := []**member{&a, &b}[n%2]
		before := (*victim).owns()
		w.wantMovesOf(before[0], 1+int64(w.pick(4)))
		(*victim).abandon()
		*victim = w.join((*victim).group.Leases.Self(), long)
		t.Logf("back after %v", w.wantShared(2, a, b))
		if got := (*victim).owns(); fmt.Sprint(got) != fmt.Sprint(before) {
			t.Errorf("restarted with %v, it had %v", got, before)
		}
	}
	stop()
	w.wantProgress(fourLanes)
	w.wantEqual()
	wantStopped(t, a, b)
}

// wantMovesOf waits until a lane's checkpoint has moved n times more.
func (w *world) wantMovesOf(lane string, n int64) {
	w.t.Helper()
	seq := func() int64 {
		at, err := w.checkpoints.Load(w.t.Context(), lane)
		w.check(err)
		return at.Seq
	}
	from := seq()
	realtest.Eventually(w.t, patience, fmt.Sprintf("%s moves %d times", lane, n), func() bool { return seq() >= from+n })
}

func TestAStandbyTakesOverAtOnceFromOneThatStopsAndWithinTheLeaseFromOneThatDies(t *testing.T) {
	t.Parallel()
	const look, slack = time.Second, 4 * time.Second // the machine is shared
	for _, c := range []struct {
		how    string
		term   time.Duration
		end    func(*member)
		within time.Duration
	}{
		{"stops", longTerm, func(m *member) { _ = m.stop() }, look + slack},
		{"dies", shortTerm, func(m *member) { m.cutOff() }, shortTerm + look + slack},
	} {
		t.Run(c.how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			a := w.join("a", joining{term: c.term})
			w.wantShared(1, a)
			all := []*member{a}
			stop := w.keepChurning()
			for n := range soak(1, 10) {
				b := w.join(fmt.Sprint("b", n), joining{term: c.term})
				b.logged(t, `msg="on standby" lane=comments owner=`+a.group.Leases.Self())
				if v := b.group.Lanes[0].State.View(); v.Owned || v.LastErr != nil || v.Standby != a.group.Leases.Self() {
					t.Errorf("on standby it publishes %+v", v)
				}
				w.wantMoves(2)
				began := time.Now()
				c.end(a)
				w.wantShared(1, b)
				took := time.Since(began)
				t.Logf("taken over after %v", took)
				if took > c.within {
					t.Errorf("taken over after %v, want %v", took, c.within)
				}
				a.abandon()
				a, all = b, append(all, b)
			}
			stop()
			w.wantAppliedOnce(1, all...)
		})
	}
}

func TestAnInstanceWithAnOlderConfigurationStandsBackUntilItIsRestartedOrTheNewerOneIsLongGone(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*member){
		"stops": func(m *member) { _ = m.stop() },
		"dies":  func(m *member) { m.cutOff(); m.abandon() },
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			older := w.join("older", joining{partitions: fourLanes, hash: "old"})
			w.wantShared(4, older)
			stop := w.keepChurning()
			newer := w.join("newer", joining{partitions: fourLanes, hash: "new"})
			w.wantShared(4, newer)
			older.logged(t, "instance newer, which started later, has another configuration of source comments")
			for _, l := range older.group.Lanes {
				realtest.Eventually(t, patience, "the older one says why it does not follow", func() bool {
					v := l.State.View()
					return v.LastErr != nil && strings.Contains(v.LastErr.Error(), "another configuration") && v.Standby == "newer"
				})
			}
			// It shares with the next one like it, and neither counts on the older one.
			second := w.join("newer, too", joining{partitions: fourLanes, hash: "new"})
			w.wantShared(2, newer, second)
			end(newer)
			w.wantShared(4, second)
			if n := older.took(); n != 4 {
				t.Errorf("the older one has taken %d lanes, want the 4 of the beginning", n)
			}
			end(second)
			// Gone or not, what the newer ones began to count is not given up for an older file.
			realtest.Eventually(t, patience, "nobody follows, and the older one says why", func() bool {
				v := older.group.Lanes[0].State.View()
				return v.Standby == "" && v.LastErr != nil && strings.Contains(v.LastErr.Error(), "restart this one")
			})
			if n := older.took(); n != 4 {
				t.Errorf("the older one has taken %d lanes, want the 4 of the beginning", n)
			}
			all, follows := []*member{older, newer, second}, older
			if how == "stops" { // somebody says so
				_ = older.stop()
				follows = w.join("older", joining{partitions: fourLanes, hash: "old"})
				all = append(all, follows)
			} else { // or nobody has come for long
				w.longGone("newer", "newer, too")
			}
			w.wantShared(4, follows)
			stop()
			w.wantAppliedOnce(fourLanes, all...)
		})
	}
}

// longGone makes instances that are gone so for longer than their configuration counts.
func (w *world) longGone(names ...string) {
	w.t.Helper()
	for _, name := range names {
		_, err := w.stateDatabase().Collection(checkpoint.LeasesCollection).UpdateOne(w.t.Context(), bson.D{{Key: "_id", Value: "instance:" + name}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "expires_at", Value: time.Now().Add(-time.Hour)}}}})
		w.check(err)
	}
}

func TestOfTwoProcessesOfOneNameTheLaterHasTheLanes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	// The earlier one must find out long before it would renew, which is after a third of the term.
	long := joining{partitions: fourLanes, term: 5 * longTerm}
	earlier := w.join("a", long)
	w.wantShared(4, earlier)
	stop := w.keepChurning()
	later := w.join("a", long)
	w.wantShared(4, later)
	realtest.Eventually(t, patience, "the earlier one says why it follows nothing", func() bool {
		v := earlier.group.Lanes[0].State.View()
		return !v.Owned && v.LastErr != nil && strings.Contains(v.LastErr.Error(), "another process of the same name has started since")
	})
	w.wantProgress(fourLanes)
	if before, after := earlier.took(), later.took(); before != 4 || after != 4 {
		t.Errorf("the earlier one has taken %d lanes and the later one %d, want 4 each", before, after)
	}
	wantStopped(t, later)
	w.wantShared(4, earlier)
	stop()
	w.wantAppliedOnce(fourLanes, earlier, later)
	wantStopped(t, earlier)
}

func TestAnInstanceThatIsCutOffForLongerThanItsLeaseComesBackToItsShare(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	a := w.join("a", inFour)
	w.wantShared(4, a)
	b := w.join("b", inFour)
	w.wantShared(2, a, b)
	stop := w.keepChurning()
	for n := range soak(1, 10) {
		gone, stays := a, b
		if n%2 == 1 {
			gone, stays = b, a
		}
		gone.cutOff()
		realtest.Eventually(t, patience, "the other one has all lanes", func() bool { return len(stays.owns()) == fourLanes })
		w.wantProgress(fourLanes)
		gone.proxy.Heal()
		t.Logf("shared again after %v", w.wantShared(2, a, b))
		w.wantProgress(fourLanes)
	}
	stop()
	w.wantAppliedOnce(fourLanes, a, b)
	wantStopped(t, a, b)
}

func TestADatabaseThatIsAwayForLongerThanTheLeaseIsPickedUpAgain(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{})
	w := newWorldOn(t, server.URI(), realtest.Client(t, server.URI()))
	a := w.join("a", inFour)
	w.wantShared(4, a)
	b := w.join("b", inFour)
	w.wantShared(2, a, b)
	stop := w.keepChurning()
	for range soak(1, 5) {
		w.wantProgress(fourLanes)
		w.check(server.Pause(t.Context()))
		t.Cleanup(server.Resume)
		for _, m := range []*member{a, b} {
			began := time.Now()
			realtest.Eventually(t, patience, "the instance has missed the database for two terms", func() bool { return time.Since(began) > shortTerm })
			m.wantRunning(t)
		}
		server.Resume()
		t.Logf("shared again after %v", w.wantShared(2, a, b))
		w.wantProgress(fourLanes)
	}
	stop()
	w.wantAppliedOnce(fourLanes, a, b)
	wantStopped(t, a, b)
}

func TestAnInstanceThatStopsGivesEachLaneAwayAsSoonAsThatIsDrained(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	long := joining{partitions: fourLanes, term: longTerm}
	a := w.join("a", long)
	w.wantShared(4, a)
	b := w.join("b", long)
	w.wantShared(2, a, b)
	slow, quick := a.owns()[0], a.owns()[1]
	a.applying[slow].Lock()
	done := sync.OnceFunc(a.applying[slow].Unlock)
	t.Cleanup(done)
	realtest.Eventually(t, patience, "a batch waits, an empty one at the latest", a.applying[slow].waiting.Load)
	stopped := make(chan error)
	go func() { stopped <- a.stop() }()
	// a has fewer lanes than b now, and none is left for it.
	realtest.Eventually(t, patience, "b has the lane that is drained", func() bool { return slices.Contains(b.owns(), quick) })
	if lease := w.leases().Leases[slow]; !lease.Held || lease.Owner != "a" {
		t.Errorf("a drains %s, and its lease is %+v", slow, lease)
	}
	done()
	w.check(ignoreCancelled(<-stopped))
	w.wantShared(4, b)
	w.wantAppliedOnce(fourLanes, a, b)
}

func TestALaneThatEndsForGoodEndsTheInstanceWhichGivesAllItsLanesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	m := w.join("a", joining{partitions: fourLanes, term: longTerm, stop: true})
	w.wantShared(4, m)
	w.check(w.rows.Drop(t.Context()))
	waitFor(t, m.ended, "the instance has ended")
	if !errors.Is(m.err, stream.ErrCollectionChanged) && !errors.Is(m.err, stream.ErrPositionLost) {
		t.Errorf("ended with %v", m.err)
	}
	roster := w.leases()
	for lane, lease := range roster.Leases {
		if lease.Held {
			t.Errorf("%s is still %s's", lane, lease.Owner)
		}
	}
	if len(roster.Instances) != 1 || roster.Instances[0].Lives {
		t.Errorf("still there: %+v", roster.Instances)
	}
}

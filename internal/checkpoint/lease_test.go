package checkpoint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/realtest"
)

const (
	long  = time.Minute            // a term that does not end within a test
	brief = 700 * time.Millisecond // one that does
)

// office is one state database's leases, as the test sees them.
type office struct {
	t          *testing.T
	client     *mongo.Client
	name       string
	collection *mongo.Collection
}

func newOffice(t *testing.T) *office {
	t.Helper()
	_, client, name := place(t)
	return &office{t: t, client: client, name: name, collection: client.Database(name).Collection(LeasesCollection)}
}

var follows = map[string]Following{"s": {Hash: "h", Lanes: []string{"s/0", "s/1"}}}

// process is a new process of an instance, registered.
func (o *office) process(instance string, term time.Duration) *Leases {
	o.t.Helper()
	l := NewLeases(o.client, o.name, instance, term)
	o.wantRegistered(l, true)
	return l
}

func (o *office) wantRegistered(l *Leases, want bool) {
	o.t.Helper()
	ours, err := l.Register(o.t.Context(), follows)
	check(o.t, err)
	if ours != want {
		o.t.Fatalf("%s registers: %v, want %v", l.Self(), ours, want)
	}
}

func (o *office) wantAcquired(l *Leases, lane string, want bool) {
	o.t.Helper()
	taken, err := l.Acquire(o.t.Context(), lane)
	check(o.t, err)
	if taken != want {
		o.t.Fatalf("%s takes %s: %v, want %v", l.Self(), lane, taken, want)
	}
}

// wantNotHeld wants a renewal to fail for the reason that holds the text, and to change nothing.
func (o *office) wantNotHeld(l *Leases, lane, text string) {
	o.t.Helper()
	before := o.document(lane)
	if err := l.Renew(o.t.Context(), lane); !errors.Is(err, ErrNotHeld) || !strings.Contains(err.Error(), text) {
		o.t.Fatalf("%s renews %s: %v, want that it is %s", l.Self(), lane, err, text)
	}
	if after := o.document(lane); after.String() != before.String() {
		o.t.Fatalf("a refused renewal makes\n%v of\n%v", after, before)
	}
}

func (o *office) roster(l *Leases) Roster {
	o.t.Helper()
	r, err := l.Roster(o.t.Context())
	check(o.t, err)
	return r
}

// instance is the one of the name in the roster, the zero value for none.
func (o *office) instance(l *Leases, name string) Instance {
	o.t.Helper()
	all := o.roster(l).Instances
	if i := slices.IndexFunc(all, func(i Instance) bool { return i.Name == name }); i >= 0 {
		return all[i]
	}
	return Instance{}
}

// document is what is stored, nil for nothing.
func (o *office) document(id string) bson.Raw {
	o.t.Helper()
	raw, err := o.collection.FindOne(o.t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		o.t.Fatal(err)
	}
	return raw
}

// age makes a lease or a registration one that ended so long ago.
func (o *office) age(id string, by time.Duration) {
	o.t.Helper()
	past := bson.D{{Key: "$subtract", Value: bson.A{"$$NOW", by.Milliseconds()}}}
	result, err := o.collection.UpdateByID(o.t.Context(), id, bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "expires_at", Value: past}}}}})
	check(o.t, err)
	if result.MatchedCount != 1 {
		o.t.Fatalf("there is no %s", id)
	}
}

func (o *office) expire(id string) { o.t.Helper(); o.age(id, time.Millisecond) }

func TestALaneHasOneOwnerUntilItIsGivenBackOrItsTermEnds(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a, b := o.process("a", long), o.process("b", long)
	o.wantAcquired(a, "l", true)
	o.wantAcquired(a, "l", true) // again, as after a reply that was lost
	o.wantAcquired(b, "l", false)
	check(t, a.Renew(t.Context(), "l"))
	o.wantNotHeld(b, "l", "a's")
	check(t, b.Release(t.Context(), "l")) // of a lane that is another's: no effect
	check(t, a.Renew(t.Context(), "l"))

	check(t, a.Release(t.Context(), "l"))
	check(t, a.Release(t.Context(), "l"))
	o.wantNotHeld(a, "l", "nobody's")
	if lease := o.roster(a).Leases["l"]; lease.Held || a.Mine(lease) || lease.ExpiresIn > 0 || lease.Owner != "" {
		t.Errorf("given back is %+v", lease)
	}
	o.wantAcquired(b, "l", true)
	o.wantNotHeld(a, "l", "b's")

	o.expire("l")
	if lease := o.roster(a).Leases["l"]; lease.Held || b.Mine(lease) || lease.Owner != "b" {
		t.Errorf("run out is %+v", lease)
	}
	o.wantAcquired(a, "l", true)
	o.wantNotHeld(b, "l", "a's")
	o.wantAcquired(b, "l", false)

	o.wantNotHeld(a, "never taken", "not held")
	if o.document("never taken") != nil {
		t.Error("a renewal has made a lease")
	}
}

func TestALeaseThatRanOutUnnoticedIsRenewedIfNobodyTookTheLane(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.process("a", long)
	o.wantAcquired(a, "l", true)
	o.expire("l")
	check(t, a.Renew(t.Context(), "l"))
	if lease := o.roster(a).Leases["l"]; !a.Mine(lease) {
		t.Errorf("renewed is %+v", lease)
	}
}

func TestALaneRenewsItsLeaseWhileTheInstanceRenewsItsRegistration(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.process("a", long)
	o.wantAcquired(a, "l", true)
	var renewing sync.WaitGroup
	for range 4 {
		renewing.Go(func() {
			for range 100 {
				if err := a.Renew(t.Context(), "l"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 100 {
		o.wantRegistered(a, true)
	}
	renewing.Wait()
}

func TestTermsRunByTheServersClock(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a, b := o.process("a", brief), o.process("b", long)
	o.wantAcquired(a, "l", true)
	lives := o.instance(b, "a")
	if lease := o.roster(b).Leases["l"]; lease.ExpiresIn > brief || lives.ExpiresIn > brief {
		t.Errorf("of a term of %v are left %v and %v", brief, lease.ExpiresIn, lives.ExpiresIn)
	}
	if left := o.instance(a, "b").ExpiresIn; left > long || left < long-30*time.Second {
		t.Errorf("of a term of %v are left %v", long, left)
	}
	realtest.Eventually(t, 10*time.Second, "b takes what a does not renew", func() bool {
		taken, err := b.Acquire(t.Context(), "l")
		check(t, err)
		return taken
	})
	realtest.Eventually(t, 10*time.Second, "a counts as gone", func() bool { return !o.instance(b, "a").Lives })
	// And no sooner: the server's own time of the two moments says so.
	var lease struct {
		Started time.Time `bson:"started_at"`
		Expires time.Time `bson:"expires_at"`
	}
	check(t, bson.Unmarshal(o.document("l"), &lease))
	if taken := lease.Expires.Add(-long); taken.Before(lives.Started.Add(brief)) {
		t.Errorf("taken %v after a had registered, of a term of %v", taken.Sub(lives.Started), brief)
	}
}

func TestARestartedProcessHasItsLanesBackAtOnceAndTheOneBeforeIsTold(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	before, other := o.process("a", long), o.process("b", long)
	o.wantAcquired(before, "l", true)
	o.wantAcquired(before, "k", true)
	after := o.process("a", long)
	o.wantAcquired(other, "l", false)
	o.wantAcquired(after, "l", true)
	o.wantNotHeld(before, "l", "a's")

	// It takes nothing back, neither what the later one has nor its name, and gives back nothing but its own.
	o.wantRegistered(before, false)
	o.wantAcquired(before, "l", false)
	check(t, before.Release(t.Context(), "l"))
	check(t, before.Leave(t.Context()))
	check(t, after.Renew(t.Context(), "l"))
	o.wantRegistered(after, true)
	if r := o.roster(after); !after.Listed(r) || before.Listed(r) || !after.Mine(r.Leases["l"]) || before.Mine(r.Leases["l"]) || !before.Mine(r.Leases["k"]) {
		t.Errorf("roster is %+v", r)
	}
	o.wantAcquired(after, "k", true) // which the earlier one still had
	o.wantNotHeld(before, "k", "a's")
}

func TestAnEarlierProcessHasItsNameBackWhenTheLaterOneIsGoneButIsNoYounger(t *testing.T) {
	t.Parallel()
	for how, end := range map[string]func(*office, *Leases){
		"died": func(o *office, _ *Leases) { o.expire("instance:a"); o.expire("l") },
		"left": func(o *office, l *Leases) {
			check(o.t, l.Release(o.t.Context(), "l"))
			check(o.t, l.Leave(o.t.Context()))
		},
	} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			o := newOffice(t)
			first := o.process("a", long)
			started := o.instance(first, "a").Started
			between := o.process("b", long)
			second := o.process("a", long)
			o.wantAcquired(second, "l", true)
			if now := o.instance(first, "a").Started; now.Before(started) {
				t.Errorf("the second started at %v, the first at %v", now, started)
			}
			o.wantRegistered(first, false)
			end(o, second)
			o.wantRegistered(first, true)
			o.wantAcquired(first, "l", true)
			if back := o.instance(first, "a"); !back.Started.Equal(started) || !back.Lives || back.Run != first.Run() {
				t.Errorf("back is %+v, which had started at %v", back, started)
			}
			if b := o.instance(between, "b"); b.Started.Before(started) {
				t.Errorf("b started at %v, before %v", b.Started, started)
			}
			o.wantRegistered(second, false) // it was only paused, and is the one replaced now
		})
	}
}

func TestALateRenewalOfTheRegistrationKeepsTheTimeOfTheStart(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a := o.process("a", long)
	started := o.instance(a, "a").Started
	for _, late := range []func(){
		func() { o.expire("instance:a") },
		func() { // so late that it was forgotten
			_, err := o.collection.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "instance:a"}})
			check(t, err)
		},
	} {
		late()
		if a.Listed(o.roster(a)) {
			t.Error("listed without a registration in force")
		}
		o.wantRegistered(a, true)
		if now := o.instance(a, "a"); !now.Started.Equal(started) || !a.Listed(o.roster(a)) {
			t.Errorf("registered again is %+v, first at %v", now, started)
		}
	}
}

func TestTheRosterSaysWhoFollowsWhatAndHow(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	a, b := NewLeases(o.client, o.name, "host/127.0.0.1:9464", long), o.process("b", long)
	// Names and hashes are data: nothing of them is taken for an expression or a path.
	odd := map[string]Following{"a.b": {Hash: "$owner", Lanes: []string{"$$NOW"}}, "$c": {Hash: "h"}}
	ours, err := a.Register(t.Context(), odd)
	check(t, err)
	o.wantAcquired(a, "s/0", true)
	check(t, NewStore(o.client, o.name).Take(t.Context(), "s/1")) // a lane with sessions and without an owner
	r := o.roster(b)
	if !ours || len(r.Instances) != 2 || len(r.Leases) != 2 {
		t.Fatalf("roster is %+v", r)
	}
	got := o.instance(b, a.Self())
	if fmt.Sprint(got.Sources) != fmt.Sprint(map[string]Following{"a.b": {"$owner", []string{"$$NOW"}}, "$c": {"h", []string{}}}) {
		t.Errorf("it follows %v", got.Sources)
	}
	if time.Since(got.Started).Abs() > time.Minute || !got.Lives {
		t.Errorf("it is %+v", got)
	}
	if l := r.Leases["s/0"]; l.Lane != "s/0" || l.Owner != a.Self() || l.Run != a.Run() || !l.Held || b.Mine(l) {
		t.Errorf("s/0 is %+v", l)
	}
	if l := r.Leases["s/1"]; l.Held || l.Owner != "" || a.Mine(l) {
		t.Errorf("s/1 is %+v", l)
	}
	check(t, a.Leave(t.Context()))
	if gone := o.instance(b, a.Self()); gone.Lives || gone.Sources["$c"].Hash != "h" || !gone.Started.Equal(got.Started) {
		t.Errorf("after it has left it is %+v", gone)
	}
}

// Who leads is known by its lease alone: it is no instance among those that share the lanes.
func TestALeaderNeedsNoRegistrationAndARestartedOneHasItsLeaseBackAtOnce(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	lane := LeaderLane("work")
	process := func(name string) *Leases { return NewLeases(o.client, o.name, name, long) }
	before, other := process("a"), process("b")
	o.wantAcquired(before, lane, true)
	o.wantAcquired(before, lane, true)
	o.wantAcquired(other, lane, false)
	check(t, before.Renew(t.Context(), lane))
	after := process("a")
	realtest.Eventually(t, time.Minute, "the server's clock goes on", func() bool { // by one millisecond
		taken, err := after.Acquire(t.Context(), lane)
		check(t, err)
		return taken
	})
	o.wantNotHeld(before, lane, "a's")
	o.wantAcquired(before, lane, false)
	check(t, after.Renew(t.Context(), lane))
	check(t, after.Release(t.Context(), lane))
	o.wantAcquired(other, lane, true)
	o.wantAcquired(after, lane, false)
	o.expire(lane)
	o.wantAcquired(after, lane, true)
	o.wantNotHeld(other, lane, "a's")
	if r := o.roster(after); len(r.Instances) != 0 || !after.Mine(r.Leases[lane]) || r.Leases[lane].Owner != "a" {
		t.Errorf("roster is %+v", r)
	}
}

func TestInstancesThatDiedLongAgoAreForgottenAndLanesNever(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for _, work := range []string{"given back", "old", "recent"} {
		l := NewLeases(o.client, o.name, work, long)
		o.wantAcquired(l, LeaderLane(work), true)
		if work == "given back" {
			check(t, l.Release(t.Context(), LeaderLane(work)))
		}
	}
	o.age("leader:old", forgetAfter+time.Minute)
	o.age("leader:recent", forgetAfter-time.Minute)
	for _, name := range []string{"old", "recent", "living"} {
		l := o.process(name, long)
		o.wantAcquired(l, name+"'s lane", true)
	}
	o.age("instance:old", forgetAfter+time.Minute)
	o.age("old's lane", forgetAfter+time.Minute)
	o.age("instance:recent", forgetAfter-time.Minute)
	o.wantRegistered(o.process("new", long), true)
	for id, want := range map[string]bool{
		"instance:old": false, "instance:recent": true, "instance:living": true, "old's lane": true, "recent's lane": true, "living's lane": true,
		"leader:given back": false, "leader:old": false, "leader:recent": true,
	} {
		if there := o.document(id) != nil; there != want {
			t.Errorf("%s is there: %v", id, there)
		}
	}
}

func TestOfManyWhoTakeALaneAtOnceOneHasIt(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	var all []*Leases
	for i := range 6 {
		all = append(all, o.process(fmt.Sprint("instance ", i), long))
	}
	for round := range 60 {
		// A new lane, one that was given back and one that ran out.
		lane := fmt.Sprint("l", round/3)
		switch round % 3 {
		case 1:
			for _, l := range all {
				check(t, l.Release(t.Context(), lane))
			}
		case 2:
			o.expire(lane)
		}
		store := NewStore(o.client, o.name)
		var taking sync.WaitGroup
		var winners atomic.Int64
		for _, l := range all {
			taking.Go(func() {
				taken, err := l.Acquire(t.Context(), lane)
				if err != nil {
					t.Errorf("round %d: %v", round, err)
				}
				if taken {
					winners.Add(1)
				}
			})
		}
		taking.Go(func() { // the lane's own document holds the sessions of its owners beside
			if err := store.Take(t.Context(), lane); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		})
		taking.Wait()
		owners := 0
		lease := o.roster(all[0]).Leases[lane]
		for _, l := range all {
			if l.Mine(lease) {
				owners++
			}
		}
		if winners.Load() != 1 || owners != 1 {
			t.Fatalf("round %d: %d have won, %d have %+v", round, winners.Load(), owners, lease)
		}
	}
}

func TestOfManyProcessesOfOneNameThatRegisterAtOnceOneIsLeft(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	for round := range 10 {
		all := make([]*Leases, 5)
		var registering sync.WaitGroup
		for i := range all {
			all[i] = NewLeases(o.client, o.name, fmt.Sprint("a", round/2), long)
			registering.Go(func() {
				if ours, err := all[i].Register(t.Context(), follows); err != nil || !ours {
					t.Errorf("a process that starts registers: %v, %v", ours, err)
				}
			})
		}
		registering.Wait()
		left := 0
		for _, l := range all {
			ours, err := l.Register(t.Context(), follows)
			check(t, err)
			if ours {
				left++
			}
			if ours != l.Listed(o.roster(l)) {
				t.Errorf("registered: %v, listed: %v", ours, !ours)
			}
		}
		if left != 1 {
			t.Fatalf("round %d: %d processes have the name", round, left)
		}
	}
}

func TestALanesLeaseAndItsSessionsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	o := newOffice(t)
	const owners, rounds = 4, 25
	var at sync.WaitGroup
	var held atomic.Int64
	stores := make([]*Store, owners)
	for i := range owners {
		stores[i] = NewStore(o.client, o.name)
		l := o.process(fmt.Sprint("instance ", i), long)
		at.Go(func() {
			for range rounds {
				taken, err := l.Acquire(t.Context(), "l")
				if err == nil && taken {
					if n := held.Add(1); n != 1 {
						t.Errorf("%d have the lane", n)
					}
					err = l.Renew(t.Context(), "l")
					held.Add(-1)
				}
				if err = errors.Join(err, l.Release(t.Context(), "l")); err != nil {
					t.Error(err)
				}
			}
		})
		at.Go(func() {
			for range rounds {
				if err := stores[i].Take(t.Context(), "l"); err != nil {
					t.Error(err)
				}
			}
		})
	}
	at.Wait()
	last := o.process("last", long)
	o.wantAcquired(last, "l", true)
	check(t, stores[0].Take(t.Context(), "l"))
	if !last.Mine(o.roster(last).Leases["l"]) {
		t.Error("taking the sessions has taken the lease")
	}
	check(t, last.Release(t.Context(), "l"))
	var lease struct{ Sessions []bson.Raw }
	check(t, bson.Unmarshal(o.document("l"), &lease))
	want := map[string]bool{}
	for _, s := range stores {
		session, err := s.Session("l")
		check(t, err)
		want[session.ID().String()] = true
	}
	for _, s := range lease.Sessions {
		delete(want, s.String())
	}
	if len(lease.Sessions) != owners || len(want) != 0 {
		t.Errorf("remembered are %v, without %v", lease.Sessions, want)
	}
}

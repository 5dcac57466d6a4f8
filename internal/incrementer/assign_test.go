package incrementer

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
)

// staff is a roster in the making.
type staff struct{ checkpoint.Roster }

func newStaff() staff { return staff{checkpoint.Roster{Leases: map[string]checkpoint.Lease{}}} }

// joins adds an instance that started at the given second and follows sources, each as "name hash lanes".
func (s *staff) joins(name string, started int, follows ...string) {
	i := checkpoint.Instance{Name: name, Started: time.Unix(int64(started), 0), Lives: true, Sources: map[string]checkpoint.Following{}}
	for _, text := range follows {
		var source, hash string
		var lanes int
		if _, err := fmt.Sscan(text, &source, &hash, &lanes); err != nil {
			panic(err)
		}
		f := checkpoint.Following{Hash: hash}
		for _, id := range checkpoint.Lanes(source, lanes) {
			f.Lanes = append(f.Lanes, id.String())
		}
		i.Sources[source] = f
	}
	s.Instances = append(s.Instances, i)
}

func (s *staff) has(owner string, lanes ...string) {
	for _, lane := range lanes {
		s.Leases[lane] = checkpoint.Lease{Lane: lane, Owner: owner, Held: true}
	}
}

// quits takes an instance off, with its leases when it dies or gives them back.
func (s *staff) quits(name string) {
	s.Instances = slices.DeleteFunc(s.Instances, func(i checkpoint.Instance) bool { return i.Name == name })
	for lane, lease := range s.Leases {
		if lease.Owner == name {
			delete(s.Leases, lane)
		}
	}
}

// step has one instance do what the assignment asks of it, as far as others let it, and reports whether it did anything.
func (s *staff) step(name string) bool {
	did := false
	a := assign(s.Roster)
	for lane, lease := range s.Leases {
		if lease.Held && lease.Owner == name && a.owners[lane] != name {
			delete(s.Leases, lane)
			did = true
		}
	}
	for lane, owner := range a.owners {
		if _, held := s.Leases[lane]; owner == name && !held {
			s.has(name, lane)
			did = true
		}
	}
	return did
}

// settle steps the instances in turn until none has anything to do.
func (s *staff) settle(t rapid.TB) {
	t.Helper()
	for steps, quiet := 0, 0; quiet < len(s.Instances); steps++ {
		if steps > 500 {
			t.Fatalf("no end of it: %v of %v", s.Leases, s.Instances)
		}
		if quiet++; s.step(s.Instances[steps%len(s.Instances)].Name) {
			quiet = 0
		}
	}
}

func (s *staff) owners() map[string]string {
	owners := map[string]string{}
	for lane, lease := range s.Leases {
		if lease.Held {
			owners[lane] = lease.Owner
		}
	}
	return owners
}

func loads(owners map[string]string) map[string]int {
	n := map[string]int{}
	for _, owner := range owners {
		n[owner]++
	}
	return n
}

// moved lists the lanes whose owner is another one.
func moved(before, after map[string]string) []string {
	var lanes []string
	for lane, owner := range after {
		if before[lane] != owner {
			lanes = append(lanes, lane)
		}
	}
	slices.Sort(lanes)
	return lanes
}

func TestLanesAreShared(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		what  string
		staff func(*staff)
		want  map[string]string
	}{
		{"nobody", func(*staff) {}, map[string]string{}},
		{"one has all", func(s *staff) { s.joins("a", 1, "s h 2", "r h 1") }, map[string]string{"s/0": "a", "s/1": "a", "r": "a"}},
		{
			"two share, over sources as well",
			func(s *staff) { s.joins("a", 1, "r h 1", "s h 1"); s.joins("b", 2, "r h 1", "s h 1") },
			map[string]string{"r": "a", "s": "b"},
		},
		{
			"a lane stays where it is",
			func(s *staff) {
				s.joins("a", 1, "s h 2")
				s.joins("b", 2, "s h 2")
				s.has("b", "s/0")
				s.has("a", "s/1")
			},
			map[string]string{"s/0": "b", "s/1": "a"},
		},
		{
			"one more is not too much",
			func(s *staff) { s.joins("a", 1, "s h 1"); s.joins("b", 2, "s h 1"); s.has("b", "s") },
			map[string]string{"s": "b"},
		},
		{
			"two more are",
			func(s *staff) { s.joins("a", 1, "s h 2"); s.joins("b", 2, "s h 2"); s.has("b", "s/0", "s/1") },
			map[string]string{"s/0": "a", "s/1": "b"},
		},
		{
			"the lanes of one that has died",
			func(s *staff) {
				s.joins("a", 1, "s h 3")
				s.joins("b", 2, "s h 3")
				s.Instances[1].Lives = false
				s.has("a", "s/0")
				s.has("b", "s/1", "s/2")
				s.Leases["s/1"] = checkpoint.Lease{Lane: "s/1", Owner: "b"}
			},
			map[string]string{"s/0": "a", "s/1": "a", "s/2": "a"},
		},
		{
			"a lease that ran out is no claim",
			func(s *staff) {
				s.joins("a", 1, "s h 2")
				s.joins("b", 2, "s h 2")
				s.has("b", "s/0")
				s.Leases["s/1"] = checkpoint.Lease{Lane: "s/1", Owner: "b"}
			},
			map[string]string{"s/0": "b", "s/1": "a"},
		},
		{
			"one whose configuration is older has none of that source, and keeps those of others",
			func(s *staff) {
				s.joins("a", 1, "s old 2", "r h 2")
				s.joins("b", 2, "s new 2", "r h 2")
				s.has("a", "s/0", "s/1", "r/0", "r/1")
			},
			map[string]string{"s/0": "b", "s/1": "b", "r/0": "a", "r/1": "a"},
		},
		{
			"also where it is divided otherwise",
			func(s *staff) { s.joins("a", 1, "s old 1"); s.joins("b", 2, "s new 2"); s.has("a", "s") },
			map[string]string{"s/0": "b", "s/1": "b"},
		},
		{
			"nobody's when the newer one is gone: the older one is not asked to count by an older file",
			func(s *staff) {
				s.joins("a", 1, "s old 1")
				s.joins("b", 2, "s new 2")
				s.Instances[1].Lives = false
				s.has("b", "s/0")
			},
			map[string]string{},
		},
		{
			"the older one's when the newer one has been gone for long",
			func(s *staff) {
				s.joins("a", 1, "s old 1")
				s.joins("b", 2, "s new 2")
				s.Instances[1].Lives, s.Instances[1].ExpiresIn = false, -outdatedFor
			},
			map[string]string{"s": "a"},
		},
		{
			"one that counts like the newer one that is gone",
			func(s *staff) {
				s.joins("a", 1, "s new 1")
				s.joins("b", 2, "s new 1")
				s.joins("c", 1, "s old 1")
				s.Instances[1].Lives = false
			},
			map[string]string{"s": "a"},
		},
		{
			"older is by the start, not by the name",
			func(s *staff) { s.joins("a", 2, "s new 1"); s.joins("b", 1, "s old 1"); s.has("b", "s") },
			map[string]string{"s": "a"},
		},
		{
			"at the same moment by the name, the same for everyone",
			func(s *staff) { s.joins("a", 1, "s one 1"); s.joins("b", 1, "s two 1"); s.has("a", "s") },
			map[string]string{"s": "b"},
		},
		{
			"each what it follows",
			func(s *staff) {
				s.joins("a", 1, "s h 1")
				s.joins("b", 2, "s h 1", "r h 2")
				s.joins("c", 3, "r h 2")
			},
			map[string]string{"r/0": "b", "r/1": "c", "s": "a"},
		},
		{
			"one that no longer follows a source has none of it",
			func(s *staff) { s.joins("a", 1, "r h 1"); s.joins("b", 2, "s h 1"); s.has("a", "s") },
			map[string]string{"r": "a", "s": "b"},
		},
	} {
		s := newStaff()
		c.staff(&s)
		if got := assign(s.Roster).owners; !maps.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.what, got, c.want)
		}
	}
}

var (
	someNames   = []string{"a", "b", "c", "d", "e"}
	someSources = []string{"q", "r", "s"}
)

// anyStaff draws instances that follow any sources in any of two configurations, and leases held by anybody.
func anyStaff(t *rapid.T) staff {
	s := newStaff()
	for _, name := range someNames[:rapid.IntRange(1, len(someNames)).Draw(t, "instances")] {
		var follows []string
		for _, source := range someSources {
			switch rapid.IntRange(0, 4).Draw(t, name+" follows "+source) {
			case 0, 1, 2:
				follows = append(follows, source+" h 4")
			case 3:
				follows = append(follows, source+" other 3")
			}
		}
		s.joins(name, rapid.IntRange(1, 3).Draw(t, name+" started"), follows...)
		s.Instances[len(s.Instances)-1].Lives = rapid.IntRange(0, 9).Draw(t, name+" lives") > 0
	}
	for _, source := range someSources {
		for n := range 4 {
			lane := fmt.Sprintf("%s/%d", source, n)
			if owner := rapid.SampledFrom(append(someNames, "")).Draw(t, lane+" is of"); owner != "" {
				s.Leases[lane] = checkpoint.Lease{Lane: lane, Owner: owner, Held: rapid.IntRange(0, 4).Draw(t, lane+" held") > 0}
			}
		}
	}
	return s
}

// may lists by lane who may follow it, found the slow way.
func (s *staff) may() map[string][]string {
	may := map[string][]string{}
	for _, source := range someSources {
		var newest *checkpoint.Instance
		for i := range s.Instances {
			x := &s.Instances[i]
			if _, follows := x.Sources[source]; !follows {
				continue
			}
			if newest == nil || x.Started.After(newest.Started) || x.Started.Equal(newest.Started) && x.Name > newest.Name {
				newest = x
			}
		}
		if newest == nil {
			continue
		}
		for _, lane := range newest.Sources[source].Lanes {
			for _, x := range s.Instances {
				if x.Lives && x.Sources[source].Hash == newest.Sources[source].Hash {
					may[lane] = append(may[lane], x.Name)
				}
			}
		}
	}
	return may
}

func TestEveryLaneHasOneOwnerOfThoseThatMayFollowIt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyStaff(t)
		a, may := assign(s.Roster), s.may()
		if len(a.owners) != len(may) {
			t.Fatalf("%d lanes have owners, %d may have one", len(a.owners), len(may))
		}
		for lane, owner := range a.owners {
			if !slices.Contains(may[lane], owner) {
				t.Fatalf("%s is %q's, of %v", lane, owner, may[lane])
			}
		}
	})
}

func TestEveryInstanceComesToTheSameAssignment(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyStaff(t)
		want := assign(s.Roster).owners
		shuffled := s.Roster
		shuffled.Instances = rapid.Permutation(s.Instances).Draw(t, "as another reads it")
		if got := assign(shuffled).owners; !maps.Equal(got, want) {
			t.Fatalf("%v, and to another %v", want, got)
		}
	})
}

func TestAnAssignmentSettlesAndIsEvenThen(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := anyStaff(t)
		for lane, lease := range s.Leases { // the dead renew nothing
			dead := !slices.ContainsFunc(s.Instances, func(i checkpoint.Instance) bool { return i.Name == lease.Owner && i.Lives })
			if dead || !lease.Held {
				delete(s.Leases, lane)
			}
		}
		s.Instances = slices.DeleteFunc(s.Instances, func(i checkpoint.Instance) bool { return !i.Lives })
		s.Instances = rapid.Permutation(s.Instances).Draw(t, "in turn")
		s.settle(t)
		may, owners := s.may(), s.owners()
		load := loads(owners)
		if len(owners) != len(may) {
			t.Fatalf("settled with %v of %v", owners, may)
		}
		for lane, owner := range owners {
			for _, other := range may[lane] {
				if load[owner] > load[other]+1 {
					t.Fatalf("%s has %d lanes, %s among them, and %s has %d: %v", owner, load[owner], lane, other, load[other], owners)
				}
			}
		}
		if got := assign(s.Roster).owners; !maps.Equal(got, owners) {
			t.Fatalf("settled at %v, and then %v", owners, got)
		}
	})
}

// team is a staff of n instances that follow the same sources, and have settled.
func team(t *rapid.T, n int) staff {
	s := newStaff()
	for i := range n {
		s.joins(someNames[i], 1, "r h 3", "s h 5")
	}
	for _, lane := range []string{"r/0", "r/1", "r/2", "s/0", "s/1", "s/2", "s/3", "s/4"} {
		if owner := rapid.IntRange(0, n).Draw(t, lane+" is of"); owner < n {
			s.has(someNames[owner], lane)
		}
	}
	s.settle(t)
	return s
}

func TestNoMoreLanesMoveThanMustWhenAnInstanceJoins(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 4).Draw(t, "instances")
		s := team(t, n)
		before := s.owners()
		s.joins("new", 2, "r h 3", "s h 5")
		s.settle(t)
		after := s.owners()
		load := loads(after)
		for _, lane := range moved(before, after) {
			if after[lane] != "new" {
				t.Fatalf("%s moves from %s to %s, who was there before", lane, before[lane], after[lane])
			}
		}
		// As few as leave nobody with two more.
		if most := slices.Max(slices.Collect(maps.Values(load))); load["new"] < most-1 || load["new"] > len(before)/(n+1) {
			t.Fatalf("new has %d of %d lanes among %d: %v", load["new"], len(before), n+1, load)
		}
	})
}

func TestOnlyTheLanesOfAnInstanceThatLeavesMove(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := team(t, rapid.IntRange(2, 5).Draw(t, "instances"))
		before := s.owners()
		s.quits("a")
		s.settle(t)
		for _, lane := range moved(before, s.owners()) {
			if before[lane] != "a" {
				t.Fatalf("%s moves from %s to %s", lane, before[lane], s.owners()[lane])
			}
		}
	})
}

func TestAnInstanceOnItsWayOutIsNoReasonToMoveLanes(t *testing.T) {
	t.Parallel()
	// a has the lanes of s still, and gives them to b, which started with another configuration of s. Those of r stay.
	s := newStaff()
	s.joins("a", 1, "r h 2", "s old 2")
	s.joins("b", 2, "r h 2", "s new 2")
	s.has("a", "r/0", "r/1", "s/0", "s/1")
	s.settle(t)
	if want := map[string]string{"r/0": "a", "r/1": "a", "s/0": "b", "s/1": "b"}; !maps.Equal(s.owners(), want) {
		t.Errorf("settled at %v", s.owners())
	}
}

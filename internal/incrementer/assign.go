package incrementer

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"driftless/internal/checkpoint"
)

// assignment says who is to follow which lane.
type assignment struct {
	owners map[string]string              // by lane
	newest map[string]checkpoint.Instance // by source: the one whose configuration counts
}

// assign shares the lanes among the instances that live. It looks at nothing but the roster, so that every instance comes
// to the same result, whatever it follows itself. A lane stays where it is unless its owner has two more than another that
// may follow it, so that none moves without need. An instance whose configuration of a source is not that of the one that
// started last gets no lane of it, also for a while after that one is gone: it may come back, and what it began to count
// would be recounted twice.
func assign(roster checkpoint.Roster) assignment {
	a := assignment{owners: map[string]string{}, newest: map[string]checkpoint.Instance{}}
	may := map[string][]string{} // by lane: the names of those that may follow it
	for _, source := range sources(roster.Instances) {
		newest, names := eligible(source, roster.Instances)
		a.newest[source] = newest
		for _, lane := range newest.Sources[source].Lanes {
			if len(names) > 0 {
				may[lane] = names
			}
		}
	}
	a.share(may, roster)
	return a
}

// share finds an owner for every lane, by the names of those that may follow it.
func (a assignment) share(may map[string][]string, roster checkpoint.Roster) {
	var free, held []string
	has, load := map[string]int{}, map[string]int{} // load: with what is on its way to an instance
	for _, lane := range slices.Sorted(maps.Keys(may)) {
		lease := roster.Leases[lane]
		if !lease.Held || !slices.Contains(may[lane], lease.Owner) {
			free = append(free, lane)
			continue
		}
		held = append(held, lane)
		a.owners[lane] = lease.Owner
		has[lease.Owner]++
		load[lease.Owner]++
	}
	for _, lane := range free {
		to := leastLoaded(may[lane], load)
		a.owners[lane] = to
		load[to]++
	}
	for len(held) > 0 {
		// By what an instance has, not by its load: none gives a lane away for one that may come late.
		excess := func(lane string) int { return has[a.owners[lane]] - load[leastLoaded(may[lane], load)] }
		lane := slices.MaxFunc(held, func(x, y string) int { return cmp.Compare(excess(x), excess(y)) })
		if excess(lane) < 2 {
			return
		}
		from, to := a.owners[lane], leastLoaded(may[lane], load)
		a.owners[lane] = to
		has[from]--
		load[from]--
		load[to]++
		held = slices.DeleteFunc(held, func(x string) bool { return x == lane })
	}
}

// sources lists what the instances follow, or did.
func sources(all []checkpoint.Instance) []string {
	var names []string
	for _, i := range all {
		for source := range i.Sources {
			if !slices.Contains(names, source) {
				names = append(names, source)
			}
		}
	}
	return names
}

// outdatedFor is how long the configuration of an instance that is gone still counts.
const outdatedFor = 5 * time.Minute

// eligible returns the instance that started last of those that follow the source, or did until a moment ago, and all that
// live and do so alike.
func eligible(source string, all []checkpoint.Instance) (newest checkpoint.Instance, names []string) {
	for _, i := range all {
		counts := i.Lives || i.ExpiresIn > -outdatedFor
		if i.Sources[source].Hash != "" && counts && (newest.Name == "" || later(i, newest)) {
			newest = i
		}
	}
	for _, i := range all {
		if i.Lives && i.Sources[source].Hash == newest.Sources[source].Hash {
			names = append(names, i.Name)
		}
	}
	return newest, names
}

func later(a, b checkpoint.Instance) bool {
	return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Name, b.Name)) > 0
}

func leastLoaded(names []string, load map[string]int) string {
	return slices.MinFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(a, b)) })
}

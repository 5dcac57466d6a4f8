package incrementer

import (
	"cmp"
	"slices"

	"driftless/internal/checkpoint"
)

// assignment says who is to follow which lane.
type assignment struct {
	owners map[string]string              // by lane; "" for nobody
	newest map[string]checkpoint.Instance // by source: the one whose configuration counts
}

// assign shares the lanes among the instances that live. Every instance comes to the same result from the same roster: a
// lane stays where it is unless an instance has two more than another, so that no lane moves without need. An instance
// whose configuration of a source is not that of the one that started last gets no lane of it.
func assign(lanes []checkpoint.LaneID, roster checkpoint.Roster) assignment {
	a := assignment{owners: map[string]string{}, newest: map[string]checkpoint.Instance{}}
	load := map[string]int{}
	may := map[string][]string{} // by source: the names of those that may follow it
	for _, lane := range lanes {
		if _, known := may[lane.Source]; !known {
			a.newest[lane.Source], may[lane.Source] = eligible(lane.Source, roster.Instances)
		}
		lease := roster.Leases[lane.String()]
		if lease.Held && slices.Contains(may[lane.Source], lease.Owner) {
			a.owners[lane.String()] = lease.Owner
		}
	}
	for _, lease := range roster.Leases {
		if lease.Held {
			load[lease.Owner]++
		}
	}
	for _, lane := range lanes {
		if who := leastLoaded(may[lane.Source], load); a.owners[lane.String()] == "" && who != "" {
			a.owners[lane.String()] = who
			load[who]++
		}
	}
	for moved := true; moved; {
		moved = false
		for _, lane := range lanes {
			from, to := a.owners[lane.String()], leastLoaded(may[lane.Source], load)
			if load[from] >= load[to]+2 && to != "" {
				a.owners[lane.String()] = to
				load[from]--
				load[to]++
				moved = true
			}
		}
	}
	return a
}

// eligible returns the instance that started last of those that follow the source, and all that do so alike.
func eligible(source string, all []checkpoint.Instance) (newest checkpoint.Instance, names []string) {
	for _, i := range all {
		if i.Lives && i.Sources[source] != "" && later(i, newest) {
			newest = i
		}
	}
	for _, i := range all {
		if i.Lives && i.Sources[source] != "" && i.Sources[source] == newest.Sources[source] {
			names = append(names, i.Name)
		}
	}
	slices.Sort(names)
	return newest, names
}

func later(a, b checkpoint.Instance) bool {
	return cmp.Or(a.Started.Compare(b.Started), cmp.Compare(a.Name, b.Name)) > 0
}

func leastLoaded(names []string, load map[string]int) string {
	if len(names) == 0 {
		return ""
	}
	return slices.MinFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(load[a], load[b]), cmp.Compare(a, b)) })
}

package config

// written is a field of a target collection that a counter writes.
type written struct {
	key, path string // base, base_count
	owner     string // where it is declared: counters.comments_per_post.target.base
}

// writes lists the target fields in the order of the contract.
func (c *Counter) writes() []written {
	t, at := c.Target, c.path()+".target."
	var all []written
	for _, w := range []written{
		{"base", t.Base, at + "base"},
		{"live", t.Live, at + "live"},
		{"count", t.Count, at + "count"},
		{"total", t.Total, at + "total"},
		{"reconciled_at", t.ReconciledAt, at + "reconciled_at"},
	} {
		if w.path != "" {
			all = append(all, w)
		}
	}
	return all
}

// checkTargets reports fields of one collection that two declarations write, or that lie one inside the other: counters
// may share a document, never a field.
func (r *reader) checkTargets() {
	type namespace struct{ database, collection string }
	taken := map[namespace][]written{}
	for i := range r.config.Counters {
		c := &r.config.Counters[i]
		ns := namespace{c.Target.Database, c.Target.Collection}
		if ns.database == "" || ns.collection == "" {
			continue
		}
		for _, w := range c.writes() {
			r.checkField(w, taken[ns])
			taken[ns] = append(taken[ns], w)
		}
	}
}

func (r *reader) checkField(w written, taken []written) {
	for _, other := range taken {
		switch {
		case w.path == other.path && r.written(w.owner):
			r.faultAt(w.owner, "is %s, which %s writes already: name another field", w.path, other.owner)
			return
		case w.path == other.path:
			r.faultAt(w.owner, "is %s by default, which %s writes already: set %s to another field", w.path, other.owner, w.key)
			return
		case overlap(w.path, other.path):
			r.faultAt(w.owner, "is %s, and one of it and %s of %s lies inside the other: name another field", w.path, other.path, other.owner)
			return
		}
	}
}

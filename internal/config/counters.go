package config

import (
	"errors"
	"math"
	"strings"

	"driftless/internal/expression"
)

func readCounters(r *reader, n *node) {
	r.named(n, func(n *node) {
		c := Counter{Name: n.key, Pos: n.pos}
		r.object(n, c.fields())
		r.config.Counters = append(r.config.Counters, c)
	})
}

func (c *Counter) fields() []field {
	return []field{
		required("source", text(&c.Source, wantText, isText)),
		optional("rows", object(c.Rows.fields)),
		required("key", text(&c.Key, wantRowPath, isRowPath)),
		optional("soft_delete", textOrNone(&c.SoftDelete, wantRowPath, isRowPath)),
		optional("count_if", c.readCountIf),
		optional("sum", textOrNone(&c.Sum, wantRowPath, isRowPath)),
		required("target", object(c.Target.fields)),
		optional("repair", enum(&c.Repair, "difference", "overwrite")),
		optional("alert_above", whole(&c.AlertAbove, 0, math.MaxInt64)),
	}
}

func (w *Rows) fields() []field {
	return []field{
		optional("database", text(&w.Database, wantDatabase, isDatabase)),
		optional("collection", text(&w.Collection, wantCollection, isCollection)),
		optional("created_at", textOrNone(&w.CreatedAt, wantRowPath, isRowPath)),
		optional("deleted_at", textOrNone(&w.DeletedAt, wantRowPath, isRowPath)),
		optional("updated_at", textOrNone(&w.UpdatedAt, wantRowPath, isRowPath)),
		optional("skew", duration(&w.Skew, 0)),
	}
}

func (t *Target) fields() []field {
	return []field{
		required("database", text(&t.Database, wantDatabase, isDatabase)),
		required("collection", text(&t.Collection, wantCollection, isCollection)),
		optional("base", text(&t.Base, wantFieldPath, isFieldPath)),
		optional("live", text(&t.Live, wantFieldPath, isFieldPath)),
		optional("count", text(&t.Count, wantFieldPath, isFieldPath)),
		optional("total", textOrNone(&t.Total, wantFieldPath, isFieldPath)),
		optional("reconciled_at", text(&t.ReconciledAt, wantFieldPath, isFieldPath)),
		optional("upsert", yesNo(&t.Upsert)),
	}
}

func (c *Counter) path() string { return join("counters", c.Name) }

// checkCounters fills what follows from a counter's source and judges what no single key can tell.
func (r *reader) checkCounters() {
	for i := range r.config.Counters {
		c := &r.config.Counters[i]
		path := c.path()
		r.checkSource(path, c)
		r.fillTarget(path, c)
		if r.written(path + ".rows.database") {
			r.refuseOurs(path+".rows.database", c.Rows.Database)
		}
		r.refuseOurs(path+".target.database", c.Target.Database)
		if c.Target.Upsert && c.Target.Database == c.Rows.Database && c.Target.Collection == c.Rows.Collection && c.Rows.Collection != "" {
			r.faultAt(path+".target.collection", "is the collection of the rows, and new counter documents would become rows: choose another, or set upsert: false")
		}
	}
}

// checkSource holds the counter to what its kind of source needs, and takes the rows from a change stream.
func (r *reader) checkSource(path string, c *Counter) {
	source, found := r.config.Source(c.Source)
	switch {
	case c.Source == "" || r.faults.within(path+".source"):
		return
	case c.Source == Application:
		r.needRows(path)
		r.setDefault(path+".repair", &c.Repair, "difference")
		return
	case !found:
		r.faultAt(path+".source", "%s", r.noSource(c.Source))
		return
	}
	if c.Repair != "" {
		r.faultAt(path+".repair", "is for source: application only: remove it")
	}
	switch {
	case source.ChangeStream != nil:
		r.takeRows(path, c, source.ChangeStream)
	case source.Kafka != nil:
		c.Format = source.Kafka.Format
		r.needRows(path)
		if source.Kafka.Format == "event" {
			r.checkEventCounter(path, c)
		} else {
			r.checkImageCounter(path, c, source.Kafka.Format)
		}
	}
}

// checkEventCounter holds a counter to what events tell. Its count_if and soft_delete are for the recount alone: the table
// of deltas says what an event does, and has to agree with them.
func (r *reader) checkEventCounter(path string, c *Counter) {
	if r.written(path+".rows") && c.Rows.CreatedAt == "" && !r.faults.within(path+".rows.created_at") {
		r.faultAt(path+".rows.created_at", "is missing: with format event, rows are told from events under way by the time of their creation")
	}
	if c.Sum != "" && !r.faults.within(path+".sum") {
		r.faultAt(path+".sum", "does not go with format event, whose table of deltas gives one number to all events of a type: remove it, or publish the rows in format debezium or change_stream")
	}
}

// checkImageCounter holds a counter to what can be told of an image in a record, where no server evaluates anything.
func (r *reader) checkImageCounter(path string, c *Counter, format string) {
	path += ".count_if"
	if c.CountIf.IsZero() || r.faults.within(path) {
		return
	}
	var wrong *expression.Error
	if _, err := expression.Compile(c.CountIf); errors.As(err, &wrong) {
		r.faultAt(strings.TrimSuffix(path+"."+wrong.Path, "."), "%s (with format %s, the incrementer itself judges the rows)", wrong.Reason, format)
	}
}

func (r *reader) noSource(name string) string {
	names := []string{Application}
	for _, s := range r.config.Sources {
		if s.Name != Application {
			names = append(names, s.Name)
		}
	}
	return "names no source under sources: " + advise(name, names)
}

func (r *reader) needRows(path string) {
	for _, key := range []string{".rows.database", ".rows.collection"} {
		if !r.written(path + key) {
			r.faultAt(path+key, "is missing: name where the rows are, which are the truth")
		}
	}
}

// takeRows fills in the source's own collection, which is the only one that the position of its stream speaks of.
func (r *reader) takeRows(path string, c *Counter, s *ChangeStream) {
	r.sameRows(path+".rows.database", c, c.Rows.Database, s.Database)
	r.sameRows(path+".rows.collection", c, c.Rows.Collection, s.Collection)
	c.Rows.Database, c.Rows.Collection = s.Database, s.Collection
}

func (r *reader) sameRows(path string, c *Counter, declared, followed string) {
	if declared != "" && followed != "" && declared != followed {
		r.faultAt(path, "is %s, but source %s follows %s: remove it", declared, c.Source, followed)
	}
}

// fillTarget sets the defaults, which depend on who keeps the counter.
func (r *reader) fillTarget(path string, c *Counter) {
	path += ".target"
	t := &c.Target
	if c.Source != Application && !r.written(path+".upsert") {
		t.Upsert = true
	}
	if r.written(path + ".count") {
		r.checkCount(path, c)
		return
	}
	if c.Source == Application {
		r.checkSplit(path, c)
	}
	r.setDefault(path+".base", &t.Base, "base_count")
	r.setDefault(path+".live", &t.Live, "live_delta")
	r.setDefault(path+".reconciled_at", &t.ReconciledAt, "reconciled_at")
}

// checkSplit holds base and live that the application keeps to what we can do with them.
func (r *reader) checkSplit(path string, c *Counter) {
	if c.Target.Total != "" {
		r.faultAt(path+".total", "is kept by the incrementer, which does not follow source: application: remove it")
	}
	if repair := c.path() + ".repair"; c.Repair == "overwrite" {
		r.faultAt(repair, "is overwrite, which is for target.count alone, and base and live are never overwritten: set it to difference, or remove it")
	}
}

// setDefault leaves alone what the file has, right or wrong.
func (r *reader) setDefault(path string, dst *string, value string) {
	if !r.written(path) {
		*dst = value
	}
}

// checkCount holds a single-field target to what such a field can do.
func (r *reader) checkCount(path string, c *Counter) {
	if c.Source != Application && c.Source != "" {
		r.faultAt(path+".count", "is for source: application only: use base and live, and total for their sum as one field")
		return
	}
	for _, key := range []string{"base", "live", "total"} {
		if n := r.nodes[path+"."+key]; n != nil && (key != "total" || c.Target.Total != "") {
			r.fault(n, "stands beside count, which is the whole count: keep count, or base and live")
		}
	}
}

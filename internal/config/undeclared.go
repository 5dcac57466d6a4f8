package config

import (
	"fmt"
	"slices"
	"strings"
)

// Undeclared are the flags that describe a counter which no file declares, one that the application increments itself, in
// the order of their help.
var Undeclared = []struct{ Flag, Value, Help string }{
	{"rows", "DB.COLLECTION", "compare without a configuration file: the rows, such as app.likes; --key then is a path in a row"},
	{"count", "DB.COLLECTION.FIELD", "with --rows: the counter, such as app.posts.like_count; a document's _id is the key of its rows"},
	{"soft-delete", "PATH", "with --rows: a row counts while this is missing or null"},
	{"count-if", "JSON", "with --rows: a row counts if this aggregation expression over it is true"},
	{"sum", "PATH", "with --rows: an integer to add up instead of counting rows"},
	{"created-at", "PATH", "with --rows: when a row was created (default the time in its _id, when that is an ObjectId)"},
	{"deleted-at", "PATH", "with --rows: when it was soft-deleted (default that of --soft-delete, when that is a date)"},
	{"updated-at", "PATH", "with --rows: when it was last changed"},
}

// UndeclaredCounter is a counter that the given flags describe, by flag. Its errors are *Faults about the command line. A
// collection's name and a field may both have dots: the collection of --count is up to the first.
func UndeclaredCounter(given map[string]string) (Counter, error) {
	r := newReader(Options{})
	c := Counter{Source: Application, Repair: "difference"}
	for flag, decode := range map[string]decoder{
		"rows":        func(r *reader, n *node) { c.Rows.Database, c.Rows.Collection = r.place(n, "app.likes") },
		"count":       func(r *reader, n *node) { r.countPlace(n, &c) },
		"key":         text(&c.Key, wantRowPath, isRowPath),
		"soft-delete": text(&c.SoftDelete, wantRowPath, isRowPath),
		"count-if":    func(r *reader, n *node) { r.readJSON(n, &c) },
		"sum":         text(&c.Sum, wantRowPath, isRowPath),
		"created-at":  text(&c.Rows.CreatedAt, wantRowPath, isRowPath),
		"deleted-at":  text(&c.Rows.DeletedAt, wantRowPath, isRowPath),
		"updated-at":  text(&c.Rows.UpdatedAt, wantRowPath, isRowPath),
	} {
		value, is := given[flag]
		at := &node{kind: kindText, text: value, loose: true, pos: Pos{File: "--" + flag}}
		switch {
		case is:
			decode(r, at)
		case slices.Contains([]string{"rows", "count", "key"}, flag):
			r.fault(at, "is missing: to compare without a configuration file takes --rows, --key and --count")
		}
	}
	c.Name = given["count"]
	slices.SortFunc(r.faults.List, func(a, b Fault) int { return strings.Compare(a.Pos.File, b.Pos.File) })
	return c, r.faults.err()
}

// place reads database.collection.
func (r *reader) place(n *node, example string) (database, collection string) {
	database, collection, _ = strings.Cut(n.text, ".")
	switch {
	case collection == "":
		r.fault(n, "is %q: must be DATABASE.COLLECTION, such as %s", n.text, example)
	case !isDatabase(database):
		r.fault(n, "is %q: %q must be %s", n.text, database, wantDatabase)
	case !isCollection(collection):
		r.fault(n, "is %q: %q must be %s", n.text, collection, wantCollection)
	}
	return database, collection
}

// countPlace reads database.collection.field.
func (r *reader) countPlace(n *node, c *Counter) {
	parts := strings.SplitN(n.text, ".", 3)
	if len(parts) < 3 {
		r.fault(n, "is %q: must be DATABASE.COLLECTION.FIELD, such as app.posts.like_count", n.text)
		return
	}
	r.place(&node{text: parts[0] + "." + parts[1], pos: n.pos}, "app.posts")
	if !isFieldPath(parts[2]) {
		r.fault(n, "is %q: %q must be %s", n.text, parts[2], wantFieldPath)
	}
	c.Target = Target{Database: parts[0], Collection: parts[1], Count: parts[2]}
}

// readJSON reads an expression as in the file, of which JSON is a part.
func (r *reader) readJSON(n *node, c *Counter) {
	inner := newReader(Options{File: n.pos.File})
	if top := inner.parse([]byte(n.text)); top != nil && !top.broken {
		c.readCountIf(inner, top)
	}
	for _, f := range inner.faults.List {
		f.Pos.Line = 0
		r.faults.add(f)
	}
	if len(inner.faults.List) == 0 && c.CountIf.IsZero() {
		r.fault(n, "is empty: must be an aggregation expression over the row, as JSON")
	}
}

// Elsewhere are other readings of a counter's place: the first dots of its field may belong to the collection's name.
func (t Target) Elsewhere() (all []Target) {
	parts := strings.Split(t.Count, ".")
	for i := 1; i < len(parts); i++ {
		other := t
		other.Collection = fmt.Sprintf("%s.%s", t.Collection, strings.Join(parts[:i], "."))
		other.Count = strings.Join(parts[i:], ".")
		all = append(all, other)
	}
	return all
}

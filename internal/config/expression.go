package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Operators that give another answer each time, run code, or read more than the row. An expression must have one
// answer for one row, whenever it is asked: for the event and for every recount after it.
var refused = map[string]string{
	"$rand":           "gives another answer each time",
	"$sampleRate":     "gives another answer each time",
	"$createObjectId": "gives another answer each time",
	"$function":       "runs code whose answers nobody can foresee",
	"$accumulator":    "runs code whose answers nobody can foresee",
	"$where":          "runs code whose answers nobody can foresee",
	"$meta":           "reads what belongs to a query and not to the row",
}

// Variables that differ between two readings of one row.
var refusedVariables = map[string]string{
	"NOW":          "is another moment for the event and for the recount",
	"CLUSTER_TIME": "is another moment for the event and for the recount",
	"USER_ROLES":   "depends on who asks",
	"SEARCH_META":  "belongs to a query and not to the row",
}

// scope is the set of variables bound around an expression.
type scope map[string]bool

var rowScope = scope{"ROOT": true, "CURRENT": true, "REMOVE": true}

func (s scope) with(names ...string) scope {
	inner := maps.Clone(s)
	for _, n := range names {
		inner[n] = true
	}
	return inner
}

func (c *Counter) readCountIf(r *reader, n *node) {
	if n.kind == kindNull && !n.broken {
		r.mustBe(n, "an aggregation expression over the row")
		return
	}
	r.checkExpression(n, rowScope)
	if wrong := invalidJSON(n); wrong != nil {
		r.fault(wrong, "is not a valid extended JSON value such as {$oid: …} or {$date: …}: mend it, or put plain data under $literal")
		return
	}
	c.CountIf, _ = n.bson()
	if why := sameForAll(c.CountIf); why != "" {
		r.fault(n, "%s", why)
	}
}

// sameForAll says why an expression does not look at the row, "" when it may. The usual slips are a field without its $
// and a filter in place of an expression: both are true of every row.
func sameForAll(expression bson.RawValue) string {
	switch expression.Type {
	case bson.TypeString:
		if name := expression.StringValue(); !strings.HasPrefix(name, "$") {
			return "is the same text for every row: write \"$" + name + "\" for the field"
		}
		return ""
	case bson.TypeEmbeddedDocument:
		elements, err := expression.Document().Elements()
		if err == nil && len(elements) > 0 && strings.HasPrefix(elements[0].Key(), "$") {
			return ""
		}
		return "is a plain document, which is true of every row: an aggregation expression begins with an operator, such as {$eq: [\"$status\", \"ok\"]}"
	default:
		return "is the same for every row: write an aggregation expression over the row's fields, or leave it out to count all rows"
	}
}

// checkExpression reports every part that could give two answers for one row, and every unbound variable.
func (r *reader) checkExpression(n *node, vars scope) {
	switch n.kind {
	case kindText:
		r.checkVariable(n, vars)
	case kindList:
		for _, item := range n.items {
			r.checkExpression(item, vars)
		}
	case kindMapping:
		for _, value := range n.keys {
			r.checkOperator(value, vars)
		}
	}
}

func (r *reader) checkVariable(n *node, vars scope) {
	variable, found := strings.CutPrefix(n.text, "$$")
	if !found {
		return
	}
	variable, _, _ = strings.Cut(variable, ".")
	reason, bad := refusedVariables[variable]
	switch {
	case bad:
		r.fault(n, "uses $$%s, which %s: an expression must have one answer for one row, at any time", variable, reason)
	case vars[variable]:
	case n.hidden:
		r.fault(n, "uses a variable that nothing binds here")
	default:
		r.fault(n, "uses $$%s, which nothing binds here: known are %s", variable, strings.Join(slices.Sorted(maps.Keys(vars)), ", "))
	}
}

// checkOperator looks at one key of a mapping: an operator with its argument, or a field of a literal document.
func (r *reader) checkOperator(n *node, vars scope) {
	if reason, bad := refused[n.key]; bad {
		r.fault(n, "%s %s: an expression must have one answer for one row, at any time", n.key, reason)
	}
	switch n.key {
	case "$literal":
	case "$let":
		r.checkParts(n, vars, "in", vars.with(n.bound()...))
	case "$map":
		r.checkParts(n, vars, "in", vars.with(n.as("as", "this")))
	case "$filter":
		r.checkParts(n, vars, "cond", vars.with(n.as("as", "this")))
	case "$reduce":
		r.checkParts(n, vars, "in", vars.with("this", "value"))
	default:
		r.checkExpression(n, vars)
	}
}

// checkParts checks the arguments of an operator that binds variables: they hold in the part named inner alone.
func (r *reader) checkParts(n *node, vars scope, inner string, bound scope) {
	for _, part := range n.keys {
		switch {
		case part.key == inner:
			r.checkExpression(part, bound)
		case part.key == "vars" && n.key == "$let":
			for _, value := range part.keys {
				r.checkExpression(value, vars)
			}
		default:
			r.checkExpression(part, vars)
		}
	}
}

// bound lists the variables of a $let.
func (n *node) bound() []string {
	var names []string
	if vars := n.child("vars"); vars != nil {
		for _, v := range vars.keys {
			names = append(names, v.key)
		}
	}
	return names
}

// as is the variable that an operator's key names.
func (n *node) as(key, otherwise string) string {
	if as := n.child(key); as != nil && as.kind == kindText {
		return as.text
	}
	return otherwise
}

// invalidJSON returns the smallest part of n that the driver refuses; nil when there is none.
func invalidJSON(n *node) *node {
	if _, err := n.bson(); err == nil {
		return nil
	}
	for _, part := range slices.Concat(n.keys, n.items) {
		if wrong := invalidJSON(part); wrong != nil {
			return wrong
		}
	}
	return n
}

// bson converts n, with {$oid: …} and the like as in relaxed extended JSON, and every key in the order of the file.
func (n *node) bson() (bson.RawValue, error) {
	var b bytes.Buffer
	b.WriteString(`{"v":`)
	n.writeJSON(&b)
	b.WriteByte('}')
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON(b.Bytes(), false, &raw); err != nil {
		return bson.RawValue{}, err
	}
	return raw.LookupErr("v")
}

func (n *node) writeJSON(b *bytes.Buffer) {
	switch n.kind {
	case kindNull:
		b.WriteString("null")
	case kindInteger, kindBoolean:
		b.WriteString(n.text)
	case kindFloat: // the relaxed form of 1.0 would come back as an integer
		b.WriteString(`{"$numberDouble":"` + n.text + `"}`)
	case kindText:
		writeString(b, n.text)
	case kindList:
		writeParts(b, "[]", n.items, (*node).writeJSON)
	case kindMapping:
		writeParts(b, "{}", n.keys, func(n *node, b *bytes.Buffer) {
			writeString(b, n.key)
			b.WriteByte(':')
			n.writeJSON(b)
		})
	}
}

func writeParts(b *bytes.Buffer, brackets string, parts []*node, write func(*node, *bytes.Buffer)) {
	b.WriteByte(brackets[0])
	for i, part := range parts {
		if i > 0 {
			b.WriteByte(',')
		}
		write(part, b)
	}
	b.WriteByte(brackets[1])
}

func writeString(b *bytes.Buffer, s string) {
	quoted, _ := json.Marshal(s) // a string always marshals
	b.Write(quoted)
}

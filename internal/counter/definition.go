// Package counter knows what a count means: which rows add what to which key, as expressions that the server evaluates
// for events and recounts alike (I3), and how deltas reach the counter documents.
package counter

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
)

// Definition is a declared counter with the hash that tells it from an earlier declaration of the same name.
type Definition struct {
	config.Counter
	// Hash covers everything that changes what is counted or where it is kept. A counter is judged only by a
	// reconciler whose hash is the one that the lane applies.
	Hash string
}

// Define completes a declared counter.
func Define(c config.Counter) (*Definition, error) {
	countIf := any(nil)
	if !c.CountIf.IsZero() {
		countIf = c.CountIf
	}
	var topic bson.D // left out for the others
	if c.Format != "" {
		topic = bson.D{
			{Key: "format", Value: c.Format}, {Key: "times", Value: bson.A{c.Rows.CreatedAt, c.Rows.DeletedAt}},
		}
	}
	raw, err := bson.Marshal(append(bson.D{
		{Key: "name", Value: c.Name}, {Key: "source", Value: c.Source},
		{Key: "rows", Value: bson.A{c.Rows.Database, c.Rows.Collection}},
		{Key: "key", Value: c.Key}, {Key: "soft_delete", Value: c.SoftDelete},
		{Key: "count_if", Value: countIf}, {Key: "sum", Value: c.Sum},
		{Key: "target", Value: bson.A{
			c.Target.Database, c.Target.Collection, c.Target.Base, c.Target.Live, c.Target.Total, c.Target.Upsert,
		}},
		// What another version of driftless makes of the same declaration is another count.
		{Key: "contribution", Value: (&Definition{Counter: c}).contribution(checkpoint.LaneID{})},
	}, topic...))
	if err != nil {
		return nil, fmt.Errorf("encode counter %s: %w", c.Name, err)
	}
	sum := sha256.Sum256(raw)
	return &Definition{Counter: c, Hash: hex.EncodeToString(sum[:8])}, nil
}

// DefineAll completes the declared counters.
func DefineAll(cs []config.Counter) ([]*Definition, error) {
	ds := make([]*Definition, 0, len(cs))
	for _, c := range cs {
		d, err := Define(c)
		if err != nil {
			return nil, err
		}
		ds = append(ds, d)
	}
	return ds, nil
}

// HashAll tells one way to follow a source from another: its collection, its lanes and the counters that it feeds.
func HashAll(c config.ChangeStream, ds []*Definition) string {
	return hashOf([]string{c.Database, c.Collection, strconv.Itoa(max(1, c.Partitions))}, ds)
}

// HashAllOf tells one way to follow a source that is a topic from another: what its records mean and the counters that it feeds.
func HashAllOf(c config.Kafka, ds []*Definition) string {
	event := fmt.Sprint(c.Event, c.Dedupe) // a map is printed in the order of its keys
	return hashOf([]string{c.Topic, c.Format, event}, ds)
}

// HashOf tells one set of counters from another.
func HashOf(ds []*Definition) string { return hashOf(nil, ds) }

// hashOf does not look at the order in which counters are declared.
func hashOf(parts []string, ds []*Definition) string {
	hashes := make([]string, len(ds))
	for i, d := range ds {
		hashes[i] = d.Hash
	}
	slices.Sort(hashes)
	sum := sha256.Sum256([]byte(strings.Join(append(parts, hashes...), "\x00")))
	return hex.EncodeToString(sum[:8])
}

// OfSource returns the definitions that one source feeds.
func OfSource(ds []*Definition, source string) []*Definition {
	return slices.DeleteFunc(slices.Clone(ds), func(d *Definition) bool { return d.Source != source })
}

// ByEvents reports whether the counter is incremented by events from a topic, which have no position in common with the rows.
func (d *Definition) ByEvents() bool { return d.Format != "" }

// ByTime reports whether its events carry the times of the rows, and not those of their commits.
func (d *Definition) ByTime() bool { return d.Format == config.FormatEvent }

// Own returns the path of one of our own fields of this counter in its documents.
func (d *Definition) Own(field string) string { return d.own() + "." + field }

func (d *Definition) own() string { return "driftless." + d.Name }

// TotalPath is the path of base + live as one field.
func (d *Definition) TotalPath() string {
	if d.Target.Total != "" {
		return d.Target.Total
	}
	return d.Own("total")
}

// Our own fields in a counter document, under driftless.<counter>.
const (
	FieldTotal   = "total"   // base + live, unless it has a name of the user's
	FieldTouched = "touched" // true since the last reconcile that saw it; under a partial index
	FieldStamp   = "stamp"   // batch id of the last touch; unindexed
	FieldRepair  = "repair"  // id of the last repair: the guard of the next
	FieldDrifted = "drifted" // true when the last repair found it wrong
	FieldRecent  = "recent"  // of events: deltas by their time, see Bucket
	FieldCut     = "cut"     // of events: the moment at which base and live were last divided, in Unix seconds
)

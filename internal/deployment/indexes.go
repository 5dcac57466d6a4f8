package deployment

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/stream"
)

// existingIndex is an index as the server describes it.
type existingIndex struct {
	Name           string
	Key            bson.D
	Sparse, Hidden bool
	Partial        bson.Raw `bson:"partialFilterExpression"`
	Collation      struct{ Locale string }
	ExpireAfter    *int64 `bson:"expireAfterSeconds"`
}

// serves reports whether a recount is answered from the index: it begins with the first of the wanted fields, which
// the rows are found by, has the others, and holds every row by its plain values.
func (i existingIndex) serves(wanted bson.D) bool {
	if i.Sparse || i.Hidden || i.Partial != nil || !i.simple() || slices.ContainsFunc(i.Key, isSpecial) {
		return false
	}
	return i.Key[0].Key == wanted[0].Key && !slices.ContainsFunc(wanted, func(w bson.E) bool { return !i.has(w.Key) })
}

// isSpecial: a text stands for "hashed", "2dsphere" and the like, which hold no plain values or not every row.
func isSpecial(part bson.E) bool {
	_, text := part.Value.(string)
	return text
}

func (i existingIndex) has(path string) bool {
	return slices.ContainsFunc(i.Key, func(part bson.E) bool { return part.Key == path })
}

func (i existingIndex) simple() bool {
	return i.Collation.Locale == "" || i.Collation.Locale == "simple"
}

// is reports whether the index is the wanted one and not only of the same name.
func (i existingIndex) is(wanted counter.Index) bool {
	if i.Sparse || i.Hidden || !i.simple() || len(i.Key) != len(wanted.Keys) || (i.ExpireAfter != nil) != wanted.Expires {
		return false
	}
	for n, w := range wanted.Keys {
		if i.Key[n].Key != w.Key || number(i.Key[n].Value) != number(w.Value) {
			return false
		}
	}
	return i.holds(wanted.Partial)
}

// number is the direction of an index's field: the server and the driver write it as different types. 0 is a text's.
func number(v any) float64 {
	switch n := v.(type) {
	case int:
		return float64(n)
	case int32:
		return float64(n)
	case int64:
		return float64(n)
	case float64:
		return n
	default:
		return 0
	}
}

// holds reports whether the index is partial by exactly this filter, nil for an index of all documents.
func (i existingIndex) holds(filter bson.D) bool {
	if filter == nil || i.Partial == nil {
		return filter == nil && i.Partial == nil
	}
	raw, err := bson.Marshal(filter)
	return err == nil && bytes.Equal(raw, i.Partial)
}

// indexes lists the indexes of a collection, none for one that does not exist.
func (p *planner) indexes(ctx context.Context, database, name string) ([]existingIndex, error) {
	cursor, err := p.client.Database(database).Collection(name).Indexes().List(ctx)
	if stream.HasCode(err, codeNamespaceNotFound) {
		return nil, nil
	}
	var have []existingIndex
	if err == nil {
		err = cursor.All(ctx, &have)
	}
	if err != nil {
		return nil, fmt.Errorf("look at the indexes of %s.%s: %w", database, name, err)
	}
	return have, nil
}

// index plans one that is not there. One that has our name and is another, as after a change of the counter's
// definition, is replaced: reads name it by a hint.
func (p *planner) index(ctx context.Context, database, collection string, wanted counter.Index, why missing) error {
	have, err := p.indexes(ctx, database, collection)
	if err != nil {
		return err
	}
	view := p.client.Database(database).Collection(collection).Indexes()
	create := func(ctx context.Context) error {
		_, err := view.CreateOne(ctx, wanted.Model())
		return err
	}
	step := Step{Do: create, subject: "index of " + database + "." + collection, missing: why}
	at := slices.IndexFunc(have, func(i existingIndex) bool { return i.Name == wanted.Name })
	switch {
	case at < 0:
		step.What = fmt.Sprintf("create index %s on %s.%s", wanted.Name, database, collection)
		step.lacks, step.needs = wanted.Name+" is missing", Privilege{database, collection, []string{"createIndex"}}
		p.add(step)
	case !have[at].is(wanted):
		if why == rebuilds {
			step.missing = counts // nobody replaces it but setup
		}
		step.Do = func(ctx context.Context) error {
			if err := view.DropOne(ctx, wanted.Name); err != nil {
				return err
			}
			return create(ctx)
		}
		step.What = fmt.Sprintf("replace index %s on %s.%s, which is not the one that is needed", wanted.Name, database, collection)
		step.lacks, step.needs = wanted.Name+" is not the one that is needed", Privilege{database, collection, []string{"createIndex", "dropIndex"}}
		p.add(step)
	}
	return nil
}

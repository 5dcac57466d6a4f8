package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/counter"
	"driftless/internal/stream"
)

// sampleDocuments is how many counter documents are looked at for fields of others.
const sampleDocuments = 20

// targets looks in each collection of counter documents for fields that are not ours: whoever writes them there writes
// to the same documents as we do.
func (k *checker) targets(ctx context.Context) []Finding {
	var findings []Finding
	var seen []string
	for _, d := range k.definitions {
		name := d.Target.Database + "." + d.Target.Collection
		if d.ByApplication() || slices.Contains(seen, name) || k.hasFault("counter "+d.Name) {
			continue
		}
		seen = append(seen, name)
		findings = append(findings, k.target(ctx, d, name)...)
	}
	return findings
}

// target finds nothing where nothing may be read: the privileges say so.
func (k *checker) target(ctx context.Context, d *counter.Definition, name string) []Finding {
	subject := "documents of " + name
	primary := options.Database().SetReadPreference(readpref.Primary())
	documents, err := sample(ctx, k.client.Database(d.Target.Database, primary).Collection(d.Target.Collection))
	switch {
	case stream.HasCode(err, codeUnauthorized):
		return nil
	case err != nil:
		return []Finding{k.unseen(subject, err, Privilege{})}
	}
	if len(documents) == 0 {
		return []Finding{ok(subject, "none yet")}
	}
	foreign := foreignFields(documents, k.fieldsIn(name))
	if len(foreign) == 0 {
		return []Finding{ok(subject, "only fields of ours (%s looked at)", plural(len(documents), "document"))}
	}
	return []Finding{{Warn, subject, fmt.Sprintf("have fields of others (%s): whoever writes them conflicts with our transactions", list(foreign)),
		"give the counters a collection of their own: counters." + d.Name + ".target.collection"}}
}

func sample(ctx context.Context, documents *mongo.Collection) (found []bson.Raw, err error) {
	cursor, err := documents.Find(ctx, bson.D{}, options.Find().SetLimit(sampleDocuments).SetBatchSize(sampleDocuments))
	if err == nil {
		err = cursor.All(ctx, &found)
	}
	return found, err
}

// fieldsIn are the paths that our counters write in a collection.
func (k *checker) fieldsIn(name string) []string {
	paths := []string{"_id", "driftless"}
	for _, d := range k.definitions {
		if t := d.Target; t.Database+"."+t.Collection == name {
			paths = append(paths, t.Base, t.Live, t.Count, t.Total, t.ReconciledAt)
		}
	}
	return paths
}

// foreignFields lists the paths that are not ours, each once.
func foreignFields(documents []bson.Raw, ours []string) []string {
	var found []string
	for _, document := range documents {
		for _, path := range foreignIn(document, "", ours) {
			if !slices.Contains(found, path) {
				found = append(found, path)
			}
		}
	}
	return found
}

func foreignIn(document bson.Raw, prefix string, ours []string) []string {
	elements, err := document.Elements()
	if err != nil {
		return nil // not from a server
	}
	var found []string
	for _, element := range elements {
		path := prefix + element.Key()
		inside, is := element.Value().DocumentOK()
		switch {
		case slices.Contains(ours, path):
		case is && slices.ContainsFunc(ours, func(our string) bool { return strings.HasPrefix(our, path+".") }):
			found = append(found, foreignIn(inside, path+".", ours)...)
		default:
			found = append(found, path)
		}
	}
	return found
}

package counter

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Document is what one counter has in its counter document, zero values where there is none.
type Document struct {
	Key               bson.RawValue
	Exists            bool
	Base, Live, Total int64
	HasTotal          bool          // total is there, so it bears witness
	Touched           bool          // marked in the document
	Stamp             bson.ObjectID // of the last touch, zero for none
	Repair            bson.ObjectID // of the last repair, zero for none
	Drifted           bool          // the last repair found it wrong
	Recent            Recent        // of events: what it was incremented by of late
	Cut               int64         // of events: where it was last divided, in Unix seconds
	Bad               string        // why the document cannot be judged: a field of another type
	Kind              bson.Type     // of the single field that the application keeps, 0 when it is missing
	Partition         int           // of the lanes that were asked for, the one that the key belongs to
}

// Documents reads the counter documents that the selection names, by canonical key.
func (d *Definition) Documents(ctx context.Context, client *mongo.Client, which Selection) (map[string]Document, error) {
	return d.DocumentsOfLanes(ctx, client, which, 1)
}

// DocumentsOfLanes is Documents that tells to which of so many lanes each belongs.
func (d *Definition) DocumentsOfLanes(ctx context.Context, client *mongo.Client, which Selection, lanes int) (map[string]Document, error) {
	projection := d.projection()
	if lanes > 1 {
		projection = append(projection, bson.E{Key: fieldPartition, Value: partition("$_id", lanes)})
	}
	cursor, err := d.targets(client).Find(ctx, which.On("_id"),
		options.Find().SetProjection(projection).SetCollation(simple).SetBatchSize(batchDocuments))
	if err != nil {
		return nil, fmt.Errorf("read counters of %s: %w", d.Name, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	found := make(map[string]Document, cursor.RemainingBatchLength())
	for cursor.Next(ctx) {
		document := d.document(cursor.Current)
		document.Key.Value = slices.Clone(document.Key.Value) // the rest is the cursor's
		if lanes > 1 {
			document.Partition = int(cursor.Current.Lookup(fieldPartition).AsInt64())
		}
		found[Canonical(document.Key)] = document
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("read counters of %s: %w", d.Name, err)
	}
	return found, nil
}

// projection lists the fields of a counter document that are this counter's.
func (d *Definition) projection() bson.D {
	paths := []string{d.Target.Base, d.Target.Live, d.Own(FieldTouched), d.Own(FieldStamp), d.Own(FieldRepair), d.Own(FieldDrifted), d.TotalPath()}
	switch {
	case d.ByApplication():
		paths = d.shownPaths()
	case d.ByEvents():
		paths = append(paths, d.Own(FieldRecent), d.Own(FieldCut))
	}
	fields := make(bson.D, len(paths))
	for i, path := range paths {
		fields[i] = bson.E{Key: path, Value: 1}
	}
	return fields
}

// fieldPartition is the name of what the server works out beside a document's own fields.
const fieldPartition = "driftlessPartition"

// batchDocuments is how many documents one answer of the server may hold; 16 MiB bound it as well.
const batchDocuments = 10000

// targets is the collection of counter documents, always read on the primary: beside its checkpoint.
func (d *Definition) targets(client *mongo.Client) *mongo.Collection {
	return database(client, d.Target.Database).Collection(d.Target.Collection)
}

// rows is the collection of rows, read where the connection string says.
func (d *Definition) rows(client *mongo.Client) *mongo.Collection {
	return client.Database(d.Rows.Database).Collection(d.Rows.Collection)
}

func (d *Definition) document(raw bson.Raw) Document {
	if d.ByApplication() {
		return d.shown(raw)
	}
	doc := Document{Key: raw.Lookup("_id"), Exists: true}
	doc.Base, _ = doc.count(raw, d.Target.Base)
	doc.Live, _ = doc.count(raw, d.Target.Live)
	doc.Total, doc.HasTotal = doc.count(raw, d.TotalPath())
	ours, _ := lookup(raw, d.own()).DocumentOK()
	doc.Touched, _ = lookup(ours, FieldTouched).BooleanOK()
	doc.Stamp, _ = lookup(ours, FieldStamp).ObjectIDOK()
	doc.Repair, _ = lookup(ours, FieldRepair).ObjectIDOK()
	doc.Drifted, _ = lookup(ours, FieldDrifted).BooleanOK()
	if d.ByEvents() {
		doc.divided(ours)
	}
	return doc
}

// divided reads what events have left.
func (doc *Document) divided(ours bson.Raw) {
	var err error
	if doc.Recent, err = recentOf(lookup(ours, FieldRecent)); err != nil {
		doc.Bad = fmt.Sprintf("our own field %s %v", FieldRecent, err)
	}
	doc.Cut, _ = doc.count(ours, FieldCut)
}

// count reads an integer field. A missing one is 0; one of another type sets the document apart, since $inc would keep
// a double, and refuses the rest.
func (doc *Document) count(raw bson.Raw, path string) (n int64, present bool) {
	v := lookup(raw, path)
	switch v.Type {
	case 0:
		return 0, false
	case bson.TypeInt32, bson.TypeInt64:
		return v.AsInt64(), true
	default:
		doc.Bad = fmt.Sprintf("field %s is of type %s, not an integer", path, v.Type)
		return 0, false
	}
}

// lookup finds a field by its dotted path, zero when there is none. A recount does it for every document several times.
func lookup(raw bson.Raw, path string) bson.RawValue {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		v, err := raw.LookupErr(name)
		if err != nil || deeper && v.Type != bson.TypeEmbeddedDocument && v.Type != bson.TypeArray {
			return bson.RawValue{}
		}
		if !deeper {
			return v
		}
		raw, path = v.Value, rest
	}
}

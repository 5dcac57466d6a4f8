package envelope_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/realtest"
	"driftless/internal/stream/envelope"
)

// watched is a collection with images and its change stream.
type watched struct {
	collection *mongo.Collection
	stream     *mongo.ChangeStream
}

func watch(t *testing.T) watched {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	database := client.Database(realtest.Database(t))
	check(t, database.CreateCollection(t.Context(), "rows",
		options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
	collection := database.Collection("rows")
	stream := must[*mongo.ChangeStream](t)(collection.Watch(t.Context(), bson.A{},
		options.ChangeStream().SetFullDocument(options.Required).SetFullDocumentBeforeChange(options.Required)))
	t.Cleanup(func() { _ = stream.Close(context.WithoutCancel(t.Context())) })
	return watched{collection: collection, stream: stream}
}

// TestAnUpdatesImageIsMadeOfWhatItChanged: what the server says that an update changed, put into the row before, is
// exactly the row after it. An envelope with an image that was looked up later says the same.
func TestAnUpdatesImageIsMadeOfWhatItChanged(t *testing.T) {
	t.Parallel()
	w := watch(t)
	updates, unknown := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		_, err := w.collection.DeleteMany(t.Context(), bson.D{})
		check(t, err)
		row := append(bson.D{{Key: "_id", Value: 1}}, drawRow(t)...)
		_, err = w.collection.InsertOne(t.Context(), row)
		check(t, err)
		for range rapid.IntRange(1, 8).Draw(t, "updates") {
			_, err := w.collection.UpdateOne(t.Context(), bson.D{}, drawUpdate(t))
			if refused := (mongo.WriteException{}); err != nil && !errors.As(err, &refused) { // $push into a text
				t.Fatalf("%v", err)
			}
		}
		_, err = w.collection.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "end"}})
		check(t, err)
		for w.stream.Next(t.Context()) {
			if id, _ := w.stream.Current.Lookup("documentKey", "_id").StringValueOK(); id == "end" && w.stream.Current.Lookup("operationType").StringValue() == "insert" {
				break
			}
			if w.stream.Current.Lookup("operationType").StringValue() != "update" {
				continue
			}
			updates++
			if !checkUpdate(t, w.stream.Current) {
				unknown++
			}
		}
		check(t, w.stream.Err())
	})
	if updates < 100 || unknown > 0 {
		t.Errorf("%d of %d updates could not be followed", unknown, updates)
	}
}

// checkUpdate holds the image that is made to the one that the server kept. It returns false where none could be made.
func checkUpdate(t *rapid.T, event bson.Raw) bool {
	want := event.Lookup("fullDocument").Document()
	var fields bson.D
	check(t, bson.Unmarshal(event, &fields))
	later := rapid.Bool().Draw(t, "later")
	for i, f := range fields {
		if f.Key == "fullDocument" && later {
			fields[i].Value = append(slices.Clone(f.Value.(bson.D)), bson.E{Key: "later", Value: true})
		}
	}
	canonical := rapid.Bool().Draw(t, "canonical")
	published := must[[]byte](t)(bson.MarshalExtJSON(fields, canonical, false))
	c, err := envelope.New(sources["change_stream"]).Decode(nil, published)
	check(t, err)
	if c.AfterUnknown {
		return false
	}
	written := func(row bson.Raw) string {
		var v any = row
		if later { // the order of the fields is not known then
			sorted := map[string]any{}
			check(t, bson.Unmarshal(row, &sorted))
			v = inOrder(sorted)
		}
		return string(must[[]byte](t)(bson.MarshalExtJSON(v, canonical, false)))
	}
	if got, want := written(c.After), written(want); got != want {
		t.Fatalf("%s\nbefore %v\ngot    %s\nwant   %s", published, c.Before, got, want)
	}
	return true
}

// inOrder sorts the fields of a document and of all in it.
func inOrder(v any) any {
	sorted := bson.D{}
	switch v := v.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(v)) {
			sorted = append(sorted, bson.E{Key: name, Value: inOrder(v[name])})
		}
		return sorted
	case bson.D:
		for _, e := range v {
			sorted = append(sorted, bson.E{Key: e.Key, Value: inOrder(e.Value)})
		}
		slices.SortFunc(sorted, func(a, b bson.E) int { return strings.Compare(a.Key, b.Key) })
		return sorted
	case bson.A:
		for i := range v {
			v[i] = inOrder(v[i])
		}
	}
	return v
}

func drawRow(t *rapid.T) bson.D {
	row := bson.D{}
	for _, name := range []string{"a", "b", "l", "d"} {
		if rapid.IntRange(0, 3).Draw(t, "there") > 0 {
			row = append(row, bson.E{Key: name, Value: drawField(t, 2)})
		}
	}
	return row
}

func drawField(t *rapid.T, depth int) any {
	switch n := rapid.IntRange(0, 5).Draw(t, "field"); {
	case n <= 1 && depth > 0:
		d := bson.D{}
		for _, name := range []string{"x", "y", "0", "1"} {
			if rapid.Bool().Draw(t, "there") {
				d = append(d, bson.E{Key: name, Value: drawField(t, depth-1)})
			}
		}
		return d
	case n <= 3 && depth > 0:
		l := bson.A{}
		for range rapid.IntRange(0, 5).Draw(t, "items") {
			l = append(l, drawField(t, depth-1))
		}
		return l
	default:
		return rapid.SampledFrom([]any{int32(1), int32(2), nil, "text that is long enough to make a difference", 1.5, true}).Draw(t, "value")
	}
}

// drawUpdate draws an update by operators, or by a pipeline, which the server describes as the difference of the rows.
func drawUpdate(t *rapid.T) any {
	path := func() string {
		p := rapid.SampledFrom([]string{"a", "b", "l", "d", "e"}).Draw(t, "top")
		for range rapid.IntRange(0, 2).Draw(t, "below") {
			p += "." + rapid.SampledFrom([]string{"x", "y", "0", "1", "2"}).Draw(t, "part")
		}
		return p
	}
	switch rapid.IntRange(0, 6).Draw(t, "update") {
	case 0, 1:
		return bson.D{{Key: "$set", Value: bson.D{{Key: path(), Value: drawField(t, 1)}}}}
	case 2:
		return bson.D{{Key: "$unset", Value: bson.D{{Key: path(), Value: ""}}}}
	case 3:
		return bson.D{{Key: "$push", Value: bson.D{{Key: path(), Value: drawField(t, 1)}}}}
	case 4:
		return bson.D{{Key: "$pop", Value: bson.D{{Key: path(), Value: 1}}}}
	case 5:
		return bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: path(), Value: bson.D{{Key: "$literal", Value: drawField(t, 2)}}}}}}}
	default:
		return bson.A{bson.D{{Key: "$replaceWith", Value: bson.D{{Key: "$mergeObjects", Value: bson.A{
			bson.D{{Key: "$literal", Value: drawRow(t)}}, bson.D{{Key: "_id", Value: "$_id"}, {Key: "n", Value: fmt.Sprint(rapid.IntRange(0, 9).Draw(t, "n"))}},
		}}}}}}
	}
}

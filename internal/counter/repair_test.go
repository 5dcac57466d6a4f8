package counter

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/config"
	"driftless/internal/realtest"
)

// A document that is set apart again between a comparison and its repair keeps its mark and its record.
func TestWhatIsSetApartSinceTheComparisonIsKept(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	name := realtest.Database(t)
	states := NewStates(client, name)
	d, err := Define(config.Counter{Name: "plain", Key: "key"})
	if err != nil {
		t.Fatal(err)
	}
	kind, data, err := bson.MarshalValue("post")
	if err != nil {
		t.Fatal(err)
	}
	key := bson.RawValue{Type: kind, Value: data}
	compared, since := bson.NewObjectID(), bson.NewObjectID()
	for _, stamp := range []bson.ObjectID{compared, since} {
		apart := Apart{Delta: &Delta{Counter: d, Key: key, N: 1}, Reason: "refused"}
		for collection, model := range map[string]mongo.WriteModel{
			TouchedCollection: touch(d, key, stamp), DeadLettersCollection: deadLetter(apart, "lane", stamp),
		} {
			if err := states.write(t.Context(), collection, []mongo.WriteModel{model}); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, step := range []struct {
		stamp bson.ObjectID
		left  int64
	}{{compared, 1}, {since, 0}} {
		if err := d.Untouch(t.Context(), states, []Touched{{Key: key, Stamp: step.stamp}}); err != nil {
			t.Fatal(err)
		}
		for _, collection := range []string{TouchedCollection, DeadLettersCollection} {
			n, err := client.Database(name).Collection(collection).CountDocuments(t.Context(), bson.D{})
			if err != nil || n != step.left {
				t.Errorf("%s after clearing %v: %d documents, want %d (%v)", collection, step.stamp, n, step.left, err)
			}
		}
	}
}

package counter_test

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream/envelope"
)

// TestRecordsOfRandomHistoriesAddUpToTheRecount: change events as a connector publishes them, read and judged in Go,
// come to what the server counts in the rows.
func TestRecordsOfRandomHistoriesAddUpToTheRecount(t *testing.T) {
	t.Parallel()
	d := prepare(t, evaluated(t)...)
	changes := must[*mongo.ChangeStream](t)(d.rows().Watch(t.Context(), bson.A{},
		options.ChangeStream().SetFullDocument(options.Required).SetFullDocumentBeforeChange(options.WhenAvailable)))
	t.Cleanup(func() { _ = changes.Close(context.WithoutCancel(t.Context())) })
	decoder := envelope.New(&config.Kafka{Format: "change_stream"})
	rapid.Check(t, func(t *rapid.T) {
		_, err := d.rows().DeleteMany(t.Context(), bson.D{})
		check(t, err)
		d.mark(t)
		d.published(t, decoder, changes) // what the history before has left
		d.write(t, rapid.SliceOfN(rapid.Custom(drawWrite), 1, 60).Draw(t, "writes")...)
		d.mark(t)
		all := d.published(t, decoder, changes)
		for i, definition := range d.definitions {
			truths, _, err := definition.Count(t.Context(), d.client, everything)
			check(t, err)
			for key := range union(all[i], truths) {
				truth := truths[key]
				if definition.Name == markerName || definition.Key == "_id" && key == canonical(t, markerName) {
					continue // the last marker is in the rows alone
				}
				if truth.Bad == "" && all[i][key] != truth.N {
					t.Fatalf("counter %s of %q: the records come to %d, the recount is %d", definition.Name, key, all[i][key], truth.N)
				}
			}
		}
	})
}

// published sums the contributions of the change events up to the last marker, per counter.
func (d *deployment) published(t checker, decoder envelope.Decoder, changes *mongo.ChangeStream) []map[string]int64 {
	t.Helper()
	evaluators := make([]*counter.Evaluator, len(d.definitions))
	sums := make([]map[string]int64, len(d.definitions))
	for i, definition := range d.definitions {
		evaluators[i] = must[*counter.Evaluator](t)(counter.Compile(definition))
		sums[i] = map[string]int64{}
	}
	for n := 0; changes.Next(t.Context()); n++ {
		record := must[[]byte](t)(bson.MarshalExtJSON(changes.Current, n%2 == 0, false))
		c := must[envelope.Change](t)(decoder.Decode(nil, record))
		if c.BeforeUnknown || c.AfterUnknown {
			t.Fatalf("an image of %s is not known", record)
		}
		if at, ok := c.After.Lookup(markerField).AsInt64OK(); ok && at == d.marker {
			return sums
		}
		for i, evaluator := range evaluators {
			for _, image := range []struct {
				row  bson.Raw
				sign int64
			}{{c.Before, -1}, {c.After, 1}} {
				if key, weight := evaluator.Contribution(image.row); weight != 0 {
					sums[i][counter.Canonical(key)] += image.sign * weight
				}
			}
		}
	}
	t.Fatalf("the change stream has ended: %v", changes.Err())
	return nil
}

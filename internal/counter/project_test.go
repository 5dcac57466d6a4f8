package counter

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
)

func reactions(t *testing.T) []*Definition {
	t.Helper()
	c := config.Counter{
		Name: "reactions_per_post", Source: "reactions", Format: config.FormatEvent, Key: "post_id",
		Rows:   config.Rows{Database: "app", Collection: "reactions", CreatedAt: "created_at"},
		Target: config.Target{Database: "app", Collection: "post_counters", Base: "base_count", Live: "live_delta", Upsert: true},
	}
	other := c
	other.Name = "reactions_per_user"
	definitions, err := DefineAll([]config.Counter{c, other})
	if err != nil {
		t.Fatal(err)
	}
	return definitions
}

func reactionDecoder() envelope.Decoder {
	return envelope.New(&config.Kafka{Format: config.FormatEvent, Event: config.Event{
		Type: "type", Key: "post_id", Time: "at", Deltas: map[string]int64{"added": 1, "removed": -1, "purged": -7, "seen": 0},
	}})
}

func TestRecordsOfATopicAreFoldedByKeyAndTime(t *testing.T) {
	definitions := reactions(t)
	now := time.Unix(1_700_000_030, 0)
	p, err := NewProjector(reactionDecoder(), definitions, 30*time.Second, func() time.Duration { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	var events []stream.Event
	for _, value := range []string{
		`{"type":"added","post_id":1,"at":1700000001000}`,
		`{"type":"added","post_id":1,"at":1700000009999}`,
		`{"type":"removed","post_id":1,"at":1700000010000}`,
		`{"type":"purged","post_id":"a","at":"2023-11-14T22:13:21Z"}`,
		`{"type":"seen","post_id":1,"at":1700000001000}`,
		`{"type":"unheard of"}`,
		`{"type":"added","post_id":1,"at":1700000061000}`, // too far ahead
		`{"type":"added","post_id":{"$x":1},"at":1700000001000}`,
		`{"type":"added","at":1700000001000}`,
		`not JSON`,
	} {
		doc, at, _ := p.Project(nil, []byte(value), now)
		if doc != nil {
			events = append(events, stream.Event{Doc: doc, Token: stream.TopicPosition{Offset: int64(len(events)), Through: at}.Token()})
		}
	}
	folded, err := Fold(definitions, events)
	if err != nil {
		t.Fatal(err)
	}
	if len(folded.Deltas) != 4 || len(folded.Dead) != 4 || folded.Events != len(events) {
		t.Fatalf("%d deltas, %d dead, %d events", len(folded.Deltas), len(folded.Dead), folded.Events)
	}
	for _, d := range folded.Deltas {
		want, spans := int64(1), map[Bucket]int64{{1_700_000_000, 10}: 2, {1_700_000_010, 10}: -1}
		if d.Key.Type == bson.TypeString {
			want, spans = -7, map[Bucket]int64{{1_700_000_000, 10}: -7}
		}
		if d.N != want || len(d.Recent) != len(spans) {
			t.Errorf("%s of %v: %d, %v", d.Counter.Name, d.Key, d.N, d.Recent)
		}
		for _, s := range d.Recent {
			if spans[s.Bucket] != s.N {
				t.Errorf("%s of %v: %v", d.Counter.Name, d.Key, d.Recent)
			}
		}
	}
	for i, reason := range []string{"time_ahead", envelope.ReasonMalformed, envelope.ReasonMissing, envelope.ReasonNotJSON} {
		if d := folded.Dead[i]; d.Reason != reason || d.Why == "" || len(d.Value) == 0 {
			t.Errorf("dead letter %d: %+v, want reason %s", i, d, reason)
		}
	}
}

// A topic may hold the changes of several collections, of which a counter's rows are one.
func TestChangesOfOtherCollectionsAreNoneOfACounters(t *testing.T) {
	definitions := reactions(t)
	for _, d := range definitions {
		d.Format, d.Rows.CreatedAt = "change_stream", ""
	}
	p, err := NewProjector(envelope.New(&config.Kafka{Format: "change_stream"}), definitions, time.Second, func() time.Duration { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	for collection, want := range map[string]bool{"reactions": true, "others": false} {
		record := `{"operationType":"insert","ns":{"db":"app","coll":"` + collection + `"},"documentKey":{"_id":1},"fullDocument":{"_id":1,"post_id":5},
			"clusterTime":{"$timestamp":{"t":1700000000,"i":1}}}`
		doc, _, dead := p.Project(nil, []byte(record), time.Unix(1_700_000_030, 0))
		if dead != nil || (doc != nil) != want {
			t.Errorf("%s: %v, %v", collection, doc, dead)
		}
	}
}

// A filter that is more than the _id makes the server plan each update; one that may be read as an operator finds other documents.
func TestKeysAreLookedForByTheirValueAlone(t *testing.T) {
	for _, value := range []any{int32(1), int64(1), 1.5, "$ne", bson.NewObjectID(), true, time.Unix(1, 0), bson.Decimal128{}, bson.Binary{Data: []byte("b")}} {
		key := rawValue(t, value)
		if got := equalKey(key).Lookup("_id"); !got.Equal(key) {
			t.Errorf("%v is looked for by %v", key, got)
		}
	}
	for _, value := range []any{bson.D{{Key: "$ne", Value: nil}}, bson.D{{Key: "a", Value: 1}}, bson.Regex{Pattern: "."}, bson.Null{}, bson.A{1}} {
		key := rawValue(t, value)
		if got := equalKey(key).Lookup("_id", "$eq"); !got.Equal(key) {
			t.Errorf("%v is looked for by %v", key, equalKey(key))
		}
	}
}

func rawValue(t *testing.T, value any) bson.RawValue {
	t.Helper()
	kind, data, err := bson.MarshalValue(value)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: kind, Value: data}
}

// Documents of many records share memory, and keep what they hold.
func TestProjectedRecordsKeepWhatTheyHold(t *testing.T) {
	p, err := NewProjector(reactionDecoder(), reactions(t), 30*time.Second, func() time.Duration { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	const many = 5000 // more than fit into one piece of memory
	key := func(i int) string { return strings.Repeat("k", i%3000) + strconv.Itoa(i) }
	docs := make([]bson.Raw, many)
	for i := range docs {
		value := fmt.Sprintf(`{"type":"purged","post_id":%q,"at":1700000001000}`, key(i))
		if docs[i], _, err = p.Project(nil, []byte(value), time.Unix(1_700_000_030, 0)); err != nil {
			t.Fatal(err)
		}
	}
	for i, doc := range docs {
		if got := doc.Lookup("b0", "k").StringValue(); doc.Validate() != nil || got != key(i) || doc.Lookup("b1", "w").Int64() != 7 {
			t.Fatalf("record %d became %v", i, doc)
		}
	}
}

package counter

import (
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
)

// A change without an image out of a topic is as late as its commit, which may be later than its lane has got, by the broker's
// clock: a recount of before has not seen it, and must leave its mark.
func TestAChangeWithoutAnImageFromATopicIsAsLateAsItsCommit(t *testing.T) {
	definitions := reactions(t)
	for _, d := range definitions {
		d.Format, d.Rows.CreatedAt = "debezium", ""
	}
	p, err := NewProjector(envelope.New(&config.Kafka{Format: "debezium"}), definitions, time.Second, func() time.Duration { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	through := time.Unix(1_700_000_020, 0)
	for record, want := range map[string]bson.Timestamp{
		`{"op":"u","before":null,"after":null,"updateDescription":{"updatedFields":"{\"deleted_at\":1}"},
			"source":{"db":"app","collection":"reactions","ts_ms":1700000030000,"ord":7}}`: {T: 1_700_000_030, I: 7},
		`{"__deleted":"true"}`: {T: 1_700_000_020, I: math.MaxUint32}, // it says nothing about when
	} {
		doc, _, dead := p.Project([]byte(`{"id":"1"}`), []byte(record), through)
		if dead != nil {
			t.Fatal(dead)
		}
		folded, err := Fold(definitions, []stream.Event{{Doc: doc, Token: stream.TopicPosition{Through: through}.Token()}})
		if err != nil || len(folded.Missing) != 1 {
			t.Fatalf("%s: %+v, %v", record, folded, err)
		}
		if at, err := folded.Missing[0].at(); err != nil || at != want {
			t.Errorf("%s is of %v, %v, want %v", record, at, err, want)
		}
	}
}

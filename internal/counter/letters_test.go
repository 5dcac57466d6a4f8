package counter

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// A lane that was moved back reads records again that cannot be read.
func TestARecordThatIsReadAgainHasOneDeadLetter(t *testing.T) {
	r := newRig(t, 1, 1000)
	at := checkpoint.Checkpoint{Lane: "rows/topic/0", Topic: "topic"}
	dead := func(why string) []Dead {
		return []Dead{{Reason: "other", Why: why, Value: []byte{}, Token: stream.TopicPosition{Offset: 8}.Token()}}
	}
	r.check(r.states.setApart(t.Context(), dead("first"), at, bson.NewObjectID()))
	second := bson.NewObjectID()
	r.check(r.states.setApart(t.Context(), dead("second"), at, second))
	var letters []Letter
	r.check(r.states.Letters(t.Context(), false, 0, func(l Letter) error { letters = append(letters, l); return nil }))
	if len(letters) != 1 {
		t.Fatalf("letters %+v, want one", letters)
	}
	l := letters[0]
	if l.ID != "rows/topic/0@7" || l.Offset != 7 || l.Reason != "second" || l.Stamp != second || l.RecordKey != nil || l.Record == nil || !l.Whole() {
		t.Errorf("letter %+v", l)
	}
}

package counter

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// identified is the event with an id.
func identified(e stream.Event, id string) stream.Event {
	var doc bson.D
	if err := bson.Unmarshal(e.Doc, &doc); err != nil {
		panic(err)
	}
	e.Doc = mustRaw(append(bson.D{{Key: fieldID, Value: id}}, doc...))
	return e
}

// A commit whose answer is lost is not taken for a batch of repeated events when it is tried again.
func TestIDsOfACommitThatCameTrueBehindALostAnswerAreNotTakenForRepeated(t *testing.T) {
	r := newRig(t, 1, 1000)
	const name = "unknown result"
	us := r.another(realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetAppName(name)), 1000)
	us.at, us.applier.Window = r.at, time.Hour
	const writeConcernTimeout = 64 // the commit comes true, and its result stays unknown until the transaction is tried again
	realtest.FailCommand(t, r.client, realtest.Failure{
		Commands: []string{"commitTransaction"}, AppName: name, WriteConcernCode: writeConcernTimeout, Times: 4 * commitRetries,
	})
	us.apply(batchOf(identified(rise(eventToken(r.after(1), 1), "x"), "a"), identified(rise(eventToken(r.after(1), 2), "y"), "a")))
	if len(us.applied) != 1 || us.applied[0].Repeated != 1 || us.applied[0].Events != 2 {
		t.Errorf("applied %+v, want once, with one event that is repeated", us.applied)
	}
	r.wantLive(map[string]int64{`"x"`: 1})
}

// A document that refuses its increment is set apart by what the events that are not repeated come to.
func TestRepeatedEventsOfADocumentThatIsSetApartCountOnce(t *testing.T) {
	r := newRig(t, 1, 1000)
	r.applier.Window = time.Hour
	field := r.definitions[0].Target.Live
	_, err := r.client.Database(r.name).Collection("targets").InsertOne(t.Context(), bson.D{{Key: "_id", Value: "bad"}, {Key: field, Value: "text"}})
	r.check(err)
	r.apply(batchOf(identified(rise(eventToken(r.after(1), 1), "bad"), "a"), identified(rise(eventToken(r.after(1), 2), "bad"), "a"),
		identified(rise(eventToken(r.after(1), 3), "good"), "b")))
	r.apply(batchOf(identified(rise(eventToken(r.after(2), 1), "bad"), "a"), identified(rise(eventToken(r.after(2), 2), "good"), "c")))
	if apart := r.applied[0].Apart; len(apart) != 1 || apart[0].Delta.N != 1 {
		t.Errorf("set apart %+v, want one increment", apart)
	}
	if apart := r.applied[1].Apart; len(apart) != 0 {
		t.Errorf("set apart again %+v, want nothing", apart)
	}
	if got := r.live()[`"good"`]; got != 2 {
		t.Errorf("good is at %d, want 2", got)
	}
}

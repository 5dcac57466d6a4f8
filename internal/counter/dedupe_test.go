package counter

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

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
	proxy := proxyTo(t, realtest.Shared(t).URI())
	healing := make(chan struct{})
	client := onCommit(t, proxy.URI(), func(bson.Raw) {
		proxy.Drop(0)
		go func() {
			defer close(healing)
			for there := false; !there && t.Context().Err() == nil; {
				stored, err := r.checkpoints.Load(t.Context(), rigLane)
				there = err == nil && stored.Seq == r.at.Seq+1
			}
			proxy.Cut() // no retry of the commit brings the answer
			proxy.Heal()
		}()
	})
	us := r.another(client, 1000)
	us.at, us.applier.Window = r.at, time.Hour
	us.apply(batchOf(identified(rise(eventToken(r.after(1), 1), "x"), "a"), identified(rise(eventToken(r.after(1), 2), "y"), "a")))
	<-healing
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

package incrementer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

func (w *world) images(on bool) {
	w.t.Helper()
	w.check(w.database().RunCommand(w.t.Context(), bson.D{
		{Key: "collMod", Value: source}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: on}}},
	}).Err())
}

// wantMarked waits until every counter is marked for a recount for the reason.
func (w *world) wantMarked(reason string) {
	w.t.Helper()
	for _, d := range w.definitions {
		realtest.Eventually(w.t, patience, d.Name+" is marked because of "+reason, func() bool {
			s := w.state(d.Name)
			return s.State == counter.Rebasing && s.Reason == reason
		})
	}
}

func TestAMissingImageMarksTheCountersAndTheLaneGoesOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost())
	w.begin()
	w.activate()
	o := w.follow(following{})
	rows := w.someRows(3)
	for i := range rows {
		rows[i][1].Value = "post" // post
	}
	w.insertRows(rows...)
	w.mark()
	w.images(false)
	_, err := w.rows.UpdateOne(t.Context(), rows[0][:1], bson.D{{Key: "$set", Value: bson.D{{Key: "post", Value: "moved"}}}})
	w.check(err)
	_, err = w.rows.DeleteOne(t.Context(), rows[1][:1])
	w.check(err)
	w.insertRows(append(w.row()[:1], bson.E{Key: "post", Value: "inserted"})) // an insert needs no image before
	w.mark()
	w.wantMarked(counter.ReasonMissingImage)
	shown := w.displayed(w.definitions[0])
	if shown[`"post"`] != 3 || shown[`"moved"`] != 0 || shown[`"inserted"`] != 1 {
		t.Errorf("displayed is %v: something was guessed", shown)
	}
	if n := o.metric(t, "incrementer_events_skipped_total", "missing_image"); n != 2 {
		t.Errorf("%v events counted as skipped", n)
	}
	o.logged(t, "changes without an image")

	// Images are on again: nothing is marked any more.
	w.images(true)
	_, err = w.rows.UpdateOne(t.Context(), rows[2][:1], bson.D{{Key: "$set", Value: bson.D{{Key: "post", Value: "moved"}}}})
	w.check(err)
	w.activate()
	w.churn(t.Context(), 50)
	w.mark()
	o.wantRunning(t)
	if s := w.state("per_post"); s.State != counter.Active {
		t.Errorf("with images, the counter is %+v", s)
	}
	if shown := w.displayed(w.definitions[0]); shown[`"post"`] != 2 || shown[`"moved"`] != 1 {
		t.Errorf("with images, displayed is %v", shown)
	}
}

func TestAMissingImageIsCountedAndToldByWhatItCosts(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	w.activate()
	o := w.follow(following{})
	rows := w.someRows(3)
	w.insertRows(rows...)
	w.mark()
	w.images(false)
	change := func(field string, value any) {
		_, err := w.rows.UpdateOne(t.Context(), rows[0][:1], bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}})
		w.check(err)
		w.mark()
	}
	want := func(skipped float64, states ...string) {
		t.Helper()
		if n := o.metric(t, "incrementer_events_skipped_total", "missing_image"); n != skipped {
			t.Errorf("%v events counted as skipped, want %v", n, skipped)
		}
		for i, d := range w.definitions {
			if s := w.state(d.Name); s.State != states[i] {
				t.Errorf("%s is %+v, want %s", d.Name, s, states[i])
			}
		}
	}
	change("text", "nobody looks at it")
	want(0, counter.Active, counter.Active)
	if strings.Contains(o.log.String(), "without an image") {
		t.Error("a change that costs nothing is told")
	}
	change("words", 1000)
	want(1, counter.Active, counter.Active)
	o.logged(t, "changes without an image, nothing of them is applied: their keys are marked")
	change("post", "moved")
	want(2, counter.Rebasing, counter.Active)
	o.logged(t, "changes without an image, nothing of them is applied: counters are marked for a full recount")
	o.logged(t, "counters=[per_post]")
	for range 5 {
		change("post", "moved on")
		change("post", "moved back")
	}
	want(12, counter.Rebasing, counter.Active)
	if n := strings.Count(o.log.String(), "without an image"); n != 2 {
		t.Errorf("told %d times within a minute", n)
	}
}

func (w *world) gaps() []counter.Gap {
	w.t.Helper()
	cursor, err := w.stateDatabase().Collection(counter.GapsCollection).Find(w.t.Context(), bson.D{})
	w.check(err)
	var gaps []counter.Gap
	w.check(cursor.All(w.t.Context(), &gaps))
	return gaps
}

// recreate makes the rows' collection anew, as an application's migration does.
func (w *world) recreate() {
	w.t.Helper()
	w.check(w.database().CreateCollection(w.t.Context(), source,
		options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
}

func TestACollectionThatIsDroppedLeavesAGapAndAFreshStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	moves := w.moves()
	w.begin()
	w.activate()
	o := w.follow(following{})
	w.churn(t.Context(), 50)
	w.wantExact()
	before := w.at().Position
	w.check(w.rows.Drop(t.Context()))
	w.recreate()
	w.wantMarked(counter.ReasonGap)
	o.logged(t, "position lost: started afresh")
	gaps := w.gaps()
	if len(gaps) == 0 || gaps[0].Lane != source || gaps[0].Reason != "collection_changed" || gaps[0].From.Before(before) || !gaps[0].From.Before(gaps[0].To) {
		t.Fatalf("recorded gaps are %+v", gaps)
	}
	if n := o.metric(t, "incrementer_gaps_total"); n != float64(len(gaps)) {
		t.Errorf("%v gaps counted, %d recorded", n, len(gaps))
	}
	// What happens after the fresh start counts; what was there before is left to the recount.
	realtest.Eventually(t, patience, "the lane follows again", func() bool { return o.State.View().Owned })
	shown := w.displayed(w.definitions[0])
	w.insertRows(w.someRows(20)...)
	w.mark()
	if got := sum(w.displayed(w.definitions[0])) - sum(shown); got != 21 {
		t.Errorf("of 21 new rows %d are counted", got)
	}
	o.wantRunning(t)
	_ = o.stop()
	wantNoGaps(t, moves())
}

func TestAnOplogThatRolledOverLeavesAGapAndAFreshStart(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{OplogMB: 1, SyncDelay: time.Second})
	w := newWorldOn(t, server.URI(), realtest.Client(t, server.URI()), perPost())
	w.begin()
	w.activate()
	w.insertRows(w.someRows(3)...) // nobody sees them go by
	before := w.at()
	body := string(make([]byte, 1<<20))
	oplog := w.client.Database("local").Collection("oplog.rs")
	realtest.Eventually(t, 2*patience, "the oplog has rolled over", func() bool {
		for range 4 {
			_, err := w.database().Collection("neighbour").InsertOne(t.Context(), bson.D{{Key: "body", Value: body}})
			w.check(err)
		}
		var first struct{ TS bson.Timestamp }
		w.check(oplog.FindOne(t.Context(), bson.D{}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}})).Decode(&first))
		return before.Position.Before(first.TS)
	})
	o := w.follow(following{})
	w.wantMarked(counter.ReasonGap)
	o.logged(t, "position lost: started afresh")
	w.mark()
	if gaps := w.gaps(); len(gaps) != 1 || gaps[0].Reason != "position_lost" || gaps[0].From != before.Position {
		t.Errorf("recorded gaps are %+v", gaps)
	}
}

func TestALostPositionEndsTheProcessWhenThePolicySaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	w.activate()
	o := w.follow(following{stop: true})
	w.mark()
	before := w.at()
	w.check(w.rows.Drop(t.Context()))
	waitFor(t, o.ended, "the lane ends")
	if !errors.Is(o.err, stream.ErrCollectionChanged) {
		t.Errorf("ended with %v", o.err)
	}
	if s := w.state("per_post"); s.State != counter.Active || len(w.gaps()) != 0 {
		t.Errorf("with policy stop, the counter is %+v and the gaps are %v", s, w.gaps())
	}
	if at := w.at(); at.Position.Before(before.Position) || at.Token == nil {
		t.Errorf("the checkpoint has gone from %+v to %+v", before, at)
	}
}

func TestAFreshStartThatFailsIsSaidAndTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	w.activate()
	client, _ := w.named()
	o := w.follow(following{client: client})
	w.mark()
	point := realtest.FailCommand(t, w.client, realtest.Failure{Commands: []string{"find"}, AppName: w.name, Code: 11000, Times: -1})
	w.check(w.rows.Drop(t.Context()))
	w.recreate()
	w.check(point.WaitEntered(t.Context(), 1))
	realtest.Eventually(t, patience, "the lane says why it does not follow", func() bool {
		v := o.State.View()
		return !v.Owned && errors.Is(v.LastErr, stream.ErrCollectionChanged)
	})
	point.Off()
	w.wantMarked(counter.ReasonGap)
	realtest.Eventually(t, patience, "the lane follows again", func() bool { return o.State.View().Owned && o.State.View().LastErr == nil })
}

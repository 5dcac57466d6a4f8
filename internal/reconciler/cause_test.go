package reconciler

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// Where documents carry no marks, a mark says nothing about its key. A dead letter does, also when increments have come since,
// and goes when its key is right.
func TestADeadLetterIsACauseUntilItsKeyIsRight(t *testing.T) {
	t.Parallel()
	f := setUp(t, noUpsert)
	for _, post := range []string{"letter", "other"} {
		must(f.targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: post}}))(t)
		f.comment(post, 1)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	letters := func() int64 {
		return must(f.state.Collection(counter.DeadLettersCollection).CountDocuments(t.Context(), bson.D{}))(t)
	}
	f.edit("letter", set("live_delta", "text"))
	f.comment("letter", 2)
	f.catchUp()
	if letters() != 1 {
		t.Fatal("no dead letter")
	}
	f.edit("letter", set("live_delta", int64(0)))
	f.plant("other", 3)
	f.edit("other", inc("driftless."+counterName+".total", 3)) // no edit, by its witness
	f.comment("letter", 1)
	f.comment("other", 1)
	f.catchUp()

	for _, o := range []Options{{DryRun: true}, {}} {
		report := f.run(r, o)
		wantDrift(t, report, map[any]int64{"letter": -2, "other": 3})
		for _, d := range only(t, report).Drifted {
			if want := map[int64]Cause{-2: CauseSetApart, 3: CauseUnknown}[d.Drift]; d.Cause != want {
				t.Errorf("drift %d has the cause %q, want %q", d.Drift, d.Cause, want)
			}
		}
	}
	if n := letters(); n != 0 {
		t.Errorf("%d dead letters left", n)
	}
	f.wantExact()
}

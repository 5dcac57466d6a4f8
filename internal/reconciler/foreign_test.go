package reconciler

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// Two deployments that share a state database overwrite each other's record of a counter of the same name: by the
// other's, a counter that has never been counted would look finished.
func TestNothingIsJudgedByTheRecordOfAnotherDeploymentsCounter(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.comment("a", 3) // before the incrementer: only the first recount finds them
	f.start()
	f.catchUp()
	f.stop() // it would ask for its recount again

	theirs := declared(f.rows.Database().Name(), counterName, "their_base", "their_live")
	theirs.Source = "reactions"
	others := must(counter.DefineAll([]config.Counter{theirs}))(t)[0]
	f.check(f.states.Mark(t.Context(), others, counter.ReasonNew))
	if ended := must(f.states.Activate(t.Context(), f.stateOf(counterName)))(t); !ended {
		t.Fatal("the other deployment has not ended its recount")
	}
	const words = "another deployment counts another counter of this name"
	r := f.reconciler(equipment{})
	for _, o := range []Options{{}, {Full: true}, {Key: raw("a")}, {DryRun: true, Full: true}} {
		wantNotJudged(t, f.run(r, o), skipDefinition, words)
	}
	if state := f.stateOf(counterName); state.Hash != others.Hash || !state.VerifiedThrough.IsZero() {
		t.Errorf("the other's record was changed: %+v", state)
	}

	// The other counter is renamed, and the incrementer asks for the recount again.
	f.start()
	f.recounted()
	f.wantExact()
}

func TestNothingIsJudgedWithoutTheCountersRecord(t *testing.T) {
	t.Parallel()
	f := setUp(t, impatient)
	f.comment("a", 3)
	f.start()
	f.catchUp()
	f.stop()
	must(f.state.Collection(counter.StatesCollection).DeleteOne(t.Context(), bson.D{{Key: "_id", Value: counterName}}))(t)
	r := f.reconciler(equipment{})
	for _, o := range []Options{{}, {Full: true}, {Key: raw("a")}, {DryRun: true}} {
		wantNotJudged(t, f.run(r, o), skipDefinition, "has no record in the state database")
	}
	if state := f.stateOf(counterName); state != (counter.State{}) {
		t.Errorf("a record was made: %+v", state)
	}
	f.start()
	f.recounted()
	f.wantExact()
}

// recounted runs until the counter's recount, which a lane asks for, is done.
func (f *fixture) recounted() {
	f.t.Helper()
	r := f.reconciler(equipment{})
	realtest.Eventually(f.t, patience, "the recount", func() bool {
		return f.run(r, Options{}).Result == ResultOK && f.stateOf(counterName).State == counter.Active
	})
}

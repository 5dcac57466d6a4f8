package incrementer_test

import (
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// when is count_if as the file has it, in extended JSON.
func when(t testing.TB, expression string) bson.RawValue {
	t.Helper()
	var wrapped struct{ E bson.RawValue }
	if err := bson.UnmarshalExtJSON([]byte(`{"e": `+expression+`}`), false, &wrapped); err != nil {
		t.Fatal(err)
	}
	return wrapped.E
}

// tagged fails on rows without tags, numbered on those whose code is no number.
func tagged(t testing.TB) config.Counter {
	return config.Counter{Name: "tagged", Key: "post", CountIf: when(t, `{"$gt": [{"$size": "$tags"}, 0]}`)}
}

func numbered(t testing.TB) config.Counter {
	return config.Counter{Name: "numbered", Key: "post", CountIf: when(t, `{"$gte": [{"$toLong": "$code"}, 0]}`)}
}

// tag gives every row of the world what tagged and numbered need.
func (w *world) tag(rows []bson.D) []bson.D {
	for i := range rows {
		rows[i] = append(rows[i], bson.E{Key: "tags", Value: bson.A{"x"}}, bson.E{Key: "code", Value: "7"})
	}
	return rows
}

func (w *world) insertRows(rows ...bson.D) {
	w.t.Helper()
	_, err := w.rows.InsertMany(w.t.Context(), rows)
	w.check(err)
}

// wantBroken waits until exactly these counters are set apart, in the checkpoint as in what the lane publishes.
func (w *world) wantBroken(o *owner, names ...string) {
	w.t.Helper()
	realtest.Eventually(w.t, patience, "broken are "+strings.Join(names, " "), func() bool {
		published, at := o.State.View().Broken, w.at()
		n := 0
		for _, c := range at.Counters {
			if c.Broken != "" {
				n++
			}
		}
		for _, name := range names {
			if published[name] == "" || at.Counters[name].Broken == "" {
				return false
			}
		}
		return n == len(names) && len(published) == len(names)
	})
}

func TestAnExpressionThatFailsOnARowStopsItsCounterAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost(), tagged(t), wordsPerAuthor())
	moves := w.moves()
	w.begin()
	w.activate()
	o := w.follow(following{brokenRetry: 2 * time.Second, batchEvents: 20})
	w.insertRows(w.tag(w.someRows(50))...)
	w.mark()
	w.insertRows(w.someRows(1)...) // without tags
	w.insertRows(w.tag(w.someRows(50))...)
	w.wantBroken(o, "tagged")
	others := []*counter.Definition{w.definitions[0], w.definitions[2]}
	w.wantExact(others...)
	o.logged(t, "counter set apart")
	if message := w.at().Counters["tagged"].Broken; !strings.Contains(message, "$size") {
		t.Errorf("the checkpoint says %q", message)
	}
	if got := o.metric(t, "incrementer_degraded", "broken_expression"); got != 1 {
		t.Errorf("degraded is %v", got)
	}
	if s := w.state("tagged"); s.State != counter.Rebasing || s.Reason != counter.ReasonBroken {
		t.Errorf("the broken counter is %+v", s)
	}
	for _, d := range others {
		if s := w.state(d.Name); s.State != counter.Active {
			t.Errorf("counter %s, which did not notice, is %+v", d.Name, s)
		}
	}

	// The row that it failed on is behind: at the next try it is taken up again, marked anew, and counts from there on.
	epoch := w.state("tagged").Epoch
	w.wantBroken(o)
	o.logged(t, "counter taken up again")
	if s := w.state("tagged"); s.State != counter.Rebasing || s.Epoch == epoch {
		t.Errorf("taken up again, the counter is %+v", s)
	}
	w.mark()
	w.wantExact(others...)
	for _, d := range others {
		if s := w.state(d.Name); s.State != counter.Active {
			t.Errorf("counter %s, which did not notice, is %+v", d.Name, s)
		}
	}
	if got := o.metric(t, "incrementer_degraded", "broken_expression"); got != 0 {
		t.Errorf("mended, degraded is %v", got)
	}
	_ = o.stop()
	wantNoGaps(t, moves())
}

func TestACounterThatFailsFarBehindTheCheckpointIsFound(t *testing.T) {
	t.Parallel()
	// The row stands many batches after the position at which the lane begins, and the reader is always ahead.
	w := newWorld(t, perPost(), tagged(t))
	w.begin()
	for range 20 {
		w.insertRows(w.tag(w.someRows(100))...)
	}
	w.insertRows(w.someRows(1)...)
	w.insertRows(w.tag(w.someRows(100))...)
	o := w.follow(following{batchEvents: 20})
	w.wantBroken(o, "tagged")
	w.wantExact(w.definitions[0])
	if got := o.metric(t, "incrementer_stream_restarts_total"); got != 1 {
		t.Errorf("the lane was opened %v times more", got)
	}
	// All that came before the row is counted: the checkpoint stood exactly there.
	if got, want := sum(w.displayed(w.definitions[1])), int64(2000/20*20); got < want-20 {
		t.Errorf("the broken counter has counted %d of the %d rows before", got, want)
	}
}

func sum(counts map[string]int64) (n int64) {
	for _, c := range counts {
		n += c
	}
	return n
}

func TestTwoCountersThatFailAtOnceAreBothSetApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tagged(t), perPost(), numbered(t))
	w.begin()
	o := w.follow(following{})
	w.insertRows(append(w.row(), bson.E{Key: "code", Value: "seven"}))
	w.wantBroken(o, "tagged", "numbered")
	w.wantExact(w.definitions[1])
	o.wantRunning(t)
}

func TestEveryCounterOfASourceMayBeBroken(t *testing.T) {
	t.Parallel()
	w := newWorld(t, tagged(t))
	w.begin()
	o := w.follow(following{brokenRetry: time.Second})
	w.insertRows(w.someRows(1)...)
	w.wantBroken(o, "tagged")
	w.wantMoves(2) // it goes on all the same
	w.wantBroken(o)
	w.mark()
}

func TestAnUnknownOperatorStopsItsCounterAlone(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost(), config.Counter{Name: "nonsense", Key: "post", CountIf: when(t, `{"$nope": 1}`)})
	w.begin()
	w.activate()
	moves := w.moves()
	o := w.follow(following{brokenRetry: 1500 * time.Millisecond})
	w.wantBroken(o, "nonsense")
	w.churn(t.Context(), 50)
	w.wantExact(w.definitions[0])
	epoch := w.state("nonsense").Epoch
	// It is tried again and again, and as long as it fails nothing is written about that.
	before := o.metric(t, "incrementer_stream_restarts_total")
	w.wantMoves(4)
	w.wantExact(w.definitions[0])
	if s := w.state("nonsense"); s.Epoch != epoch {
		t.Errorf("marked once more: %+v", s)
	}
	if s := w.state("per_post"); s.State != counter.Active {
		t.Errorf("the other counter is %+v", s)
	}
	if got := o.metric(t, "incrementer_stream_restarts_total"); got != before {
		t.Errorf("the stream was restarted %v times", got-before)
	}
	_ = o.stop()

	// Mended in the file, it is taken up by the next start.
	mended := w.define(perPost(), config.Counter{Name: "nonsense", Key: "post", CountIf: when(t, `{"$gt": ["$words", 50]}`)})
	o = w.follow(following{definitions: mended})
	w.wantBroken(o)
	if s := w.state("nonsense"); s.State != counter.Rebasing || s.Reason != counter.ReasonChanged {
		t.Errorf("mended, the counter is %+v", s)
	}
	_ = o.stop()
	wantNoGaps(t, moves())
}

func TestAServerThatFailsEveryReadingBreaksNoCounter(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	w.activate()
	client, _ := w.named()
	o := w.follow(following{client: client})
	w.mark()
	// The code of an expression, and yet nobody's fault.
	point := realtest.FailCommand(t, w.client, realtest.Failure{Commands: []string{"getMore"}, AppName: w.name, Code: 17124, Times: -1})
	w.check(point.WaitEntered(t.Context(), 2+len(w.definitions)))
	point.Off()
	w.wantExact()
	w.wantBroken(o)
	for _, d := range w.definitions {
		if s := w.state(d.Name); s.State != counter.Active {
			t.Errorf("counter %s is %+v", d.Name, s)
		}
	}
}

// A status page that is read while a counter breaks must not disturb the lane: the map it shows is never changed.
func TestWhatTheLanePublishesIsNotChangedBehindItsReaders(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost(), tagged(t), numbered(t))
	w.begin()
	o := w.follow(following{})
	w.insertRows(append(w.row(), bson.E{Key: "code", Value: "7"}))
	w.wantBroken(o, "tagged")
	first := o.State.View().Broken
	w.insertRows(append(w.row(), bson.E{Key: "tags", Value: bson.A{}}, bson.E{Key: "code", Value: "seven"}))
	w.wantBroken(o, "tagged", "numbered")
	if len(first) != 1 || first["tagged"] == "" {
		t.Errorf("published, and then changed: %v", first)
	}
}

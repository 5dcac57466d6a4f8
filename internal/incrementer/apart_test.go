package incrementer_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/incrementer"
	"driftless/internal/realtest"
	"driftless/internal/reconciler"
)

// reconcile runs a reconciler once over the world's counters.
func (w *world) reconcile(judge time.Duration) *reconciler.Report {
	w.t.Helper()
	log := &logBuffer{}
	settings := config.Default().Reconciler
	settings.JudgeTimeout = judge
	registry := prometheus.NewRegistry()
	r := reconciler.New(w.client, w.stateName, w.definitions, settings, reconciler.NewMetrics(registry, w.definitions),
		slog.New(slog.NewTextHandler(log, nil)))
	report, err := r.RunOnce(w.t.Context(), reconciler.Options{})
	if err != nil {
		w.t.Fatalf("%v\n%s", err, log)
	}
	return report
}

func (w *world) countOf(collection string) int64 {
	w.t.Helper()
	n, err := w.stateDatabase().Collection(collection).CountDocuments(w.t.Context(), bson.D{})
	w.check(err)
	return n
}

func TestDocumentsThatCannotTakeTheirIncrementAreMadeRightOnceTheyAreMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost())
	d := w.definitions[0]
	targets := w.targets(d)
	w.begin()
	w.activate()
	bad := map[string]bson.D{
		"text":     {{Key: "live", Value: "12"}},
		"null":     {{Key: "live", Value: nil}},
		"ours":     {{Key: "driftless", Value: 5}},
		"array":    {{Key: "driftless", Value: bson.A{1}}},
		"overflow": {{Key: "live", Value: int64(math.MaxInt64)}},
		"refused":  {{Key: "locked", Value: true}},
	}
	for key, fields := range bad {
		_, err := targets.InsertOne(t.Context(), append(bson.D{{Key: "_id", Value: key}}, fields...))
		w.check(err)
	}
	// Another unique index: a second new document has no slug either.
	_, err := targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "first"}, {Key: "live", Value: int64(0)}})
	w.check(err)
	_, err = targets.Indexes().CreateOne(t.Context(), mongo.IndexModel{Keys: bson.D{{Key: "slug", Value: 1}}, Options: options.Index().
		SetUnique(true).SetPartialFilterExpression(bson.D{{Key: "driftless.per_post.total", Value: bson.D{{Key: "$gte", Value: 0}}}})})
	w.check(err)
	bad["duplicate"] = nil
	w.check(w.database().RunCommand(t.Context(), bson.D{{Key: "collMod", Value: targets.Name()}, {Key: "validationLevel", Value: "strict"},
		{Key: "validator", Value: bson.D{{Key: "locked", Value: bson.D{{Key: "$ne", Value: true}}}}}}).Err())

	o := w.follow(following{})
	good := func(n int) bson.D {
		return bson.D{{Key: "_id", Value: fmt.Sprint("good ", n)}, {Key: "slug", Value: n}}
	}
	for n := range 5 {
		_, err := targets.InsertOne(t.Context(), good(n))
		w.check(err)
	}
	_, err = targets.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "end 1"}, {Key: "slug", Value: "end 1"}})
	w.check(err)
	var rows []bson.D
	insert := func(key string, times int) {
		for range times {
			rows = append(rows, append(w.row()[:1], bson.E{Key: "post", Value: key}))
		}
	}
	insert("first", 1)
	for key := range bad {
		insert(key, 3)
	}
	for n := range 5 {
		insert(fmt.Sprint("good ", n), 2)
	}
	w.insertRows(rows...)
	w.mark()
	o.wantRunning(t)
	for n := range 5 {
		key := fmt.Sprintf("%q", fmt.Sprint("good ", n))
		if got := w.displayed(d)[key]; got != 2 {
			t.Errorf("%s displays %d", key, got)
		}
	}
	if n := w.countOf(counter.DeadLettersCollection); n != int64(len(bad)) {
		t.Errorf("%d dead letters for %d documents", n, len(bad))
	}
	if n := w.countOf(counter.TouchedCollection); n != int64(len(bad)) {
		t.Errorf("%d marks for %d documents", n, len(bad))
	}
	o.logged(t, "increment set apart")
	realtest.Eventually(t, patience, "metrics say 12 applied, after the commit that shows them", func() bool {
		return o.metric(t, "incrementer_increments_applied_total", "inc") == 12
	})
	if apart := o.metric(t, "incrementer_events_dead_lettered_total"); apart != float64(len(bad)) {
		t.Errorf("metrics say %v set apart, want %d", apart, len(bad))
	}
	for reason, want := range map[string]float64{"type": 2, "validator": 1, "duplicate": 1} {
		if got := o.metric(t, "incrementer_events_dead_lettered_total", reason); got < want {
			t.Errorf("%v set apart because of %s, want %v", got, reason, want)
		}
	}

	// As long as nobody mends them a reconcile leaves them marked.
	w.reconcile(5 * time.Second)
	if n := w.countOf(counter.TouchedCollection); n < 5 {
		t.Errorf("after a reconcile of bad documents %d are marked", n)
	}

	for key := range bad {
		_, err := targets.ReplaceOne(t.Context(), bson.D{{Key: "_id", Value: key}}, bson.D{{Key: "slug", Value: "mended " + key}}, options.Replace().SetUpsert(true))
		w.check(err)
	}
	report := w.reconcile(10 * time.Second)
	if report.Result != reconciler.ResultOK {
		t.Errorf("reconciled with %+v", report.Counters[0])
	}
	w.wantEqual()
	if letters, marks := w.countOf(counter.DeadLettersCollection), w.countOf(counter.TouchedCollection); letters != 0 || marks != 0 {
		t.Errorf("after all is right, %d dead letters and %d marks are left", letters, marks)
	}
	w.insertRows(append(w.row()[:1], bson.E{Key: "post", Value: "text"}))
	realtest.Eventually(t, patience, "the mended document counts", func() bool { return w.displayed(d)[`"text"`] == 4 })
	w.wantEqual()
}

func TestALaneWhoseDocumentsMustBeMendedStandsStillAndSaysWhy(t *testing.T) {
	t.Parallel()
	w := newWorld(t, perPost())
	w.begin()
	few := soak(50, 20) // the full number takes a while
	documents, rows := make([]bson.D, few+1), make([]bson.D, few+1)
	for i := range documents {
		documents[i] = bson.D{{Key: "_id", Value: i}, {Key: "live", Value: "text"}}
		rows[i] = append(w.row()[:1], bson.E{Key: "post", Value: i})
	}
	_, err := w.targets(w.definitions[0]).InsertMany(t.Context(), documents)
	w.check(err)
	w.insertRows(rows...)
	client, sent := w.named()
	before := w.at()
	o := w.follow(following{client: client, batchEvents: 2000, wrapApplier: func(a incrementer.Applier) incrementer.Applier {
		a.(*counter.Applier).MaxApart = few
		return a
	}})
	o.logged(t, "too many counter documents")
	if err := o.State.View().LastErr; !errors.Is(err, counter.ErrRefused) {
		t.Errorf("the lane says %v", err)
	}
	if at := w.at(); !at.Same(before) {
		t.Errorf("the checkpoint has moved to %d", at.Seq)
	}
	// It does not try again at once: looking costs two commands a document.
	n := sent.all()
	during(t, time.Second)
	if more := sent.all() - n; more > 10 {
		t.Errorf("%d commands in a second of standing still", more)
	}
	_ = o.stop()
	// The next process, after the documents are mended, finds everything.
	_, err = w.targets(w.definitions[0]).DeleteMany(t.Context(), bson.D{})
	w.check(err)
	w.follow(following{})
	w.wantExact()
}

func TestACounterTakenUpInsideATransactionIsNotJudgedBeforeItsEnd(t *testing.T) {
	t.Parallel()
	all := []config.Counter{perPost(), wordsPerAuthor()}
	w := newWorld(t, all...)
	w.begin()
	w.inTransaction(w.someRows(50))
	// One owner counts for the first alone, and stops in the middle.
	both := w.definitions
	w.definitions = w.define(all[:1]...)
	r := newRecorder()
	o := w.follow(following{batchEvents: 7, observer: r})
	for range 3 {
		<-r.moved
	}
	_ = o.stop()
	w.definitions = both
	if at := w.at(); len(at.Tail.Deltas) == 0 || len(at.Counters) != 1 {
		t.Fatalf("not in the middle of the transaction: %+v", at)
	}
	// The next one takes the second up there.
	r = newRecorder()
	hold := make(chan struct{})
	o = w.follow(following{batchEvents: 7, observer: holding{r, hold}})
	hold <- struct{}{}
	<-r.moved
	report := w.reconcile(300 * time.Millisecond)
	for _, c := range report.Counters {
		if c.Counter == "words_per_author" && (c.Checked != 0 || len(c.Skipped) == 0) {
			t.Errorf("judged in the middle of the transaction: %+v", c)
		}
	}
	close(hold)
	w.mark(w.definitions[0])
	report = w.reconcile(20 * time.Second)
	if report.Result != reconciler.ResultOK {
		t.Errorf("after the transaction: %+v %+v", report.Counters[0], report.Counters[1])
	}
	w.wantEqual()
	for _, c := range report.Counters {
		if c.Drift.Keys != 0 {
			t.Errorf("%s drifted: %+v", c.Counter, c)
		}
	}
	o.wantRunning(t)
}

// holding lets the lane go on after each transaction only when it is told to.
type holding struct {
	*recorder
	pass <-chan struct{}
}

func (h holding) Applied(a counter.Applied) {
	h.recorder.Applied(a)
	<-h.pass
}

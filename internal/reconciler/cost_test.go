package reconciler

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

func TestBatchesAreAsLargeAsTheirCostAllows(t *testing.T) {
	for _, c := range []struct {
		size batchSize
		keys int
		took time.Duration
		want int
	}{
		{batchSize{100, 500}, 100, 10 * time.Millisecond, 200},
		{batchSize{400, 500}, 400, 10 * time.Millisecond, 500},
		{batchSize{100, 500}, 20, 10 * time.Millisecond, 100}, // the last of a list says nothing about more
		{batchSize{100, 500}, 100, 700 * time.Millisecond, 100},
		{batchSize{100, 500}, 100, 4 * time.Second, 25},
		{batchSize{100, 500}, 20, 4 * time.Second, 5},
		{batchSize{100, 500}, 100, time.Hour, 1},
	} {
		if c.size.took(c.keys, c.took); c.size.keys != c.want {
			t.Errorf("%d keys in %s: next %d, want %d", c.keys, c.took, c.size.keys, c.want)
		}
	}
}

// loop is a reconciler as the loop has it, to which the thousands of rows of one key are costly, and few are not.
func (f *fixture) loop(with equipment) *Reconciler {
	f.config.Reconciler.Every, f.config.Reconciler.CostlyKeyShare = time.Second, 0.001
	r := f.reconciler(with)
	r.heart = beats{}
	return r
}

func TestAKeyWhoseRecountIsCostlyIsRecountedLessOften(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("hot", 5000)
	f.comment("cool", 1)
	f.comment("marked", 1)
	f.start()
	r := f.loop(equipment{})
	f.activate(r)
	if resting := r.resting[counterName]; len(resting) != 1 || resting[counter.Canonical(raw("hot"))].through.IsZero() {
		t.Fatalf("resting: %v", resting)
	}
	last := r.resting[counterName][counter.Canonical(raw("hot"))].through
	for _, post := range []string{"hot", "cool"} {
		f.plant(post, 2)
		f.comment(post, 1)
	}
	f.catchUp()

	report := f.run(r, Options{})
	wantDrift(t, report, map[any]int64{"cool": 2})
	c := only(t, report)
	if c.Skipped[skipCostly] != 1 || f.stateOf(counterName).VerifiedThrough != last {
		t.Errorf("verified through %v, where the costly key was compared last: %v; %s", f.stateOf(counterName).VerifiedThrough, last, show(report))
	}
	if documents, _ := f.marks(); documents != 1 {
		t.Errorf("%d keys marked, the costly one was", documents)
	}
	wantDrift(t, f.run(f.reconciler(equipment{}), Options{DryRun: true}), map[any]int64{"hot": 2}) // for who asks once
	f.check(f.definitions[0].Touch(t.Context(), f.states, []bson.RawValue{raw("hot")}))
	must(f.state.Collection(counter.TouchedCollection).UpdateMany(t.Context(), bson.D{}, set("reason", counter.ReasonMissingImage)))(t)
	wantDrift(t, f.run(r, Options{}), map[any]int64{"hot": 2})
	f.wantExact()
}

func TestACostlyKeyRestsNoLongerThanASweepAndUntilItIsCheap(t *testing.T) {
	t.Parallel()
	hot, cool := counter.Canonical(raw("hot")), counter.Canonical(raw("cool"))
	view := func(hotRows int64, took time.Duration) view {
		return view{
			standing: standing{}, rows: hotRows + 1, took: took,
			truths: map[string]counter.Truth{hot: {Rows: hotRows}, cool: {Rows: 1}},
		}
	}
	p := &pass{
		Reconciler: &Reconciler{resting: map[string]map[string]rest{}, settings: config.Reconciler{Every: time.Minute, Sweep: time.Hour, CostlyKeyShare: 0.05}},
		definition: &counter.Definition{Counter: config.Counter{Name: "likes"}},
	}
	for _, c := range []struct {
		rows int64
		took time.Duration
		want time.Duration // how long it rests
	}{
		{1_000_000, 2 * time.Second, 0}, // 40 s: the next run may have it
		{1_000_000, 10 * time.Second, 200 * time.Second},
		{1_000_000, 10 * time.Minute, time.Hour},
		{1, 10 * time.Second, 100 * time.Second},
		{1, time.Second, 0},
	} {
		p.weigh(view(c.rows, c.took))
		got := time.Until(p.resting["likes"][hot].until)
		if c.want == 0 && got > 0 || c.want > 0 && (got > c.want || got < c.want-5*time.Second) {
			t.Errorf("%d rows in %s: rests for %s, want %s", c.rows, c.took, got, c.want)
		}
		if _, rests := p.resting["likes"][cool]; rests != (c.rows == 1 && c.want > 0) {
			t.Errorf("%d rows in %s: the one beside it rests", c.rows, c.took)
		}
	}
}

func TestStrainIsWhatAnAnswerSays(t *testing.T) {
	at := func(seconds uint32) bson.Timestamp { return bson.Timestamp{T: seconds} }
	for _, c := range []struct {
		took     time.Duration
		last     counter.Writes
		position bson.Timestamp
		want     string
	}{
		{0, counter.Writes{Primary: at(100), Majority: at(100)}, at(100), ""},
		{0, counter.Writes{Primary: at(100), Majority: at(90)}, at(80), ""},
		{time.Second, counter.Writes{Primary: at(100), Majority: at(100)}, at(100), strainSlow},
		{0, counter.Writes{Primary: at(100), Majority: at(89)}, at(89), strainReplication},
		{0, counter.Writes{Primary: at(100), Majority: at(100)}, at(89), strainIncrementer},
		{0, counter.Writes{Primary: at(100), Majority: at(100)}, bson.Timestamp{}, ""}, // nobody follows it
		{0, counter.Writes{Primary: at(100), Majority: at(100)}, at(200), ""},
	} {
		if got := strainOf(c.took, c.last, c.position, 10*time.Second); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// told calls do at the first record of that message.
type told struct {
	slog.Handler
	message string
	do      func()
}

func (h told) Enabled(context.Context, slog.Level) bool { return true }

func (h told) Handle(_ context.Context, r slog.Record) error {
	if r.Message == h.message {
		h.do()
	}
	return nil
}

func TestARunPausesWhileTheIncrementerLags(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 40)
	f.stop()
	position := must(f.checkpoints.Set(t.Context(), sourceName))(t)[0].Position
	realtest.Eventually(t, patience, "the incrementer to lag", func() bool { return f.now().T > position.T+6 })
	metrics := NewMetrics(prometheus.NewRegistry(), f.definitions)
	f.config.Reconciler.PauseWhenLagging = 5 * time.Second // a lane at work may be a moment behind
	r := f.reconciler(equipment{metrics: metrics, log: told{slog.DiscardHandler, "run pauses between batches", f.start}})
	r.rowsPerRange = 4
	if report := f.run(r, Options{Full: true}); only(t, report).Checked != 40 || report.Result != ResultOK {
		t.Errorf("%s", show(report))
	}
	if s := testutil.ToFloat64(metrics.pausedSeconds.WithLabelValues(strainIncrementer)); s == 0 || s > patience.Seconds() {
		t.Errorf("paused for %v s: it was over when the incrementer had caught up", s)
	}
}

// A pause does not help an incrementer that is stopped, and its position grows too old meanwhile.
func TestARunPausesOnceForAnIncrementerThatIsStopped(t *testing.T) {
	t.Parallel()
	f, _ := swept(t, 40)
	f.stop()
	position := must(f.checkpoints.Set(t.Context(), sourceName))(t)[0].Position
	realtest.Eventually(t, patience, "the incrementer to lag", func() bool { return f.now().T > position.T+2 })
	metrics := NewMetrics(prometheus.NewRegistry(), f.definitions)
	f.config.Reconciler.PauseWhenLagging, f.config.Reconciler.JudgeTimeout = time.Second, 2*time.Second
	r := f.reconciler(equipment{metrics: metrics})
	r.rowsPerRange = 4
	if report := f.run(r, Options{Full: true}); only(t, report).Checked != 40 || report.Result != ResultOK {
		t.Errorf("%s", show(report))
	}
	if s := testutil.ToFloat64(metrics.pausedSeconds.WithLabelValues(strainIncrementer)); s == 0 || s > 2*f.config.Reconciler.JudgeTimeout.Seconds() {
		t.Errorf("paused for %v s", s)
	}
}

package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/logkey"
)

func TestReportIsTheContractsDocument(t *testing.T) {
	id, err := bson.ObjectIDFromHex("665f1f77bcf86cd799439011")
	if err != nil {
		t.Fatal(err)
	}
	drifted := &CounterReport{
		Counter: "comments_per_post", Checked: 12, Repaired: 7, Skipped: map[string]int64{skipBadField: 2},
		complete: false, VerifiedThrough: time.Date(2024, 6, 1, 12, 30, 0, 0, time.UTC),
	}
	for key, drift := range map[any]int64{
		id: 3, int32(7): -1, int64(1 << 40): 2, "text": -40, 1.5: 1, time.UnixMilli(1700000000000).UTC(): 5, true: -4,
	} {
		drifted.Drift.add(drift)
		drifted.keepLargest(Drifted{Key: ExtendedJSON{raw(key)}, Displayed: 10 + drift, Truth: 10, Drift: drift, Cause: CauseUnknown}, 0)
	}
	rebased := &CounterReport{Counter: "likes_per_post", Checked: 3, Repaired: 2, Rebased: 2, Skipped: map[string]int64{}, Drifted: []Drifted{}, complete: true}
	waiting := &CounterReport{Counter: "views_per_post", Skipped: map[string]int64{skipNoCheckpoint: 1}, Drifted: []Drifted{}, Why: "no incrementer"}
	r := &Report{Run: "665f1f77bcf86cd799439012", Counters: []*CounterReport{drifted, rebased, waiting}}
	r.conclude(0)

	const want = `{"run":"665f1f77bcf86cd799439012","result":"partial","counters":[` +
		`{"counter":"comments_per_post","checked":12,"repaired":7,"skipped":{"bad_field":2},` +
		`"drift":{"over":11,"under":45,"keys":7,"max":40},"drifted":[` +
		`{"key":"text","displayed":-30,"truth":10,"drift":-40,"cause":"unknown"},` +
		`{"key":{"$date":"2023-11-14T22:13:20Z"},"displayed":15,"truth":10,"drift":5,"cause":"unknown"},` +
		`{"key":true,"displayed":6,"truth":10,"drift":-4,"cause":"unknown"},` +
		`{"key":{"$oid":"665f1f77bcf86cd799439011"},"displayed":13,"truth":10,"drift":3,"cause":"unknown"},` +
		`{"key":1099511627776,"displayed":12,"truth":10,"drift":2,"cause":"unknown"},` +
		`{"key":1.5,"displayed":11,"truth":10,"drift":1,"cause":"unknown"},` +
		`{"key":7,"displayed":9,"truth":10,"drift":-1,"cause":"unknown"}],` +
		`"verified_through":"2024-06-01T12:30:00Z"},` +
		`{"counter":"likes_per_post","checked":3,"repaired":2,"rebased":2,"skipped":{},"drift":{"over":0,"under":0,"keys":0,"max":0},"drifted":[]},` +
		`{"counter":"views_per_post","checked":0,"repaired":0,"skipped":{"no_checkpoint":1},"why":"no incrementer",` +
		`"drift":{"over":0,"under":0,"keys":0,"max":0},"drifted":[]}]}`
	got := string(must(json.Marshal(r))(t))
	if got != want {
		t.Errorf("report\n%s\nwant\n%s", got, want)
	}
}

func TestLargestDriftsAreKept(t *testing.T) {
	for _, limit := range []int{0, 1, 3, 1000} {
		r := &CounterReport{}
		for i := range 40 {
			drift := int64((i*17)%40 + 1)
			if i%2 == 0 {
				drift = -drift
			}
			r.keepLargest(Drifted{Key: ExtendedJSON{raw(i)}, Drift: drift}, limit)
			if limit > 0 && len(r.Drifted) >= 2*limit {
				t.Fatalf("limit %d: %d are kept meanwhile", limit, len(r.Drifted))
			}
		}
		r.trim(limit)
		want := 40
		if limit > 0 {
			want = min(want, limit)
		}
		if len(r.Drifted) != want {
			t.Fatalf("limit %d: %d drifts, want %d", limit, len(r.Drifted), want)
		}
		for i, d := range r.Drifted {
			if abs(d.Drift) != int64(40-i) {
				t.Errorf("limit %d: drift %d is %d, want the size %d", limit, i, d.Drift, 40-i)
			}
		}
	}
}

func TestResultOfARun(t *testing.T) {
	done := func() *CounterReport { return &CounterReport{complete: true} }
	part := func() *CounterReport { return &CounterReport{Checked: 1} }
	none := func() *CounterReport { return &CounterReport{} }
	for name, tt := range map[string]struct {
		counters []*CounterReport
		want     string
	}{
		"all":              {[]*CounterReport{done(), done()}, ResultOK},
		"nothing to do":    {nil, ResultOK},
		"some keys":        {[]*CounterReport{part()}, ResultPartial},
		"some counters":    {[]*CounterReport{done(), none()}, ResultPartial},
		"nothing judgable": {[]*CounterReport{none(), none()}, ResultSkipped},
	} {
		r := &Report{Counters: tt.counters}
		if r.conclude(0); r.Result != tt.want {
			t.Errorf("%s: %s, want %s", name, r.Result, tt.want)
		}
	}
}

// journal records log lines and commands in one order.
type journal struct {
	mutex   sync.Mutex
	entries []string
	warned  []map[string]string // the attributes of each warning
}

func (j *journal) add(entry string) {
	j.mutex.Lock()
	defer j.mutex.Unlock()
	j.entries = append(j.entries, entry)
}

func (j *journal) Enabled(context.Context, slog.Level) bool { return true }
func (j *journal) WithAttrs([]slog.Attr) slog.Handler       { return j }
func (j *journal) WithGroup(string) slog.Handler            { return j }
func (j *journal) Handle(_ context.Context, record slog.Record) error {
	attrs := map[string]string{"message": record.Message}
	record.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value.String()
		return true
	})
	j.mutex.Lock()
	defer j.mutex.Unlock()
	if record.Level == slog.LevelWarn {
		j.warned = append(j.warned, attrs)
	}
	j.entries = append(j.entries, record.Message)
	return nil
}

func TestDriftIsToldBeforeItIsRepaired(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("high", 3)
	f.comment("low", 3)
	f.start()
	f.activate(f.reconciler(equipment{}))
	f.plant("high", 5)
	f.plant("low", -2)
	j := &journal{}
	r := f.reconciler(equipment{log: j, started: func(e *event.CommandStartedEvent) {
		if isUpdateOf(targetName)(e) {
			j.add("update")
		}
	}})
	report := f.run(r, Options{Full: true})
	if got := strings.Join(j.entries, ", "); got != "counter drifted, counter drifted, update, counters drifted" {
		t.Errorf("order: %s", got)
	}
	at := must(f.checkpoints.Load(t.Context(), sourceName))(t).Position
	for i, want := range []map[string]string{
		{"message": "counter drifted", logkey.Key: `"low"`, logkey.Displayed: "1", logkey.Truth: "3", logkey.Drift: "-2", logkey.Direction: "under"},
		{"message": "counter drifted", logkey.Key: `"high"`, logkey.Displayed: "8", logkey.Truth: "3", logkey.Drift: "5", logkey.Direction: "over"},
		{"message": "counters drifted", "keys": "2", "over": "5", "under": "2", "max": "5", "repaired": "2"},
	} {
		want[logkey.Counter], want[logkey.Run] = counterName, report.Run
		if want["message"] == "counter drifted" {
			want[logkey.Cause] = string(CauseEdited)
			if position := j.warned[i][logkey.Position]; !strings.HasPrefix(position, time.Unix(int64(at.T), 0).UTC().Format("2006-01-02T15")) {
				t.Errorf("position %q, want one of this hour like %s", position, positionInWords(at))
			}
			delete(j.warned[i], logkey.Position)
		}
		if fmt.Sprint(j.warned[i]) != fmt.Sprint(want) {
			t.Errorf("warning %v, want %v", j.warned[i], want)
		}
	}
}

func TestAtMostTwentyKeysAreToldOneByOne(t *testing.T) {
	t.Parallel()
	f := setUp(t, twoCounters)
	for i := range 15 {
		f.comment(i, 1)
	}
	f.start()
	f.activate(f.reconciler(equipment{}))
	for i := range 15 {
		f.edit(i, bson.D{{Key: "$inc", Value: bson.D{{Key: "base_count", Value: 1}, {Key: "all_base", Value: -1}}}})
	}
	j := &journal{}
	report := f.run(f.reconciler(equipment{log: j}), Options{Full: true, Limit: 3})
	for _, c := range report.Counters {
		if len(c.Drifted) != 3 || c.Drift.Keys != 15 {
			t.Errorf("%s: listed %d of %d drifted keys, want 3 of 15", c.Counter, len(c.Drifted), c.Drift.Keys)
		}
	}
	said := map[string]int{}
	for _, entry := range j.entries {
		said[entry]++
	}
	if said["counter drifted"] != 20 || said["counters drifted"] != 2 {
		t.Errorf("logged %v, want 20 keys and a summary of each counter", said)
	}
}

func TestMetricsAreThereFromTheStartAndLintClean(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	definitions := must(counter.DefineAll([]config.Counter{
		{Name: "comments_per_post", AlertAbove: 5, Source: "comments"}, {Name: "likes_per_post", Source: "comments"},
	}))(t)
	NewMetrics(registry, definitions)
	problems := must(testutil.GatherAndLint(registry))(t)
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	const perCounter = 2
	for name, series := range map[string]int{
		"counter_drift": 2 * perCounter, "counter_drift_keys": 2 * perCounter, "counter_drift_max": perCounter,
		"counter_drift_threshold": perCounter, "reconciler_drift_size": 2 * perCounter, "reconciler_recurring_drift_keys": perCounter,
		"reconciler_rows_without_key": perCounter, "reconciler_runs_total": 5, "reconciler_run_duration_seconds": 1,
		"reconciler_last_success_timestamp_seconds": perCounter, "reconciler_verified_through_timestamp_seconds": perCounter,
		"reconciler_keys_checked_total": perCounter, "reconciler_keys_repaired_total": perCounter,
		"reconciler_keys_skipped_total": len(skipReasons) * perCounter, "reconciler_rows_counted_total": perCounter,
		"reconciler_touched_backlog_keys": perCounter, "reconciler_oldest_touched_timestamp_seconds": perCounter, "reconciler_leader": 1,
	} {
		if n := must(testutil.GatherAndCount(registry, name))(t); n != series {
			t.Errorf("%s: %d series from the start, want %d", name, n, series)
		}
	}
	want := `
		# HELP counter_drift_threshold Drift of one key beyond which alerts fire, as configured by alert_above.
		# TYPE counter_drift_threshold gauge
		counter_drift_threshold{counter="comments_per_post"} 5
		counter_drift_threshold{counter="likes_per_post"} 0
		# HELP reconciler_runs_total Runs by result.
		# TYPE reconciler_runs_total counter
		reconciler_runs_total{result="failed"} 0
		reconciler_runs_total{result="held"} 0
		reconciler_runs_total{result="ok"} 0
		reconciler_runs_total{result="partial"} 0
		reconciler_runs_total{result="skipped"} 0
	`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "counter_drift_threshold", "reconciler_runs_total"); err != nil {
		t.Error(err)
	}
}

// values are the samples of a registry, by name and the values of their labels; of a histogram, its count and sum.
func values(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	found := map[string]float64{}
	for _, family := range must(registry.Gather())(t) {
		for _, m := range family.GetMetric() {
			name := family.GetName()
			for _, label := range m.GetLabel() {
				name += " " + label.GetValue()
			}
			switch {
			case m.GetHistogram() != nil:
				found[name+" count"], found[name+" sum"] = float64(m.GetHistogram().GetSampleCount()), m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				found[name] = m.GetCounter().GetValue()
			default:
				found[name] = m.GetGauge().GetValue()
			}
		}
	}
	return found
}

func TestMetricsOfARun(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	for _, post := range []string{"high", "higher", "low", "right", "bad"} {
		f.comment(post, 3)
	}
	f.comment(nil, 2)
	f.start()
	f.catchUp()
	registry := prometheus.NewRegistry()
	r := f.reconciler(equipment{metrics: NewMetrics(registry, f.definitions)})
	want := func(when string, wanted map[string]float64) {
		t.Helper()
		got := values(t, registry)
		for name, n := range wanted {
			key := strings.Replace(name, "C", counterName, 1)
			if v, ok := got[key]; !ok || v != n {
				t.Errorf("%s: %s is %v, want %v", when, key, v, n)
			}
		}
	}
	started := time.Now()
	f.activate(r)
	want("after the first recount", map[string]float64{
		"counter_drift C over": 0, "counter_drift C under": 0, "reconciler_drift_size C over count": 0,
		"reconciler_keys_checked_total C": 5, "reconciler_keys_repaired_total C": 5, "reconciler_rows_counted_total C": 15,
		"reconciler_rows_without_key C": 2, "reconciler_runs_total ok": 1, "reconciler_touched_backlog_keys C": 0,
		"reconciler_oldest_touched_timestamp_seconds C": 0, "reconciler_run_duration_seconds count": 1,
	})
	got := values(t, registry)
	for _, name := range []string{"reconciler_last_success_timestamp_seconds ", "reconciler_verified_through_timestamp_seconds "} {
		if v := got[name+counterName]; v < float64(started.Unix()-10) || v > float64(time.Now().Unix()+1) {
			t.Errorf("%s is %v, want about now", name, v)
		}
	}

	f.plant("high", 5)
	f.plant("higher", 7)
	f.plant("low", -2)
	f.edit("bad", set("live_delta", 1.5))
	f.run(r, Options{Full: true})
	want("after drift", map[string]float64{
		"counter_drift C over": 12, "counter_drift C under": 2, "counter_drift_keys C over": 2, "counter_drift_keys C under": 1,
		"counter_drift_max C": 7, "reconciler_drift_size C over count": 2, "reconciler_drift_size C over sum": 12,
		"reconciler_drift_size C under count": 1, "reconciler_drift_size C under sum": 2, "reconciler_keys_checked_total C": 9,
		"reconciler_keys_repaired_total C": 8, "reconciler_keys_skipped_total C bad_field": 1, "reconciler_recurring_drift_keys C": 0,
		"reconciler_runs_total partial": 1, "reconciler_touched_backlog_keys C": 1,
		"reconciler_last_success_timestamp_seconds C":   got["reconciler_last_success_timestamp_seconds "+counterName],
		"reconciler_oldest_touched_timestamp_seconds C": got["reconciler_verified_through_timestamp_seconds "+counterName],
	})

	f.plant("low", -1)
	f.plant("right", 1)
	f.edit("bad", set("live_delta", int64(0)))
	f.run(r, Options{Full: true})
	want("after drift of a key that had been repaired", map[string]float64{
		"counter_drift C over": 1, "counter_drift C under": 1, "counter_drift_max C": 1, "reconciler_recurring_drift_keys C": 1,
		"reconciler_drift_size C over count": 3, "reconciler_runs_total ok": 2, "reconciler_touched_backlog_keys C": 0,
		"reconciler_oldest_touched_timestamp_seconds C": 0,
	})
	f.run(r, Options{Key: raw("low")})
	want("after a look at one key", map[string]float64{"counter_drift C under": 1, "reconciler_runs_total ok": 2})
	f.run(r, Options{})
	want("after a quiet run", map[string]float64{
		"counter_drift C over": 0, "counter_drift C under": 0, "counter_drift_keys C over": 0, "counter_drift_max C": 0,
		"reconciler_recurring_drift_keys C": 0, "reconciler_drift_size C over sum": 13, "reconciler_runs_total ok": 3,
	})
}

func TestQuietRunVerifiesThroughItsPosition(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 1)
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	first := f.stateOf(counterName).VerifiedThrough
	f.catchUp()
	report := f.run(r, Options{})
	if c := only(t, report); c.Checked != 0 || c.VerifiedThrough.IsZero() {
		t.Errorf("want nothing touched, and that verified: %s", show(report))
	}
	if later := f.stateOf(counterName).VerifiedThrough; !first.Before(later) {
		t.Errorf("verified through %v, was %v before: a counter that nobody touches would look unverified", later, first)
	}
}

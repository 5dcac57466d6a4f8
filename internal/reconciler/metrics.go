package reconciler

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// Metrics are the reconciler's, registered once per process.
type Metrics struct {
	drift, driftKeys               *prometheus.GaugeVec
	driftMax, driftThreshold       *prometheus.GaugeVec
	driftSize                      *prometheus.HistogramVec
	withoutKey                     *prometheus.GaugeVec
	runs                           *prometheus.CounterVec
	duration                       prometheus.Histogram
	lastSuccess, verifiedThrough   *prometheus.GaugeVec
	sweptThrough                   *prometheus.GaugeVec
	checked, repaired, rowsCounted *prometheus.CounterVec
	skipped                        *prometheus.CounterVec
	touchedBacklog, oldestTouched  *prometheus.GaugeVec
	recurring                      *prometheus.GaugeVec
	pausedSeconds                  *prometheus.CounterVec
	leader                         prometheus.Gauge
}

// skipReasons are the values of the reason label.
var skipReasons = []string{
	skipBadField, skipBadSum, skipNoDocument, skipNoCheckpoint, skipDefinition, skipBroken, skipPosition, skipTail,
	skipStale, skipLagging, skipNoRows, skipInterrupted, skipNoTarget, skipNoIndex, skipRaced, skipRefused, skipBusy, skipHeld, skipUndone, skipCostly, skipUnsettled,
}

// NewMetrics registers the reconciler's metrics, every series of the given counters from the start.
func NewMetrics(r prometheus.Registerer, definitions []*counter.Definition) *Metrics {
	gauge := func(name, help string, labels ...string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	m := &Metrics{
		drift: gauge("counter_drift",
			"Absolute drift, displayed - truth, summed over the keys checked in the last run: over is too high, under too low.", "counter", "direction"),
		driftKeys: gauge("counter_drift_keys", "Keys that the last run found to be too high (over) or too low (under).", "counter", "direction"),
		driftMax:  gauge("counter_drift_max", "Largest absolute drift, displayed - truth, of one key in the last run.", "counter"),
		driftThreshold: gauge("counter_drift_threshold",
			"Drift of one key beyond which alerts fire, as configured by alert_above.", "counter"),
		driftSize: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "reconciler_drift_size", Help: "Absolute size of each drift found, displayed - truth, by direction.",
			Buckets: prometheus.ExponentialBuckets(1, 4, 10),
		}, []string{"counter", "direction"}),
		withoutKey: gauge("reconciler_rows_without_key", "Rows that the last full pass found with a missing, null, array or otherwise unusable key; they count for nothing.", "counter"),
		runs:       count("reconciler_runs_total", "Runs by result.", "result"),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "reconciler_run_duration_seconds", Help: "How long a run took.", Buckets: prometheus.ExponentialBuckets(0.01, 4, 10),
		}),
		lastSuccess:     gauge("reconciler_last_success_timestamp_seconds", "When a run last judged all it had to, as a Unix time; 0 for never.", "counter"),
		verifiedThrough: gauge("reconciler_verified_through_timestamp_seconds", "Cluster time through which every touched key has been compared, as a Unix time; 0 for never.", "counter"),
		sweptThrough:    gauge("reconciler_swept_through_timestamp_seconds", "Cluster time through which every key has been compared at least once, as a Unix time; 0 for never.", "counter"),
		checked:         count("reconciler_keys_checked_total", "Keys compared with a recount.", "counter"),
		repaired:        count("reconciler_keys_repaired_total", "Keys found wrong and repaired, those of a first recount included.", "counter"),
		skipped:         count("reconciler_keys_skipped_total", "Keys, or whole counters, that could not be judged or were not repaired, by reason.", "counter", "reason"),
		rowsCounted:     count("reconciler_rows_counted_total", "Rows read by recounts.", "counter"),
		touchedBacklog:  gauge("reconciler_touched_backlog_keys", "Keys touched and not yet compared, after the last run.", "counter"),
		oldestTouched:   gauge("reconciler_oldest_touched_timestamp_seconds", "Lower bound of when the oldest key not yet compared was touched, as a Unix time; 0 for none, or when nothing has been compared yet.", "counter"),
		recurring:       gauge("reconciler_recurring_drift_keys", "Keys that drifted in the last run although they had been repaired before.", "counter"),
		pausedSeconds:   count("reconciler_paused_seconds_total", "Time that runs have paused between batches, by what was under strain.", "reason"),
		leader: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "reconciler_leader", Help: "1 while this instance runs the reconciliations.",
		}),
	}
	r.MustRegister(m.driftSize, m.duration, m.leader)
	for _, result := range []string{ResultOK, ResultPartial, ResultFailed, ResultHeld, ResultSkipped} {
		m.runs.WithLabelValues(result)
	}
	for _, strain := range strains {
		m.pausedSeconds.WithLabelValues(strain)
	}
	for _, d := range definitions {
		m.start(d)
	}
	return m
}

// start makes every series of a counter, so that a rate is never computed from its first appearance.
func (m *Metrics) start(d *counter.Definition) {
	for _, direction := range []string{"over", "under"} {
		m.drift.WithLabelValues(d.Name, direction)
		m.driftKeys.WithLabelValues(d.Name, direction)
		m.driftSize.WithLabelValues(d.Name, direction)
	}
	for _, v := range []*prometheus.GaugeVec{m.driftMax, m.withoutKey, m.lastSuccess, m.verifiedThrough, m.sweptThrough, m.touchedBacklog, m.oldestTouched, m.recurring} {
		v.WithLabelValues(d.Name)
	}
	for _, v := range []*prometheus.CounterVec{m.checked, m.repaired, m.rowsCounted} {
		v.WithLabelValues(d.Name)
	}
	for _, reason := range skipReasons {
		m.skipped.WithLabelValues(d.Name, reason)
	}
	m.driftThreshold.WithLabelValues(d.Name).Set(float64(d.AlertAbove))
}

// passed records one counter's part of a run.
func (m *Metrics) passed(r *CounterReport, whole bool) {
	for direction, n := range map[string][2]int64{"over": {r.Drift.Over, r.Drift.overKeys}, "under": {r.Drift.Under, r.Drift.underKeys}} {
		m.drift.WithLabelValues(r.Counter, direction).Set(float64(n[0]))
		m.driftKeys.WithLabelValues(r.Counter, direction).Set(float64(n[1]))
	}
	m.driftMax.WithLabelValues(r.Counter).Set(float64(r.Drift.Max))
	m.recurring.WithLabelValues(r.Counter).Set(float64(r.recurring))
	m.checked.WithLabelValues(r.Counter).Add(float64(r.Checked))
	m.repaired.WithLabelValues(r.Counter).Add(float64(r.Repaired))
	m.rowsCounted.WithLabelValues(r.Counter).Add(float64(r.rows))
	for reason, n := range r.Skipped {
		m.skipped.WithLabelValues(r.Counter, reason).Add(float64(n))
	}
	if whole {
		m.lastSuccess.WithLabelValues(r.Counter).SetToCurrentTime()
		if !r.VerifiedThrough.IsZero() {
			m.verifiedThrough.WithLabelValues(r.Counter).Set(float64(r.VerifiedThrough.Unix()))
		}
	}
}

func (m *Metrics) drifted(name string, drift int64) {
	m.driftSize.WithLabelValues(name, direction(drift)).Observe(float64(abs(drift)))
}

func (m *Metrics) paused(strain string, d time.Duration) {
	m.pausedSeconds.WithLabelValues(strain).Add(d.Seconds())
}

func (m *Metrics) rowsWithoutKey(name string, n int64) {
	m.withoutKey.WithLabelValues(name).Set(float64(n))
}

func (m *Metrics) ran(r *Report, took time.Duration) {
	m.runs.WithLabelValues(r.Result).Inc()
	m.duration.Observe(took.Seconds())
}

// backlog records how many keys are left to compare, all of them touched after the given position.
func (m *Metrics) backlog(name string, keys int64, after bson.Timestamp) {
	m.touchedBacklog.WithLabelValues(name).Set(float64(keys))
	if keys == 0 {
		after = bson.Timestamp{}
	}
	m.oldestTouched.WithLabelValues(name).Set(float64(after.T))
}

func (m *Metrics) swept(name string, through bson.Timestamp) {
	m.sweptThrough.WithLabelValues(name).Set(float64(through.T))
}

package incrementer

import (
	"errors"
	"log/slog"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/counter"
	"driftless/internal/logkey"
	"driftless/internal/stream/envelope"
)

// Metrics are the incrementer's, registered once per process.
type Metrics struct {
	consumed, skipped, deadLettered, increments, batches *prometheus.CounterVec
	retries, restarts, gaps, fences                      *prometheus.CounterVec
	batchEvents, commitDuration, latency                 *prometheus.HistogramVec

	missingTold, keysTold, retryTold, deadTold told
}

// NewMetrics registers the incrementer's metrics.
func NewMetrics(r prometheus.Registerer) *Metrics {
	count := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
		r.MustRegister(v)
		return v
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"source"})
		r.MustRegister(v)
		return v
	}
	return &Metrics{
		consumed:     count("incrementer_events_consumed_total", "Events read that concern a counter.", "source", "lane"),
		skipped:      count("incrementer_events_skipped_total", "Events of which nothing was applied, by reason: without an image, which marks their keys or counters for a recount, or a duplicate.", "source", "reason"),
		deadLettered: count("incrementer_events_dead_lettered_total", "Increments that their document could not take, and records that could not be read, set apart, by reason.", "source", "reason"),
		increments:   count("incrementer_increments_applied_total", "Sum of the weights applied, by direction.", "counter", "op"),
		batches:      count("incrementer_batches_committed_total", "Transactions committed, those that only move the position included.", "source"),
		retries:      count("incrementer_retries_total", "Attempts that failed and were made again.", "operation", "reason"),
		restarts:     count("incrementer_stream_restarts_total", "Readings of a stream that ended and were opened again, by reason.", "source", "reason"),
		gaps:         count("incrementer_gaps_total", "Stretches of history lost; every one is recorded and recounted.", "source"),
		fences:       count("incrementer_fenced_total", "Batches given up because another owner had moved the checkpoint.", "source"),
		batchEvents:  histogram("incrementer_batch_events", "Events of one transaction.", prometheus.ExponentialBuckets(1, 4, 9)),
		commitDuration: histogram("incrementer_batch_commit_duration_seconds",
			"Time from the first attempt of a transaction to its commit.", prometheus.ExponentialBuckets(0.001, 2, 15)),
		latency: histogram("incrementer_event_latency_seconds",
			"Time from the oldest event of a transaction to its commit, by the clocks of both machines.", prometheus.ExponentialBuckets(0.001, 2, 18)),
	}
}

// Lane makes every series of a lane from the start and publishes its gauges.
func (m *Metrics) Lane(r prometheus.Registerer, source, lane string, definitions []*counter.Definition, state *State) {
	m.consumed.WithLabelValues(source, lane)
	for _, reason := range []string{"missing_image", "duplicate"} {
		m.skipped.WithLabelValues(source, reason)
	}
	for _, reason := range deadLetterReasons {
		m.deadLettered.WithLabelValues(source, reason)
	}
	for _, d := range definitions {
		m.increments.WithLabelValues(d.Name, "inc")
		m.increments.WithLabelValues(d.Name, "dec")
	}
	for _, v := range []*prometheus.CounterVec{m.batches, m.gaps, m.fences} {
		v.WithLabelValues(source)
	}
	for _, r := range restartReasons {
		m.restarts.WithLabelValues(source, r.name)
	}
	m.restarts.WithLabelValues(source, reasonOther)
	for _, v := range []*prometheus.HistogramVec{m.batchEvents, m.commitDuration, m.latency} {
		v.WithLabelValues(source)
	}
	for _, reason := range []string{"conflict", "server", "network"} {
		m.retries.WithLabelValues("transaction", reason)
	}
	gauge := func(name, help string, value func() float64) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: name, Help: help, ConstLabels: prometheus.Labels{"source": source, "lane": lane},
		}, value))
	}
	// What another instance follows is that one's to tell.
	own := func(value func(View) float64) func() float64 {
		return func() float64 {
			v := state.View()
			if v.Standby != "" {
				return math.NaN()
			}
			return value(v)
		}
	}
	gauge("incrementer_lag_seconds", "Age of the newest moment before which everything is applied; NaN on standby.",
		own(func(v View) float64 { return v.Lag.Seconds() }))
	gauge("incrementer_checkpoint_timestamp_seconds", "When the checkpoint last moved, as a Unix time; NaN on standby.",
		own(func(v View) float64 { return unix(v.At.UpdatedAt) }))
	gauge("incrementer_checkpoint_position_timestamp_seconds", "Cluster time through which everything is applied, as a Unix time; NaN on standby.",
		own(func(v View) float64 { return float64(v.At.Position.T) }))
	gauge("incrementer_lane_owned", "1 while this instance follows the lane.", func() float64 { return number(state.View().Owned) })
}

// TopicLane is Lane for a partition of a topic.
func (m *Metrics) TopicLane(r prometheus.Registerer, source, lane string, definitions []*counter.Definition, state *State) {
	m.Lane(r, source, lane, definitions, state)
	r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "incrementer_lag_events", Help: "Records of the partition that are still to be read; NaN on standby.",
		ConstLabels: prometheus.Labels{"source": source, "lane": lane},
	}, func() float64 {
		v := state.View()
		if v.Standby != "" {
			return math.NaN()
		}
		return float64(v.Behind)
	}))
	for _, reason := range deadRecordReasons {
		m.deadLettered.WithLabelValues(source, reason)
	}
}

// Source publishes what is wrong with a source, by the states of its lanes.
func (m *Metrics) Source(r prometheus.Registerer, source string, lanes func() []*State) {
	degraded := func(reason string, is func(View) bool) {
		r.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "incrementer_degraded", Help: "1 while a source works with less than it should, by reason.",
			ConstLabels: prometheus.Labels{"source": source, "reason": reason},
		}, func() float64 {
			return number(slices.ContainsFunc(lanes(), func(s *State) bool { return is(s.View()) }))
		}))
	}
	degraded("broken_expression", func(v View) bool { return len(v.Broken) > 0 })
	degraded("collection_missing", func(v View) bool { return v.Owned && v.At.Identity.Collection == "" && v.At.Topic == "" })
	degraded("images_off", func(v View) bool { return v.Owned && v.ImagesOff })
	degraded("not_following", func(v View) bool { return !v.Owned && v.Standby == "" })
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func (m *Metrics) fenced(source string)            { m.fences.WithLabelValues(source).Inc() }
func (m *Metrics) gap(source string)               { m.gaps.WithLabelValues(source).Inc() }
func (m *Metrics) restarted(source, reason string) { m.restarts.WithLabelValues(source, reason).Inc() }

// Observer counts what a lane's applier does.
type Observer struct {
	Metrics      *Metrics
	Source, Lane string
	Log          *slog.Logger
}

// Applied implements counter.Observer.
func (o Observer) Applied(a counter.Applied) {
	m := o.Metrics
	m.batches.WithLabelValues(o.Source).Inc()
	m.commitDuration.WithLabelValues(o.Source).Observe(a.Duration.Seconds())
	if a.Events > 0 {
		m.consumed.WithLabelValues(o.Source, o.Lane).Add(float64(a.Events))
		m.batchEvents.WithLabelValues(o.Source).Observe(float64(a.Events))
		if !a.Oldest.IsZero() {
			m.latency.WithLabelValues(o.Source).Observe(max(0, time.Since(a.Oldest).Seconds()))
		}
	}
	apart := map[*counter.Delta]bool{}
	for _, x := range a.Apart {
		apart[x.Delta] = true
	}
	type sums struct{ inc, dec float64 } // integers may add up beyond 64 bits
	byCounter := map[string]sums{}
	for i := range a.Deltas {
		d := &a.Deltas[i]
		if apart[d] {
			continue
		}
		s := byCounter[d.Counter.Name]
		byCounter[d.Counter.Name] = sums{s.inc + float64(d.Inc), s.dec + float64(d.Dec)}
	}
	for name, s := range byCounter {
		m.increments.WithLabelValues(name, "inc").Add(s.inc)
		m.increments.WithLabelValues(name, "dec").Add(s.dec)
	}
	o.Metrics.skipped.WithLabelValues(o.Source, "duplicate").Add(float64(a.Repeated))
	o.imageless(a.Images)
	o.dead(a.Dead)
	for i, x := range a.Apart {
		m.deadLettered.WithLabelValues(o.Source, deadLetterReason(x.Code)).Inc()
		if i == maxDescribed {
			o.Log.Error("more increments set apart", logkey.Source, o.Source, logkey.Events, len(a.Apart)-maxDescribed,
				logkey.Action, "all of them: `incrementer deadletters list`")
		}
		if i >= maxDescribed {
			continue
		}
		o.Log.Error("increment set apart: its document cannot take it", logkey.Counter, x.Delta.Counter.Name,
			logkey.Key, x.Delta.Key.String(), "delta", x.Delta.N, logkey.Error, x.Reason,
			logkey.Action, "mend the document; the next reconcile then makes it right")
	}
}

// imageless counts and tells what was done about changes that came without an image. What costs a full recount is told
// even where a line about single keys has just been.
func (o Observer) imageless(i counter.Imageless) {
	m := o.Metrics
	m.skipped.WithLabelValues(o.Source, "missing_image").Add(float64(i.Events))
	const message = "changes without an image, nothing of them is applied: "
	switch {
	case len(i.Recounts) > 0 && m.missingTold.due(time.Now()):
		var names []string
		for _, d := range i.Recounts {
			names = append(names, d.Name)
		}
		o.Log.Error(message+"counters are marked for a full recount", logkey.Source, o.Source, logkey.Events, i.Events,
			"counters", names, "keys", len(i.Keys), logkey.Error, i.Why, logkey.Action, imagesFor(i.Recounts[0]))
	case len(i.Recounts) == 0 && len(i.Keys) > 0 && m.keysTold.due(time.Now()):
		o.Log.Warn(message+"their keys are marked for a recount", logkey.Source, o.Source, logkey.Events, i.Events,
			"keys", len(i.Keys), logkey.Action, imagesFor(i.Keys[0].Counter))
	}
}

// imagesFor says how changes come with their images to a counter.
func imagesFor(d *counter.Definition) string {
	if d.ByEvents() {
		return "have the connector publish the row before and after each change, as the README says of Kafka"
	}
	return "run `incrementer setup` to turn changeStreamPreAndPostImages on"
}

// dead counts and tells records that could not be read.
func (o Observer) dead(dead []counter.Dead) {
	for _, d := range dead {
		o.Metrics.deadLettered.WithLabelValues(o.Source, d.Reason).Inc()
	}
	if len(dead) > 0 && o.Metrics.deadTold.due(time.Now()) {
		o.Log.Error("records set apart: they cannot be read", logkey.Lane, o.Lane, logkey.Events, len(dead), logkey.Error, dead[0].Why,
			logkey.Action, "`incrementer deadletters list` shows them; mend the producer or the configuration, then `incrementer deadletters retry`")
	}
}

// told lets one line through a minute, of those that every batch would repeat.
type told struct{ at atomic.Int64 } // of the last line, as a Unix time

func (t *told) due(now time.Time) bool {
	last := t.at.Load()
	return now.Unix()-last >= 60 && t.at.CompareAndSwap(last, now.Unix())
}

// maxDescribed is how many documents of one transaction are logged one by one.
const maxDescribed = 20

// deadRecordReasons are the further values of the reason label for topics.
var deadRecordReasons = []string{envelope.ReasonNotJSON, envelope.ReasonMissing, envelope.ReasonMalformed, envelope.ReasonUnsupported, "time_ahead", "other"}

// deadLetterReasons are the values of the reason label.
var deadLetterReasons = []string{"type", "validator", "duplicate", "other"}

func deadLetterReason(code int) string {
	switch code {
	case 14: // TypeMismatch
		return "type"
	case 121: // DocumentValidationFailure
		return "validator"
	case 11000: // DuplicateKey
		return "duplicate"
	default:
		return "other"
	}
}

// Retried implements counter.Observer.
func (o Observer) Retried(operation string, err error) {
	reason := "network"
	var server mongo.ServerError
	switch {
	case counter.IsConflict(err):
		reason = "conflict"
	case errors.As(err, &server):
		reason = "server"
	}
	o.Metrics.retries.WithLabelValues(operation, reason).Inc()
	if reason != "conflict" && o.Metrics.retryTold.due(time.Now()) {
		o.Log.Warn("cannot commit, trying again", logkey.Lane, o.Lane, logkey.Reason, reason, logkey.Error, err)
	}
}

// Package reconciler compares counters with a recount of their rows at the very position that they reflect, reports
// the difference and repairs it.
package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// rowsPerRange is about how many rows a full pass counts at once.
const rowsPerRange = 30000

// Options say what one run looks at and whether it writes.
type Options struct {
	Counter string        // only this one; "" for all
	Key     bson.RawValue // only this one; zero for all
	Full    bool          // every key, not only the touched ones
	Resume  bool          // a full run goes on where an earlier one was broken off
	DryRun  bool          // write nothing at all
	// Approved are counters whose repairs are made however many keys have drifted, and the only ones to look at; nil for
	// all, with the guard.
	Approved []string
	Limit    int            // drifted keys to report, the largest; 0 for all
	Wait     bool           // a second time for counters of the application that were just being written to
	Tell     func(string)   // is told what a run waits for; nil for nobody
	Progress func(Progress) // is told how far a full pass is, range by range; nil for nobody
}

// Reconciler runs over the counters of one configuration.
type Reconciler struct {
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *counter.States
	journal     *counter.Journal
	history     *History
	definitions []*counter.Definition
	settings    config.Reconciler
	metrics     *Metrics
	log         *slog.Logger

	rowsPerRange int64
	recordEvery  time.Duration
	pace         *pace
	heart        Heart                // beats with every batch of the loop; nil for a single run
	idle         map[string]time.Time // until when the loop leaves a counter alone that the application keeps
	sizes        map[string]*batchSize
	resting      map[string]map[string]rest // costly keys, by counter and canonical key

	mutex  sync.Mutex
	status Status // of the loop
}

// New reconciles definitions.
func New(client *mongo.Client, stateDatabase string, definitions []*counter.Definition, settings config.Reconciler,
	metrics *Metrics, log *slog.Logger,
) *Reconciler {
	checkpoints, states := checkpoint.NewStore(client, stateDatabase), counter.NewStates(client, stateDatabase)
	return &Reconciler{
		client: client, checkpoints: checkpoints, states: states, journal: counter.NewJournal(client, checkpoints, states),
		history:     NewHistory(client, stateDatabase),
		definitions: definitions, settings: settings, metrics: metrics, log: log, rowsPerRange: rowsPerRange, recordEvery: recordEvery,
		pace: &pace{keysPerSecond: settings.MaxKeysPerSecond, rowsPerSecond: settings.MaxRowsPerSecond},
		idle: map[string]time.Time{}, sizes: map[string]*batchSize{}, resting: map[string]map[string]rest{},
	}
}

// RunOnce looks at every counter that o asks for. A counter that cannot be judged is reported as skipped, with the
// reason, and is not an error; an error means that the run broke off, and comes with what it found until then.
func (r *Reconciler) RunOnce(ctx context.Context, o Options) (*Report, error) {
	started := time.Now()
	report := &Report{Run: bson.NewObjectID().Hex(), Counters: []*CounterReport{}}
	record := Run{ID: report.Run}
	if err := r.begin(ctx, &record, o); err != nil {
		report.Result = ResultFailed
		return report, err
	}
	var failure error
	described := 0
	away := map[string]bool{} // sources whose incrementer has been waited for in vain: once a run is enough
	passes := make([]*pass, len(r.definitions))
	for i, d := range r.definitions {
		passes[i] = &pass{
			Reconciler: r, options: o, definition: d, run: report.Run, described: &described, seen: map[string]bool{}, compared: map[string]bool{},
			report:   &CounterReport{Counter: d.Name, Skipped: map[string]int64{}, Drifted: []Drifted{}, complete: true},
			patience: r.settings.JudgeTimeout,
		}
		if o.Key.IsZero() && !d.ByApplication() {
			passes[i].target.err = passes[i].sight(ctx)
		}
	}
	for _, pass := range passes {
		d := pass.definition
		if !o.wants(d.Name) {
			continue
		}
		if r.heart != nil && started.Before(r.idle[d.Name]) {
			continue
		}
		began := time.Now()
		if away[d.Source] {
			pass.patience = time.Nanosecond // one look
		}
		report.Counters = append(report.Counters, pass.report)
		if err := pass.ended(pass.look(ctx)); err != nil {
			failure = errors.Join(failure, fmt.Errorf("reconcile counter %s: %w", d.Name, err))
		}
		away[d.Source] = away[d.Source] || !d.ByApplication() &&
			pass.report.Skipped[skipNoCheckpoint]+pass.report.Skipped[skipDefinition]+pass.report.Skipped[skipStale]+pass.report.Skipped[skipLagging] > 0
		pass.conclude(ctx)
		if d.ByApplication() {
			r.idle[d.Name] = time.Now().Add(restFactor * (time.Since(began) - pass.closer.waited))
		}
	}
	report.conclude(o.Limit)
	if failure != nil {
		report.Result = ResultFailed
	}
	r.end(ctx, record, report, o)
	if o.Key.IsZero() {
		r.metrics.ran(report, time.Since(started))
	}
	return report, failure
}

// wants reports whether a run looks at the counter.
func (o Options) wants(name string) bool {
	return (o.Counter == "" || o.Counter == name) && (o.Approved == nil || slices.Contains(o.Approved, name))
}

// ended records how a pass ended and returns its error, nil when it only could not judge.
func (p *pass) ended(err error) error {
	var unjudged *unjudgedError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unjudged):
		p.report.Why = unjudged.why
		p.report.skip(unjudged.reason)
		p.log.Warn("counter not judged", logkey.Counter, p.definition.Name, logkey.Reason, unjudged.reason,
			logkey.Error, unjudged.why, logkey.Run, p.run)
		return nil
	default:
		p.report.complete = false
		return err
	}
}

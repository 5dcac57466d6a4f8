package reconciler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// ResultUnfinished is a run's that is under way, or whose process ended before it. What it repaired is in the journal.
const ResultUnfinished = "unfinished"

// maxRecorded is how many drifted keys, the largest, the record of a run keeps of each counter.
const maxRecorded = 20

// Run is the record of one run.
type Run struct {
	ID        string       `bson:"_id" json:"run"`
	Started   time.Time    `bson:"started" json:"started"`
	Finished  time.Time    `bson:"finished,omitempty" json:"finished,omitzero"`
	Result    string       `bson:"result" json:"result"`
	Full      bool         `bson:"full,omitempty" json:"full,omitempty"`
	Held      []string     `bson:"held,omitempty" json:"held,omitempty"` // counters
	Counters  []RunCounter `bson:"counters" json:"counters"`
	ExpiresAt time.Time    `bson:"expires_at" json:"-"`
}

// RunCounter is the part of a run about one counter.
type RunCounter struct {
	Counter         string           `bson:"counter" json:"counter"`
	Checked         int64            `bson:"checked" json:"checked"`
	Repaired        int64            `bson:"repaired" json:"repaired"`
	Rebased         int64            `bson:"rebased,omitempty" json:"rebased,omitempty"`
	Skipped         map[string]int64 `bson:"skipped" json:"skipped"`
	Drift           Drift            `bson:"drift" json:"drift"`
	Drifted         []RunDrift       `bson:"drifted" json:"drifted"` // the largest
	VerifiedThrough time.Time        `bson:"verified_through,omitempty" json:"verified_through,omitzero"`
}

// RunDrift is one wrong key of a run.
type RunDrift struct {
	Key       string `bson:"key" json:"-"` // extended JSON
	Displayed int64  `bson:"displayed" json:"displayed"`
	Truth     int64  `bson:"truth" json:"truth"`
	Drift     int64  `bson:"drift" json:"drift"`
	Cause     string `bson:"cause" json:"cause"`
}

// MarshalJSON implements json.Marshaler: the key stands as the value that it is.
func (d RunDrift) MarshalJSON() ([]byte, error) {
	type plain RunDrift
	return json.Marshal(struct {
		Key json.RawMessage `json:"key"`
		plain
	}{json.RawMessage(d.Key), plain(d)})
}

// History reads and writes the records of runs.
type History struct{ runs, repairs *mongo.Collection }

// NewHistory opens the records of the state database.
func NewHistory(client *mongo.Client, stateDatabase string) *History {
	db := client.Database(stateDatabase, options.Database().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
	return &History{runs: db.Collection(counter.RunsCollection), repairs: db.Collection(counter.RepairsCollection)}
}

// begin records that a run is under way.
func (h *History) begin(ctx context.Context, run Run) error {
	if _, err := h.runs.InsertOne(ctx, run); err != nil {
		return fmt.Errorf("record run %s: %w", run.ID, err)
	}
	return nil
}

func (h *History) end(ctx context.Context, run Run) error {
	_, err := h.runs.ReplaceOne(ctx, bson.D{{Key: "_id", Value: run.ID}}, run, options.Replace().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("record run %s: %w", run.ID, err)
	}
	return nil
}

// ErrNoRun means: there is no record of such a run, or none any more.
var ErrNoRun = errors.New("no such run")

// Run returns the record of one run.
func (h *History) Run(ctx context.Context, id string) (Run, error) {
	var run Run
	err := h.runs.FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(&run)
	if errors.Is(err, mongo.ErrNoDocuments) {
		return Run{}, fmt.Errorf("%w: %s", ErrNoRun, id)
	}
	if err != nil {
		return Run{}, fmt.Errorf("read run %s: %w", id, err)
	}
	return run, nil
}

// Last returns the latest runs, the latest first. What one that is unfinished has repaired is taken from the journal.
func (h *History) Last(ctx context.Context, n int) ([]Run, error) {
	runs, err := h.list(ctx, bson.D{}, n)
	if err != nil {
		return nil, err
	}
	for i := range runs {
		if runs[i].Result == ResultUnfinished {
			if runs[i].Counters, err = h.journalled(ctx, runs[i].ID); err != nil {
				return nil, err
			}
		}
	}
	return runs, nil
}

// Held returns the latest runs that held a repair, the latest first.
func (h *History) Held(ctx context.Context, n int) ([]Run, error) {
	return h.list(ctx, bson.D{{Key: "result", Value: ResultHeld}}, n)
}

func (h *History) list(ctx context.Context, filter bson.D, n int) ([]Run, error) {
	cursor, err := h.runs.Find(ctx, filter, options.Find().SetSort(bson.D{{Key: "started", Value: -1}, {Key: "_id", Value: -1}}).SetLimit(int64(n)))
	var runs []Run
	if err == nil {
		err = cursor.All(ctx, &runs)
	}
	if err != nil {
		return nil, fmt.Errorf("read runs: %w", err)
	}
	return runs, nil
}

// journalled is what the journal says of a run, by counter.
func (h *History) journalled(ctx context.Context, run string) ([]RunCounter, error) {
	cursor, err := h.repairs.Find(ctx, bson.D{{Key: "run", Value: run}})
	if err != nil {
		return nil, fmt.Errorf("read repairs of run %s: %w", run, err)
	}
	defer func() { _ = cursor.Close(ctx) }()
	counters := []RunCounter{}
	reports := map[string]*CounterReport{}
	var names []string
	for cursor.Next(ctx) {
		var e counter.Entry
		if err := cursor.Decode(&e); err != nil {
			return nil, fmt.Errorf("read repairs of run %s: %w", run, err)
		}
		if reports[e.Counter] == nil {
			names = append(names, e.Counter)
			reports[e.Counter] = &CounterReport{Counter: e.Counter, Skipped: map[string]int64{}}
		}
		reports[e.Counter].journalled(e)
	}
	for _, name := range slices.Sorted(slices.Values(names)) {
		reports[name].trim(maxRecorded)
		counters = append(counters, reports[name].record())
	}
	if err := cursor.Err(); err != nil {
		return nil, fmt.Errorf("read repairs of run %s: %w", run, err)
	}
	return counters, nil
}

// journalled counts one repair that is known from the journal alone.
func (r *CounterReport) journalled(e counter.Entry) {
	r.Checked++
	r.Repaired++
	if e.Rebased {
		r.Rebased++
		return
	}
	r.Drift.add(e.Drift)
	r.keepLargest(Drifted{Key: ExtendedJSON{e.KeyValue()}, Displayed: e.Truth + e.Drift, Truth: e.Truth, Drift: e.Drift, Cause: Cause(e.Cause)}, maxRecorded)
}

// record is what is kept of a counter's report.
func (r *CounterReport) record() RunCounter {
	c := RunCounter{
		Counter: r.Counter, Checked: r.Checked, Repaired: r.Repaired, Rebased: r.Rebased, Skipped: r.Skipped, Drift: r.Drift,
		Drifted: []RunDrift{}, VerifiedThrough: r.VerifiedThrough,
	}
	for _, d := range r.Drifted[:min(maxRecorded, len(r.Drifted))] {
		c.Drifted = append(c.Drifted, RunDrift{d.Key.String(), d.Displayed, d.Truth, d.Drift, string(d.Cause)})
	}
	return c
}

// begin records a run that may write. Without the record there is no run: nobody could find its repairs again.
func (r *Reconciler) begin(ctx context.Context, run *Run, o Options) error {
	if o.DryRun || len(r.definitions) == 0 {
		return nil
	}
	*run = Run{ID: run.ID, Started: time.Now().UTC(), Result: ResultUnfinished, Full: o.Full, Counters: []RunCounter{}, ExpiresAt: counter.Expiry()}
	return r.history.begin(ctx, *run)
}

// end records what a run came to, also when it was stopped. The report is sorted and cut already.
func (r *Reconciler) end(ctx context.Context, run Run, report *Report, o Options) {
	if o.DryRun || run.Started.IsZero() {
		return
	}
	run.Finished, run.Result = time.Now().UTC(), report.Result
	for _, c := range report.Counters {
		run.Counters = append(run.Counters, c.record())
	}
	run.Held = report.Held()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTimeout)
	defer cancel()
	if err := r.history.end(ctx, run); err != nil {
		r.log.Warn("run not recorded", logkey.Run, run.ID, logkey.Error, err)
	}
}

// recordTimeout bounds the last write of a run that was stopped.
const recordTimeout = 10 * time.Second

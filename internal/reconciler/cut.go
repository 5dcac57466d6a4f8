package reconciler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Reasons for which a counter, or a part of it, is not judged.
const (
	skipNoCheckpoint = "no_checkpoint" // no incrementer has followed its source yet
	skipDefinition   = "definition"    // the incrementer, or its record in the state database, is of another definition
	skipBroken       = "broken"        // its expression fails on the server
	skipPosition     = "position"      // the incrementer took it up a moment ago
	skipTail         = "tail"          // a transaction too large to list is under way
	skipStale        = "stale"         // the position is older than the snapshots that the server keeps
	skipLagging      = "lagging"       // the member that is to count its rows is not as far as the position
	skipNoRows       = "no_rows"       // the collection of its rows is gone, or was replaced a moment ago
	skipInterrupted  = "interrupted"   // the server ended the count of its rows
	skipNoTarget     = "no_target"     // the collection of its documents is gone, or was replaced a moment ago
	skipNoIndex      = "no_index"      // the index of its touched keys is gone
)

// standing is where a counter stands at one moment: how far its lanes are, and whether it waits for a recount. The two
// belong to one snapshot: a counter that was taken up anew just now must not be judged by its former state.
type standing struct {
	lanes []checkpoint.Checkpoint // in the order of their partitions
	state counter.State
	cut   int64 // of a counter that events increment: the moment to judge at, in Unix seconds
}

// through is the position that all lanes have reached, or the cut, zero before the first reading.
func (s standing) through() bson.Timestamp {
	if s.cut != 0 {
		return bson.Timestamp{T: uint32(s.cut)} //nolint:gosec // a Unix time
	}
	var oldest bson.Timestamp
	for _, lane := range s.lanes {
		if oldest.IsZero() || lane.Position.Before(oldest) {
			oldest = lane.Position
		}
	}
	return oldest
}

// view is one reading of a batch at one cut.
type view struct {
	standing
	documents map[string]counter.Document
	truths    map[string]counter.Truth
	tail      map[string]int64
	laneOf    map[string]int      // by key, where there are several lanes
	divisions map[string]division // by key, of documents that events increment
	rows      int64               // that were counted
	took      time.Duration       // to read it
	queued    time.Duration       // and to wait for another count before that
}

// position is the one at which a key was judged, by its canonical form: its own lane's. A key that has neither rows nor a
// document, which may be any lane's, is judged where all of them are.
func (v view) position(key string) bson.Timestamp {
	if lane, known := v.laneOf[key]; known {
		return v.lanes[lane].Position
	}
	return v.through()
}

// read takes one cut: checkpoints, state and documents in one snapshot, the rows of every lane's keys at the position that
// the documents of these reflect.
func (p *pass) read(ctx context.Context, which counter.Selection) (view, error) {
	if p.definition.ByEvents() {
		return p.readEvents(ctx, which)
	}
	var v view
	started := time.Now()
	err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if v.standing, err = p.stand(ctx); err == nil {
			v.documents, err = p.definition.DocumentsOfLanes(ctx, p.client, which, len(v.lanes))
		}
		return err
	})
	if err == nil {
		err = p.count(ctx, &v, which)
	}
	if err == nil {
		err = p.sameRows(ctx, v.lanes)
	}
	v.tail = tailOf(v.lanes, p.definition.Name)
	v.took = time.Since(started) - v.queued
	return v, p.verdictOn(err, v.through(), v.took)
}

// count fills in the truths of the selection. A lane's position says nothing about another lane's keys, and which keys
// there are is a question of the position as well: the last row of one may have gone since.
func (p *pass) count(ctx context.Context, v *view, which counter.Selection) error {
	v.truths, v.laneOf = map[string]counter.Truth{}, map[string]int{}
	if len(v.lanes) > 1 {
		for key, document := range v.documents {
			v.laneOf[key] = document.Partition
		}
	}
	asked := time.Now()
	p.counting.Lock()
	defer p.counting.Unlock()
	v.queued = time.Since(asked)
	for i, lane := range checkpoint.Lanes(p.definition.Source, len(v.lanes)) {
		err := counter.Snapshot(ctx, p.client, v.lanes[i].Position, func(ctx context.Context) error {
			return p.countLane(ctx, v, lane, which)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// countLane counts the rows of one lane's keys in the session in ctx.
func (p *pass) countLane(ctx context.Context, v *view, lane checkpoint.LaneID, which counter.Selection) error {
	chunks := []counter.Selection{which}
	if !lane.Whole() {
		keys, err := p.definition.Keys(ctx, p.client, which, lane)
		if err != nil {
			return err
		}
		for _, key := range keys {
			v.laneOf[counter.Canonical(key)] = lane.Partition
		}
		chunks = counter.Chunks(keys)
	}
	for _, chunk := range chunks {
		truths, rows, err := p.definition.Count(ctx, p.client, chunk)
		if err != nil {
			return err
		}
		if len(v.truths) == 0 {
			v.truths = truths
		} else {
			maps.Copy(v.truths, truths)
		}
		v.rows += rows
	}
	return nil
}

// tailOf is what the lanes have applied beyond their positions. A key has one lane.
func tailOf(lanes []checkpoint.Checkpoint, name string) map[string]int64 {
	tail := map[string]int64{}
	for _, at := range lanes {
		for _, d := range at.Tail.Deltas {
			if d.Counter == name {
				tail[counter.Canonical(d.Key)] += d.Delta
			}
		}
	}
	return tail
}

// stand reads where the counter stands, and says *unjudgedError when it cannot be judged there (I4).
func (p *pass) stand(ctx context.Context) (standing, error) {
	d := p.definition
	lanes, err := p.checkpoints.Set(ctx, d.Source)
	switch {
	case errors.Is(err, checkpoint.ErrIncomplete):
		return standing{}, &unjudgedError{skipNoCheckpoint, fmt.Sprintf("%v: waiting for the incrementer to start it, is it running?", err)}
	case errors.Is(err, checkpoint.ErrNone):
		return standing{}, &unjudgedError{skipNoCheckpoint, fmt.Sprintf("no incrementer has followed source %s yet: start `incrementer run`", d.Source)}
	case errors.Is(err, checkpoint.ErrNewer):
		return standing{}, &unjudgedError{skipDefinition, err.Error()}
	case err != nil:
		return standing{}, err
	}
	states, err := p.states.All(ctx)
	if err != nil {
		return standing{}, err
	}
	s := standing{lanes: lanes, state: states[d.Name]}
	if d.ByEvents() {
		s.cut = cutOf(lanes, p.settings.Settle)
	}
	for _, lane := range lanes {
		if s.cut != 0 {
			lane.Position = s.through()
		}
		if err := judgeable(d, lane, p.settings.Settle); err != nil {
			return standing{}, err
		}
	}
	if err := recorded(d, states[d.Name]); err != nil {
		return standing{}, err
	}
	return s, nil
}

// judgeable returns *unjudgedError when the counter cannot be judged at the checkpoint.
func judgeable(d *counter.Definition, at checkpoint.Checkpoint, settle time.Duration) error {
	counting, ok := at.Counters[d.Name]
	switch {
	case !ok || counting.Hash != d.Hash:
		return &unjudgedError{skipDefinition, "the incrementer counts it by another definition than this configuration file: give both programs the same file and restart the one that runs with the older"}
	case counting.Broken != "":
		return &unjudgedError{skipBroken, "its expression fails on the server: " + counting.Broken}
	case at.Position.Before(counting.Since) && d.ByEvents():
		return &unjudgedError{skipPosition, settling(counting.Since, settle)}
	case at.Position.Before(counting.Since):
		return &unjudgedError{skipPosition, "the incrementer took it up in the middle of a transaction: waiting for a later position"}
	case at.Tail.TooLarge:
		return &unjudgedError{skipTail, "a large transaction is under way: waiting for a later position"}
	}
	return nil
}

// waitUntilJudged waits until the counter can be judged at all.
func (p *pass) waitUntilJudged(ctx context.Context) (s standing, err error) {
	err = p.waitFor(ctx, func() error {
		started := time.Now()
		err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
			s, err = p.stand(ctx)
			return err
		})
		switch {
		case err == nil && p.definition.ByEvents():
			err = p.present(ctx)
		case err == nil:
			err = p.sameRows(ctx, s.lanes)
		}
		return p.verdictOn(err, s.through(), time.Since(started))
	})
	return s, err
}

// sameRows returns *unjudgedError when the collection of the rows is not the one that the lanes follow. A snapshot read of a
// collection that has been dropped or renamed since finds no rows and no error: every counter would be 0. Lanes that have
// noticed that there is none are right about it.
func (p *pass) sameRows(ctx context.Context, lanes []checkpoint.Checkpoint) error {
	rows := p.definition.Rows
	uuid, err := p.checkpoints.UUID(ctx, rows.Database, rows.Collection)
	if err != nil {
		return err
	}
	for _, lane := range lanes {
		if lane.Identity.Collection != uuid {
			return &unjudgedError{skipNoRows, fmt.Sprintf("collection %s.%s, whose rows are to be counted, has just been made, "+
				"dropped or replaced: waiting for the incrementer to notice", rows.Database, rows.Collection)}
		}
	}
	return nil
}

// waitFor calls try again while waiting may help, for at most the judge timeout.
func (p *pass) waitFor(ctx context.Context, try func() error) error {
	return p.retry(ctx, try, func(err error) bool {
		var unjudged *unjudgedError
		return errors.As(err, &unjudged) || isUnreachable(err)
	})
}

// insist calls try again after whatever may be gone the next time, for at most the judge timeout.
func (p *pass) insist(ctx context.Context, try func() error) error {
	return p.retry(ctx, try, func(err error) bool {
		return isUnreachable(err) || counter.IsSnapshotGone(err) || isServers(err) && errors.Is(stream.Classify(err), stream.ErrInterrupted)
	})
}

func (p *pass) retry(ctx context.Context, try func() error, again func(error) bool) error {
	return retryFor(ctx, p.patience, try, again)
}

// retryFor calls try until it succeeds, fails with what another try cannot help, or the patience is over.
func retryFor(ctx context.Context, patience time.Duration, try func() error, again func(error) bool) error {
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond), backoff.WithMaxElapsedTime(patience))
	return backoff.Retry(func() error {
		err := try()
		if err != nil && !again(err) {
			return backoff.Permanent(err)
		}
		return err
	}, backoff.WithContext(policy, ctx))
}

// unjudgedError says why a counter cannot be compared now. Waiting may help.
type unjudgedError struct{ reason, why string }

func (e *unjudgedError) Error() string { return "not judged: " + e.why }

// uncountedError says why so many rows cannot be counted at once. Fewer keys may help.
type uncountedError struct {
	reason string
	err    error
}

func (e *uncountedError) Error() string { return "not counted: " + e.err.Error() }
func (e *uncountedError) Unwrap() error { return e.err }

// verdictOn says what helps after a failed reading: waiting, fewer keys, or neither. A wrong verdict costs: waiting for
// what never comes, dividing a batch for a server that is away, or a run that ends by one row.
func (p *pass) verdictOn(err error, at bson.Timestamp, took time.Duration) error {
	switch {
	case errors.Is(err, counter.ErrBehind):
		return &unjudgedError{skipLagging, "the member that counts the rows, by readPreference of mongodb.uri, is not as far as the counters, or does not answer: waiting for it"}
	case err == nil, !isServers(err), isUnreachable(err):
		return err
	case counter.IsSnapshotGone(err) && took > p.settings.JudgeTimeout:
		// The snapshot was there, and went while its rows were being counted.
		return &uncountedError{skipStale, err}
	case counter.IsSnapshotGone(err):
		return &unjudgedError{skipStale, staleness(at)}
	}
	switch classified := stream.Classify(err); {
	case errors.Is(classified, stream.ErrUnauthorized):
		return err
	case errors.Is(classified, stream.ErrInterrupted), stream.HasCode(err, tooMuch...):
		return &uncountedError{skipInterrupted, err}
	default:
		// The server answered, is healthy and refuses: a row that the expression fails on. It may be a single one.
		return &uncountedError{skipBroken, err}
	}
}

// staleness tells a lane that does not move from collections that have just been changed.
func staleness(at bson.Timestamp) string {
	if at.IsZero() {
		return "the server has no snapshot yet: a collection has just been created or changed"
	}
	age := time.Since(stream.Clock(at)).Round(time.Second)
	return fmt.Sprintf("the incrementer's position is %s old and the server keeps no snapshot of it: is the incrementer running?", age)
}

// isServers reports whether err is an answer of the server, or the lack of one.
func isServers(err error) bool {
	var server mongo.ServerError
	return errors.As(err, &server)
}

// failover are the codes of a server that goes away, comes up or has just changed its role: HostUnreachable,
// HostNotFound, NetworkTimeout, ShutdownInProgress, ReadConcernMajorityNotAvailableYet, PrimarySteppedDown,
// SocketException, NotWritablePrimary, InterruptedAtShutdown, InterruptedDueToReplStateChange,
// NotPrimaryNoSecondaryOk, NotPrimaryOrSecondary.
var failover = []int{6, 7, 89, 91, 134, 189, 9001, 10107, 11600, 11602, 13435, 13436}

// tooMuch are the codes of a count beyond the server's limits: ExceededMemoryLimit,
// QueryExceededMemoryLimitNoDiskUseAllowed, BSONObjectTooLarge.
var tooMuch = []int{146, 292, 10334}

// isUnreachable reports whether the server is away, so that the same will work once it is back.
func isUnreachable(err error) bool {
	if !isServers(err) {
		return mongo.IsTimeout(err) // no server was found in time
	}
	return mongo.IsNetworkError(err) || stream.HasCode(err, failover...)
}

package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Reasons for which a counter, or a part of it, is not judged.
const (
	skipNoCheckpoint = "no_checkpoint" // no incrementer has followed its source yet
	skipDefinition   = "definition"    // the incrementer counts by another definition
	skipBroken       = "broken"        // its expression fails on the server
	skipPosition     = "position"      // the incrementer took it up a moment ago
	skipTail         = "tail"          // a transaction too large to list is under way
	skipStale        = "stale"         // the position is older than the snapshots that the server keeps
	skipNoRows       = "no_rows"       // the collection of its rows is gone, or was replaced a moment ago
	skipInterrupted  = "interrupted"   // the server ended the count of its rows
)

// standing is where a counter stands at one moment: how far its lane is, and whether it waits for a recount. The two
// belong to one snapshot: a counter that was taken up anew just now must not be judged by its former state.
type standing struct {
	at    checkpoint.Checkpoint
	state counter.State
}

// view is one reading of a batch at one cut.
type view struct {
	standing
	documents map[string]counter.Document
	truths    map[string]counter.Truth
	tail      map[string]int64
}

// read takes one cut: checkpoint, state and documents in one snapshot, the rows at the position that these reflect.
func (p *pass) read(ctx context.Context, which counter.Selection) (view, error) {
	var v view
	var rows int64
	started := time.Now()
	err := counter.Snapshot(ctx, p.client, bson.Timestamp{}, func(ctx context.Context) (err error) {
		if v.standing, err = p.stand(ctx); err != nil {
			return err
		}
		v.documents, err = p.definition.Documents(ctx, p.client, which)
		return err
	})
	if err == nil {
		err = counter.Snapshot(ctx, p.client, v.at.Position, func(ctx context.Context) (err error) {
			v.truths, rows, err = p.definition.Count(ctx, p.client, which)
			return err
		})
	}
	if err == nil {
		err = p.sameRows(ctx)
	}
	v.tail = tailOf(v.at, p.definition.Name)
	p.report.rows += rows
	return v, p.verdictOn(err, v.at.Position, time.Since(started))
}

func tailOf(at checkpoint.Checkpoint, name string) map[string]int64 {
	tail := map[string]int64{}
	for _, d := range at.Tail.Deltas {
		if d.Counter == name {
			tail[counter.Canonical(d.Key)] += d.Delta
		}
	}
	return tail
}

// stand reads where the counter stands, and says *unjudgedError when it cannot be judged there (I4).
func (p *pass) stand(ctx context.Context) (standing, error) {
	d := p.definition
	at, err := p.checkpoints.Load(ctx, d.Source)
	if errors.Is(err, checkpoint.ErrNone) {
		return standing{}, &unjudgedError{skipNoCheckpoint, fmt.Sprintf("no incrementer has followed source %s yet: start `incrementer run`", d.Source)}
	}
	if err != nil {
		return standing{}, err
	}
	states, err := p.states.All(ctx)
	if err != nil {
		return standing{}, err
	}
	return standing{at, states[d.Name]}, judgeable(d, at)
}

// judgeable returns *unjudgedError when the counter cannot be judged at the checkpoint.
func judgeable(d *counter.Definition, at checkpoint.Checkpoint) error {
	counting, ok := at.Counters[d.Name]
	switch {
	case !ok || counting.Hash != d.Hash:
		return &unjudgedError{skipDefinition, "the incrementer counts it by another definition than this configuration file: give both programs the same file and restart the one that runs with the older"}
	case counting.Broken != "":
		return &unjudgedError{skipBroken, "its expression fails on the server: " + counting.Broken}
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
		if err == nil && p.collection == "" {
			_ = p.sameRows(ctx) // learns which collection it is; the next look says what is wrong
			err = p.sameRows(ctx)
		}
		return p.verdictOn(err, s.at.Position, time.Since(started))
	})
	return s, err
}

// sameRows returns *unjudgedError when the collection of the rows is not the one that it was at the last look. A snapshot
// read of a collection that has been dropped or renamed since finds no rows and no error: every counter would be 0.
func (p *pass) sameRows(ctx context.Context) error {
	rows := p.definition.Rows
	found, err := p.client.Database(rows.Database, options.Database().SetReadPreference(readpref.Primary())).
		ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: rows.Collection}})
	if err != nil {
		return fmt.Errorf("look at collection %s.%s: %w", rows.Database, rows.Collection, err)
	}
	before := p.collection
	p.collection = ""
	if len(found) > 0 && found[0].UUID != nil {
		p.collection = string(found[0].UUID.Data)
	}
	switch {
	case p.collection == "":
		return &unjudgedError{skipNoRows, fmt.Sprintf("collection %s.%s, whose rows are to be counted, does not exist", rows.Database, rows.Collection)}
	case p.collection != before:
		return &unjudgedError{skipNoRows, fmt.Sprintf("collection %s.%s has just been made or replaced", rows.Database, rows.Collection)}
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
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond), backoff.WithMaxElapsedTime(p.patience))
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
	age := time.Since(time.Unix(int64(at.T), 0)).Round(time.Second)
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

package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/stream"
)

const (
	pieceDocuments = 50              // of one transaction: increments of the same documents conflict with it
	busyFor        = 3 * time.Second // until a single document that others write to all the time is left for the next run
)

// journalSession names the session of this process's repairs beside those of the lanes. No lane is called so.
const journalSession = "@reconciler"

// pieces is a job on numbered documents that is done in transactions of few.
type pieces struct {
	// write fills the transaction in ctx for the given documents and returns what to do once it is committed. again: an
	// earlier attempt's commit may have come true. *refusedError: one of them refuses its update.
	write   func(ctx context.Context, piece []int, again bool) (committed func(), err error)
	refused func(i int, why string)
	busy    func(i int) // others write to it all the time
}

// refusedError is the fault of one document of a piece.
type refusedError struct {
	at  int // in the piece
	why string
}

func (e *refusedError) Error() string { return "one document refuses its update: " + e.why }

// refusal finds the document that a bulk write failed on; at holds their places in the piece. errConflict: somebody else
// made one at the same time.
func refusal(err error, at []int, doing string) error {
	if fault, is := faultOf(err, len(at)); is {
		return &refusedError{at[fault.Index], fault.Message}
	} else if racedUpsert(fault) {
		return fmt.Errorf("%w: %w", errConflict, err)
	}
	return fmt.Errorf("%s: %w", doing, err)
}

// inPieces does a job on n documents. After a conflict a piece is halved, down to a single document, which is tried for a
// while.
func (j *Journal) inPieces(ctx context.Context, n int, job pieces) error {
	if n == 0 {
		return nil
	}
	session, err := j.session(ctx)
	if err != nil {
		return err
	}
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	todo := slices.Collect(slices.Chunk(all, pieceDocuments))
	for len(todo) > 0 {
		piece := todo[0]
		todo = todo[1:]
		err := job.piece(ctx, session, piece)
		switch half := len(piece) / 2; {
		case errors.Is(err, errConflict) && half > 0:
			todo = slices.Insert(todo, 0, piece[:half], piece[half:])
		case errors.Is(err, errConflict):
			job.busy(piece[0])
		case err != nil:
			return err
		}
	}
	return nil
}

// session is this process's. One that a process which died has left inside a transaction, whose documents nobody could
// write to for a minute, is ended first.
func (j *Journal) session(ctx context.Context) (*mongo.Session, error) {
	if !j.taken {
		if err := j.checkpoints.Take(ctx, journalSession); err != nil {
			return nil, err
		}
		j.taken = true
	}
	return j.checkpoints.Session(journalSession)
}

// piece commits one piece, without the documents that refuse it. errConflict: a smaller one has a better chance. A
// cancelled ctx does not stop a transaction midway, only the next one.
func (job pieces) piece(ctx context.Context, session *mongo.Session, piece []int) error {
	for len(piece) > 0 {
		err := job.commit(ctx, session, piece)
		var bad *refusedError
		if !errors.As(err, &bad) {
			return err
		}
		job.refused(piece[bad.at], bad.why)
		piece = slices.Concat(piece[:bad.at], piece[bad.at+1:])
	}
	return nil
}

func (job pieces) commit(ctx context.Context, session *mongo.Session, piece []int) error {
	started, again := time.Now(), false
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(200*time.Millisecond), backoff.WithMaxElapsedTime(retryFor))
	return backoff.Retry(func() error {
		var committed func()
		err := transact(context.WithoutCancel(ctx), session, func(ctx context.Context) (err error) {
			committed, err = job.write(ctx, piece, again)
			return err
		})
		again = true
		switch {
		case err == nil:
			committed()
			return nil
		case IsConflict(err) || errors.Is(err, errConflict):
			err = fmt.Errorf("%w: %w", errConflict, err)
			if len(piece) > 1 || time.Since(started) > busyFor {
				return backoff.Permanent(err)
			}
			return err
		case passes(err):
			return err
		default:
			return backoff.Permanent(err)
		}
	}, backoff.WithContext(policy, ctx))
}

// passes reports whether the same transaction may succeed when it is tried again: the server went away, or somebody
// ended it.
func passes(err error) bool {
	var server mongo.ServerError
	return hasLabel(err, "TransientTransactionError") || hasLabel(err, "UnknownTransactionCommitResult") ||
		mongo.IsNetworkError(err) || mongo.IsTimeout(err) || errors.Is(err, errTooLong) ||
		errors.As(err, &server) && errors.Is(stream.Classify(err), stream.ErrInterrupted)
}

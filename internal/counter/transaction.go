package counter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

const (
	attemptTimeout = 60 * time.Second // the server's own limit for a transaction
	abortTimeout   = 5 * time.Second
	retryFor       = time.Minute // then the lane reopens from its checkpoint
	commitRetries  = 5
	heldRetries    = 8 // half a second
	probeDocuments = 500
)

// errTooLong: a transaction did not come to an end within attemptTimeout.
var errTooLong = fmt.Errorf("transaction took longer than %s", attemptTimeout)

// errHeld: another owner has a transaction open that moves the same checkpoint.
var errHeld = errors.New("checkpoint held by another owner's transaction")

// errConflict: somebody else writes the same documents. A smaller transaction has a better chance.
var errConflict = errors.New("write conflict")

// transactionOptions: the position and the effect are read and written at one point, acknowledged by a majority.
func transactionOptions() *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())
}

// commit brings p into the database, trying the whole transaction again for as long as that can help. A cancelled ctx
// does not stop a transaction midway, only the next one.
func (a *Applier) commit(ctx context.Context, p *piece) error {
	session, err := a.checkpoints.Session(p.from.Lane)
	if err != nil {
		return err
	}
	started := time.Now()
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(retryFor))
	err = backoff.RetryNotify(
		func() error { return a.attempt(ctx, session, p) },
		backoff.WithContext(policy, ctx),
		func(err error, _ time.Duration) { a.observer.Retried("transaction", err) })
	if err != nil {
		return err
	}
	a.observer.Applied(Applied{Folded: p.folded, Apart: p.apart, Images: p.images, At: p.to, Duration: time.Since(started)})
	return nil
}

// attempt runs the transaction, without the documents that refuse it, and says, by backoff.Permanent, when another
// attempt cannot help.
func (a *Applier) attempt(ctx context.Context, session *mongo.Session, p *piece) error {
	err := a.transact(ctx, session, p)
	for bad := (*documentError)(nil); errors.As(err, &bad) && ctx.Err() == nil; {
		if err = a.setApart(ctx, session, p, bad); err == nil {
			err = a.transact(ctx, session, p)
		}
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, checkpoint.ErrFenced):
		return a.once.taken(context.WithoutCancel(ctx), p)
	case errors.Is(err, errHeld):
		if p.held++; p.held < heldRetries {
			return err
		}
		// It is paused or dead, and it may have committed nothing yet. Whoever takes the lane anew ends its transaction.
		return backoff.Permanent(fmt.Errorf("%w: %w", checkpoint.ErrFenced, err))
	case IsConflict(err) && len(p.events) > 1:
		a.observer.Retried("transaction", err)
		return backoff.Permanent(fmt.Errorf("%w: %w", errConflict, err))
	default:
		// Whatever it was, the whole transaction may be tried again: the compare-and-set tells if it had come true.
		return err
	}
}

func (a *Applier) transact(ctx context.Context, session *mongo.Session, p *piece) error {
	return transact(context.WithoutCancel(ctx), session, func(ctx context.Context) error { return a.write(ctx, p) })
}

// transact runs body in one transaction of the session and finishes a commit whose result is unknown on that session.
// It returns within about attemptTimeout.
func transact(ctx context.Context, session *mongo.Session, body func(context.Context) error) error {
	if err := session.StartTransaction(transactionOptions()); err != nil {
		return fmt.Errorf("start transaction: %w", err)
	}
	limited, cancel := limit(ctx, attemptTimeout)
	defer cancel()
	inside := mongo.NewSessionContext(limited, session)
	err := body(inside)
	if err == nil {
		err = finish(inside, session)
	}
	if err == nil {
		return nil
	}
	abort(ctx, session)
	if ctx.Err() == nil && limited.Err() != nil {
		return fmt.Errorf("%w: %w", errTooLong, err)
	}
	return err
}

// persist runs body in one transaction, again for as long as that can help. What came true before a lost answer is there when
// body is run again.
func persist(ctx context.Context, session *mongo.Session, body func(context.Context) error) error {
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(200*time.Millisecond), backoff.WithMaxElapsedTime(retryFor))
	return backoff.Retry(func() error {
		err := transact(context.WithoutCancel(ctx), session, body)
		if err == nil || IsConflict(err) || passes(err) {
			return err
		}
		return backoff.Permanent(err)
	}, backoff.WithContext(policy, ctx))
}

// limit ends the returned context after d, without a deadline in it: where there is one, the driver repeats a commit as
// often as fits into it, without a pause (measured: thousands a second).
func limit(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.AfterFunc(d, cancel)
	return ctx, func() {
		timer.Stop()
		cancel()
	}
}

// abort ends a transaction that failed, best effort: the server ends it anyway, with the session's next one. It comes
// after a commit that failed, too: one that timed out leaves the session inside the transaction, where it could not
// start another. It does no harm where the commit came true: a committed transaction cannot be aborted.
func abort(ctx context.Context, session *mongo.Session) {
	ctx, cancel := limit(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_ = session.AbortTransaction(mongo.NewSessionContext(ctx, session))
}

// finish commits, again while the result is unknown.
func finish(inside context.Context, session *mongo.Session) error {
	policy := backoff.WithMaxRetries(backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond)), commitRetries)
	return backoff.Retry(func() error {
		err := session.CommitTransaction(inside)
		if err != nil && !hasLabel(err, "UnknownTransactionCommitResult") {
			return backoff.Permanent(fmt.Errorf("commit: %w", err))
		}
		return err
	}, backoff.WithContext(policy, inside))
}

func hasLabel(err error, label string) bool {
	var labeled mongo.LabeledError
	return errors.As(err, &labeled) && labeled.HasErrorLabel(label)
}

// conflictCodes: LockTimeout, WriteConflict, TransactionTooLarge, TransactionExceededLifetimeLimitSeconds,
// TemporarilyUnavailable, TransactionTooLargeForCache. All of them are less likely for a smaller transaction.
var conflictCodes = []int{24, codeWriteConflict, 257, 290, 365, 388}

const codeWriteConflict = 112

// IsConflict reports whether a transaction failed because of others that write the same documents.
func IsConflict(err error) bool { return stream.HasCode(err, conflictCodes...) }

// documentError is the fault of one counter document.
type documentError struct{ Apart }

func (e *documentError) Error() string {
	return fmt.Sprintf("increment one document of counter %s: %s", e.Delta.Counter.Name, e.Reason)
}

// documentFault finds the document that a bulk write failed on, nil when the fault is not a document's.
func documentFault(err error, deltas []*Delta) *documentError {
	fault, is := faultOf(err, len(deltas))
	if !is {
		return nil
	}
	return &documentError{Apart{Delta: deltas[fault.Index], Code: fault.Code, Reason: fault.Message}}
}

// faultOf is the write of n that a bulk failed on because of its document. The server tells one at a time inside a
// transaction.
func faultOf(err error, n int) (mongo.BulkWriteError, bool) {
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || len(bulk.WriteErrors) == 0 || bulk.HasErrorLabel("TransientTransactionError") {
		return mongo.BulkWriteError{}, false
	}
	fault := bulk.WriteErrors[0]
	isDocuments := fault.Index >= 0 && fault.Index < n && !racedUpsert(fault) && !slices.Contains(conflictCodes, fault.Code)
	return fault, isDocuments
}

// racedUpsert: somebody else inserted the same _id at the same time; the next attempt finds the document.
func racedUpsert(fault mongo.BulkWriteError) bool {
	const duplicateKey = 11000
	if fault.Code != duplicateKey {
		return false
	}
	pattern, ok := fault.Raw.Lookup("keyPattern").DocumentOK()
	if !ok {
		return false
	}
	_, err := pattern.LookupErr("_id")
	elements, _ := pattern.Elements()
	return err == nil && len(elements) == 1
}

// setApart takes a document out of the piece, and from the second one on looks for all the others at once, since a
// transaction reveals only one at a time. The piece has another content then, and so another batch id: the transaction
// that found the fault has ended for good, and so has every earlier one, or the fault would not have been reached.
func (a *Applier) setApart(ctx context.Context, session *mongo.Session, p *piece, bad *documentError) error {
	p.apart = append(p.apart, bad.Apart)
	if len(p.apart) > 1 && !p.probed {
		if err := a.probe(ctx, session, p); err != nil {
			return err
		}
		p.probed = true
	}
	if len(p.apart) > a.MaxApart {
		return backoff.Permanent(fmt.Errorf("%w: more than %d, the last one of %d with: %s",
			ErrRefused, a.MaxApart, len(p.folded.Deltas), p.apart[len(p.apart)-1].Reason))
	}
	p.to.Batch = bson.NewObjectID()
	if err := a.addTail(p); err != nil {
		return backoff.Permanent(err)
	}
	return nil
}

// errProbe ends a transaction that was only a question.
var errProbe = errors.New("probe")

// probe tries every document of the piece in transactions that are never committed, past each fault it finds.
func (a *Applier) probe(ctx context.Context, session *mongo.Session, p *piece) error {
	for _, group := range groupByTarget(p) {
		for len(group) > 0 && len(p.apart) <= a.MaxApart && ctx.Err() == nil {
			chunk := group[:min(probeDocuments, len(group))]
			err := transact(context.WithoutCancel(ctx), session, func(ctx context.Context) error {
				if err := a.increments(ctx, chunk, p.to.Batch); err != nil {
					return err
				}
				return errProbe
			})
			var bad *documentError
			switch {
			case errors.Is(err, errProbe):
				group = group[len(chunk):]
			case errors.As(err, &bad):
				p.apart = append(p.apart, bad.Apart)
				group = group[slices.Index(group, bad.Delta)+1:]
			default:
				return err
			}
		}
	}
	return nil
}

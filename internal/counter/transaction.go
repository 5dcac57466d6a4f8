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
)

const (
	attemptTimeout = 60 * time.Second // the server's own limit for a transaction
	retryFor       = time.Minute      // then the lane reopens from its checkpoint
	commitRetries  = 5
	probeDocuments = 500
)

// errConflict: somebody else writes the same documents. A smaller transaction has a better chance.
var errConflict = errors.New("write conflict")

// transactionOptions: the position and the effect are read and written at one point, acknowledged by a majority.
func transactionOptions() *options.TransactionOptionsBuilder {
	return options.Transaction().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Snapshot()).SetWriteConcern(writeconcern.Majority())
}

// commit brings p into the database, trying the whole transaction again for as long as that can help. Once it has
// begun, a cancelled ctx does not stop an attempt midway, only the next one.
func (a *Applier) commit(ctx context.Context, p *piece) error {
	// One session for all attempts: the server takes a later transaction of a session only after the earlier one has
	// ended, so an earlier commit can never come true behind a later attempt's back.
	session, err := a.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	started := time.Now()
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(retryFor))
	err = backoff.RetryNotify(
		func() error { return a.attempt(context.WithoutCancel(ctx), session, p) },
		backoff.WithContext(policy, ctx),
		func(err error, _ time.Duration) { a.observer.Retried("transaction", err) })
	if err != nil {
		return err
	}
	a.observer.Applied(Applied{Folded: p.folded, Apart: p.apart, At: p.to, Duration: time.Since(started)})
	return nil
}

// attempt runs the transaction once and says, by backoff.Permanent, when another attempt cannot help.
func (a *Applier) attempt(ctx context.Context, session *mongo.Session, p *piece) error {
	ctx, cancel := context.WithTimeout(ctx, attemptTimeout)
	defer cancel()
	err := transact(ctx, session, func(ctx context.Context) error { return a.write(ctx, p) })
	var bad *documentError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, checkpoint.ErrFenced):
		return a.whoWon(ctx, p)
	case errors.As(err, &bad):
		return a.setApart(ctx, session, p, bad)
	case IsConflict(err) && len(p.events) > 1:
		a.observer.Retried("transaction", err)
		return backoff.Permanent(fmt.Errorf("%w: %w", errConflict, err))
	default:
		// Whatever it was, the whole transaction may be tried again: the compare-and-set tells if it had come true.
		return err
	}
}

// whoWon decides a lost compare-and-set by the batch id. The number alone would not do: another owner may have
// committed the same number while our commit was lost.
func (a *Applier) whoWon(ctx context.Context, p *piece) error {
	now, err := a.checkpoints.Load(ctx, p.from.Lane)
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return backoff.Permanent(fmt.Errorf("checkpoint of lane %s is gone: %w", p.from.Lane, checkpoint.ErrFenced))
	case err != nil:
		return err
	case now.Same(p.to):
		return nil
	default:
		return backoff.Permanent(fmt.Errorf("lane %s is at %d, not %d: %w", p.from.Lane, now.Seq, p.from.Seq, checkpoint.ErrFenced))
	}
}

// transact runs body in one transaction of the session and finishes a commit whose result is unknown on that session.
func transact(ctx context.Context, session *mongo.Session, body func(context.Context) error) error {
	if err := session.StartTransaction(transactionOptions()); err != nil {
		return fmt.Errorf("start transaction: %w", err)
	}
	inside := mongo.NewSessionContext(ctx, session)
	if err := body(inside); err != nil {
		_ = session.AbortTransaction(inside) // the server ends it anyway, with the session's next one
		return err
	}
	policy := backoff.WithMaxRetries(backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond)), commitRetries)
	return backoff.Retry(func() error {
		err := session.CommitTransaction(inside)
		if err != nil && !hasLabel(err, "UnknownTransactionCommitResult") {
			return backoff.Permanent(fmt.Errorf("commit: %w", err))
		}
		return err
	}, backoff.WithContext(policy, ctx))
}

func hasLabel(err error, label string) bool {
	var labeled mongo.LabeledError
	return errors.As(err, &labeled) && labeled.HasErrorLabel(label)
}

// conflictCodes: LockTimeout, WriteConflict, TransactionExceededLifetimeLimitSeconds, TemporarilyUnavailable,
// TransactionTooLargeForCache. All of them are less likely for a smaller transaction.
var conflictCodes = []int{24, 112, 290, 365, 366}

// IsConflict reports whether a transaction failed because of others that write the same documents.
func IsConflict(err error) bool { return hasCode(err, conflictCodes...) }

// documentError is the fault of one counter document.
type documentError struct{ Apart }

func (e *documentError) Error() string {
	return fmt.Sprintf("increment one document of counter %s: %s", e.Delta.Counter.Name, e.Reason)
}

// documentFault finds the document that a bulk write failed on, nil when the fault is not a document's. The server
// tells one at a time inside a transaction.
func documentFault(err error, deltas []*Delta) *documentError {
	var bulk mongo.BulkWriteException
	if !errors.As(err, &bulk) || len(bulk.WriteErrors) == 0 || bulk.HasErrorLabel("TransientTransactionError") {
		return nil
	}
	fault := bulk.WriteErrors[0]
	if fault.Index < 0 || fault.Index >= len(deltas) || racedUpsert(fault) || slices.Contains(conflictCodes, fault.Code) {
		return nil
	}
	return &documentError{Apart{Delta: deltas[fault.Index], Code: fault.Code, Reason: fault.Message}}
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
// transaction reveals only one at a time. The piece has another content then, and so another batch id: the attempt
// that found the fault has ended for good.
func (a *Applier) setApart(ctx context.Context, session *mongo.Session, p *piece, bad *documentError) error {
	p.apart = append(p.apart, bad.Apart)
	if len(p.apart) > 1 && !p.probed {
		if err := a.probe(ctx, session, p); err != nil {
			return err
		}
		p.probed = true
	}
	if len(p.apart) > maxApart {
		return backoff.Permanent(fmt.Errorf("more than %d documents refuse their increment, the last one with: %s", maxApart, bad.Reason))
	}
	p.to.Batch = bson.NewObjectID()
	if err := a.addTail(p); err != nil {
		return backoff.Permanent(err)
	}
	return a.attempt(ctx, session, p)
}

// errProbe ends a transaction that was only a question.
var errProbe = errors.New("probe")

// probe tries every document of the piece in transactions that are never committed, past each fault it finds.
func (a *Applier) probe(ctx context.Context, session *mongo.Session, p *piece) error {
	for _, group := range groupByTarget(p) {
		for len(group) > 0 && len(p.apart) <= maxApart {
			chunk := group[:min(probeDocuments, len(group))]
			err := transact(ctx, session, func(ctx context.Context) error {
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

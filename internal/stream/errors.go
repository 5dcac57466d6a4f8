package stream

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// What can stop a reader, named by cause.
var (
	// ErrPositionLost means: the history between the position and now is gone, or the token that stands for the position
	// is damaged. Nothing can be resumed; a recount is needed.
	ErrPositionLost = errors.New("position lost")
	// ErrCollectionChanged means: the collection was dropped, renamed or replaced, so its stream has ended.
	ErrCollectionChanged = errors.New("collection dropped, renamed or replaced")
	// ErrExpression means: the server cannot evaluate the pipeline on some event, and never will.
	ErrExpression = errors.New("expression failed on the server")
	// ErrUnauthorized means: the user may not do it. Retried slowly, since grants do change.
	ErrUnauthorized = errors.New("not authorized")
	// ErrInterrupted means: network, failover, a killed cursor. Reopening at the same position is safe.
	ErrInterrupted = errors.New("interrupted")
	// ErrForeignToken means: a resume token that is not MongoDB's. It may be good where it came from: refused, not given up.
	ErrForeignToken = errors.New("resume token of another product than MongoDB")
)

// Server error codes, https://github.com/mongodb/mongo/blob/v6.0/src/mongo/base/error_codes.yml
const (
	codeUnauthorized           = 13
	codeAuthenticationFailed   = 18
	codeCursorNotFound         = 43
	codeCappedPositionLost     = 136
	codeInvalidResumeToken     = 260
	codeChangeStreamFatal      = 280
	codeHistoryLost            = 286
	codeNoMatchingStartPoint   = 40585
	codeResumeTokenNotFound    = 40615
	codeQueryPlanKilled        = 175
	codeNamespaceNotFound      = 26
	codeCursorKilled           = 237
	codeOperationTimeExceeded  = 50
	codeReadConcernUnavailable = 134
)

// HasCode reports whether a server answered with one of the given error codes.
func HasCode(err error, codes ...int) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && slices.ContainsFunc(server.ErrorCodes(), func(code int) bool {
		return slices.Contains(codes, code)
	})
}

// Classify wraps an error of the server or the network with the sentinel of its cause. A wrong verdict costs: lost
// read as interrupted retries for ever; interrupted read as lost recounts for nothing; expression read as interrupted
// stops every counter of the source for one counter's fault.
func Classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", cause(err), err)
}

func cause(err error) error {
	var server mongo.ServerError
	if !errors.As(err, &server) {
		// No answer at all: the network, server selection, a time limit of ours.
		return ErrInterrupted
	}
	is := func(codes ...int) bool { return HasCode(err, codes...) }
	switch {
	case is(codeCappedPositionLost, codeInvalidResumeToken, codeChangeStreamFatal, codeHistoryLost,
		codeNoMatchingStartPoint, codeResumeTokenNotFound):
		return ErrPositionLost
	case is(codeUnauthorized, codeAuthenticationFailed):
		return ErrUnauthorized
	case mongo.IsNetworkError(err), mongo.IsTimeout(err), server.HasErrorLabel("ResumableChangeStreamError"),
		server.HasErrorLabel("RetryableWriteError"), server.HasErrorLabel("TransientTransactionError"),
		is(codeCursorNotFound, codeQueryPlanKilled, codeNamespaceNotFound, codeCursorKilled,
			codeOperationTimeExceeded, codeReadConcernUnavailable), is(interrupting...):
		return ErrInterrupted
	default:
		// The server answered, is healthy and refuses: what is left is the pipeline itself.
		return ErrExpression
	}
}

// interrupting are the codes with which a server that steps down, shuts down, is overloaded or was unreachable ends an
// operation.
var interrupting = []int{
	6,     // HostUnreachable
	7,     // HostNotFound
	24,    // LockTimeout
	64,    // WriteConcernTimeout
	89,    // NetworkTimeout
	91,    // ShutdownInProgress
	112,   // WriteConflict
	133,   // FailedToSatisfyReadPreference
	189,   // PrimarySteppedDown
	234,   // RetryChangeStream
	251,   // NoSuchTransaction
	262,   // ExceededTimeLimit
	279,   // ClientDisconnect
	290,   // TransactionExceededLifetimeLimitSeconds
	355,   // InterruptedDueToStorageChange
	365,   // TemporarilyUnavailable
	402,   // ResourceExhausted
	433,   // AdmissionQueueOverflow
	449,   // RateLimitExceeded
	462,   // IngressRequestRateLimitExceeded
	9001,  // SocketException
	10107, // NotWritablePrimary
	11600, // InterruptedAtShutdown
	11601, // Interrupted
	11602, // InterruptedDueToReplStateChange
	13388, // StaleConfig
	13435, // NotPrimaryNoSecondaryOk
	13436, // NotPrimaryOrSecondary
}

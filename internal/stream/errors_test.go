package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

func TestEveryErrorHasACause(t *testing.T) {
	command := func(code int32, labels ...string) error {
		return mongo.CommandError{Code: code, Message: "message", Labels: labels}
	}
	for _, c := range []struct {
		what string
		err  error
		want error
	}{
		{"ChangeStreamHistoryLost", command(286), ErrPositionLost},
		{"ChangeStreamFatalError", command(280, "NonResumableChangeStreamError"), ErrPositionLost},
		{"CappedPositionLost", command(136), ErrPositionLost},
		{"InvalidResumeToken", command(260), ErrPositionLost},
		{"no matching start point", command(40585), ErrPositionLost},
		{"resume token not found", command(40615), ErrPositionLost},
		{"position lost by a server that says it may be resumed", command(286, "ResumableChangeStreamError"), ErrPositionLost},
		{"Unauthorized", command(13), ErrUnauthorized},
		{"AuthenticationFailed", command(18), ErrUnauthorized},
		{"CursorNotFound", command(43), ErrInterrupted},
		{"WriteConflict", command(112), ErrInterrupted},
		{"InterruptedDueToStorageChange", command(355), ErrInterrupted},
		{"IngressRequestRateLimitExceeded", command(462), ErrInterrupted},
		{"CursorKilled", command(237), ErrInterrupted},
		{"NamespaceNotFound", command(26), ErrInterrupted},
		{"MaxTimeMSExpired", command(50), ErrInterrupted},
		{"ReadConcernMajorityNotAvailableYet", command(134), ErrInterrupted},
		{"QueryPlanKilled", command(175), ErrInterrupted},
		{"HostUnreachable", command(6), ErrInterrupted},
		{"NetworkTimeout", command(89), ErrInterrupted},
		{"ShutdownInProgress", command(91), ErrInterrupted},
		{"PrimarySteppedDown", command(189), ErrInterrupted},
		{"ExceededTimeLimit", command(262), ErrInterrupted},
		{"SocketException", command(9001), ErrInterrupted},
		{"NotWritablePrimary", command(10107), ErrInterrupted},
		{"InterruptedAtShutdown", command(11600), ErrInterrupted},
		{"Interrupted", command(11601), ErrInterrupted},
		{"InterruptedDueToReplStateChange", command(11602), ErrInterrupted},
		{"NotPrimaryNoSecondaryOk", command(13435), ErrInterrupted},
		{"NotPrimaryOrSecondary", command(13436), ErrInterrupted},
		{"HostNotFound", command(7), ErrInterrupted},
		{"LockTimeout", command(24), ErrInterrupted},
		{"WriteConcernTimeout", command(64), ErrInterrupted},
		{"FailedToSatisfyReadPreference", command(133), ErrInterrupted},
		{"RetryChangeStream", command(234), ErrInterrupted},
		{"NoSuchTransaction", command(251), ErrInterrupted},
		{"ClientDisconnect", command(279), ErrInterrupted},
		{"TransactionExceededLifetimeLimitSeconds", command(290), ErrInterrupted},
		{"TemporarilyUnavailable", command(365), ErrInterrupted},
		{"ResourceExhausted", command(402), ErrInterrupted},
		{"AdmissionQueueOverflow", command(433), ErrInterrupted},
		{"RateLimitExceeded", command(449), ErrInterrupted},
		{"StaleConfig", command(13388), ErrInterrupted},
		{"CursorNotFound that may not be resumed", command(43, "NonResumableChangeStreamError"), ErrInterrupted},
		{"Unauthorized in a transaction", command(13, "TransientTransactionError"), ErrUnauthorized},
		{"a write concern that a stepdown left open", mongo.WriteException{WriteConcernError: &mongo.WriteConcernError{Code: 189}}, ErrInterrupted},
		{"a code nobody knows that may be resumed", command(7777, "ResumableChangeStreamError"), ErrInterrupted},
		{"a code nobody knows that may be tried again", command(7777, "RetryableWriteError"), ErrInterrupted},
		{"a connection that broke", mongo.CommandError{Labels: []string{"NetworkError"}, Wrapped: io.EOF}, ErrInterrupted},
		{"no server", fmt.Errorf("server selection: %w", context.DeadlineExceeded), ErrInterrupted},
		{"a time limit of ours", mongo.CommandError{Labels: []string{"NetworkError", "NetworkTimeoutError"}, Wrapped: context.DeadlineExceeded}, ErrInterrupted},
		{"a time limit without a label", mongo.CommandError{Wrapped: context.DeadlineExceeded}, ErrInterrupted},
		{"a refused connection", &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}, ErrInterrupted},
		{"a client that is closed", mongo.ErrClientDisconnected, ErrInterrupted},
		{"not even an answer", io.ErrUnexpectedEOF, ErrInterrupted},
		{"$size of a missing array", command(17124), ErrExpression},
		{"ConversionFailure", command(241), ErrExpression},
		{"BadValue", command(2), ErrExpression},
		{"unknown operator", command(168), ErrExpression},
		{"division by zero", command(4848401), ErrExpression},
		{"too large an event", command(10334), ErrExpression},
		// What damaged tokens are answered with is left to Open, which tries: expressions are answered with 9 and 15, too.
		{"FailedToParse", command(9), ErrExpression},
		{"Overflow", command(15), ErrExpression},
		{"wrapped", fmt.Errorf("somewhere: %w", command(286)), ErrPositionLost},
		{"wrapped, interrupted", fmt.Errorf("somewhere: %w", command(43)), ErrInterrupted},
		{"wrapped, unauthorized", fmt.Errorf("somewhere: %w", command(13)), ErrUnauthorized},
	} {
		got := Classify(c.err)
		for _, sentinel := range []error{
			ErrPositionLost, ErrCollectionChanged, ErrExpression, ErrUnauthorized, ErrInterrupted, ErrForeignToken,
		} {
			if errors.Is(got, sentinel) != (sentinel == c.want) { //nolint:errorlint // which of the sentinels it is
				t.Errorf("%s is classified as %v, want %v", c.what, got, c.want)
			}
		}
		if got == nil || !errors.Is(got, c.err) && got.Error() == c.want.Error() {
			t.Errorf("%s lost what the server said: %v", c.what, got)
		}
	}
}

func TestNothingAndACancelledContextAreNotClassified(t *testing.T) {
	if err := Classify(nil); err != nil {
		t.Error(err)
	}
	cancelled := fmt.Errorf("read: %w", context.Canceled)
	if err := Classify(cancelled); err != cancelled { //nolint:errorlint // the very same
		t.Error(err)
	}
}

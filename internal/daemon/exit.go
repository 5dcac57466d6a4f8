package daemon

import (
	"context"
	"errors"
	"fmt"
)

// Exit codes of both binaries. Scripts and supervisors rely on them.
const (
	OK           = 0
	Failed       = 1  // failed while running; run --once: also partial or skipped
	Usage        = 2  // the command line makes no sense
	Drift        = 3  // drift found, or a run held
	PositionLost = 4  // the stream no longer holds what comes next, and the policy is to stop
	Config       = 78 // the configuration file has faults (EX_CONFIG of sysexits.h)
)

// coder is an error that decides the exit code itself.
type coder interface {
	error
	ExitCode() int
}

// ExitCode returns what the process should exit with after err: OK for nil, else what the first error in its chain with
// a method ExitCode() int says, else Failed. A cancellation is a failure like any other: a verify that was interrupted
// must not look like one that found no drift. See CleanStop for verbs whose end is always a signal.
func ExitCode(err error) int {
	if err == nil {
		return OK
	}
	if c, ok := errors.AsType[coder](err); ok {
		return c.ExitCode()
	}
	return Failed
}

// WithExitCode returns err with an exit code of its own. A nil err stays nil.
func WithExitCode(err error, code int) error {
	if err == nil {
		return nil
	}
	return &codedError{err: err, code: code}
}

// CleanStop ends a verb that runs until it is told to stop: it turns the cancellation that follows a signal into nil.
// Any other error, and every error with an exit code of its own, stays: losing a position while draining is still
// worth telling. The context is one derived from Signals; the error is one error, such as an errgroup returns: of several
// joined ones, a cancellation would hide the rest.
func CleanStop(ctx context.Context, err error) error {
	if _, decided := errors.AsType[coder](err); decided || !interrupted(ctx, err) {
		return err
	}
	return nil
}

// Usagef returns an error about the command line, which exits with Usage and is printed with a hint.
func Usagef(format string, args ...any) error {
	return &usageError{err: fmt.Errorf(format, args...)}
}

// interrupted tells whether err is how a signal ended the work under ctx.
func interrupted(ctx context.Context, err error) bool {
	_, signalled := errors.AsType[*SignalError](context.Cause(ctx))
	return signalled && errors.Is(err, context.Canceled)
}

type codedError struct {
	err  error
	code int
}

func (e *codedError) Error() string { return e.err.Error() }
func (e *codedError) Unwrap() error { return e.err }
func (e *codedError) ExitCode() int { return e.code }

type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
func (e *usageError) ExitCode() int { return Usage }

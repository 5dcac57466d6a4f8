package daemon

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"driftless/internal/logkey"
)

// SignalError is the cause of a context that a signal ended. It counts as context.Canceled, since libraries return
// either.
type SignalError struct{ Signal os.Signal }

func (e *SignalError) Error() string { return "stopped by " + signalName(e.Signal) }

// Is makes errors.Is(err, context.Canceled) hold.
func (e *SignalError) Is(target error) bool { return target == context.Canceled }

// Signals returns a context that the first SIGTERM or SIGINT cancels, with a *SignalError as its cause: time to finish
// what is in flight. A second one ends the process at once with exit code Failed. The caller calls stop when its work
// is over; signals then have their usual effect again.
func Signals(parent context.Context) (ctx context.Context, stop func()) {
	arriving := make(chan os.Signal, 2) // both may come before the watcher runs
	signal.Notify(arriving, syscall.SIGTERM, os.Interrupt)
	ctx, end := watchSignals(parent, arriving, os.Exit)
	return ctx, func() {
		signal.Stop(arriving)
		end()
	}
}

// watchSignals is Signals with its surroundings handed in. The watcher outlives ctx, as it waits for the second signal.
func watchSignals(parent context.Context, arriving <-chan os.Signal, exit func(int)) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case s := <-arriving:
			slog.Info("stopping: finishing what is in flight; a second signal ends at once", logkey.Signal, signalName(s))
			cancel(&SignalError{Signal: s})
		case <-over:
			return
		}
		select {
		case s := <-arriving:
			slog.Error("ended at once by a second signal; what was in flight is replayed at the next start",
				logkey.Signal, signalName(s))
			exit(Failed)
		case <-over:
		}
	})
	return ctx, sync.OnceFunc(func() {
		close(over)
		watcher.Wait()
		cancel(nil)
	})
}

func signalName(s os.Signal) string {
	switch s {
	case syscall.SIGTERM:
		return "SIGTERM"
	case os.Interrupt:
		return "SIGINT"
	default:
		return s.String()
	}
}

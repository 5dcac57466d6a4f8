package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
)

func TestFirstSignalCancelsAndSecondExits(t *testing.T) {
	lines := captureDefaultLog(t)
	synctest.Test(t, func(t *testing.T) {
		arriving := make(chan os.Signal, 2)
		exited := make(chan int, 1)
		ctx, stop := watchSignals(t.Context(), arriving, func(code int) { exited <- code })
		defer stop()
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatalf("cancelled before any signal: %v", context.Cause(ctx))
		}

		arriving <- syscall.SIGTERM
		<-ctx.Done()
		cause, ok := errors.AsType[*SignalError](context.Cause(ctx))
		if !ok || cause.Signal != syscall.SIGTERM || !errors.Is(cause, context.Canceled) {
			t.Errorf("cause = %#v", context.Cause(ctx))
		}

		arriving <- os.Interrupt
		if code := <-exited; code != Failed {
			t.Errorf("exit code %d, want %d", code, Failed)
		}
	})
	for _, want := range []string{"level=INFO", "signal=SIGTERM", "level=ERROR", "signal=SIGINT"} {
		if !strings.Contains(lines.String(), want) {
			t.Errorf("log lacks %s:\n%s", want, lines)
		}
	}
}

func TestSignalsStopEndsTheWatcher(t *testing.T) {
	for name, signals := range map[string][]os.Signal{"before a signal": nil, "while draining": {syscall.SIGTERM}} {
		t.Run(name, func(t *testing.T) {
			captureDefaultLog(t)
			synctest.Test(t, func(t *testing.T) {
				arriving := make(chan os.Signal, 2)
				ctx, stop := watchSignals(t.Context(), arriving, func(int) { t.Error("exited") })
				for _, s := range signals {
					arriving <- s
				}
				synctest.Wait()
				stop()
				stop() // as often as one likes
				if ctx.Err() == nil {
					t.Error("the context outlives stop")
				}
			})
		})
	}
}

func TestSignalsHearsTheProcess(t *testing.T) {
	captureDefaultLog(t)
	ctx, stop := Signals(t.Context())
	defer stop()
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-ctx.Done()
	if got := context.Cause(ctx).Error(); got != "stopped by SIGTERM" {
		t.Errorf("cause = %q", got)
	}
}

func captureDefaultLog(t *testing.T) *bytes.Buffer {
	t.Helper()
	before := slog.Default()
	t.Cleanup(func() { slog.SetDefault(before) })
	var lines bytes.Buffer
	slog.SetDefault(NewLogger(&lines, "info", "text", false))
	return &lines
}

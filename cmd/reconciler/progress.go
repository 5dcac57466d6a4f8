package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"driftless/internal/daemon"
	"driftless/internal/logkey"
	"driftless/internal/reconciler"
)

// tellEvery is how often a full pass tells how far it is, where there is no bar.
const tellEvery = 30 * time.Second

// progressOf shows how far the full passes of one run are: a bar on a terminal, a line every so often elsewhere.
func progressOf(cmd *cobra.Command) func(reconciler.Progress) {
	if daemon.IsTerminal(os.Stderr) {
		return bars(cmd.ErrOrStderr())
	}
	return everySoOften(func(p reconciler.Progress, left time.Duration) {
		tell(cmd, fmt.Sprintf("%s: %d of %d ranges of keys compared, about %s left", p.Counter, p.Done, p.Of, left))
	})
}

// logProgress tells the log of full passes.
func logProgress(log *slog.Logger) func(reconciler.Progress) {
	return everySoOften(func(p reconciler.Progress, left time.Duration) {
		log.Info("full pass under way", logkey.Counter, p.Counter, "ranges", p.Done, "of", p.Of, "left", left)
	})
}

// everySoOften passes on where a full pass is when it has gone on for a while, and about how long the rest takes.
func everySoOften(say func(p reconciler.Progress, left time.Duration)) func(reconciler.Progress) {
	var began, said time.Time
	return func(p reconciler.Progress) {
		if p.Done == p.First {
			began, said = time.Now(), time.Now()
		}
		if p.Done == p.Of || time.Since(said) < tellEvery {
			return
		}
		said = time.Now()
		each := time.Since(began) / time.Duration(p.Done-p.First)
		say(p, (each * time.Duration(p.Of-p.Done)).Round(time.Second))
	}
}

// bars draws one for each counter, and wipes it at its end.
func bars(w io.Writer) func(reconciler.Progress) {
	var bar *progressbar.ProgressBar
	return func(p reconciler.Progress) {
		if p.Done == p.First {
			bar = progressbar.NewOptions(p.Of-p.First, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription(p.Counter),
				progressbar.OptionSetPredictTime(true), progressbar.OptionSetElapsedTime(false), progressbar.OptionSetWidth(30),
				progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
		}
		_ = bar.Set(p.Done - p.First) // a terminal that is gone is no reason to end
	}
}

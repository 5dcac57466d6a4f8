// Command demo shows what driftless is for: a service that keeps a counter the usual way, an incrementer that is killed
// every few seconds, an operator who edits counters by hand, and how wrong each counter is meanwhile. It needs nothing
// but Go and a mongod, ends with a verdict in one sentence, exits by it, and leaves nothing behind.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// Exit codes, as those of the binaries.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// settings are what the user can choose.
type settings struct {
	seconds int // how long the load lasts; 0: until Ctrl-C
	rate    int // row changes a second, about
	uri     string
}

// readSettings takes flags before variables: a shell may use SECONDS for itself.
func readSettings(args []string, env func(string) string, stderr io.Writer) (settings, error) {
	s := settings{uri: env("MONGODB_URI")}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&s.seconds, "seconds", 0, "end after so many seconds of load; 0 is at Ctrl-C (variable SECONDS)")
	flags.IntVar(&s.rate, "rate", 500, "row changes a second, about (variable RATE)")
	for name, variable := range map[string]string{"seconds": "SECONDS", "rate": "RATE"} {
		if value := env(variable); value != "" {
			if err := flags.Set(name, value); err != nil {
				return s, fmt.Errorf("variable %s is %q: it must be a number", variable, value)
			}
		}
	}
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	switch {
	case flags.NArg() > 0:
		return s, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	case s.seconds < 0:
		return s, fmt.Errorf("seconds is %d: it must not be negative", s.seconds)
	case s.rate < 1 || s.rate > 100_000:
		return s, fmt.Errorf("rate is %d: it must be from 1 to 100000", s.rate)
	}
	return s, nil
}

// run is the whole program; it returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	s, err := readSettings(args, os.Getenv, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return exitOK
	case err != nil:
		say(stderr, "demo: %v", err)
		return exitUsage
	}
	finish, abort, stop := interrupts(context.Background()) // the root of every other context
	defer stop()
	stage, err := setStage(finish, s, stderr)
	if err != nil {
		say(stderr, "demo: %v", err)
		return exitFailed
	}
	return perform(finish, abort, stage, s, stdout, stderr)
}

// perform plays the demo on a stage, clears it and returns the exit code.
func perform(finish, abort context.Context, stage *stage, s settings, stdout, stderr io.Writer) (code int) {
	show := newShow(stage, s, stdout)
	var outcome outcome
	err := safely(func() (err error) {
		outcome, err = show.play(finish, abort)
		return err
	})
	given := abort.Err() != nil
	if err != nil && !given {
		outcome.problems = append(outcome.problems, err.Error())
	}
	keep := ""
	if !given && !outcome.ok() {
		keep = stage.dir
		err := os.WriteFile(filepath.Join(keep, "verdict.txt"), []byte(outcome.sentence("")+"\n"+outcome.details()), 0o600)
		if err != nil {
			say(stderr, "demo: %v", err)
		}
	}
	if err := stage.clear(abort, keep != ""); err != nil {
		say(stderr, "demo: clean up: %v", err)
		code = exitFailed
	}
	if given {
		say(stderr, "demo: interrupted before the verdict")
		return exitFailed
	}
	if text := outcome.details(); text != "" {
		_, _ = io.WriteString(stderr, text)
	}
	say(stdout, "%s", outcome.sentence(keep))
	if !outcome.ok() {
		code = exitFailed
	}
	return code
}

// say ignores what writing returns: there is nowhere left to report it.
func say(w io.Writer, format string, args ...any) { _, _ = fmt.Fprintf(w, format+"\n", args...) }

// thousands writes 61,204.
func thousands(n int64) string {
	text := strconv.FormatInt(n, 10)
	start := 0
	if n < 0 {
		start = 1
	}
	for at := len(text) - 3; at > start; at -= 3 {
		text = text[:at] + "," + text[at:]
	}
	return text
}

// pause returns true after d, or false as soon as the context ends.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"driftless/internal/realtest"
)

const (
	runLimit = 5 * time.Minute
	started  = "demo: starting a private replica set"
)

var verdictOK = regexp.MustCompile(`(?m)^OK: after [1-9]\d* kills? and [1-9]\d* hand edits?, all [\d,]+ counters of driftless are exact, ` +
	`and the drift of [\d,]+ that it reported is what was edited; the usual counter was wrong on [\d,]+ posts? by [\d,]+ in all\.$`)

func TestDemoEndsWithAVerdictAndLeavesNothingBehind(t *testing.T) {
	temp := t.TempDir()
	stdout, stderr, err := start(t, temp, "SECONDS=8", "RATE=300").wait()
	if err != nil {
		t.Fatalf("exit: %v\n%s\n%s", err, stdout, stderr)
	}
	if !verdictOK.MatchString(stdout) {
		t.Errorf("no verdict in\n%s", stdout)
	}
	if strings.Contains(stdout+stderr, "\x1b") {
		t.Error("animated although it is no terminal")
	}
	wantNothingLeft(t, temp)
}

func TestDemoUsesAndDropsDatabasesOfItsOwnOnAServerOfTheUsers(t *testing.T) {
	server := realtest.Private(t, realtest.Options{})
	temp := t.TempDir()
	stdout, stderr, err := start(t, temp, "SECONDS=4", "MONGODB_URI="+server.URI()).wait()
	if err != nil || !strings.Contains(stdout, "OK: ") {
		t.Fatalf("exit: %v\n%s\n%s", err, stdout, stderr)
	}
	databases, err := realtest.Client(t, server.URI()).ListDatabaseNames(t.Context(), map[string]any{})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range databases {
		if strings.HasPrefix(name, "driftless") || name == "app" {
			t.Errorf("database %s is still there", name)
		}
	}
	wantNothingLeft(t, temp)
}

func TestDemoInterruptedTwiceEndsAtOnceAndLeavesNothingBehind(t *testing.T) {
	temp := t.TempDir()
	demo := start(t, temp)
	for _, phase := range []string{"Ctrl-C ends it with a verdict", "Ctrl-C gives up"} {
		demo.waitFor(phase)
		if err := demo.command.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
	}
	interrupted := time.Now()
	stdout, stderr, err := demo.wait()
	if err == nil || demo.command.ProcessState.ExitCode() != exitFailed {
		t.Errorf("exit: %v, want status %d\n%s\n%s", err, exitFailed, stdout, stderr)
	}
	if took := time.Since(interrupted); took > 10*time.Second {
		t.Errorf("it took %s to end", took)
	}
	wantNothingLeft(t, temp)
}

func TestDemoInterruptedBeforeItBeganLeavesNothingBehind(t *testing.T) {
	temp := t.TempDir()
	demo := start(t, temp)
	demo.waitFor(started)
	if err := demo.command.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if _, stderr, err := demo.wait(); err == nil || !strings.Contains(stderr, "interrupted before it began") {
		t.Errorf("exit: %v\n%s", err, stderr)
	}
	wantNothingLeft(t, temp)
}

func TestDemoThatCannotStartSaysWhyAndLeavesNothingBehind(t *testing.T) {
	temp := t.TempDir()
	_, stderr, err := start(t, temp, "DRIFTLESS_MONGOD="+filepath.Join(temp, "none")).wait()
	if err == nil || !strings.Contains(stderr, "DRIFTLESS_MONGOD") {
		t.Errorf("exit: %v\n%s", err, stderr)
	}
	wantNothingLeft(t, temp)
}

// running is the demo as a process of its own.
type running struct {
	t              *testing.T
	command        *exec.Cmd
	stdout, stderr bytes.Buffer
	lines          chan string // of both, closed when both have ended
	readers        sync.WaitGroup
}

// start runs this binary as the demo with temp for its temporary files.
func start(t *testing.T, temp string, env ...string) *running {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	t.Cleanup(cancel)
	r := &running{t: t, command: exec.CommandContext(ctx, os.Args[0]), lines: make(chan string, 1000)}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); name != "SECONDS" && name != "RATE" && name != "MONGODB_URI" {
			r.command.Env = append(r.command.Env, variable)
		}
	}
	r.command.Env = append(append(r.command.Env, demoVariable+"=1", "TMPDIR="+temp), env...)
	stdout, err := r.command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := r.command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.command.Start(); err != nil {
		t.Fatal(err)
	}
	r.readers.Go(func() { r.follow(bufio.NewScanner(stdout), &r.stdout) })
	r.readers.Go(func() { r.follow(bufio.NewScanner(stderr), &r.stderr) })
	go func() {
		r.readers.Wait()
		close(r.lines)
	}()
	return r
}

func (r *running) follow(scanner *bufio.Scanner, all *bytes.Buffer) {
	for scanner.Scan() {
		all.WriteString(scanner.Text() + "\n")
		select {
		case r.lines <- scanner.Text():
		default: // nobody waits for a line any more
		}
	}
}

// waitFor returns when the demo has printed a line with text in it.
func (r *running) waitFor(text string) {
	r.t.Helper()
	for line := range r.lines {
		if strings.Contains(line, text) {
			return
		}
	}
	r.t.Fatalf("it ended without a line %q:\n%s", text, r.stderr.String())
}

func (r *running) wait() (stdout, stderr string, err error) {
	r.readers.Wait()
	err = r.command.Wait()
	return r.stdout.String(), r.stderr.String(), err
}

// wantNothingLeft looks for files, and for processes that have to do with them.
func wantNothingLeft(t *testing.T, temp string) {
	t.Helper()
	files, err := os.ReadDir(temp)
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Errorf("left behind: %s", file.Name())
	}
	if runtime.GOOS != "linux" {
		return
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range commands {
		if command, err := os.ReadFile(path); err == nil && bytes.Contains(command, []byte(temp)) {
			t.Errorf("still running: %s", bytes.ReplaceAll(command, []byte{0}, []byte(" ")))
		}
	}
}

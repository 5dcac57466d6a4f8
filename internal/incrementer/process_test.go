package incrementer_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"driftless/internal/realtest"
)

// binary builds the incrementer as it is shipped.
func (w *world) binary() string {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "incrementer")
	build := exec.CommandContext(w.t.Context(), "go", "build", "-o", path, "./cmd/incrementer")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		w.t.Fatalf("build incrementer: %v\n%s", err, out)
	}
	return path
}

// process is a running incrementer.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}
	err  error // how it ended, once done
}

// run starts `incrementer run` for the world's counters.
func (w *world) run(path string) *process {
	w.t.Helper()
	dir := w.t.TempDir()
	file := filepath.Join(dir, "driftless.yaml")
	w.check(os.WriteFile(file, []byte(w.file()), 0o600))
	log, err := os.Create(filepath.Join(dir, "log"))
	w.check(err)
	defer func() { _ = log.Close() }() // the process has its own
	p := &process{t: w.t, cmd: exec.Command(path, "run", "--config", file, "--incrementer-listen", "127.0.0.1:0",
		"--incrementer-max-batch-events", "200", "--incrementer-idle-checkpoint", "200ms", "--incrementer-lease", "1s"), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	w.check(p.cmd.Start())
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	w.t.Cleanup(func() {
		p.signal(syscall.SIGKILL)
		<-p.done
		if w.t.Failed() {
			lines, _ := os.ReadFile(log.Name())
			w.t.Logf("log of the incrementer:\n%s", lines)
		}
	})
	return p
}

// file is the world's configuration as a user writes it.
func (w *world) file() string {
	var b strings.Builder
	fmt.Fprintf(&b, "mongodb: {uri: %q, state_database: %s}\n", w.uri, w.stateName)
	fmt.Fprintf(&b, "sources:\n  %s: {change_stream: {database: %s, collection: %s}}\ncounters:\n", source, w.name, source)
	for _, c := range w.counters {
		fmt.Fprintf(&b, "  %s: {source: %s, key: %s, soft_delete: %q, sum: %q, target: {database: %s, collection: %s, base: %s, live: %s}}\n",
			c.Name, source, c.Key, c.SoftDelete, c.Sum, w.name, c.Target.Collection, c.Target.Base, c.Target.Live)
	}
	return b.String()
}

func (p *process) signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// kill ends the process as the kernel does that has run out of memory.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

// terminate ends the process in order and wants it to say so.
func (p *process) terminate() {
	p.t.Helper()
	p.signal(syscall.SIGCONT)
	p.signal(syscall.SIGTERM)
	waitFor(p.t, p.done, "the incrementer has stopped")
	if p.err != nil {
		p.t.Errorf("a clean stop ends with %v", p.err)
	}
}

// wantMoves waits until the checkpoint has moved n times more.
func (w *world) wantMoves(n int64) {
	w.t.Helper()
	from := w.at().Seq
	realtest.Eventually(w.t, patience, fmt.Sprintf("the checkpoint moves %d times", n), func() bool { return w.at().Seq >= from+n })
}

func TestKillingTheProcessUnderLoadLosesNoEventAndAppliesNoneTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.binary()
	moves := w.moves()
	w.begin()
	stop := w.keepChurning()
	for range soak(5, 20) {
		p := w.run(path)
		w.wantMoves(1 + int64(w.pick(6)))
		p.kill()
	}
	p := w.run(path)
	w.wantMoves(1)
	stop()
	w.wantExact()
	p.terminate()
	w.wantEqual()
	wantNoGaps(t, moves())
}

func TestPausingOneOfTwoProcessesLosesNoEventAndAppliesNoneTwice(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	path := w.binary()
	moves := w.moves()
	w.begin()
	stop := w.keepChurning()
	owners := []*process{w.run(path), w.run(path)}
	for i := range soak(6, 20) {
		paused := owners[i%2]
		w.wantMoves(1 + int64(w.pick(4)))
		paused.signal(syscall.SIGSTOP)
		// The other one goes on, also when the paused one holds a transaction open.
		w.wantMoves(2)
		paused.signal(syscall.SIGCONT)
	}
	stop()
	w.wantExact()
	for _, p := range owners {
		p.terminate()
	}
	w.wantEqual()
	wantNoGaps(t, moves())
}

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a program may take to drain.
const stopGrace = 20 * time.Second

// errKilled: we ended it, or it was killed by somebody else.
var errKilled = errors.New("killed")

// programs starts the two binaries, by the configuration file beside them, and knows which are running.
type programs struct {
	dir string // of the binaries, the configuration and the logs
	env []string

	mutex   sync.Mutex
	running map[*process]bool
}

// newPrograms: the children see our environment less what would change their configuration.
func newPrograms(dir, uri string) *programs {
	var env []string
	for _, variable := range os.Environ() {
		if !strings.HasPrefix(variable, "DRIFTLESS_") && !strings.HasPrefix(variable, "MONGODB_URI=") {
			env = append(env, variable)
		}
	}
	return &programs{dir: dir, env: append(env, "MONGODB_URI="+uri), running: map[*process]bool{}}
}

// start runs a verb of a binary in the background. Its output is added to the binary's log.
func (p *programs) start(binary string, args ...string) (*process, error) {
	return p.launch(nil, binary, p.logPath(binary), args)
}

// output runs a verb of a binary to its end and returns what it prints; it logs into a file of its own. The error holds the
// last line of that.
func (p *programs) output(ctx context.Context, binary string, args ...string) ([]byte, error) {
	var printed bytes.Buffer
	log := p.logPath(binary + "-once")
	child, err := p.launch(&printed, binary, log, args)
	if err != nil {
		return nil, err
	}
	select {
	case <-child.done:
	case <-ctx.Done():
		child.kill()
		return nil, ctx.Err()
	}
	if child.err != nil {
		return printed.Bytes(), fmt.Errorf("%s %s: %w: %s", binary, args[0], child.err, lastLine(log))
	}
	return printed.Bytes(), nil
}

// launch starts a child that ends with us. stdout may be nil: the log then takes all.
func (p *programs) launch(stdout io.Writer, binary, logPath string, args []string) (*process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", binary, err)
	}
	defer func() { _ = log.Close() }() // the child has its own
	command := exec.Command(filepath.Join(p.dir, binary), append(args, "--config", p.configPath())...)
	command.Env, command.Stdout, command.Stderr = p.env, log, log
	if stdout != nil {
		command.Stdout = stdout
	}
	child, err := startProcess(command)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", binary, err)
	}
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for other := range p.running {
		if other.ended() {
			delete(p.running, other)
		}
	}
	p.running[child] = true
	return child, nil
}

func (p *programs) configPath() string           { return filepath.Join(p.dir, "driftless.yaml") }
func (p *programs) logPath(binary string) string { return filepath.Join(p.dir, binary+".log") }

// lastLine is the end of a log, where a program says why it ended.
func lastLine(path string) string {
	log, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	log = bytes.TrimSpace(log)
	return string(log[bytes.LastIndexByte(log, '\n')+1:])
}

// unexpected describes the end of a process that nobody asked for.
func (p *programs) unexpected(binary string, child *process) error {
	how := "exit status 0"
	if child.err != nil {
		how = child.err.Error()
	}
	return fmt.Errorf("%s ended by itself (%s), and its log ends with: %s", binary, how, lastLine(p.logPath(binary)))
}

// killAll ends whatever still runs.
func (p *programs) killAll() {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for child := range p.running {
		child.kill()
		delete(p.running, child)
	}
}

// process is one child of this process. On Linux it cannot outlive us.
type process struct {
	command *exec.Cmd
	done    chan struct{} // closed when the child is gone and reaped
	err     error         // how it ended; read only after done
}

// startProcess holds a thread for as long as the child lives: the death signal is sent when the thread that forked ends,
// not when the process does, and the runtime ends idle threads as it likes.
func startProcess(command *exec.Cmd) (*process, error) {
	command.SysProcAttr = childAttributes()
	p := &process{command: command, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		defer close(p.done)
		err := command.Start()
		started <- err
		if err == nil {
			p.err = command.Wait()
		}
	}()
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

// kill is kill -9: the child runs not one instruction more. It returns when the child is gone.
func (p *process) kill() {
	_ = p.command.Process.Kill() // gone already, which is what was asked for
	<-p.done
}

// stop asks the child to drain and returns how it ended.
func (p *process) stop(ctx context.Context) error {
	_ = p.command.Process.Signal(syscall.SIGTERM) // gone already: then done says how
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	select {
	case <-p.done:
		return p.err
	case <-ctx.Done():
		p.kill()
		return fmt.Errorf("%w: it had not stopped within %s", errKilled, stopGrace)
	}
}

// lookup finds a variable as the children see it.
func (p *programs) lookup(name string) (string, bool) {
	for i := len(p.env) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(p.env[i], name+"="); ok {
			return value, true
		}
	}
	return "", false
}

package realtest

import (
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one child of this process. On Linux it cannot outlive us.
type process struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when the child is gone and reaped
	err  error         // how it ended; read only after done
}

// startProcess returns when the child runs, or why it does not.
func startProcess(cmd *exec.Cmd) (*process, error) {
	cmd.SysProcAttr = childAttributes()
	p := &process{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go p.run(started)
	if err := <-started; err != nil {
		<-p.done
		return nil, err
	}
	return p, nil
}

// run holds its thread for as long as the child lives: the death signal is sent when the thread that forked ends, not when the
// process does, and the runtime ends idle threads as it likes. The thread is never unlocked, so it ends with this goroutine.
func (p *process) run(started chan<- error) {
	runtime.LockOSThread()
	defer close(p.done)
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
}

// signal sends sig; a child that is already gone is not an error, since every caller then waits for it to be gone or to stop.
func (p *process) signal(sig syscall.Signal) {
	_ = p.cmd.Process.Signal(sig)
}

// terminate asks the child to stop, kills it when it has not within the grace, and returns when it is gone.
func (p *process) terminate(grace time.Duration) {
	p.signal(syscall.SIGTERM)
	p.signal(syscall.SIGCONT) // a paused child would keep the first signal pending
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		p.kill()
	}
}

// kill ends the child at once and returns when it is gone.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}

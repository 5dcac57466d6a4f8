package realtest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
)

// serverLog is the path of the file that a server logs to.
type serverLog string

// startLogged starts a process whose output goes to the end of the log.
func startLogged(cmd *exec.Cmd, l serverLog) (*process, error) {
	file, err := os.OpenFile(string(l), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open server log: %w", err)
	}
	defer func() { _ = file.Close() }() // the child has its own
	cmd.Stdout, cmd.Stderr = file, file
	return startProcess(cmd)
}

// portTaken is how the servers' logs say that another process has the port.
var portTaken = []byte("Address already in use")

// waitLogged reads a server's own log rather than knocking at its port, where another process may answer. It returns when the log
// says that the server is ready, or errPortTaken.
func waitLogged(ctx context.Context, proc *process, log serverLog, from int64, ready string) error {
	return poll(ctx, func(context.Context) (bool, error) {
		select {
		case <-proc.done:
			if bytes.Contains(log.from(from), portTaken) {
				return false, errPortTaken
			}
			return false, fmt.Errorf("it ended: %w", proc.err)
		default:
			return bytes.Contains(log.from(from), []byte(ready)), nil
		}
	})
}

// size is how long the log is, 0 when there is none.
func (l serverLog) size() int64 {
	info, err := os.Stat(string(l))
	if err != nil {
		return 0
	}
	return info.Size()
}

// tail is the end of the log, about 8 kB; empty when there is none.
func (l serverLog) tail() string {
	size := l.size()
	tail := l.from(max(0, size-8<<10))
	if size > 8<<10 {
		_, tail, _ = bytes.Cut(tail, []byte("\n"))
	}
	return string(tail)
}

// from is the log from an offset on; empty when it cannot be read.
func (l serverLog) from(offset int64) []byte {
	log, err := os.ReadFile(string(l))
	if err != nil || int64(len(log)) < offset {
		return nil
	}
	return log[offset:]
}

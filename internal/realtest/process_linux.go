package realtest

import (
	"bytes"
	"fmt"
	"os"
	"syscall"
)

// childAttributes makes the kernel kill the child when we die, however we die. With that certain, the child gets a process group
// of its own: Ctrl-C on the demo then reaches us alone, and the server is still there while the others drain.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// stopped reports whether SIGSTOP has taken effect on every thread: it is sent to the process, and the threads stop one by one.
func (p *process) stopped() bool {
	tasks := fmt.Sprintf("/proc/%d/task", p.cmd.Process.Pid)
	entries, err := os.ReadDir(tasks)
	if err != nil {
		return true // gone, which is as stopped as it gets
	}
	for _, entry := range entries {
		stat, err := os.ReadFile(tasks + "/" + entry.Name() + "/stat")
		if err != nil {
			continue
		}
		// The state follows the name, which is in parentheses and may hold any byte.
		after := stat[bytes.LastIndexByte(stat, ')')+1:]
		if len(after) > 1 && after[1] != 'T' {
			return false
		}
	}
	return true
}

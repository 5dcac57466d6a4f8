package main

import "syscall"

// childAttributes makes the kernel kill the child when we die, however we die, and gives it a process group of its own:
// Ctrl-C reaches us alone, and the binaries are still there for the verdict.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

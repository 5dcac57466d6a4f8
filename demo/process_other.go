//go:build !linux

package main

import "syscall"

// childAttributes gives the child a process group of its own: Ctrl-C reaches us alone, and the binaries are still there
// for the verdict. There is no death signal here.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

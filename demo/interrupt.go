package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"sync"
	"syscall"
)

// interrupts returns two contexts: the first signal ends finish, so that the demo comes to its verdict; the second one
// ends abort, so that everything is stopped and removed at once. Further ones change nothing: removing takes a second.
func interrupts(parent context.Context) (finish, abort context.Context, stop func()) {
	arriving := make(chan os.Signal, 2)
	// SIGPIPE as well: whoever reads our output may leave first.
	signal.Notify(arriving, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	abort, give := context.WithCancel(parent)
	finish, end := context.WithCancel(abort)
	over := make(chan struct{})
	var watcher sync.WaitGroup
	watcher.Go(func() {
		for _, cancel := range []func(){end, give} {
			select {
			case <-arriving:
				cancel()
			case <-over:
				return
			}
		}
	})
	return finish, abort, sync.OnceFunc(func() {
		signal.Stop(arriving)
		close(over)
		watcher.Wait()
		give()
		end()
	})
}

// safely turns a panic into an error: one that ended the process would leave other processes and files behind.
func safely(f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

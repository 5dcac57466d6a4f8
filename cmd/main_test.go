// Package cmd_test runs both programs as their users do, against real servers.
package cmd_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"driftless/internal/realtest"
)

// binaries is the directory that holds both programs.
var binaries string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "driftless-cmd-")
	if err == nil {
		defer func() { _ = os.RemoveAll(dir) }()
		binaries, err = dir, build(dir)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	waitSideBySide()
	code := m.Run()
	for _, s := range []*server{&plain, &guarded, &alone} {
		if err := s.stop(); err != nil {
			fmt.Fprintln(os.Stderr, "stop server:", err)
			code = 1
		}
	}
	if err := realtest.StopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "stop server:", err)
		code = 1
	}
	if code == 0 {
		if err := goleak.Find(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	return code
}

// waitSideBySide lets more tests run at a time than there are processors, unless the command line says: most of their
// time they wait for a program that waits.
func waitSideBySide() {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		_ = flag.Set("test.parallel", "6") // it is there, and a number
	}
}

// build makes both programs, with the race detector when the tests run under it.
func build(dir string) error {
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	if raceEnabled {
		args = append(args, "-race")
	}
	output, err := exec.Command("go", append(args, "./incrementer", "./reconciler")...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("build the programs: %w\n%s", err, output)
	}
	return nil
}

// server is one that tests share; it starts on first use.
type server struct {
	options realtest.Options
	once    sync.Once
	mongod  *realtest.Mongod
	err     error
}

var (
	plain   = server{}
	guarded = server{options: realtest.Options{Auth: true}}
	alone   = server{options: realtest.Options{Standalone: true}}
)

func (s *server) start(t *testing.T) *realtest.Mongod {
	t.Helper()
	s.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		s.mongod, s.err = realtest.StartMongod(ctx, s.options)
	})
	if s.err != nil {
		t.Fatalf("start server: %v", s.err)
	}
	return s.mongod
}

func (s *server) stop() error {
	if s.mongod == nil {
		return nil
	}
	return s.mongod.Stop()
}

package realtest_test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"driftless/internal/realtest"
)

func TestStopLeavesNoProcessAndNoFiles(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	m, err := realtest.StartMongod(limited(t), realtest.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	wantNoServer(t, m.Addr())
	wantNoFiles(t, temp)
}

// A test binary that times out or is killed runs no cleanup.
func TestServerDiesWithTheProcessThatStartedItAndTheNextCleansUp(t *testing.T) {
	for _, server := range []string{"mongod", "kafka"} {
		t.Run(server, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			addr := startAndKillHolder(t, server)
			if runtime.GOOS == "linux" {
				wantNoServer(t, addr)
			}

			left, err := filepath.Glob(filepath.Join(temp, "driftless-"+server+"-*"))
			if err != nil || len(left) != 1 {
				t.Fatalf("directories of the killed process: %v, %v, want one", left, err)
			}
			m, err := realtest.StartMongod(limited(t), realtest.Options{Standalone: true})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(left[0]); !os.IsNotExist(err) {
				t.Errorf("the next start left %s: %v", left[0], err)
			}
			if err := m.Stop(); err != nil {
				t.Error(err)
			}
			wantNoFiles(t, temp)
		})
	}
}

// startAndKillHolder returns the address of a server whose owner has been killed.
func startAndKillHolder(t *testing.T, server string) string {
	t.Helper()
	holder := exec.CommandContext(limited(t), os.Args[0])
	holder.Env = append(os.Environ(), holdVariable+"="+server)
	input, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = input.Close() }()
	output, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(output).ReadString('\n')
	addr := strings.TrimSpace(line)
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatalf("server of the holder, which says %q: %v", addr, err)
	}
	_ = conn.Close()
	_ = holder.Process.Kill()
	_ = holder.Wait()
	return addr
}

// The death signal follows the thread that forked: were the server's child not tied to one that stays, it would die here.
func TestServerOutlivesTheThreadThatStartedIt(t *testing.T) {
	t.Parallel()
	started := make(chan *realtest.Mongod)
	go func() {
		defer close(started)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		m, err := realtest.StartMongod(limited(t), realtest.Options{Standalone: true})
		if err != nil {
			t.Error(err)
			return
		}
		started <- m
	}()
	m, ok := <-started
	if !ok {
		return
	}
	<-started
	if err := insert(limited(t), realtest.Client(t, m.URI()), "rows"); err != nil {
		t.Errorf("insert after the starting thread is gone: %v", err)
	}
	if err := m.Stop(); err != nil {
		t.Error(err)
	}
}

func wantNoServer(t *testing.T, addr string) {
	t.Helper()
	realtest.Eventually(t, patience, "nobody listening on "+addr, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
}

func wantNoFiles(t *testing.T, dir string) {
	t.Helper()
	left, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("files left in %s: %v", dir, left)
	}
}

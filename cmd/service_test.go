package cmd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"driftless/internal/realtest"
)

// service is a program that runs until it is stopped.
type service struct {
	t    *testing.T
	cmd  *exec.Cmd
	log  *lockedBuffer
	url  string
	done chan struct{} // closed when it has ended
}

// start starts `run` and returns when it listens.
func (p *place) start(program string, args ...string) *service {
	p.t.Helper()
	s := &service{t: p.t, cmd: p.command(p.t.Context(), program, append([]string{"run"}, args...)...), log: &lockedBuffer{}, done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = s.log, s.log
	if err := s.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		_ = s.cmd.Wait() // the process state says it
	}()
	p.t.Cleanup(s.cleanup)
	realtest.Eventually(p.t, patience, program+" listens", func() bool {
		select {
		case <-s.done:
			p.t.Fatalf("%s ended with %d:\n%s", program, s.cmd.ProcessState.ExitCode(), s.log)
		default:
		}
		address := s.logged("listening")["address"]
		s.url = fmt.Sprint("http://", address)
		return address != nil
	})
	return s
}

func (s *service) cleanup() {
	<-s.done // the test's context has told it to stop
	if strings.Contains(s.log.String(), password) {
		s.t.Errorf("the log holds the password:\n%s", s.log)
	}
	if s.t.Failed() {
		s.t.Logf("log of %s:\n%s", s.cmd.Path, s.log)
	}
}

// logged returns the first log line with the message, nil when there is none.
func (s *service) logged(message string) map[string]any {
	for line := range strings.Lines(s.log.String()) {
		var record map[string]any
		if json.Unmarshal([]byte(line), &record) == nil && record["msg"] == message {
			return record
		}
	}
	return nil
}

// logs waits for a log line with the message.
func (s *service) logs(message string) {
	s.t.Helper()
	realtest.Eventually(s.t, patience, "log line "+message, func() bool { return s.logged(message) != nil })
}

func (s *service) terminate() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
}

// ended waits for the end and returns the exit code.
func (s *service) ended() int {
	s.t.Helper()
	select {
	case <-s.done:
	case <-time.After(patience):
		s.t.Fatalf("still running:\n%s", s.log)
	}
	return s.cmd.ProcessState.ExitCode()
}

// get returns the status and the body of a page.
func (s *service) get(path string) (int, string) {
	s.t.Helper()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// becomes waits until a page answers with the status and holds the text.
func (s *service) becomes(path string, code int, text string) {
	s.t.Helper()
	var got int
	var body string
	realtest.Eventually(s.t, patience, fmt.Sprintf("%s answers %d with %q", path, code, text), func() bool {
		got, body = s.get(path)
		return got == code && strings.Contains(body, text)
	})
}

// lockedBuffer is written by the process's output and read by the test.
type lockedBuffer struct {
	mutex sync.Mutex
	text  bytes.Buffer
}

func (b *lockedBuffer) Write(data []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.Write(data)
}

func (b *lockedBuffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.text.String()
}

package daemon

import (
	"net"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func healthcheck(t *testing.T, address string) (code int, stdout, stderr string) {
	t.Helper()
	root := &cobra.Command{Use: "incrementer"}
	root.AddCommand(HealthcheckCommand(func(*cobra.Command) (string, error) { return address, nil }))
	return executeArgs(t.Context(), root, "healthcheck")
}

func TestHealthcheckOfAHealthyProgram(t *testing.T) {
	code, stdout, stderr := healthcheck(t, serve(t, testOptions()).Addr())
	if code != OK || stdout != "ok\n" || stderr != "" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestHealthcheckIgnoresProxies(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://192.0.2.1:1")
	t.Setenv("ALL_PROXY", "http://192.0.2.1:1")
	if code, _, stderr := healthcheck(t, serve(t, testOptions()).Addr()); code != OK {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestHealthcheckGivesTheReasons(t *testing.T) {
	o := testOptions()
	o.Health.Loop("comments", -time.Minute)
	o.Health.Loop("reactions", -time.Minute)
	address := serve(t, o).Addr()
	code, _, stderr := healthcheck(t, address)
	want := "incrementer: http://" + address + "/healthz answers 503 Service Unavailable: " +
		"loop comments has not moved for 0s, at most -1m0s is expected; " +
		"loop reactions has not moved for 0s, at most -1m0s is expected\n"
	if code != Failed || stderr != want {
		t.Errorf("exit %d, stderr %q\nwant %q", code, stderr, want)
	}
}

func TestHealthcheckOfNothing(t *testing.T) {
	closed, err := Listen(t.Context(), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	code, _, stderr := healthcheck(t, closed.Addr())
	if code != Failed || !strings.Contains(stderr, "nothing listens there: is it running") || strings.Count(stderr, closed.Addr()) != 1 {
		t.Errorf("exit %d, stderr %q", code, stderr)
	}
}

func TestHealthURL(t *testing.T) {
	for address, want := range map[string]string{
		"127.0.0.1:9464": "http://127.0.0.1:9464/healthz",
		"[::1]:9464":     "http://[::1]:9464/healthz",
		"node-1:9464":    "http://node-1:9464/healthz",
		"0.0.0.0:9464":   "http://127.0.0.1:9464/healthz",
		"[::]:9464":      "http://[::1]:9464/healthz",
		":9464":          "http://127.0.0.1:9464/healthz",
		"127.0.0.1:0":    "",
		"127.0.0.1":      "",
	} {
		got, err := pageURL(address, "/healthz")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("pageURL(%q) = %q, %v; want %q", address, got, err, want)
		}
	}
}

func TestHealthcheckGivesUp(t *testing.T) {
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // accepts, as its backlog does, and never answers
	err = askHealth(t.Context(), listener.Addr().String(), 50*time.Millisecond)
	if !strings.HasSuffix(message(err), "no answer within 50ms") {
		t.Errorf("askHealth = %v", err)
	}
}

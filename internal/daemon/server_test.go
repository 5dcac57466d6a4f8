package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
)

// serve runs a server until the test ends.
func serve(t *testing.T, o Options) *Server {
	t.Helper()
	server, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return server
}

func fetch(ctx context.Context, address, path string) (code int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

func TestServerTellsTheRealPort(t *testing.T) {
	server := serve(t, testOptions())
	if _, port, err := net.SplitHostPort(server.Addr()); err != nil || port == "0" {
		t.Fatalf("Addr = %q, %v", server.Addr(), err)
	}
	code, body, err := fetch(t.Context(), server.Addr(), "/healthz")
	if err != nil || code != http.StatusOK || body != "ok\n" {
		t.Errorf("%d %q %v", code, body, err)
	}
}

func TestServerFinishesWhatIsInFlight(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	o := testOptions()
	o.Status = func(context.Context) (any, error) {
		close(asked)
		<-answer
		return "whole", nil
	}
	server, err := Listen(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group errgroup.Group
	group.Go(func() error { return server.Serve(ctx) })
	group.Go(func() error {
		code, body, err := fetch(t.Context(), server.Addr(), "/status")
		if err != nil || code != http.StatusOK || body != "\"whole\"\n" {
			return fmt.Errorf("in flight: %d %q %w", code, body, err)
		}
		return nil
	})
	<-asked
	cancel()
	close(answer)
	if err := group.Wait(); err != nil {
		t.Error(err)
	}
	if _, _, err := fetch(t.Context(), server.Addr(), "/healthz"); err == nil {
		t.Error("the port still answers")
	}
}

func TestServeReportsAPortThatFails(t *testing.T) {
	server, err := Listen(t.Context(), testOptions())
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	if err := server.Serve(t.Context()); !errors.Is(err, net.ErrClosed) || !strings.Contains(err.Error(), server.Addr()) {
		t.Errorf("Serve = %v", err)
	}
}

func TestListenSaysWhichSettingToChange(t *testing.T) {
	taken := serve(t, testOptions()).Addr()
	for name, tt := range map[string]struct{ listen, want string }{
		"taken":     {taken, "listen on " + taken + ": the address is taken, perhaps by another incrementer: set incrementer.listen to a free one"},
		"no port":   {"localhost", "listen on localhost: address localhost: missing port in address: set incrementer.listen to host:port of this machine"},
		"elsewhere": {"192.0.2.1:0", "listen on 192.0.2.1:0: bind: cannot assign requested address: set incrementer.listen to host:port of this machine"},
	} {
		t.Run(name, func(t *testing.T) {
			o := testOptions()
			o.Listen = tt.listen
			if _, err := Listen(t.Context(), o); message(err) != tt.want {
				t.Errorf("%q\nwant %q", message(err), tt.want)
			}
		})
	}
}

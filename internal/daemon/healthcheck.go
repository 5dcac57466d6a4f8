package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

// healthcheckLimit bounds the whole question: container runtimes wait for the answer.
const healthcheckLimit = 3 * time.Second

// HealthcheckCommand returns the verb healthcheck, for containers that have neither a shell nor curl. Listen returns the
// address that the running program was told to listen on.
func HealthcheckCommand(listen func(*cobra.Command) (string, error)) *cobra.Command {
	return &cobra.Command{
		Use:   "healthcheck",
		Short: "Ask the running one whether it is alive: exit 0 or 1",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			address, err := listen(cmd)
			if err != nil {
				return err
			}
			if err := askHealth(cmd.Context(), address, healthcheckLimit); err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "ok")
			return err
		},
	}
}

// askHealth returns nil when the program that listens on address says within limit that it is alive.
func askHealth(ctx context.Context, address string, limit time.Duration) error {
	target, err := pageURL(address, "/healthz")
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	response, err := page(ctx, target)
	if err != nil {
		return fmt.Errorf("ask %s: %w", target, shortCause(err, limit))
	}
	defer func() { _ = response.Body.Close() }()
	return judgeHealth(target, response)
}

// page gets a page of a program on this machine.
func page(ctx context.Context, target string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	// Not the default transport: a proxy from the environment must not stand between us and this machine.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return client.Do(request)
}

func judgeHealth(target string, response *http.Response) error {
	if response.StatusCode == http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(response.Body, 4<<10))
	if err != nil {
		return fmt.Errorf("%s answers %s: %w", target, response.Status, err)
	}
	reasons := strings.Join(strings.Split(strings.TrimSpace(string(body)), "\n"), "; ")
	return fmt.Errorf("%s answers %s: %s", target, response.Status, reasons)
}

// pageURL returns where to ask a program that listens on address for a page. One that listens on every address is asked on
// loopback.
func pageURL(address, path string) (string, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "", fmt.Errorf("listen address %q is not host:port: %w", address, err)
	}
	if port == "0" {
		return "", fmt.Errorf("listen address %q takes any free port: name one to ask", address)
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	return "http://" + net.JoinHostPort(host, port) + path, nil
}

// shortCause drops the URL that net/http puts in front, since the caller names it, and says the usual causes in words.
func shortCause(err error, limit time.Duration) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", limit)
	}
	if errors.Is(err, syscall.ECONNREFUSED) {
		return errors.New("nothing listens there: is it running, and does it listen on this address?")
	}
	if wrapped, ok := errors.AsType[*url.Error](err); ok {
		return wrapped.Err
	}
	return err
}

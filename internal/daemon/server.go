package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits of the port. A probe or a scrape is small; whoever is slower than this is not one. A profile may take longer
// than writeLimit: net/http/pprof extends it by the time asked for.
const (
	headerLimit    = 5 * time.Second
	readLimit      = 10 * time.Second
	writeLimit     = 30 * time.Second
	idleLimit      = 2 * time.Minute // longer than a scrape interval, so that a connection is used again
	maxHeaderBytes = 16 << 10
	shutdownLimit  = 5 * time.Second // for requests in flight when the program stops
)

// Options say what the port serves. All but Status and Pprof are required.
type Options struct {
	Program   string // incrementer or reconciler
	Listen    string // host:port; port 0 takes a free one
	Log       *slog.Logger
	Health    *Health
	Readiness *Readiness
	Metrics   prometheus.Gatherer                // usually from NewRegistry
	Status    func(context.Context) (any, error) // the document at /status; nil for none
	Pprof     bool                               // serve /debug/pprof/
}

// Server is the one port of a program. Nothing on it writes.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen takes the port, so that a program learns that it is taken before it does anything else. Serve or Close must
// follow.
func Listen(ctx context.Context, o Options) (*Server, error) {
	listener, err := listen(ctx, o.Program, o.Listen)
	if err != nil {
		return nil, err
	}
	return &Server{
		listener: listener,
		http: &http.Server{
			Handler:           newHandler(o),
			ReadHeaderTimeout: headerLimit,
			ReadTimeout:       readLimit,
			WriteTimeout:      writeLimit,
			IdleTimeout:       idleLimit,
			MaxHeaderBytes:    maxHeaderBytes,
			ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelWarn),
		},
	}, nil
}

func listen(ctx context.Context, program, address string) (net.Listener, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, &ListenError{program, address, err}
	}
	return listener, nil
}

// Addr returns the address that the port has, host:port.
func (s *Server) Addr() string { return s.listener.Addr().String() }

// Close gives up a port that is not served.
func (s *Server) Close() error { return s.listener.Close() }

// Serve answers until ctx ends, then finishes the requests in flight, for at most five seconds, and returns nil. It
// returns an error only when the port fails by itself. To answer probes while the loops drain, give it a context that
// ends after theirs.
func (s *Server) Serve(ctx context.Context) error {
	failed := make(chan error, 1)
	go func() { failed <- s.http.Serve(s.listener) }()
	select {
	case err := <-failed:
		return fmt.Errorf("serve http on %s: %w", s.Addr(), err)
	case <-ctx.Done():
	}
	limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownLimit)
	defer cancel()
	if s.http.Shutdown(limited) != nil {
		_ = s.http.Close() // whoever still reads is cut off: it had its time
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve http on %s: %w", s.Addr(), err)
	}
	return nil
}

// ListenError says why an address cannot be had, and which setting to change. The system's own text stays for causes not
// named here.
type ListenError struct {
	program, address string
	cause            error
}

func (e *ListenError) Error() string { return e.Found() + ": " + e.Fix() }
func (e *ListenError) Unwrap() error { return e.cause }

// Found is what is wrong.
func (e *ListenError) Found() string {
	if errors.Is(e.cause, syscall.EADDRINUSE) {
		return fmt.Sprintf("listen on %s: the address is taken, perhaps by another %s", e.address, e.program)
	}
	cause := e.cause
	if op, ok := errors.AsType[*net.OpError](cause); ok {
		cause = op.Err // without the address a second time
	}
	return fmt.Sprintf("listen on %s: %s", e.address, cause)
}

// Fix is what to do.
func (e *ListenError) Fix() string {
	if errors.Is(e.cause, syscall.EADDRINUSE) {
		return fmt.Sprintf("set %s.listen to a free one", e.program)
	}
	return fmt.Sprintf("set %s.listen to host:port of this machine", e.program)
}

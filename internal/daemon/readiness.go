package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"
)

// checkLimit bounds one readiness check. Checks read what loops publish, so even this is long.
const checkLimit = time.Second

// Readiness collects the checks behind /readyz.
type Readiness struct {
	mu     sync.Mutex
	checks map[string]func(context.Context) error
}

// NewReadiness returns a Readiness without checks, which is not ready: the process has yet to say what it depends on.
func NewReadiness() *Readiness {
	return &Readiness{checks: make(map[string]func(context.Context) error)}
}

// Add registers check under name, in place of an earlier one with that name. A check reads state that a loop publishes,
// connects to nothing, and returns when its context ends. Its error is shown to whoever can reach the port.
func (r *Readiness) Add(name string, check func(context.Context) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.checks[name] = check
}

// readyReport is the document at /readyz.
type readyReport struct {
	Ready  bool                   `json:"ready"`
	Checks map[string]checkReport `json:"checks"`
}

type checkReport struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// report runs the checks one after the other: they only read.
func (r *Readiness) report(ctx context.Context) readyReport {
	r.mu.Lock()
	checks := maps.Clone(r.checks)
	r.mu.Unlock()
	if len(checks) == 0 {
		checks["start"] = func(context.Context) error { return errors.New("still starting") }
	}
	all := readyReport{Ready: true, Checks: make(map[string]checkReport, len(checks))}
	for name, check := range checks {
		result := runCheck(ctx, check)
		all.Checks[name] = result
		all.Ready = all.Ready && result.OK
	}
	return all
}

func runCheck(ctx context.Context, check func(context.Context) error) checkReport {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	switch err := check(ctx); {
	case err == nil:
		return checkReport{OK: true}
	case errors.Is(err, context.DeadlineExceeded):
		return checkReport{Reason: fmt.Sprintf("no answer within %s", checkLimit)}
	default:
		return checkReport{Reason: err.Error()}
	}
}

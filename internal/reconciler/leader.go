package reconciler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// Leadership is this process among the reconcilers of the same counters: one leads and does the runs, the others stand by.
// Its lease saves work and nothing more: two that run at once repair nothing twice (I5).
type Leadership struct {
	Leases *checkpoint.Leases
	Lane   string        // of the lease
	Term   time.Duration // of the lease
	Heart  Heart         // beats while this process stands by
	Log    *slog.Logger

	renewed time.Time // when the lease that is held was last renewed

	mutex    sync.Mutex
	standing Standing
}

// Standing is who leads, as this process knows it.
type Standing struct {
	Leads   bool   // this process does
	Leader  string // name of the one that does, "" when nobody is known to
	Problem error  // why this process neither leads nor stands by, nil when it does
}

// LeaderLane names the lease of the reconcilers that look after the same counters. Those of other definitions have one of
// their own: each judges what the lanes apply by its own definitions.
func LeaderLane(definitions []*counter.Definition, o Options) string {
	return checkpoint.LeaderLane(counter.HashOf(slices.DeleteFunc(slices.Clone(definitions), func(d *counter.Definition) bool {
		return !o.wants(d.Name)
	})))
}

const (
	// lookEvery bounds how long a lease that was given back lies there.
	lookEvery = time.Second
	// lookLimit is for one look of a standby.
	lookLimit = 15 * time.Second
	// farewell bounds what giving the lease back may take: it runs out anyway.
	farewell = 5 * time.Second
)

// Run stands by until this process leads, and then does the work, until ctx ends or the work fails. Work whose lease is
// lost is ended by its context, and the process stands by again. The lease is given back when the work has ended.
func (l *Leadership) Run(ctx context.Context, work func(context.Context) error) error {
	defer l.resign(ctx)
	for {
		if err := l.standBy(ctx); err != nil {
			return err
		}
		lost, err := l.lead(ctx, work)
		if lost == nil || ctx.Err() != nil {
			return err
		}
		l.publish(Standing{})
		l.Log.Warn("no longer the leader: on standby", logkey.Reason, lost)
	}
}

// View is who leads.
func (l *Leadership) View() Standing {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.standing
}

func (l *Leadership) publish(s Standing) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.standing = s
}

// standBy returns when this process has the lease.
func (l *Leadership) standBy(ctx context.Context) error {
	ticker := time.NewTicker(l.pause())
	defer ticker.Stop()
	for {
		l.Heart.Beat()
		before, now := l.View(), l.look(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		l.publish(now)
		switch {
		case now.Leads:
			l.Log.Info("leading")
			return nil
		case now.Problem != nil && before.Problem == nil:
			l.Log.Warn("not known who leads", logkey.Error, now.Problem)
		case now.Leader != "" && now.Leader != before.Leader:
			l.Log.Info("on standby", logkey.Owner, now.Leader)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

func (l *Leadership) pause() time.Duration { return min(lookEvery, l.Term/10) }

// look takes the lease when it can be had.
func (l *Leadership) look(ctx context.Context) Standing {
	ctx, cancel := context.WithTimeout(ctx, min(l.Term, lookLimit))
	defer cancel()
	roster, err := l.Leases.Roster(ctx)
	if err != nil {
		return Standing{Problem: err}
	}
	lease := roster.Leases[l.Lane]
	if lease.Held && lease.Owner != l.Leases.Self() {
		return Standing{Leader: lease.Owner}
	}
	began := time.Now()
	taken, err := l.Leases.Acquire(ctx, l.Lane)
	switch {
	case taken:
		l.renewed = began
		return Standing{Leads: true, Leader: l.Leases.Self()}
	case err == nil && lease.Held: // an earlier process of this name is gone or finds out: this is the earlier one
		err = errSuperseded
	}
	return Standing{Problem: err} // without one, another was quicker, and the next look says which
}

// errSuperseded means: this process has been replaced.
var errSuperseded = errors.New("another process of the same name has started since and leads: " +
	"give every instance a host name or a reconciler.listen of its own")

// lead does the work and keeps the lease meanwhile, also while the work comes to its end. It returns how the work ended,
// and why the lease was lost before that, nil when it was not.
func (l *Leadership) lead(ctx context.Context, work func(context.Context) error) (lost, err error) {
	working, dismiss := context.WithCancelCause(ctx)
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var keeper sync.WaitGroup
	keeper.Go(func() {
		if lost = l.keep(keeping); lost != nil {
			dismiss(lost)
		}
	})
	err = work(working)
	stop()
	keeper.Wait()
	dismiss(nil)
	return lost, err
}

// keep renews the lease until ctx ends. It returns an error when the lease is lost, or may be by this process's own clock,
// which shows it before the server's does.
func (l *Leadership) keep(ctx context.Context) error {
	ticker := time.NewTicker(l.pause())
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if time.Since(l.renewed) < l.Term/3 {
			continue
		}
		if err := l.renew(ctx); err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// renew returns an error when the lease is lost. Where the server does not answer, another try comes.
func (l *Leadership) renew(ctx context.Context) error {
	ctx, cancel := context.WithDeadline(ctx, l.renewed.Add(l.Term))
	defer cancel()
	began := time.Now()
	err := l.Leases.Renew(ctx, l.Lane)
	switch {
	case err == nil:
		l.renewed = began
		return nil
	case errors.Is(err, checkpoint.ErrNotHeld):
		return err
	case time.Since(l.renewed) >= l.Term:
		return fmt.Errorf("the lease has run out: %w", err)
	default:
		return nil
	}
}

// resign gives the lease back, if this process has it, so that a standby leads at once.
func (l *Leadership) resign(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	l.publish(Standing{})
	if err := l.Leases.Release(ctx, l.Lane); err != nil {
		l.Log.Warn("lease not given back, a standby leads when it runs out", logkey.Error, err)
	}
}

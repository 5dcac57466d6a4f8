package incrementer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"driftless/internal/checkpoint"
	"driftless/internal/logkey"
)

// Group is this process among the instances that share the lanes: it follows its share, and stands by for the rest.
type Group struct {
	Leases *checkpoint.Leases
	Lanes  []*Lane
	// Sources is how this instance follows each source, as a hash: those that started before with another one stand back.
	Sources map[string]string
	Term    time.Duration // of a lease
	Log     *slog.Logger

	mutex   sync.Mutex
	outside map[string]error // by source, nil before the first look

	running map[string]*following
	ended   chan laneEnd
	renewed time.Time // when everything was last renewed
}

// following is a lane that is followed here.
type following struct {
	cancel context.CancelFunc
	giving bool // it drains, to be given back
}

// laneEnd is why a lane is no longer followed here.
type laneEnd struct {
	lane string
	err  error
}

const (
	// lookEvery bounds how long a lane that was given back lies there.
	lookEvery = time.Second
	// farewell bounds what giving a lane back may take: its lease runs out anyway.
	farewell = 5 * time.Second
)

// Run follows this instance's share of the lanes until ctx ends, or until a lane ends for good. What is in flight is
// finished and the lanes are given back before it returns.
func (g *Group) Run(ctx context.Context) error {
	g.running, g.ended = map[string]*following{}, make(chan laneEnd)
	defer g.leave(ctx)
	ticker := time.NewTicker(min(lookEvery, g.Term/10))
	defer ticker.Stop()
	g.look(ctx)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case end := <-g.ended:
			if err := g.left(end); err != nil {
				return err
			}
			if ctx.Err() == nil {
				g.look(ctx)
			}
		case <-ticker.C:
			g.look(ctx)
		}
	}
}

// leave signs off first, so that the others take each lane as soon as it has drained and is given back.
func (g *Group) leave(ctx context.Context) {
	for _, f := range g.running {
		f.cancel()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if err := g.Leases.Leave(ctx); err != nil {
		g.Log.Warn("instance not signed off, the others count on it until its lease runs out", logkey.Error, err)
	}
	for len(g.running) > 0 {
		_ = g.left(<-g.ended)
	}
}

// left notes that a lane is no longer followed here. It returns the error of one that ended for good.
func (g *Group) left(end laneEnd) error {
	g.running[end.lane].cancel()
	delete(g.running, end.lane)
	switch {
	case errors.Is(end.err, context.Canceled):
		return nil
	case errors.Is(end.err, checkpoint.ErrNotHeld):
		g.Log.Warn("lane lost to another instance: on standby", logkey.Lane, end.lane, logkey.Cause, end.err)
		return nil
	default:
		return end.err
	}
}

// look renews what is due, and takes and gives back lanes. A database that is away is looked for again; the lanes look
// after themselves.
func (g *Group) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, g.Term)
	defer cancel()
	roster, err := g.roster(ctx)
	if err != nil {
		if errors.Is(err, errSuperseded) {
			g.publish(func(string) error { return err })
		} else {
			err = awayError{err}
		}
		g.idle(func(*Lane) (string, error) { return "", err })
		return
	}
	a := assign(roster)
	g.publish(func(source string) error { return g.outdated(source, a) })
	g.follow(ctx, roster, a)
}

// publish says of each source why this instance has to leave it to others.
func (g *Group) publish(why func(source string) error) {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	g.outside = make(map[string]error, len(g.Sources))
	for source := range g.Sources {
		g.outside[source] = why(source)
	}
}

// errNotLooked: nothing is known of the others yet.
var errNotLooked = errors.New("looking for other instances")

// Outside says why this instance has to leave a source to others, whoever shares its lanes out, nil while it has not: one that started
// later has another configuration of it.
func (g *Group) Outside(source string) error {
	g.mutex.Lock()
	defer g.mutex.Unlock()
	if g.outside == nil {
		return errNotLooked
	}
	return g.outside[source]
}

// roster is who is there and has what, this instance among them.
func (g *Group) roster(ctx context.Context) (checkpoint.Roster, error) {
	if time.Since(g.renewed) >= g.Term/3 {
		if err := g.renew(ctx); err != nil {
			return checkpoint.Roster{}, err
		}
	}
	roster, err := g.Leases.Roster(ctx)
	if err != nil || g.Leases.Listed(roster) {
		return roster, err
	}
	// Replaced since, or so slow that it counts as gone: which of the two is known before a lane is taken.
	if err := g.renew(ctx); err != nil {
		return roster, err
	}
	return g.Leases.Roster(ctx)
}

// errSuperseded means: this process has been replaced.
var errSuperseded = errors.New("another process of the same name has started since and has the lanes: " +
	"give every instance a host name or an incrementer.listen of its own")

// renew keeps the registration and the leases.
func (g *Group) renew(ctx context.Context) error {
	began := time.Now()
	ours, err := g.Leases.Register(ctx, g.registration())
	if err != nil {
		return err
	}
	if !ours {
		for lane := range g.running {
			g.give(lane, errSuperseded.Error())
		}
		return errSuperseded
	}
	for lane := range g.running {
		if err := g.Leases.Renew(ctx, lane); err != nil && !errors.Is(err, checkpoint.ErrNotHeld) { // which the roster shows
			return err
		}
	}
	g.renewed = began
	return nil
}

// registration is what this instance follows.
func (g *Group) registration() map[string]checkpoint.Following {
	all := make(map[string]checkpoint.Following, len(g.Sources))
	for source, hash := range g.Sources {
		f := checkpoint.Following{Hash: hash}
		for _, l := range g.Lanes {
			if l.ID.Source == source {
				f.Lanes = append(f.Lanes, l.ID.String())
			}
		}
		all[source] = f
	}
	return all
}

// follow brings what this instance follows in line with the assignment.
func (g *Group) follow(ctx context.Context, roster checkpoint.Roster, a assignment) {
	refused := map[string]error{}
	for _, l := range g.Lanes {
		name := l.ID.String()
		lease := roster.Leases[name]
		_, running := g.running[name]
		mine := a.owners[name] == g.Leases.Self()
		outdated := g.outdated(l.ID.Source, a)
		switch {
		case running && !g.Leases.Mine(lease):
			g.give(name, "another instance has taken it")
		case running && outdated != nil:
			g.give(name, outdated.Error())
		case running && !mine:
			g.give(name, "it is "+a.owners[name]+"'s share")
		case !running && mine:
			refused[name] = g.take(ctx, l, lease)
		}
	}
	g.idle(func(l *Lane) (string, error) {
		name := l.ID.String()
		owner := a.owners[name]
		if lease := roster.Leases[name]; lease.Held {
			owner = lease.Owner
		}
		return owner, cmp.Or(g.outdated(l.ID.Source, a), refused[name])
	})
}

// outdated says which instance has another configuration of a source and started later, nil when this one's counts.
func (g *Group) outdated(source string, a assignment) error {
	newest := a.newest[source]
	if newest.Sources[source].Hash == g.Sources[source] {
		return nil
	}
	const remedy = "restart this one, with the same file or with the one that is to count from now on, or give one of them another state_database"
	if !newest.Lives {
		return fmt.Errorf("instance %s, which started later and is gone, has another configuration of source %s: this one goes on by "+
			"itself when that has been gone for %s, and everything that differs is recounted; or %s", newest.Name, source, outdatedFor, remedy)
	}
	return fmt.Errorf("instance %s, which started later, has another configuration of source %s: %s", newest.Name, source, remedy)
}

// idle publishes about each lane that is not followed here who follows it, and what is wrong with that.
func (g *Group) idle(why func(*Lane) (owner string, problem error)) {
	for _, l := range g.Lanes {
		if _, running := g.running[l.ID.String()]; running {
			continue
		}
		owner, problem := why(l)
		if owner == g.Leases.Self() {
			owner = ""
		}
		if before := l.State.View(); owner != "" && owner != before.Standby {
			g.Log.Info("on standby", logkey.Lane, l.ID.String(), logkey.Owner, owner)
		} else if problem != nil && !same(before.LastErr, problem) {
			g.Log.Warn("lane not followed", logkey.Lane, l.ID.String(), logkey.Error, problem)
		}
		l.State.standingBy(owner, problem)
		l.State.waiting()
	}
}

// awayError is that the leases cannot be read or kept. Its text tells the state of every server, which changes.
type awayError struct{ error }

func (e awayError) Unwrap() error { return e.error }

// same reports whether a problem is the one that has been told already.
func same(before, now error) bool {
	if before == nil {
		return false
	}
	_, wasAway := errors.AsType[awayError](before)
	_, isAway := errors.AsType[awayError](now)
	return wasAway && isAway || before.Error() == now.Error()
}

// take begins to follow a lane when its lease can be had.
func (g *Group) take(ctx context.Context, l *Lane, before checkpoint.Lease) error {
	name := l.ID.String()
	if taken, err := g.Leases.Acquire(ctx, name); err != nil || !taken {
		return err // another look comes
	}
	g.Log.Info("lane taken", logkey.Lane, name, "before", before.Owner)
	// It ends when it is told to, so that its lease is given back after it has drained.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.running[name] = &following{cancel: cancel}
	go func() {
		err := l.Run(ctx)
		leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
		defer cancel()
		if err := g.Leases.Release(leaving, name); err != nil {
			g.Log.Warn("lane not given back, it is free when its lease runs out", logkey.Lane, name, logkey.Error, err)
		}
		g.ended <- laneEnd{name, err}
	}()
	return nil
}

// give has a lane drain; it is given back then.
func (g *Group) give(lane, why string) {
	f := g.running[lane]
	if f.giving {
		return
	}
	f.giving = true
	g.Log.Info("giving lane back", logkey.Lane, lane, logkey.Reason, why)
	f.cancel()
}

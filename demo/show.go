package main

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"driftless/internal/counter"
)

const (
	firstRecountLimit = time.Minute
	refreshEvery      = time.Second
	rateOver          = 3 // seconds over which row changes a second are averaged
)

// show is the play: who acts in it, and what the audience sees.
type show struct {
	stage      *stage
	service    *service
	operator   *operator
	chaos      *chaos
	reconciler *process
	drift      *driftLog
	ledger     *ledger
	news       *news
	screen     *screen
	seconds    int
	began      time.Time

	mutex    sync.Mutex // of what follows
	doing    string
	measured *measurement
}

func newShow(stage *stage, s settings, out io.Writer) *show {
	ledger, news := newLedger(), &news{}
	return &show{
		stage: stage, ledger: ledger, news: news, seconds: s.seconds, screen: newScreen(out),
		service:  newService(stage.client, stage.names.app, s.rate),
		operator: &operator{client: stage.client, definition: stage.definition, ledger: ledger, news: news},
		chaos:    &chaos{programs: stage.programs, news: news},
		drift:    newDriftLog(stage.programs.logPath(reconciler), ledger, news),
	}
}

// play starts everything, lets it run until finish ends or its time is up, and comes to the verdict. abort gives up.
func (s *show) play(finish, abort context.Context) (outcome, error) {
	if err := s.begin(abort); err != nil {
		return outcome{}, err
	}
	watching, stopWatching := context.WithCancel(abort)
	defer stopWatching()
	group, ctx := errgroup.WithContext(watching) // a watcher that fails ends the play
	group.Go(func() error { return safely(func() error { return s.refresh(ctx) }) })
	group.Go(func() error {
		return safely(func() error { return s.stage.runMeasurements(ctx, s.service.usual, s.publish) })
	})
	var result outcome
	err := safely(func() (err error) {
		result, err = s.loadAndConclude(finish, ctx)
		return err
	})
	stopWatching()
	if failure := group.Wait(); failure != nil {
		return result, failure
	}
	return result, err
}

func (s *show) loadAndConclude(finish, abort context.Context) (outcome, error) {
	if err := s.load(finish, abort); err != nil {
		return outcome{}, err
	}
	return s.conclude(abort)
}

// begin starts the binaries and waits for the first recount: what it changes is no drift, so nobody edits before.
func (s *show) begin(ctx context.Context) (err error) {
	s.began = time.Now()
	if err := s.chaos.start(); err != nil {
		return err
	}
	if s.reconciler, err = s.stage.programs.start(reconciler, "run"); err != nil {
		return err
	}
	return s.await(ctx, firstRecountLimit, "the first recount", func(ctx context.Context) (bool, error) {
		states, err := s.stage.states.All(ctx)
		return states[counterName].State == counter.Active, err
	})
}

// load lets everybody act at once.
func (s *show) load(finish, abort context.Context) error {
	s.began = time.Now()
	s.phase("Ctrl-C ends it with a verdict")
	if s.seconds > 0 {
		var cancel context.CancelFunc
		finish, cancel = context.WithTimeout(finish, time.Duration(s.seconds)*time.Second)
		defer cancel()
	}
	group, ctx := errgroup.WithContext(abort)
	for _, act := range []func(ctx, finish context.Context) error{s.service.run, s.operator.run, s.chaos.run, s.watchReconciler} {
		group.Go(func() error { return safely(func() error { return act(ctx, finish) }) })
	}
	return group.Wait()
}

func (s *show) watchReconciler(ctx, finish context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-finish.Done():
		return nil
	case <-s.reconciler.done:
		return s.stage.programs.unexpected(reconciler, s.reconciler)
	}
}

func (s *show) phase(what string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.doing = what
}

func (s *show) publish(m measurement) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.measured == nil || s.measured.at.Before(m.at) {
		s.measured = &m
	}
}

// refresh draws the table every second, and once more at the end.
func (s *show) refresh(ctx context.Context) error {
	var lag lagClock
	rate := newRate(rateOver)
	for next := time.Duration(0); pause(ctx, next); next = refreshEvery {
		if err := s.drift.read(); err != nil {
			return err
		}
		lag.read(ctx, s.stage)
		s.screen.show(s.view(rate.next(s.service.changes.Load()), lag.age()))
	}
	s.screen.show(s.view(0, lag.age()))
	return nil
}

func (s *show) view(changes int64, lag time.Duration) view {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	v := view{
		elapsed: time.Since(s.began), phase: s.doing, changes: changes, batches: s.service.batches.Load(), lag: lag,
		kills: s.chaos.kills.Load(), up: s.chaos.up.Load(),
		crashes: s.service.usual.crashes.Load(), repeats: s.service.usual.repeats.Load(),
		totals: s.ledger.sums(), open: int64(len(s.ledger.open())), news: s.news.last(),
		pages: []string{
			fmt.Sprintf("http://%s/", s.stage.config.Incrementer.Listen), fmt.Sprintf("http://%s/", s.stage.config.Reconciler.Listen),
		},
	}
	if s.measured != nil {
		v.measured, v.measurement, v.age = true, *s.measured, time.Since(s.measured.at)
	}
	return v
}

// lagClock is how old the incrementer's position is, also while it is dead.
type lagClock struct{ position time.Time }

func (l *lagClock) read(ctx context.Context, s *stage) {
	at, err := s.checkpoints.Load(ctx, source)
	if err == nil { // else the last one known grows older, which is what there is to say
		l.position = time.Unix(int64(at.Position.T), 0)
	}
}

func (l *lagClock) age() time.Duration {
	if l.position.IsZero() {
		return 0
	}
	return max(0, time.Since(l.position))
}

// rate turns a counter read once a second into a mean over the last seconds.
type rate struct{ readings []int64 }

func newRate(over int) *rate { return &rate{readings: make([]int64, 0, over+1)} }

func (r *rate) next(total int64) int64 {
	if len(r.readings) == cap(r.readings) {
		r.readings = append(r.readings[:0], r.readings[1:]...)
	}
	r.readings = append(r.readings, total)
	if len(r.readings) == 1 {
		return 0
	}
	return (total - r.readings[0]) / int64(len(r.readings)-1)
}

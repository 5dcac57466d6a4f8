package incrementer_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
)

// play is a lane whose surroundings follow a script, in the time of a synctest bubble.
type play struct {
	lane *incrementer.Lane

	mutex    sync.Mutex
	at       checkpoint.Checkpoint
	opened   []time.Time // by the lane itself, to follow
	tried    []string    // the counters of each opening
	restarts []string    // reasons
	applied  [][]int     // events of every batch that was applied
	read     int         // batches
	closed   int         // readers

	// The script. What is nil never fails.
	load    func() error
	restart func() error
	open    func(counters []string) error
	next    func(ctx context.Context, counters []string) (stream.Batch, error)
	apply   func(ctx context.Context, batch stream.Batch) error
}

// Check implements incrementer.Counters.
func (p *play) Check(context.Context, checkpoint.Checkpoint) (bool, error) { return true, nil }

// Reached implements incrementer.Counters.
func (p *play) Reached(checkpoint.Checkpoint) {}

func newPlay(counters ...string) *play {
	p := &play{at: checkpoint.Checkpoint{Lane: "l", Seq: 1, Position: bson.Timestamp{T: 100}}}
	var definitions []*counter.Definition
	for _, name := range counters {
		definitions = append(definitions, &counter.Definition{Counter: config.Counter{Name: name}})
	}
	registry := prometheus.NewRegistry()
	p.lane = &incrementer.Lane{
		ID: checkpoint.LaneID{Source: "s"}, Definitions: definitions, Counters: p,
		OpenSource: func(ds []*counter.Definition) (stream.Source, error) { return playSource{p, names(ds)}, nil },
		NewApplier: func([]*counter.Definition) incrementer.Applier { return playApplier{p} },
		State:      incrementer.NewState(nil), Metrics: incrementer.NewMetrics(registry),
		IdleCheckpoint: 2 * time.Second, MaxBatchEvents: 1, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	return p
}

func names(ds []*counter.Definition) []string {
	all := []string{}
	for _, d := range ds {
		all = append(all, d.Name)
	}
	return all
}

func call(f func() error) error {
	if f == nil {
		return nil
	}
	return f()
}

func (p *play) Load(context.Context, map[string]string) (checkpoint.Checkpoint, error) {
	err := call(p.load)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.at, err
}

func (p *play) Restart(_ context.Context, reason string, _ map[string]string) (checkpoint.Checkpoint, error) {
	err := call(p.restart)
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.restarts = append(p.restarts, reason)
	return p.at, err
}

type playSource struct {
	*play
	counters []string
}

func (s playSource) Open(context.Context, stream.Start) (stream.Reader, error) {
	s.mutex.Lock()
	s.opened = append(s.opened, time.Now())
	s.tried = append(s.tried, fmt.Sprint(s.counters))
	s.mutex.Unlock()
	if s.open != nil {
		if err := s.open(s.counters); err != nil {
			return nil, err
		}
	}
	return playReader(s), nil
}

type playReader struct {
	*play
	counters []string
}

func (r playReader) Next(ctx context.Context) (stream.Batch, error) {
	if r.next == nil {
		<-ctx.Done()
		return stream.Batch{}, ctx.Err()
	}
	batch, err := r.next(ctx, r.counters)
	if err == nil {
		r.mutex.Lock()
		defer r.mutex.Unlock()
		r.read++
	}
	return batch, err
}

func (r playReader) Close(context.Context) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.closed++
}

type playApplier struct{ *play }

func (a playApplier) Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error) {
	if a.apply != nil {
		if err := a.apply(ctx, batch); err != nil {
			return at, err
		}
	}
	to, err := at.Next(batch.Token)
	if err != nil {
		return at, err
	}
	a.mutex.Lock()
	defer a.mutex.Unlock()
	var events []int
	for _, e := range batch.Events {
		events = append(events, int(e.Doc.Lookup("n").Int32()))
	}
	a.at, a.applied = to, append(a.applied, events)
	return to, nil
}

// batch is the n-th batch of a stream, of one event, or none.
func batch(n int, events int) stream.Batch {
	at := bson.Timestamp{T: 100 + uint32(n), I: 1}
	token, _ := bson.Marshal(bson.D{{Key: "_data", Value: fmt.Sprintf("82%08X%08X", at.T, at.I)}})
	b := stream.Batch{Token: token}
	for range events {
		doc, _ := bson.Marshal(bson.D{{Key: "n", Value: int32(n)}})
		b.Events = append(b.Events, stream.Event{Token: token, Doc: doc})
	}
	return b
}

// stage runs a play in a bubble for a time and cancels it then.
func stage(t *testing.T, p *play, d time.Duration) (err error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		err = p.lane.Run(ctx)
	}()
	select {
	case <-time.After(d):
	case <-ended:
	}
	cancel()
	<-ended
	return err
}

// elapse lets time pass, which in a bubble takes none.
func elapse(d time.Duration) { <-time.After(d) }

// pauses are the times between openings.
func (p *play) pauses() []time.Duration {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var all []time.Duration
	for i := 1; i < len(p.opened); i++ {
		all = append(all, p.opened[i].Sub(p.opened[i-1]))
	}
	return all
}

func TestALaneThatCannotReadTriesAgainWithLongerPauses(t *testing.T) {
	for _, cause := range []error{
		stream.ErrInterrupted, stream.ErrUnauthorized, stream.ErrForeignToken, stream.ErrPositionLost, stream.ErrCollectionChanged,
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a")
			p.open = func([]string) error { return fmt.Errorf("gone: %w", cause) }
			if err := stage(t, p, 5*time.Minute); !errors.Is(err, context.Canceled) {
				t.Errorf("%v: ended with %v", cause, err)
			}
			pauses := p.pauses()
			for i, pause := range pauses {
				if pause < time.Second || pause > 15*time.Second {
					t.Errorf("%v: pause %d is %v", cause, i, pause)
				}
				if i > 10 && pause < 4*time.Second {
					t.Errorf("%v: pause %d is still %v", cause, i, pause)
				}
			}
			if n := len(pauses); n < 20 || n > 80 {
				t.Errorf("%v: tried %d times in five minutes", cause, n)
			}
			if v := p.lane.State.View(); v.Owned || !errors.Is(v.LastErr, cause) {
				t.Errorf("%v: published %+v", cause, v)
			}
		})
	}
}

func TestASuccessBringsThePausesBackToASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		fails := 0
		p.open = func([]string) error {
			if fails++; fails%10 == 0 {
				return nil
			}
			return stream.ErrInterrupted
		}
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) {
			if n++; n%2 == 1 {
				return batch(n, 1), nil
			}
			return stream.Batch{}, stream.ErrInterrupted
		}
		_ = stage(t, p, 5*time.Minute)
		for i, pause := range p.pauses() {
			if i%10 == 9 && (pause < time.Second || pause > 1500*time.Millisecond) {
				t.Errorf("after a success the pause is %v", pause)
			}
		}
		if len(p.applied) < 2 {
			t.Errorf("applied %v", p.applied)
		}
	})
}

func TestALaneNeverTriesMoreThanOnceASecondWhateverFails(t *testing.T) {
	causes := []error{
		nil, stream.ErrInterrupted, stream.ErrUnauthorized, stream.ErrPositionLost, stream.ErrCollectionChanged,
		stream.ErrExpression, stream.ErrForeignToken, counter.ErrRefused, errors.New("whatever"), context.DeadlineExceeded,
	}
	rapid.Check(t, func(r *rapid.T) {
		script := rapid.SliceOfN(rapid.SampledFrom(causes), 60, 60).Draw(r, "causes")
		where := rapid.SampledFrom([]string{"load", "restart", "open", "next", "apply"}).Draw(r, "where")
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a", "b")
			failed := 0
			fail := func() error {
				if failed++; failed > len(script) {
					return stream.ErrInterrupted
				}
				return script[failed-1]
			}
			n := 0
			p.next = func(context.Context, []string) (stream.Batch, error) {
				if n++; where == "next" {
					return batch(n, 1), fail()
				}
				if where == "restart" {
					return batch(n, 1), stream.ErrPositionLost
				}
				return batch(n, 1), nil
			}
			p.apply = func(context.Context, stream.Batch) error {
				if where == "apply" {
					return fail()
				}
				elapse(100 * time.Millisecond)
				return nil
			}
			switch where {
			case "load":
				p.load = func() error { return ignoring(fail(), stream.ErrExpression) }
				// What is opened has been loaded.
			case "restart":
				p.restart = fail
			case "open":
				p.open = func([]string) error { return fail() }
			}
			_ = stage(t, p, 30*time.Second)
			// Finding the two counters broken, once for each at most, is no failure of the lane.
			early := 0
			for i, pause := range p.pauses() {
				if follows := p.tried[i+1] == "[a b]" || p.tried[i+1] == "[a]" && p.tried[i] == "[a]"; follows && pause < time.Second {
					early++
				}
			}
			if early > 2 {
				t.Errorf("%s: %d failures, and %d of the pauses are too short: %v %v", where, failed, early, p.pauses(), p.tried)
			}
		})
	})
}

func ignoring(err, what error) error {
	if errors.Is(err, what) {
		return nil
	}
	return err
}

func TestAFencedLaneReloadsSoonAndThenLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) { n++; return batch(n, 1), nil }
		fences := 0
		p.apply = func(context.Context, stream.Batch) error {
			if fences++; fences == 8 {
				return nil
			}
			return checkpoint.ErrFenced
		}
		_ = stage(t, p, 10*time.Second)
		want := []int64{50, 100, 200, 400, 800, 1000, 1000, 50, 100}
		for i, pause := range p.pauses()[:len(want)] {
			if pause.Milliseconds() != want[i] {
				t.Errorf("pause %d is %v, want %d ms", i, pause, want[i])
			}
		}
		if len(p.restarts) != 0 {
			t.Errorf("a fenced lane started afresh: %v", p.restarts)
		}
	})
}

func TestWhatWasReadBeforeAnErrorIsAppliedBeforeTheLaneReopens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) {
			if n++; n%4 == 0 {
				return stream.Batch{}, stream.ErrInterrupted
			}
			return batch(n, 1), nil
		}
		p.apply = func(context.Context, stream.Batch) error {
			elapse(300 * time.Millisecond) // a commit takes a while
			return nil
		}
		p.open = func([]string) error {
			p.mutex.Lock()
			defer p.mutex.Unlock()
			if len(p.applied) != p.read {
				t.Errorf("reopened after %d of %d batches", len(p.applied), p.read)
			}
			return nil
		}
		_ = stage(t, p, 30*time.Second)
		if len(p.applied) < 15 {
			t.Errorf("applied %v", p.applied)
		}
	})
}

func TestTheReaderIsHeldBackByABusyApplier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) { n++; return batch(n, 1), nil }
		p.apply = func(context.Context, stream.Batch) error { elapse(time.Minute); return nil }
		_ = stage(t, p, 30*time.Second)
		// One is being applied, one waits, one has been read.
		if p.read > 3 {
			t.Errorf("%d batches were read while the first was applied", p.read)
		}
	})
}

func TestWhatIsReadWhileABatchIsAppliedIsAppliedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		p.lane.MaxBatchEvents = 10
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) {
			elapse(300 * time.Millisecond)
			n++
			return batch(n, 1), nil
		}
		p.apply = func(context.Context, stream.Batch) error { elapse(time.Second); return nil }
		_ = stage(t, p, 10*time.Second)
		for i, events := range p.applied[1:] {
			if len(events) < 3 {
				t.Errorf("batch %d has %d events, of the three or four that came meanwhile", i+1, len(events))
			}
		}
		if len(p.applied) < 8 {
			t.Errorf("applied %v", p.applied)
		}
	})
}

func TestACancelledLaneFinishesWhatItIsApplyingAndNothingMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		n := 0
		p.next = func(context.Context, []string) (stream.Batch, error) { n++; return batch(n, 1), nil }
		finished := time.Duration(0)
		began := time.Now()
		p.apply = func(context.Context, stream.Batch) error {
			elapse(3 * time.Second) // a transaction is not stopped midway
			finished = time.Since(began)
			return nil
		}
		err := stage(t, p, time.Second)
		if !errors.Is(err, context.Canceled) || finished != 3*time.Second || len(p.applied) != 1 || time.Since(began) != 3*time.Second {
			t.Errorf("%v after %v; applied %v, finished after %v", err, time.Since(began), p.applied, finished)
		}
		if p.closed != 1 {
			t.Errorf("%d readers closed", p.closed)
		}
		if v := p.lane.State.View(); v.Owned {
			t.Error("still owned")
		}
	})
}

func TestACancelledLaneDoesNotSitOutItsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		p.open = func([]string) error { return counter.ErrRefused }
		began := time.Now()
		_ = stage(t, p, 10*time.Second)
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}

func TestAnIdleLaneMovesItsCheckpointNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a")
		n := 0
		var moves []time.Duration
		began := time.Now()
		p.next = func(ctx context.Context, _ []string) (stream.Batch, error) {
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return stream.Batch{}, ctx.Err()
			}
			if n++; n > 20 {
				return batch(20, 0), nil // the server has nothing new to say
			}
			return batch(n, 0), nil
		}
		p.apply = func(context.Context, stream.Batch) error { moves = append(moves, time.Since(began)); return nil }
		_ = stage(t, p, 60*time.Second)
		if len(moves) != 10 {
			t.Errorf("moved at %v", moves)
		}
		for i, at := range moves {
			if at != time.Duration(2*(i+1))*time.Second {
				t.Errorf("move %d at %v", i, at)
			}
		}
		if v := p.lane.State.View(); v.Lag > 2*time.Second {
			t.Errorf("an idle lane lags by %v", v.Lag)
		}
	})
}

func TestBrokenCountersAreTriedAgainAfterAWhileAndAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a", "b", "c")
		p.lane.BrokenRetry = time.Minute
		began := time.Now()
		n := 0
		p.next = func(ctx context.Context, counters []string) (stream.Batch, error) {
			for _, name := range counters {
				if name == "b" && time.Since(began) < 150*time.Second {
					return stream.Batch{}, fmt.Errorf("%w: $size", stream.ErrExpression)
				}
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return stream.Batch{}, ctx.Err()
			}
			n++
			return batch(n, 1), nil
		}
		var views []int
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); _ = p.lane.Run(ctx) }()
		for range 200 {
			elapse(time.Second)
			views = append(views, len(p.lane.State.View().Broken))
		}
		cancel()
		<-ended
		if views[10] != 1 || views[100] != 1 || views[199] != 0 {
			t.Errorf("broken after 10, 100 and 200 seconds: %d, %d, %d", views[10], views[100], views[199])
		}
		// All three; each alone, none, b once more; two; b alone, two; and so on until b works again.
		want := []string{"[a b c]", "[a]", "[b]", "[c]", "[]", "[b]", "[a c]", "[b]", "[a c]", "[b]", "[a c]", "[b]", "[a b c]"}
		if fmt.Sprint(p.tried) != fmt.Sprint(want) {
			t.Errorf("opened with %v,\nwant %v", p.tried, want)
		}
	})
}

func TestACounterIsNotBrokenWhereNothingCanBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlay("a", "b")
		p.next = func(context.Context, []string) (stream.Batch, error) { return stream.Batch{}, stream.ErrExpression }
		_ = stage(t, p, 30*time.Second)
		if v := p.lane.State.View(); len(v.Broken) != 0 || !errors.Is(v.LastErr, stream.ErrExpression) {
			t.Errorf("published %+v", v)
		}
	})
}

func TestALostPositionFollowsThePolicy(t *testing.T) {
	for _, cause := range []error{stream.ErrPositionLost, stream.ErrCollectionChanged} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a")
			p.next = func(context.Context, []string) (stream.Batch, error) { return stream.Batch{}, cause }
			p.lane.StopWhenLost = true
			began := time.Now()
			if err := stage(t, p, time.Minute); !errors.Is(err, cause) || time.Since(began) != 0 || len(p.restarts) != 0 {
				t.Errorf("policy stop: %v after %v, restarts %v", err, time.Since(began), p.restarts)
			}
		})
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a")
			lost := 0
			p.next = func(ctx context.Context, _ []string) (stream.Batch, error) {
				if lost++; lost <= 3 {
					return stream.Batch{}, cause
				}
				<-ctx.Done()
				return stream.Batch{}, ctx.Err()
			}
			p.restart = func() error {
				if lost == 2 {
					lost-- // the position stays lost until the fresh start works
					if len(p.restarts) < 3 {
						return errors.New("no primary")
					}
					lost++
				}
				return nil
			}
			_ = stage(t, p, time.Minute)
			if len(p.restarts) < 3 || len(p.restarts) > 8 {
				t.Errorf("policy recount: restarts %v", p.restarts)
			}
			for _, pause := range p.pauses() {
				if pause < time.Second {
					t.Errorf("a pause of %v", pause)
				}
			}
			if v := p.lane.State.View(); v.LastErr != nil {
				t.Errorf("published %+v", v)
			}
		})
	}
}

func TestALaneIsAliveHoweverLongTheServerIsGone(t *testing.T) {
	for _, where := range []string{"load", "open", "apply", "restart"} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a")
			health := daemon.NewHealth()
			p.lane.State = incrementer.NewState(health.Loop("lane", 3*time.Minute))
			gone := func() error { elapse(20 * time.Second); return stream.ErrInterrupted }
			n := 0
			p.next = func(context.Context, []string) (stream.Batch, error) {
				n++
				if where == "restart" {
					return stream.Batch{}, stream.ErrPositionLost
				}
				return batch(n, 1), nil
			}
			working := time.Now().Add(time.Minute)
			fail := func() error {
				if time.Now().Before(working) {
					return nil
				}
				return gone()
			}
			switch where {
			case "load":
				p.load = fail
			case "open":
				p.open = func([]string) error { return fail() }
			case "apply", "restart":
				p.restart = gone
			}
			p.apply = func(context.Context, stream.Batch) error {
				if elapse(time.Second); time.Now().Before(working) {
					return nil
				}
				elapse(59 * time.Second)
				return stream.ErrInterrupted
			}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); _ = p.lane.Run(ctx) }()
			for range 120 {
				elapse(30 * time.Second)
				if err := health.Check(); err != nil {
					t.Errorf("%s: %v", where, err)
					break
				}
			}
			cancel()
			<-ended
		})
	}
}

func TestWhyALaneIsNotFollowedHasAName(t *testing.T) {
	for reason, cause := range map[string]error{
		"position_lost": stream.ErrPositionLost, "collection_changed": stream.ErrCollectionChanged, "expression": stream.ErrExpression,
		"unauthorized": stream.ErrUnauthorized, "interrupted": stream.ErrInterrupted, "foreign_token": stream.ErrForeignToken,
		"refused": counter.ErrRefused, "other": errors.New("whatever"),
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPlay("a")
			registry := prometheus.NewRegistry()
			p.lane.Metrics = incrementer.NewMetrics(registry)
			p.lane.Metrics.Lane(registry, "s", "l", nil, p.lane.State)
			p.lane.Metrics.Source(registry, "s", func() []*incrementer.State { return []*incrementer.State{p.lane.State} })
			o := &owner{Lane: p.lane, registry: registry}
			series := o.series(t, "incrementer_stream_restarts_total")
			p.next = func(context.Context, []string) (stream.Batch, error) {
				return stream.Batch{}, fmt.Errorf("read: %w", cause)
			}
			_ = stage(t, p, 500*time.Millisecond)
			if n := o.metric(t, "incrementer_stream_restarts_total", reason); n != 1 {
				t.Errorf("%v is counted %v times as %s", cause, n, reason)
			}
			if now := o.series(t, "incrementer_stream_restarts_total"); now != series {
				t.Errorf("%v made a new series: %d instead of %d", cause, now, series)
			}
		})
	}
}

// series is how many series a metric has.
func (o *owner) series(t testing.TB, name string) int {
	t.Helper()
	families, err := o.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return len(f.GetMetric())
		}
	}
	return 0
}

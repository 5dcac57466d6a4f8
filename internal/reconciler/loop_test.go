package reconciler

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// pulse records when the loop beat and when it went to wait.
type pulse struct{ beats, waits []time.Time }

func (p *pulse) Beat()    { p.beats = append(p.beats, time.Now()) }
func (p *pulse) Waiting() { p.waits = append(p.waits, time.Now()) }

// looping makes a reconciler whose runs end at once: without counters they find nothing, and with one they fail, since
// its client is disconnected.
func looping(t *testing.T, failing bool) *Reconciler {
	t.Helper()
	client := must(mongo.Connect(options.Client().ApplyURI("mongodb://127.0.0.1:1")))(t)
	if err := client.Disconnect(t.Context()); err != nil {
		t.Fatal(err)
	}
	var definitions []*counter.Definition
	if failing {
		definitions = must(counter.DefineAll([]config.Counter{declared("app", counterName, "base_count", "live_delta")}))(t)
	}
	settings := config.Default().Reconciler
	settings.Every = time.Minute
	return New(client, "driftless", definitions, settings, NewMetrics(prometheus.NewRegistry(), definitions), slog.New(slog.NewTextHandler(io.Discard, nil)))
}

func TestLoopRunsEverySoOftenWithJitterUntilItIsStopped(t *testing.T) {
	r := looping(t, false)
	synctest.Test(t, func(t *testing.T) {
		if err := r.Last().Problem(); err == nil {
			t.Error("ready before the first run")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		p := &pulse{}
		if err := r.Run(ctx, Options{}, p); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the loop ended with %v", err)
		}
		if n := len(p.beats); n < 55 || n > 67 || len(p.waits) != n {
			t.Fatalf("%d runs and %d waits in an hour of about a minute each", n, len(p.waits))
		}
		different := map[time.Duration]bool{}
		for i := 1; i < len(p.beats); i++ {
			pause := p.beats[i].Sub(p.beats[i-1])
			different[pause] = true
			if pause < 54*time.Second || pause > 66*time.Second {
				t.Errorf("run %d came after %v, want a minute give or take a tenth", i, pause)
			}
		}
		if len(different) < 10 {
			t.Errorf("only %d different pauses: a fleet would stay in step", len(different))
		}
		last := r.Last()
		if last.Runs != int64(len(p.beats)) || last.Last == nil || last.Last.Result != ResultOK || last.Problem() != nil {
			t.Errorf("status %+v", last)
		}
	})
}

func TestFailedRunDoesNotEndTheLoop(t *testing.T) {
	r := looping(t, true)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		p := &pulse{}
		if err := r.Run(ctx, Options{}, p); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the loop ended with %v", err)
		}
		last := r.Last()
		if last.Runs < 8 || last.Error == "" || last.Problem() == nil || last.Last == nil || last.Last.Result != ResultFailed {
			t.Errorf("status %+v after failing runs", last)
		}
	})
}

func TestStoppedLoopLeavesARunMidway(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	f.comment("a", 3)
	f.start()
	f.catchUp()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r := f.reconciler(equipment{started: onCommand("aggregate", cancel)})
	if err := r.Run(ctx, Options{}, &pulse{}); !errors.Is(err, context.Canceled) {
		t.Errorf("the loop ended with %v", err)
	}
	if runs := r.Last().Runs; runs != 0 {
		t.Errorf("%d runs were published, want none: it was broken off", runs)
	}
	f.activate(f.reconciler(equipment{}))
	f.wantExact()
}

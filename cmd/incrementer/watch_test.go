package main

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"testing"
	"testing/synctest"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.uber.org/goleak"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func named(names ...string) []*counter.Definition {
	ds := make([]*counter.Definition, len(names))
	for i, name := range names {
		ds[i] = &counter.Definition{Counter: config.Counter{Name: name}}
	}
	return ds
}

func states(all ...counter.State) map[string]counter.State {
	byName := map[string]counter.State{}
	for _, s := range all {
		byName[s.Name] = s
	}
	return byName
}

var (
	active = counter.State{Name: "a", State: counter.Active}
	first  = counter.State{Name: "b", State: counter.Rebasing, Reason: counter.ReasonNew}
	gap    = counter.State{Name: "a", State: counter.Rebasing, Reason: counter.ReasonGap}
)

// watching is a watch that reads what the test sets.
func watching(log *bytes.Buffer) (*watch, *records, *error) {
	var found records
	var failure error
	return &watch{
		read:   func(context.Context) (records, error) { return found, failure },
		oldest: func(context.Context) (bson.Timestamp, error) { return bson.Timestamp{T: 100}, nil },
		log:    slog.New(slog.NewTextHandler(log, nil)), err: errNotLooked,
	}, &found, &failure
}

func TestTheWatchKeepsWhatItSawLast(t *testing.T) {
	w, found, failure := watching(&bytes.Buffer{})
	if _, err := w.view(); !errors.Is(err, errNotLooked) {
		t.Errorf("before the first look: %v", err)
	}
	*found = records{states: states(active), deadLetters: 3}
	w.refresh(t.Context())
	*failure = errors.New("no route")
	*found = records{}
	w.refresh(t.Context())
	seen, err := w.view()
	if err == nil || err.Error() != "no route" || seen.deadLetters != 3 || seen.states["a"].State != counter.Active {
		t.Errorf("after a look that failed: %v, %v", seen, err)
	}
}

// A process is not ready from the moment that a gap is recorded: a look that began before says nothing about it.
func TestAGapIsKnownAtOnce(t *testing.T) {
	w, _, _ := watching(&bytes.Buffer{})
	definitions := named("a", "b")
	before := records{states: states(active, first)}
	w.read = func(context.Context) (records, error) { return before, nil }
	w.refresh(t.Context())
	if err := w.healed("l", definitions); err != nil {
		t.Errorf("before a gap: %v", err)
	}
	w.read = func(context.Context) (records, error) {
		w.lost("l") // while the look is under way
		return before, nil
	}
	w.refresh(t.Context())
	if err := w.healed("l", definitions); err == nil || !strings.HasPrefix(err.Error(), "events were lost a moment ago") {
		t.Errorf("healed = %v", err)
	}
	if err := w.healed("another", definitions); err != nil {
		t.Errorf("another lane: %v", err)
	}
	gap := active
	gap.State, gap.Reason = counter.Rebasing, counter.ReasonGap
	w.read = func(context.Context) (records, error) { return records{states: states(gap, first)}, nil }
	w.refresh(t.Context())
	if err := w.healed("l", definitions); err == nil || err.Error() != "events were lost, and a is not recounted since: the next run of the reconciler does it" {
		t.Errorf("healed = %v", err)
	}
	w.read = func(context.Context) (records, error) { return before, nil } // recounted
	w.refresh(t.Context())
	if err := w.healed("l", definitions); err != nil {
		t.Errorf("healed = %v", err)
	}
}

// at is a lane that is followed at a position.
func at(seconds uint32) incrementer.View {
	return incrementer.View{Owned: true, At: checkpoint.Checkpoint{Position: bson.Timestamp{T: seconds}}}
}

func TestHeadroomIsHowFarAPositionMayFallBehind(t *testing.T) {
	w, _, _ := watching(&bytes.Buffer{})
	if !math.IsNaN(w.headroom(at(130))) {
		t.Error("a headroom before the first look")
	}
	w.refresh(t.Context())
	for position, want := range map[uint32]float64{130: 30, 100: 0, 90: -10} {
		if got := w.headroom(at(position)); got != want {
			t.Errorf("at %d: %v, want %v", position, got, want)
		}
	}
	if !math.IsNaN(w.headroom(at(0))) {
		t.Error("a headroom of a lane that has not begun")
	}
	topic := at(130)
	topic.At.Topic = "comments"
	if !math.IsNaN(w.headroom(topic)) {
		t.Error("the server's history bounds a topic's")
	}
	other := at(130)
	other.Owned, other.Standby = false, "another"
	if !math.IsNaN(w.headroom(other)) {
		t.Error("a headroom of a lane that another instance follows")
	}
}

func TestAUserThatMayNotReadTheOplogIsToldOnce(t *testing.T) {
	var log bytes.Buffer
	w, _, _ := watching(&log)
	asked := 0
	w.oldest = func(context.Context) (bson.Timestamp, error) {
		asked++
		return bson.Timestamp{}, deployment.ErrNoOplog
	}
	for range 3 {
		w.refresh(t.Context())
	}
	if _, err := w.view(); err != nil || asked != 1 || strings.Count(log.String(), "level=WARN") != 1 || !math.IsNaN(w.headroom(at(1))) {
		t.Errorf("asked %d times, %v, log:\n%s", asked, err, &log)
	}
}

func TestTheWatchLooksUntilItIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, _, _ := watching(&bytes.Buffer{})
		ctx, cancel := context.WithCancel(t.Context())
		looks := 0
		w.read = func(context.Context) (records, error) {
			if looks++; looks == 3 {
				cancel()
			}
			return records{}, nil
		}
		if err := w.run(ctx); !errors.Is(err, context.Canceled) || looks != 3 {
			t.Errorf("run = %v after %d looks", err, looks)
		}
	})
}

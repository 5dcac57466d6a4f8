package incrementer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// opening is one attempt of a client to open a change stream.
type opening struct {
	at    time.Time
	token string // that it resumes after, "" when it starts at a cluster time
}

// openings are all attempts of a client.
type openings struct {
	mutex sync.Mutex
	all   []opening
}

func (o *openings) monitor() *options.ClientOptions {
	return options.Client().SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		stage, ok := e.Command.Lookup("pipeline", "0", "$changeStream").DocumentOK()
		if e.CommandName != "aggregate" || !ok {
			return
		}
		token, _ := stage.Lookup("startAfter", "_data").StringValueOK()
		o.mutex.Lock()
		defer o.mutex.Unlock()
		o.all = append(o.all, opening{at: time.Now(), token: token})
	}})
}

func (o *openings) since(n int) []opening {
	o.mutex.Lock()
	defer o.mutex.Unlock()
	return slices.Clone(o.all[n:])
}

// beginWithToken gives the lane a checkpoint that is resumed after an event.
func (w *world) beginWithToken() {
	w.t.Helper()
	o := w.follow(following{idle: time.Hour})
	realtest.Eventually(w.t, patience, "the lane has a checkpoint", func() bool { return w.at().Seq > 0 })
	w.mark()
	w.check(ignoreCancelled(o.stop()))
}

// opening is a client of the world's name and what it opens.
func (w *world) opening() (*mongo.Client, *openings) {
	w.t.Helper()
	o := &openings{}
	return realtest.Client(w.t, w.uri, options.Client().SetAppName(w.name), o.monitor()), o
}

// wantFollowing waits until the lane is followed and says no fault.
func (o *owner) wantFollowing(t testing.TB) {
	t.Helper()
	realtest.Eventually(t, patience, "the lane is followed", func() bool {
		v := o.State.View()
		return v.Owned && v.LastErr == nil
	})
}

// opensAndReads are the commands of a lane's reading.
var opensAndReads = []string{"aggregate", "getMore"}

func TestEveryCodeOfALostPositionLeavesAGapAndAFreshStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	client, opened := w.opening()
	for _, n := range []int32{136, 260, 280, 286, 40585, 40615} {
		for _, command := range opensAndReads {
			w.activate()
			gaps, before, from := len(w.gaps()), w.at(), len(opened.since(0))
			point := realtest.FailCommand(t, w.client, realtest.Failure{Commands: []string{command}, AppName: w.name, Code: n})
			o := w.follow(following{client: client})
			w.wantMarked(counter.ReasonGap)
			o.wantFollowing(t)
			point.Off()
			w.mark()
			recorded := w.gaps()
			if len(recorded) != gaps+1 || recorded[gaps].Reason != "position_lost" || recorded[gaps].From != before.Position {
				t.Errorf("%d at %s: recorded gaps are %+v", n, command, recorded[gaps:])
			}
			if got := o.metric(t, "incrementer_stream_restarts_total", "position_lost"); got != 1 {
				t.Errorf("%d at %s: %v restarts are counted", n, command, got)
			}
			if all := opened.since(from); len(all) != 2 || all[0].token == "" || all[1].token != "" {
				t.Errorf("%d at %s: not one resumption and one fresh start: %v", n, command, all)
			}
			w.check(ignoreCancelled(o.stop()))
		}
	}
	w.wantEqual()
}

func TestAnInterruptionReopensAtTheSamePositionAndLosesNothing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	w.activate()
	client, opened := w.opening()
	kinds := []realtest.Failure{code(43), closed, code(91), code(11602)}
	for i := range soak(4, 2) {
		f, command := kinds[i/2], opensAndReads[i%2]
		before, from := w.at(), len(opened.since(0))
		f.Commands, f.AppName = []string{command}, w.name
		point := realtest.FailCommand(t, w.client, f)
		o := w.follow(following{client: client, idle: time.Hour}) // the checkpoint moves by events alone
		w.check(point.WaitEntered(t.Context(), 1))
		w.churn(t.Context(), 20) // what happens in between is not lost
		realtest.Eventually(t, patience, "the lane is opened again", func() bool { return len(opened.since(from)) == 2 })
		o.wantFollowing(t)
		point.Off()
		w.wantExact()
		if got := o.metric(t, "incrementer_stream_restarts_total", "interrupted"); got != 1 {
			t.Errorf("%s at %s: %v restarts are counted as interrupted", nameOf(f), command, got)
		}
		token := before.Token.Lookup("_data").StringValue()
		if all := opened.since(from); len(all) != 2 || all[0].token != token || all[1].token != token {
			t.Errorf("%s at %s: not two resumptions after the checkpoint: %v", nameOf(f), command, all)
		}
		w.check(ignoreCancelled(o.stop()))
	}
	w.wantUnmarked()
}

// wantUnmarked: no event was lost, as far as the lane says.
func (w *world) wantUnmarked() {
	w.t.Helper()
	if gaps := w.gaps(); len(gaps) != 0 {
		w.t.Errorf("recorded gaps are %+v", gaps)
	}
	for _, d := range w.definitions {
		if s := w.state(d.Name); s.State != counter.Active {
			w.t.Errorf("counter %s is %+v", d.Name, s)
		}
	}
}

func TestALaneThatMayNotReadSaysSoAndGoesOnOnceItMay(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	w.activate()
	client, opened := w.opening()
	for _, n := range []int32{13, 18} {
		for _, command := range opensAndReads {
			from := len(opened.since(0))
			point := realtest.FailCommand(t, w.client, realtest.Failure{Commands: []string{command}, AppName: w.name, Code: n, Times: -1})
			o := w.follow(following{client: client})
			realtest.Eventually(t, patience, "the lane says that it may not", func() bool {
				v := o.State.View()
				return !v.Owned && errors.Is(v.LastErr, stream.ErrUnauthorized) && stream.HasCode(v.LastErr, int(n))
			})
			w.churn(t.Context(), 20)
			w.check(point.WaitEntered(t.Context(), 3))
			o.wantRunning(t)
			wantSlow(t, fmt.Sprint(n, " at ", command), opened.since(from))
			point.Off()
			o.wantFollowing(t)
			w.wantExact()
			if got := o.metric(t, "incrementer_stream_restarts_total", "unauthorized"); got < 2 {
				t.Errorf("%d at %s: %v restarts are counted as unauthorized", n, command, got)
			}
			w.check(ignoreCancelled(o.stop()))
		}
	}
	w.wantUnmarked()
}

// wantSlow: no two of a lane's openings follow each other within a second, but for what a clock and a busy machine blur.
func wantSlow(t testing.TB, what string, all []opening) {
	t.Helper()
	if len(all) < 2 {
		t.Errorf("%s: opened %d times", what, len(all))
	}
	for i := range all[min(1, len(all)):] {
		if between := all[i+1].at.Sub(all[i].at); between < 900*time.Millisecond {
			t.Errorf("%s: opened again after %v", what, between)
		}
	}
}

func TestAServerThatAlwaysFailsIsAskedOnceASecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	client, opened := w.opening()
	kinds := []realtest.Failure{code(43), code(286), closed, code(112), code(280), code(26)}
	for i := range soak(3, 4) {
		f, command := kinds[i%len(kinds)], opensAndReads[(i+i/len(kinds))%2]
		w.activate()
		from := len(opened.since(0))
		f.Commands, f.AppName, f.Times = []string{command}, w.name, -1
		point := realtest.FailCommand(t, w.client, f)
		o := w.follow(following{client: client})
		w.check(point.WaitEntered(t.Context(), 3))
		point.Off()
		w.check(ignoreCancelled(o.stop()))
		wantSlow(t, nameOf(f)+" at "+command, opened.since(from))
	}
}

func TestAServerThatAlwaysBlamesAnExpressionIsAskedForEachCounterOnceASecond(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	client, opened := w.opening()
	// With all, each alone, with none; and at each opening that fails, whether it is the token.
	atOnce := 2 * (1 + len(w.definitions) + 1)
	for _, command := range opensAndReads {
		from := len(opened.since(0))
		point := realtest.FailCommand(t, w.client, realtest.Failure{Commands: []string{command}, AppName: w.name, Code: 17124, Times: -1})
		o := w.follow(following{client: client})
		realtest.Eventually(t, patience, "it is tried for some seconds", func() bool {
			all := opened.since(from)
			return len(all) > 0 && all[len(all)-1].at.Sub(all[0].at) > 2*time.Second
		})
		point.Off()
		w.check(ignoreCancelled(o.stop()))
		all := opened.since(from)
		for i := range all {
			if i >= atOnce && all[i].at.Sub(all[i-atOnce].at) < 900*time.Millisecond {
				t.Errorf("at %s: more than %d openings within %v", command, atOnce, all[i].at.Sub(all[i-atOnce].at))
			}
		}
	}
	w.wantEqual()
}

// damage replaces the checkpoint's token.
func (w *world) damage(data any) {
	w.t.Helper()
	result, err := w.stateDatabase().Collection(checkpoint.Collection).UpdateByID(w.t.Context(), source,
		bson.D{{Key: "$set", Value: bson.D{{Key: "token", Value: bson.D{{Key: "_data", Value: data}}}}}})
	w.check(err)
	if result.ModifiedCount != 1 {
		w.t.Fatal("the token is what it was")
	}
}

func TestADamagedTokenLeavesAGapAndAFreshStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	w.activate()
	for what, damaged := range map[string]func(whole string) string{
		"empty":                    func(string) string { return "" },
		"cut within its time":      func(whole string) string { return whole[:10] },
		"cut behind its time":      func(whole string) string { return whole[:18] },
		"cut in its middle":        func(whole string) string { return whole[:24] },
		"half a byte short":        func(whole string) string { return whole[:len(whole)-1] },
		"not hexadecimal":          func(whole string) string { return whole[:22] + "xy" + whole[24:] },
		"another type byte":        func(whole string) string { return whole[:18] + "08" + whole[20:] },
		"of a time to come":        func(whole string) string { return "82F" + whole[3:] },
		"of a time long gone":      func(whole string) string { return "820" + whole[3:] },
		"of another moment's tick": func(whole string) string { return whole[:10] + "7" + whole[11:] },
	} {
		gaps, before := len(w.gaps()), w.at()
		w.damage(damaged(before.Token.Lookup("_data").StringValue()))
		o := w.follow(following{})
		w.wantMarked(counter.ReasonGap)
		o.wantFollowing(t)
		w.mark()
		if recorded := w.gaps(); len(recorded) != gaps+1 || recorded[gaps].Reason != "position_lost" || recorded[gaps].From != before.Position {
			t.Errorf("%s: recorded gaps are %+v", what, recorded[gaps:])
		}
		w.check(ignoreCancelled(o.stop()))
		w.activate()
	}
	w.wantEqual()
}

func TestATokenOfAnotherProductIsRefusedUntilItIsMended(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.beginWithToken()
	w.activate()
	whole := w.at().Token.Lookup("_data").StringValue()
	for what, foreign := range map[string]any{
		"another first byte": "01" + whole[2:], "a number": 82, "binary": bson.Binary{Data: []byte(whole)},
		"opaque": "eyJWIjoyLCJSaWQiOiJ4In0=",
	} {
		w.damage(foreign)
		o := w.follow(following{})
		w.churn(t.Context(), 10)
		realtest.Eventually(t, patience, "the lane says that it refuses a token that is "+what, func() bool {
			v := o.State.View()
			return !v.Owned && errors.Is(v.LastErr, stream.ErrForeignToken) && strings.Contains(v.LastErr.Error(), "another product")
		})
		o.wantRunning(t)
		w.damage(whole)
		o.wantFollowing(t)
		w.wantExact()
		w.check(ignoreCancelled(o.stop()))
		whole = w.at().Token.Lookup("_data").StringValue()
	}
	w.wantUnmarked()
}

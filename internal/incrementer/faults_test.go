package incrementer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// stormy is how many commands a lane may send while a test makes one of them fail: in a second or two it tries again a
// few dozen times with pauses, where a tight loop would send thousands.
const stormy = 400

// named returns a client that fail points find by the world's name, and what it sends.
func (w *world) named() (*mongo.Client, *commands) {
	w.t.Helper()
	sent := &commands{}
	return realtest.Client(w.t, w.uri, options.Client().SetAppName(w.name), sent.monitor()), sent
}

func (o *owner) wantRunning(t testing.TB) {
	t.Helper()
	select {
	case <-o.ended:
		t.Fatalf("the lane has ended: %v", o.err)
	default:
	}
}

// failure names a way to fail for a subtest.
func nameOf(f realtest.Failure) string {
	what := fmt.Sprint("code ", f.Code)
	if f.WriteConcernCode != 0 {
		what = fmt.Sprint("write concern error ", f.WriteConcernCode)
	}
	if f.CloseConnection {
		what = "connection closed"
	}
	if f.Times < 0 {
		return what + " for a while"
	}
	return fmt.Sprint(what, " ", f.Times, " times")
}

// failures are the given ones at commands, once and, when often is above 1, more often.
func failures(commands []string, often int, ways ...realtest.Failure) []realtest.Failure {
	var all []realtest.Failure
	for _, way := range ways {
		way.Commands, way.Times = commands, 1
		all = append(all, way)
		if often > 1 {
			way.Times = often
			all = append(all, way)
		}
	}
	return all
}

func forAWhile(commands []string, ways ...realtest.Failure) []realtest.Failure {
	all := failures(commands, 1, ways...)
	for i := range all {
		all[i].Times = -1
	}
	return all
}

// code is a command that fails with a server error.
func code(n int32) realtest.Failure { return realtest.Failure{Code: n} }

// closed is a command whose connection is closed before the server executes it.
var closed = realtest.Failure{CloseConnection: true}

// survive makes a running lane meet failures one after another and wants exact counts after each.
func (w *world) survive(t *testing.T, failures []realtest.Failure) {
	client, sent := w.named()
	o := w.follow(following{client: client, batchEvents: 50})
	for _, f := range failures {
		t.Run(nameOf(f), func(t *testing.T) {
			before, began := sent.all(), sent.String()
			f.AppName = w.name
			point := realtest.FailCommand(t, w.client, f)
			w.churn(t.Context(), 20)
			if f.Times < 0 {
				w.check(point.WaitEntered(t.Context(), 1))
				during(t, 700*time.Millisecond)
			} else {
				w.check(point.WaitEntered(t.Context(), f.Times))
			}
			point.Off()
			w.wantExact()
			o.wantRunning(t)
			if n := sent.all() - before; n > stormy {
				t.Errorf("%d commands sent:\n%s\n%s", n, began, sent)
			}
		})
	}
	w.check(ignoreCancelled(o.stop()))
	w.wantEqual()
}

// during lets something without an end of its own go on for d.
func during(t testing.TB, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	<-ctx.Done()
}

func TestCommitsThatFailAreFinishedOrMadeAgainExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	commit := []string{"commitTransaction"}
	// 64 is WriteConcernFailed, 50 MaxTimeMSExpired: the commit came true, or may have. 262, ExceededTimeLimit, and 6,
	// HostUnreachable, are those that the driver itself tries again, at a server that it does not take for gone.
	all := failures(commit, 3, code(112), code(251), realtest.Failure{WriteConcernCode: 64}, code(50), closed)
	all = append(all, failures(commit, soak(1, 3), realtest.Failure{WriteConcernCode: 91}, code(91), code(11000), code(43))...)
	w.survive(t, append(all, forAWhile(commit, closed, realtest.Failure{WriteConcernCode: 64}, code(251), code(50), code(262),
		realtest.Failure{WriteConcernCode: 6})...))
}

func TestWritesThatFailAreMadeAgainExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	update := []string{"update"}
	all := failures(update, 3, code(112), code(251), code(64), code(11000), code(43), closed)
	all = append(all, failures(update, soak(1, 3), code(91))...)
	w.survive(t, append(all, forAWhile(update, code(112), closed)...))
}

func TestTransactionsThatCannotBeAbortedAreMadeAgainExactlyOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	both := []string{"update", "abortTransaction"}
	all := failures(both, 4, code(112), code(251), code(11000))
	all = append(all, failures(both, soak(1, 4), code(91), closed)...)
	w.survive(t, append(all, forAWhile(both, code(251), closed)...))
}

func TestReadingThatFailsGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	getMore := []string{"getMore"}
	// Each of them costs a pause of a second.
	all := failures(getMore, soak(1, 3), code(112), code(43), code(11000), closed)
	if soak(0, 1) > 0 {
		all = append(all, failures(getMore, 3, code(251), code(64), code(91))...)
	}
	w.survive(t, append(all, forAWhile(getMore, code(91))...))
}

func TestOpeningThatFailsIsTriedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.begin()
	client, sent := w.named()
	opening := []string{"aggregate", "find", "findAndModify"}
	all := failures(opening, soak(1, 3), code(112), code(91), code(11000), closed)
	for _, f := range append(all, failures(opening, 3, closed)[1]) {
		t.Run(nameOf(f), func(t *testing.T) {
			before := sent.all()
			f.AppName = w.name
			point := realtest.FailCommand(t, w.client, f)
			o := w.follow(following{client: client})
			w.churn(t.Context(), 5)
			w.check(point.WaitEntered(t.Context(), f.Times))
			w.wantExact()
			w.check(ignoreCancelled(o.stop()))
			if n := sent.all() - before; n > stormy {
				t.Errorf("%d commands sent: %s", n, sent)
			}
		})
	}
	w.wantEqual()
}

func TestACommitWhoseAnswerIsLostAppliesOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	moves := w.moves()
	w.begin()
	for n := 1; n <= soak(4, 5); n++ {
		w.churn(t.Context(), 30)
		broken := w.severed(step{command: "commitTransaction", after: true}, n)
		o := w.follow(following{client: broken.Client, batchEvents: 20})
		stop := w.keepChurning()
		waitFor(t, broken.done, "a commit without an answer")
		stop()
		broken.proxy.Heal()
		w.wantExact()
		w.check(ignoreCancelled(o.stop()))
	}
	w.wantEqual()
	wantNoGaps(t, moves())
}

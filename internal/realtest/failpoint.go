package realtest

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// Failure says which commands fail, how often and how. The zero value of a field leaves that part out.
type Failure struct {
	// Commands are the names of those that fail, such as "commitTransaction", "getMore" or "update".
	Commands []string
	// Times is how often: 0 is once, -1 until it is turned off.
	Times int
	// Skip lets that many through first; then every one fails until it is turned off. It excludes Times.
	Skip int
	// AppName limits it to clients with this appName. Background work of other clients otherwise uses up Times.
	AppName string

	// Code is the server's error code; the command is not executed. After one that tells of a failover (91, 10107, 11600) the
	// client takes the server for gone until its next heartbeat: half a second for [Client], ten for the driver's default.
	Code int32
	// Labels replace the error labels that the server would choose for Code.
	Labels []string
	// WriteConcernCode executes the command and then reports a write concern error.
	WriteConcernCode int32
	// CloseConnection drops the connection instead of answering; the command is not executed.
	CloseConnection bool
	// Block holds the command for so long before it is executed, or fails by one of the above.
	Block time.Duration
}

// FailPoint is a [Failure] that is on.
type FailPoint struct {
	admin  *mongo.Database
	before int64 // how often the server's fail point was entered before this one
	off    func()
}

const failCommand = "failCommand"

// FailCommand makes commands fail on the server that the client is connected to, until cleanup or [FailPoint.Off]. The server must
// run with test commands.
//
// A server has one such fail point: a second Failure replaces the first, and turning either off turns off both. Tests that run in
// parallel therefore take turns; subtests of one test are on their own.
func FailCommand(t testing.TB, client *mongo.Client, failure Failure) *FailPoint {
	t.Helper()
	release := failTurns.acquire(t)
	admin := client.Database("admin")
	before, err := configure(t.Context(), admin, failure.mode(), failure.data())
	if err != nil {
		release()
		t.Fatalf("set fail point: %v", err)
	}
	f := &FailPoint{admin: admin, before: before}
	f.off = sync.OnceFunc(func() {
		defer release()
		f.turnOff(t)
	})
	t.Cleanup(f.Off)
	return f
}

// Off turns the fail point off; again does nothing.
func (f *FailPoint) Off() { f.off() }

func (f *FailPoint) turnOff(t testing.TB) {
	t.Helper()
	ctx, cancel := cleanupContext(t)
	defer cancel()
	_, err := configure(ctx, f.admin, "off", nil)
	switch {
	case err == nil:
	case mongo.IsNetworkError(err), mongo.IsTimeout(err): // a server that is gone took its fail point along
		t.Logf("turn off fail point: %v", err)
	default:
		t.Errorf("turn off fail point: %v", err)
	}
}

// TimesEntered is how many commands have failed, or begun to block, since this fail point was set.
func (f *FailPoint) TimesEntered(ctx context.Context) (int, error) {
	var reply struct {
		FailPoint struct {
			Entered int64 `bson:"timesEntered"`
		} `bson:"failpoint.failCommand"`
	}
	command := bson.D{{Key: "getParameter", Value: 1}, {Key: "failpoint." + failCommand, Value: 1}}
	if err := f.admin.RunCommand(ctx, command).Decode(&reply); err != nil {
		return 0, fmt.Errorf("read fail point: %w", err)
	}
	return int(reply.FailPoint.Entered - f.before), nil
}

// WaitEntered returns when n commands have failed, or begun to block, since this fail point was set.
func (f *FailPoint) WaitEntered(ctx context.Context, n int) error {
	command := bson.D{
		{Key: "waitForFailPoint", Value: failCommand},
		{Key: "timesEntered", Value: f.before + int64(n)},
		{Key: "maxTimeMS", Value: int64(waitLimit(ctx) / time.Millisecond)},
	}
	if err := f.admin.RunCommand(ctx, command).Err(); err != nil {
		return fmt.Errorf("wait for fail point: %w", err)
	}
	return nil
}

// waitLimit is the time that the server may wait: it asks for a limit even where we have none.
func waitLimit(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return time.Minute
	}
	return max(time.Until(deadline), time.Millisecond)
}

// configure sets the fail point and returns how often it was entered before.
func configure(ctx context.Context, admin *mongo.Database, mode any, data bson.D) (int64, error) {
	command := bson.D{{Key: "configureFailPoint", Value: failCommand}, {Key: "mode", Value: mode}}
	if data != nil {
		command = append(command, bson.E{Key: "data", Value: data})
	}
	var reply struct {
		Count int64 `bson:"count"`
	}
	err := admin.RunCommand(ctx, command).Decode(&reply)
	return reply.Count, err
}

func (f Failure) mode() any {
	switch {
	case f.Skip > 0:
		return bson.D{{Key: "skip", Value: f.Skip}}
	case f.Times < 0:
		return "alwaysOn"
	default:
		return bson.D{{Key: "times", Value: orDefault(f.Times, 1)}}
	}
}

func (f Failure) data() bson.D {
	data := bson.D{{Key: "failCommands", Value: f.Commands}}
	add := func(on bool, fields ...bson.E) {
		if on {
			data = append(data, fields...)
		}
	}
	add(f.AppName != "", bson.E{Key: "appName", Value: f.AppName})
	add(f.Code != 0, bson.E{Key: "errorCode", Value: f.Code})
	add(f.Labels != nil, bson.E{Key: "errorLabels", Value: f.Labels})
	add(f.CloseConnection, bson.E{Key: "closeConnection", Value: true})
	add(f.Block > 0,
		bson.E{Key: "blockConnection", Value: true},
		bson.E{Key: "blockTimeMS", Value: f.Block.Milliseconds()})
	add(f.WriteConcernCode != 0, bson.E{Key: "writeConcernError", Value: bson.D{
		{Key: "code", Value: f.WriteConcernCode},
		{Key: "errmsg", Value: "set by a fail point"},
	}})
	return data
}

// turns lets one test at a time have fail points on, as many as it likes.
type turns struct {
	mu     sync.Mutex
	holder string // the top-level test that has them
	held   int    // how many it has
	free   chan struct{}
}

var failTurns turns

// acquire waits for the test's turn, and returns what gives it back.
func (u *turns) acquire(t testing.TB) func() {
	t.Helper()
	name, _, _ := strings.Cut(t.Name(), "/")
	for {
		wait := u.try(name)
		if wait == nil {
			return u.release
		}
		select {
		case <-wait:
		case <-t.Context().Done():
			t.Fatalf("wait for another test's fail point: %v", t.Context().Err())
		}
	}
}

// try returns nil when it is the test's turn, and otherwise what to wait for.
func (u *turns) try(name string) <-chan struct{} {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.held > 0 && u.holder != name {
		return u.free
	}
	if u.held == 0 {
		u.holder, u.free = name, make(chan struct{})
	}
	u.held++
	return nil
}

func (u *turns) release() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.held--
	if u.held == 0 {
		close(u.free)
	}
}

package realtest_test

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

const patience = 30 * time.Second

func limited(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

func TestKilledServerKeepsItsDataOverARestart(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{OplogMB: 1, SyncDelay: time.Second})
	client := realtest.Client(t, m.URI())
	if err := insert(t.Context(), client, "kept"); err != nil {
		t.Fatal(err)
	}

	m.Kill()
	if conn, err := net.Dial("tcp", m.Addr()); err == nil {
		_ = conn.Close()
		t.Error("a killed server still takes connections")
	}
	if err := m.Restart(limited(t)); err != nil {
		t.Fatal(err)
	}
	if n := countRows(t, client, "kept"); n != 1 {
		t.Errorf("rows after kill and restart: got %d, want 1", n)
	}

	if err := m.Restart(limited(t)); err != nil {
		t.Fatalf("restart of a running server: %v", err)
	}
	if n := countRows(t, client, "kept"); n != 1 {
		t.Errorf("rows after an orderly restart: got %d, want 1", n)
	}
	if !strings.Contains(m.LogTail(), "{") {
		t.Errorf("log tail holds no log line: %q", m.LogTail())
	}
}

func TestPausedServerIsSilentUntilResumed(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{})
	client := onceClient(t, m.URI(), t.Name())
	if err := insert(t.Context(), client, "rows"); err != nil {
		t.Fatal(err)
	}

	if err := m.Pause(limited(t)); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := insert(short, client, "rows"); !mongo.IsTimeout(err) {
		t.Errorf("insert into a paused server: got %v, want a timeout", err)
	}
	conn, err := net.Dial("tcp", m.Addr())
	if err != nil {
		t.Fatalf("the kernel should still take connections: %v", err)
	}
	_ = conn.Close()

	m.Resume()
	if err := insert(limited(t), client, "rows"); err != nil {
		t.Errorf("insert after resume: %v", err)
	}
}

func TestPausedServerStops(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{Standalone: true})
	if err := m.Pause(limited(t)); err != nil {
		t.Fatal(err)
	}
	if err := m.Stop(); err != nil {
		t.Error(err)
	}
}

func TestStandaloneIsNoReplicaSet(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{Standalone: true})
	client := realtest.Client(t, m.URI())
	if err := insert(t.Context(), client, "rows"); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Watch(t.Context(), mongo.Pipeline{}); err == nil {
		t.Error("a standalone server opened a change stream")
	}
}

func TestOptionsReachTheServer(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "server.log")
	m := realtest.Private(t, realtest.Options{LogTo: log, CacheGB: 0.5, Params: map[string]string{"ttlMonitorSleepSecs": "7"}})
	client := realtest.Client(t, m.URI())

	var reply struct {
		Sleep int `bson:"ttlMonitorSleepSecs"`
	}
	command := bson.D{{Key: "getParameter", Value: 1}, {Key: "ttlMonitorSleepSecs", Value: 1}}
	if err := client.Database("admin").RunCommand(t.Context(), command).Decode(&reply); err != nil {
		t.Fatal(err)
	}
	if reply.Sleep != 7 {
		t.Errorf("ttlMonitorSleepSecs: got %d, want 7", reply.Sleep)
	}
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(log); err != nil || info.Size() == 0 {
		t.Errorf("log file after stop: %v, %v", info, err)
	}
}

func TestAuthRefusesAWrongPassword(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{Auth: true})
	if err := insert(t.Context(), realtest.Client(t, m.URI()), "rows"); err != nil {
		t.Fatalf("with the right password: %v", err)
	}

	const unauthorized, authenticationFailed = 13, 18
	anonymous := realtest.Client(t, "mongodb://"+m.Addr()+"/?directConnection=true")
	if err := insert(t.Context(), anonymous, "rows"); !hasCode(err, unauthorized) {
		t.Errorf("without credentials: got %v, want code %d", err, unauthorized)
	}
	wrong := realtest.Client(t, m.URI(), options.Client().SetAuth(options.Credential{
		Username: realtest.RootUser, Password: "wrong", AuthSource: "admin",
	}))
	err := insert(t.Context(), wrong, "rows")
	var command mongo.CommandError
	if !errors.As(err, &command) || command.Code != authenticationFailed {
		t.Errorf("with a wrong password: got %v, want code %d", err, authenticationFailed)
	}
}

func TestFailedStartShowsTheLog(t *testing.T) {
	t.Parallel()
	m, err := realtest.StartMongod(limited(t), realtest.Options{Params: map[string]string{"noSuchParameter": "1"}})
	if err == nil {
		t.Fatal(errors.Join(errors.New("a server with an unknown parameter started"), m.Stop()))
	}
	if !strings.Contains(err.Error(), "noSuchParameter") {
		t.Errorf("error does not hold the server's words: %v", err)
	}
}

func TestCancelledStartLeavesNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if m, err := realtest.StartMongod(ctx, realtest.Options{}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, %v, want context.Canceled", m, err)
	}
}

func TestBinaryMissingSaysHowToGetOne(t *testing.T) {
	t.Setenv("DRIFTLESS_MONGOD", "")
	t.Setenv("PATH", t.TempDir())
	t.Chdir(t.TempDir())
	_, err := realtest.Binary()
	if !errors.Is(err, realtest.ErrNoMongod) || !strings.Contains(err.Error(), "scripts/get-mongod") {
		t.Errorf("got %v, want the way to get one", err)
	}
}

func TestBinaryNamedByTheEnvironmentMustExist(t *testing.T) {
	t.Setenv("DRIFTLESS_MONGOD", filepath.Join(t.TempDir(), "none"))
	if path, err := realtest.Binary(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %q, %v, want that it does not exist", path, err)
	}
}

func TestDatabaseNames(t *testing.T) {
	t.Parallel()
	names := map[string]bool{}
	for range 3 {
		name := realtest.Database(t)
		if len(name) > 38 || strings.ContainsAny(name, "/. $\"") || names[name] {
			t.Errorf("bad or repeated database name %q", name)
		}
		names[name] = true
	}
}

func TestDatabaseIsDropped(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	var name string
	t.Run("inner", func(t *testing.T) {
		name = realtest.Database(t)
		if err := insert(t.Context(), client, name); err != nil {
			t.Fatal(err)
		}
	})
	left, err := client.ListDatabaseNames(t.Context(), bson.D{{Key: "name", Value: name}})
	if err != nil {
		t.Fatal(err)
	}
	if len(left) != 0 {
		t.Errorf("database left after its test: %v", left)
	}
}

func TestGetMongodScriptAgreesWithBinary(t *testing.T) {
	t.Parallel()
	want, err := realtest.Binary()
	if err != nil {
		t.Fatal(err)
	}
	got, err := exec.CommandContext(limited(t), "../../scripts/get-mongod").Output()
	if err != nil {
		t.Fatal(err)
	}
	if strings.TrimSpace(string(got)) != want {
		t.Errorf("scripts/get-mongod prints %q, Binary finds %q", got, want)
	}
}

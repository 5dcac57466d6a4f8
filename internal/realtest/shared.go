package realtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.uber.org/goleak"
)

// startTimeout is generous: packages start their servers side by side on few cores.
const startTimeout = time.Minute

// Server is a server that tests share, and that therefore none of them can stop.
type Server struct {
	uri    string
	mongod *Mongod // nil when MONGODB_URI names the server
}

// URI connects to the server.
func (s *Server) URI() string { return s.uri }

// shared starts at most once in a test binary; a failed start is not tried again, every test would wait for it.
var shared struct {
	once   sync.Once
	server *Server
	err    error
}

// Shared returns the server that the tests of this binary share, and starts it on first use: a replica set of one member with
// fail points. Where there is no mongod to run it is the one in MONGODB_URI; without that either the test fails.
func Shared(t testing.TB) *Server {
	t.Helper()
	shared.once.Do(func() { shared.server, shared.err = startShared(t.Context()) })
	if shared.err != nil {
		t.Fatalf("shared server: %v", shared.err)
	}
	return shared.server
}

func startShared(ctx context.Context) (*Server, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTimeout)
	defer cancel()
	mongod, err := StartMongod(ctx, Options{TestCommands: true})
	if uri := os.Getenv("MONGODB_URI"); errors.Is(err, ErrNoMongod) && uri != "" {
		return &Server{uri: uri}, nil
	}
	if err != nil {
		return nil, err
	}
	return &Server{uri: mongod.URI(), mongod: mongod}, nil
}

// Main runs the tests of a package, stops the shared servers, checks that no goroutine is left, and exits. It is for TestMain.
func Main(m *testing.M, ignore ...goleak.Option) {
	code := m.Run()
	if err := StopShared(); err != nil {
		fmt.Fprintln(os.Stderr, "realtest: stop shared servers:", err)
		code = max(code, 1)
	}
	if code == 0 { // a test that failed may well have left something behind; one report is enough
		if err := goleak.Find(ignore...); err != nil {
			fmt.Fprintln(os.Stderr, "realtest:", err)
			code = 1
		}
	}
	os.Exit(code)
}

// StopShared stops the servers that the tests of a binary share, for a TestMain that does not use [Main].
func StopShared() error { return errors.Join(stopShared(), stopSharedKafka()) }

func stopShared() error {
	if shared.server == nil || shared.server.mongod == nil {
		return nil
	}
	return shared.server.mongod.Stop()
}

// LeakOptions are for a test that looks for leaked goroutines itself: they leave out the one that waits for the shared server.
func LeakOptions() []goleak.Option {
	return []goleak.Option{goleak.IgnoreAnyFunction("driftless/internal/realtest.(*process).run")}
}

// Private starts a server for one test, with fail points, and stops it at cleanup.
func Private(t testing.TB, o Options) *Mongod {
	t.Helper()
	o.TestCommands = true
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	m, err := StartMongod(ctx, o)
	if err != nil {
		t.Fatalf("start private server: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", m.Addr(), m.LogTail())
		}
		if err := m.Stop(); err != nil {
			t.Errorf("stop private server: %v", err)
		}
	})
	return m
}

// Client returns a client that is disconnected at cleanup. Further options are applied over the URI's; unless they say otherwise
// it gives up after ten seconds without a server, and looks at its servers twice a second. (The default is to look every ten
// seconds, and in between to believe in a "not primary" that a fail point made up.)
func Client(t testing.TB, uri string, more ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	base := options.Client().SetServerSelectionTimeout(10 * time.Second).SetHeartbeatInterval(500 * time.Millisecond).ApplyURI(uri)
	client, err := mongo.Connect(append([]*options.ClientOptions{base}, more...)...)
	if err != nil {
		t.Fatalf("connect to mongod: %v", err)
	}
	t.Cleanup(func() {
		// Short, since the client would tell a server that is gone about its sessions until the time is up.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Second)
		defer cancel()
		if err := client.Disconnect(ctx); err != nil {
			t.Errorf("disconnect from mongod: %v", err)
		}
	})
	return client
}

// Database returns a name for a database on the shared server, which nothing else uses and which is dropped at cleanup: the
// test's name, as far as 38 bytes hold it, and a random end.
func Database(t testing.TB) string {
	t.Helper()
	return DatabaseOn(t, Client(t, Shared(t).URI()))
}

// DatabaseOn is [Database] for another server. It must not be stopped when the test ends.
func DatabaseOn(t testing.TB, client *mongo.Client) string {
	t.Helper()
	name := databaseName(t.Name())
	t.Cleanup(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		if err := client.Database(name).Drop(ctx); err != nil {
			t.Errorf("drop test database: %v", err)
		}
	})
	return name
}

// maxDatabaseName is where the oldest servers that we meet stop taking names with room for a collection.
const maxDatabaseName = 38

func databaseName(test string) string {
	end := "_" + strings.ToLower(rand.Text()[:8])
	clean := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, strings.ToLower(test))
	return clean[:min(len(clean), maxDatabaseName-len(end))] + end
}

// cleanupContext outlives the test's own, which is cancelled before cleanup.
func cleanupContext(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
}

// Eventually waits until done is true, and fails the test with what was waited for when it is not within the timeout.
func Eventually(t testing.TB, timeout time.Duration, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
	defer cancel()
	if err := poll(ctx, func(context.Context) (bool, error) { return done(), nil }); err != nil {
		t.Fatalf("after %v still waiting: %s", timeout, what)
	}
}

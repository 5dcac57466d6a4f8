package realtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	pollInterval = 20 * time.Millisecond
	stopGrace    = 30 * time.Second
	startTries   = 5
)

// errPortTaken means that another process took the port between our look and the server's.
var errPortTaken = errors.New("port taken")

// Mongod is one server process with its data directory and its port, which survive [Mongod.Kill] and [Mongod.Restart].
// Its methods may be called side by side, except for two that start or stop it.
type Mongod struct {
	options Options
	binary  string
	dir     *dataDir
	port    int
	log     serverLog

	mu   sync.Mutex
	proc *process // the last one started, which may be gone
}

// StartMongod starts a server and returns when it takes writes. The context limits the start only: the server runs until
// [Mongod.Stop], or until this process ends. The error holds the end of the server's log.
func StartMongod(ctx context.Context, options Options) (*Mongod, error) {
	m, err := startProcessFor(ctx, options)
	if err != nil {
		return nil, err
	}
	if err := m.prepare(ctx); err != nil {
		err = fmt.Errorf("prepare mongod: %w\n%s", err, m.LogTail())
		return nil, errors.Join(err, m.Stop())
	}
	return m, nil
}

// startProcessFor starts a server that listens; it is not a member of anything yet.
func startProcessFor(ctx context.Context, options Options) (*Mongod, error) {
	binary, err := Binary()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		m, err := newMongod(binary, options)
		if err != nil {
			return nil, err
		}
		err = m.launch(ctx)
		if err == nil {
			return m, nil
		}
		err = errors.Join(err, m.Stop())
		if try == startTries || !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
}

func newMongod(binary string, options Options) (*Mongod, error) {
	port, err := FreePort()
	if err != nil {
		return nil, err
	}
	if options.Auth && options.key == "" {
		options.key = rand.Text()
	}
	dir, err := newDataDir("mongod")
	if err != nil {
		return nil, err
	}
	m := &Mongod{options: options, binary: binary, dir: dir, port: port}
	m.log = serverLog(orDefault(options.LogTo, dir.file("mongod.log")))
	if err := m.layOut(); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	return m, nil
}

func (m *Mongod) layOut() error {
	if err := os.Mkdir(m.dir.file("data"), 0o700); err != nil {
		return fmt.Errorf("create data directory: %w", err)
	}
	if m.options.Auth {
		if err := os.WriteFile(m.dir.file("key"), []byte(m.options.key), 0o600); err != nil {
			return fmt.Errorf("write key file: %w", err)
		}
	}
	return nil
}

// FreePort picks below the range from which the kernel numbers outgoing connections (32768 and up), so that no client takes the
// port while its server is down.
func FreePort() (int, error) {
	for range 100 {
		port := 20000 + mathrand.IntN(12000)
		listener, err := net.Listen("tcp", address(port))
		if err == nil {
			return port, listener.Close()
		}
	}
	return 0, errors.New("find free port: none of 100 was free")
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// launch starts the process and returns when it listens.
func (m *Mongod) launch(ctx context.Context) error {
	before := m.log.size()
	proc, err := startLogged(exec.Command(m.binary, append(m.options.arguments(), m.placeArguments()...)...), m.log)
	if err != nil {
		return fmt.Errorf("start mongod: %w", err)
	}
	m.setProcess(proc)
	if err := waitLogged(ctx, proc, m.log, before, `"Waiting for connections"`); err != nil {
		proc.kill()
		return fmt.Errorf("start mongod: %w\n%s", err, m.LogTail())
	}
	return nil
}

func (m *Mongod) placeArguments() []string {
	args := []string{"--dbpath", m.dir.file("data"), "--port", strconv.Itoa(m.port)}
	if m.options.Auth {
		args = append(args, "--auth", "--keyFile", m.dir.file("key"))
	}
	return args
}

// prepare makes the server what the options ask for.
func (m *Mongod) prepare(ctx context.Context) error {
	if !m.options.Standalone {
		if err := m.initiate(ctx, []*Mongod{m}); err != nil {
			return err
		}
	}
	if err := m.waitReady(ctx); err != nil {
		return err
	}
	return m.createRoot(ctx)
}

// Addr is the server's host and port.
func (m *Mongod) Addr() string { return address(m.port) }

// URI connects to this server, with credentials if it asks for them: as a replica set if it is one of a single member, directly
// if it is one of several or a standalone.
func (m *Mongod) URI() string {
	if m.options.Standalone || m.options.inSet {
		return m.directURI()
	}
	return mongoURI(m.options, "replicaSet="+replicaSetName, m)
}

func (m *Mongod) directURI() string { return mongoURI(m.options, "directConnection=true", m) }

func mongoURI(options Options, query string, members ...*Mongod) string {
	hosts := make([]string, len(members))
	for i, member := range members {
		hosts[i] = member.Addr()
	}
	user := ""
	if options.Auth {
		user = RootUser + ":" + RootPassword + "@"
	}
	return "mongodb://" + user + strings.Join(hosts, ",") + "/?" + query
}

// Stop ends the server in order and removes its data. Calling it again does nothing.
func (m *Mongod) Stop() error {
	if proc := m.process(); proc != nil {
		proc.terminate(stopGrace)
	}
	return m.dir.remove()
}

// Kill ends the server as a crash would, and keeps its data for [Mongod.Restart].
func (m *Mongod) Kill() { m.process().kill() }

// Restart starts the server again on the same data and port, and returns when it is ready: writable, or for a member of a larger
// set primary or secondary. If it still runs it is first stopped in order.
func (m *Mongod) Restart(ctx context.Context) error {
	m.process().terminate(stopGrace)
	if err := m.launch(ctx); err != nil {
		return err
	}
	return m.waitReady(ctx)
}

// Pause stops the server from doing anything, while the kernel still takes connections and data for it: a half-open peer. It
// returns when no thread runs any more.
func (m *Mongod) Pause(ctx context.Context) error {
	proc := m.process()
	proc.signal(syscall.SIGSTOP)
	return poll(ctx, func(context.Context) (bool, error) { return proc.stopped(), nil })
}

// Resume ends a [Mongod.Pause].
func (m *Mongod) Resume() { m.process().signal(syscall.SIGCONT) }

// LogTail is the end of the server's log, about 8 kB; empty when there is none.
func (m *Mongod) LogTail() string { return m.log.tail() }

func (m *Mongod) process() *process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.proc
}

func (m *Mongod) setProcess(p *process) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.proc = p
}

// poll asks until done is true or an error, and gives up with the context.
func poll(ctx context.Context, done func(context.Context) (bool, error)) error {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		if ok, err := done(ctx); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

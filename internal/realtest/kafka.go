package realtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
)

// Kafka is one broker, its own controller, with its data directory and its ports, which survive [Kafka.Kill] and
// [Kafka.Restart]. Its methods may be called side by side, except for two that start or stop it.
type Kafka struct {
	options      KafkaOptions
	dir          *dataDir
	ports        [numListeners]int
	certificates Certificates
	log          serverLog
	transport    *kafka.Transport
	client       *kafka.Client

	mu   sync.Mutex
	proc *process // the last one started, which may be gone
}

// StartKafka starts a broker and returns when it takes requests. The context limits the start only: the broker runs until
// [Kafka.Stop], or until this process ends. The error holds the end of the broker's log.
func StartKafka(ctx context.Context, options KafkaOptions) (*Kafka, error) {
	for try := 1; ; try++ {
		k, err := newKafka(options)
		if err != nil {
			return nil, err
		}
		if err = k.launch(ctx); err == nil {
			return k, nil
		}
		err = errors.Join(err, k.Stop())
		if try == startTries || !errors.Is(err, errPortTaken) {
			return nil, err
		}
	}
}

func newKafka(options KafkaOptions) (*Kafka, error) {
	dir, err := newDataDir("kafka")
	if err != nil {
		return nil, err
	}
	k := &Kafka{options: options, dir: dir, log: serverLog(dir.file("kafka.log"))}
	if err := k.layOut(); err != nil {
		return nil, errors.Join(err, dir.remove())
	}
	// Topics come and go in tests, so what is known of them is looked up often.
	k.transport = &kafka.Transport{MetadataTTL: 200 * time.Millisecond, ClientID: "realtest"}
	k.client = &kafka.Client{Addr: kafka.TCP(k.Addr()), Transport: k.transport, Timeout: startTimeout}
	return k, nil
}

func (k *Kafka) layOut() error {
	for l := range k.ports {
		port, err := FreePort()
		if err != nil {
			return err
		}
		k.ports[l] = port
	}
	var err error
	if k.certificates, err = NewCertificates(k.dir.path); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(k.settingsPath(), []byte(k.settings()), 0o600), os.Mkdir(k.DataDir(), 0o700),
		os.WriteFile(filepath.Join(k.DataDir(), "meta.properties"), []byte(metadata), 0o600))
}

func (k *Kafka) settingsPath() string { return k.dir.file("server.properties") }

// metadata makes the data directory one that the broker takes for its own, as Kafka's StorageTool would in a process of its own.
const metadata = `version=1
cluster.id=ZHJpZnRsZXNzLXRlc3RzIQ
node.id=1
directory.id=ZHJpZnRsZXNzLWRhdGEtMQ
`

// launch starts the process and returns when it takes requests.
func (k *Kafka) launch(ctx context.Context) error {
	cmd, err := javaCommand(append(k.options.javaOptions(), "kafka.Kafka", k.settingsPath())...)
	if err != nil {
		return err
	}
	before := k.log.size()
	proc, err := k.run(func() (*process, error) { return startLogged(cmd, k.log) })
	if err != nil {
		return fmt.Errorf("start kafka: %w", err)
	}
	if err := waitLogged(ctx, proc, k.log, before, "Kafka Server started"); err != nil {
		proc.kill()
		return fmt.Errorf("start kafka: %w\n%s", err, k.LogTail())
	}
	return nil
}

func (k *Kafka) run(start func() (*process, error)) (*process, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	proc, err := start()
	if err == nil {
		k.proc = proc
	}
	return proc, err
}

func (k *Kafka) process() *process {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.proc
}

// Addr is host and port of the listener that asks for nothing.
func (k *Kafka) Addr() string { return address(k.ports[plainListener]) }

// TLSAddr is host and port of the listener with TLS.
func (k *Kafka) TLSAddr() string { return address(k.ports[tlsListener]) }

// MutualTLSAddr is host and port of the listener with TLS that asks for a client's certificate.
func (k *Kafka) MutualTLSAddr() string { return address(k.ports[mutualListener]) }

// SASLAddr is host and port of the listener that asks for [KafkaUser].
func (k *Kafka) SASLAddr() string { return address(k.ports[saslListener]) }

// SASLTLSAddr is host and port of the listener with TLS that asks for [KafkaUser].
func (k *Kafka) SASLTLSAddr() string { return address(k.ports[saslTLSListener]) }

// Certificates are those that the broker believes in, and its clients should.
func (k *Kafka) Certificates() Certificates { return k.certificates }

// DataDir holds a directory for each partition, "topic-0" and so on.
func (k *Kafka) DataDir() string { return k.dir.file("data") }

// Stop ends the broker and removes its data, for which there is no need of an order. Calling it again does nothing.
func (k *Kafka) Stop() error {
	if proc := k.process(); proc != nil {
		proc.kill()
	}
	k.transport.CloseIdleConnections()
	return k.dir.remove()
}

// Kill ends the broker as a crash would, and keeps its data for [Kafka.Restart].
func (k *Kafka) Kill() { k.process().kill() }

// Restart starts the broker again on the same data and ports, and returns when it takes requests. If it still runs it is first
// stopped in order.
func (k *Kafka) Restart(ctx context.Context) error {
	k.process().terminate(stopGrace)
	k.transport.CloseIdleConnections() // they are dead, and a write would notice too late
	return k.launch(ctx)
}

// LogTail is the end of the broker's log, about 8 kB; empty when there is none.
func (k *Kafka) LogTail() string { return k.log.tail() }

// sharedKafka starts at most once in a test binary, as the shared server does.
var sharedKafka struct {
	once  sync.Once
	kafka *Kafka
	err   error
}

// SharedKafka returns the broker that the tests of this binary share, and that therefore none of them stops. It starts on first
// use; [Main] stops it.
func SharedKafka(t testing.TB) *Kafka {
	t.Helper()
	sharedKafka.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), startTimeout)
		defer cancel()
		sharedKafka.kafka, sharedKafka.err = StartKafka(ctx, KafkaOptions{})
	})
	if sharedKafka.err != nil {
		t.Fatalf("shared broker: %v", sharedKafka.err)
	}
	return sharedKafka.kafka
}

func stopSharedKafka() error {
	if sharedKafka.kafka == nil {
		return nil
	}
	return sharedKafka.kafka.Stop()
}

// PrivateKafka starts a broker for one test and stops it at cleanup.
func PrivateKafka(t testing.TB, o KafkaOptions) *Kafka {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	k, err := StartKafka(ctx, o)
	if err != nil {
		t.Fatalf("start private broker: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of %s:\n%s", k.Addr(), k.LogTail())
		}
		if err := k.Stop(); err != nil {
			t.Errorf("stop private broker: %v", err)
		}
	})
	return k
}

// Package kafka reads what happened to the rows out of one topic: partitions as ordered batches of committed records, each with
// the position behind it, and the group that spreads the partitions over instances. It knows nothing about what records mean.
//
// It speaks to brokers through kafka-go's Transport, which keeps connections, and not through its Reader, which delivers aborted
// records and control markers. Fetches and topic metadata are encoded here: kafka-go's stop at versions without topic ids, and its
// record batches hide where they end, so that a reader could not get past records that compaction has removed from a batch's end.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/apiversions"
	"github.com/segmentio/kafka-go/sasl"

	"driftless/internal/config"
	"driftless/internal/stream"
)

// clientID is how we appear in a broker's logs and quotas.
const clientID = "driftless"

// requestTimeout is how long a broker may take for an answer, beyond the time that it is asked to wait.
const requestTimeout = 10 * time.Second

// Options say which topic to read, and where. The zero value of a field without a comment is not valid.
type Options struct {
	Brokers []string // host:port, any of the cluster
	Topic   string
	TLS     config.TLS  // zero: no TLS, unless RequireTLS
	SASL    config.SASL // zero: no authentication

	// RequireTLS asks for TLS with the system's authorities where TLS names no files.
	RequireTLS bool
	// Dial replaces the net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Log is told of retries; nil for slog's default.
	Log *slog.Logger
	// OnRetry is called with the cause, an error that [Classify] has seen, before a request is tried again. It must not block.
	OnRetry func(error)
	// PartitionBytes is how much of one partition is fetched at a time, and how much waits for a consumer that is behind; 0 is 2 MiB.
	// A larger batch of a producer comes whole.
	PartitionBytes int
	// Wait is how long a broker holds a fetch that finds nothing; 0 is 500 ms.
	Wait time.Duration
}

// OptionsOf are what a configured source says.
func OptionsOf(k *config.Kafka) Options {
	return Options{Brokers: k.Brokers, Topic: k.Topic, TLS: k.TLS, SASL: k.SASL, RequireTLS: k.TLS.Enabled}
}

// Client is the connection to the cluster of one topic. Its methods may be called side by side.
type Client struct {
	options   Options
	log       *slog.Logger
	conns     *connections
	sasl      sasl.Mechanism // nil for none
	transport *kafka.Transport
	stop      context.CancelFunc // ends what the transport does in the background
	addr      net.Addr
}

// New checks the options, as far as that can be done without connecting: files that are missing or cannot be parsed.
func New(o Options) (*Client, error) {
	c := &Client{options: o, log: o.Log}
	if c.log == nil {
		c.log = slog.Default()
	}
	c.options.PartitionBytes = orDefault(o.PartitionBytes, 2<<20)
	c.options.Wait = orDefault(o.Wait, 500*time.Millisecond)
	dial, err := newDial(o)
	if err != nil {
		return nil, fmt.Errorf("read certificates: %w", err)
	}
	if c.sasl, err = newMechanism(o.SASL); err != nil {
		return nil, err
	}
	c.conns = &connections{dial: dial}
	background, stop := context.WithCancel(context.Background()) //nolint:forbidigo // until Close
	c.stop = stop
	c.addr = kafka.TCP(o.Brokers...)
	c.transport = &kafka.Transport{
		Dial: c.conns.open, SASL: c.sasl, ClientID: clientID,
		Context: background, DialTimeout: requestTimeout, MetadataTopics: []string{o.Topic},
		// It is for brokers' addresses alone. The time is drawn anew from zero to this.
		MetadataTTL: 4 * time.Second,
	}
	return c, nil
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

// Close closes all connections. Readers and groups must be closed before.
func (c *Client) Close() {
	c.stop()
	c.transport.CloseIdleConnections()
	c.conns.close()
}

// anyBroker sends a request over the first connection that comes up.
const anyBroker = -1

// roundTrip sends a request to one broker and returns its answer, or a classified error.
func (c *Client) roundTrip(ctx context.Context, broker int32, wait time.Duration, request protocol.Message) (protocol.Message, error) {
	limited, cancel := context.WithTimeout(ctx, wait+requestTimeout)
	defer cancel()
	response, err := c.transport.RoundTrip(limited, c.addr, &routed{Message: request, broker: broker})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w: no answer within %v from %s", stream.ErrInterrupted, wait+requestTimeout, c.where(broker))
	case err != nil:
		return nil, Classify(err)
	}
	return response, nil
}

func (c *Client) where(broker int32) string {
	if broker == anyBroker {
		return strings.Join(c.options.Brokers, ", ")
	}
	return fmt.Sprintf("broker %d", broker)
}

// routed sends a request to a broker of our choice. kafka-go would choose by what it remembers of the cluster, which may be
// seconds old.
type routed struct {
	protocol.Message
	broker  int32
	version int16
}

// Broker names the broker to kafka-go, which looks at nothing but the id.
func (r *routed) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: r.broker}, nil
}

// Required tells kafka-go that we write the request ourselves.
func (r *routed) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[r.ApiKey()]
	return true
}

// correlation is the same in every request: a connection carries one at a time.
const correlation = 1

// check asks a broker what it can do, and refuses one that is too old: fetches by topic id came with Kafka 3.1.
func (c *Client) check(ctx context.Context) error {
	answer, err := c.roundTrip(ctx, anyBroker, 0, &apiversions.Request{})
	if err != nil {
		return err
	}
	for _, api := range answer.(*apiversions.Response).ApiKeys {
		if key := protocol.ApiKey(api.ApiKey); key == protocol.Fetch && api.MaxVersion < fetchVersion {
			return fmt.Errorf("%w: it answers fetches of version %d, and Kafka 3.1 or later those of version %d, which name a topic by its id",
				ErrTooOld, api.MaxVersion, fetchVersion)
		}
	}
	return nil
}

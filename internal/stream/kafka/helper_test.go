package kafka

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"driftless/internal/realtest"
)

const patience = 60 * time.Second

func limited(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return ctx
}

// client returns one of the broker's plain listener, changed by edit.
func client(t testing.TB, k *realtest.Kafka, topic string, edit ...func(*Options)) *Client {
	t.Helper()
	o := Options{Brokers: []string{k.Addr()}, Topic: topic, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Wait: 100 * time.Millisecond}
	for _, e := range edit {
		e(&o)
	}
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// running returns a reader that runs until the test ends.
func running(t testing.TB, c *Client) *Reader {
	t.Helper()
	r := c.NewReader()
	start(t, r)
	return r
}

// start lets a reader run until the test ends.
func start(t testing.TB, r *Reader) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { r.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		wg.Wait()
	})
}

// places are the positions of all partitions of the topic.
func places(t testing.TB, c *Client, place Place) map[int32]Position {
	t.Helper()
	topic, err := c.Topic(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	positions, err := c.Positions(limited(t), topic, place)
	if err != nil {
		t.Fatal(err)
	}
	return positions
}

// toEnd reads a lane until a batch has reached the end at an offset or beyond, and checks that batches follow each other.
func toEnd(t testing.TB, l *Lane, from Position, end int64) (records []Record, last Batch) {
	t.Helper()
	ctx, at := limited(t), from
	for {
		b, err := l.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checkBatch(t, b, at)
		records, at = append(records, b.Records...), b.To
		if b.ReachedEnd() && b.To.Offset >= end {
			return records, b
		}
	}
}

// checkBatch fails the test when a batch does not begin where the last one ended, or holds what is not within it.
func checkBatch(t testing.TB, b Batch, at Position) {
	t.Helper()
	if b.From.Offset != at.Offset || b.To.Offset < b.From.Offset {
		t.Fatalf("partition %d: a batch from %d to %d after %d", b.Partition, b.From.Offset, b.To.Offset, at.Offset)
	}
	last := b.From.Offset - 1
	for _, r := range b.Records {
		if r.Offset <= last || r.Offset >= b.To.Offset {
			t.Fatalf("partition %d: offset %d after %d, in a batch from %d to %d", b.Partition, r.Offset, last, b.From.Offset, b.To.Offset)
		}
		last = r.Offset
	}
}

// all reads the first partition from its beginning to its end.
func all(t testing.TB, c *Client, end int64) []Record {
	t.Helper()
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	records, _ := toEnd(t, l, from, end)
	return records
}

// numbered returns records whose values are the numbers from first on.
func numbered(first, n int) []realtest.Record {
	records := make([]realtest.Record, n)
	for i := range records {
		records[i] = realtest.Record{Key: fmt.Append(nil, "key ", (first+i)%10), Value: fmt.Append(nil, first+i)}
	}
	return records
}

func values(records []Record) []string {
	var list []string
	for _, r := range records {
		list = append(list, string(r.Value))
	}
	return list
}

// wantNumbers checks that the records' values are first, first+1, … without end, in order.
func wantNumbers(t testing.TB, records []Record, first, end int) {
	t.Helper()
	var want []string
	for i := first; i < end; i++ {
		want = append(want, fmt.Sprint(i))
	}
	if got := values(records); !slices.Equal(got, want) {
		t.Errorf("got %d records, want %d: %.300q", len(got), len(want), got)
	}
}

func produce(t testing.TB, k *realtest.Kafka, topic string, partition int32, records ...realtest.Record) {
	t.Helper()
	if err := k.Produce(limited(t), topic, partition, records...); err != nil {
		t.Fatal(err)
	}
}

// requests counts the fetches that are sent to brokers.
type requests struct {
	mu    sync.Mutex
	sizes []int // the number of partitions of each fetch
}

func (r *requests) dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &countingConn{Conn: conn, to: r}, err
}

func (r *requests) fetches() []int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sizes)
}

type countingConn struct {
	net.Conn
	to *requests
}

// fetchKey is the fetch's number in the protocol. A fetch is written at once.
const fetchKey = 1

// beforeWants is how many bytes of a fetch stand before the number of its partitions: the size and header, the client's id, the
// fields before the list of topics, its length, and the topic's id.
const beforeWants = 4 + 8 + 2 + len(clientID) + 1 + 25 + 1 + 16

func (c *countingConn) Write(b []byte) (int, error) {
	if len(b) > beforeWants && binary.BigEndian.Uint16(b[4:]) == fetchKey {
		c.to.mu.Lock()
		c.to.sizes = append(c.to.sizes, int(b[beforeWants])-1)
		c.to.mu.Unlock()
	}
	return c.Conn.Write(b)
}

package kafka

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"driftless/internal/realtest"
)

// produceAlways writes to a partition until stopped. A record whose acknowledgement was lost may be there twice: what counts is
// that the reader sees what the broker has.
func produceAlways(t *testing.T, k *realtest.Kafka, topic string) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ctx.Err() == nil; i += 10 {
			once, cancel := context.WithTimeout(ctx, 2*time.Second)
			_ = k.Produce(once, topic, 0, numbered(i, 10)...)
			cancel()
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// wantWhole checks that a lane that was read all the time has delivered each record of the partition once.
func wantWhole(t *testing.T, k *realtest.Kafka, topic string, l *Lane, from Position, got []Record, at Position) {
	t.Helper()
	end := places(t, client(t, k, topic), Latest)[0].Offset
	more, _ := toEnd(t, l, at, end)
	got = append(got, more...)
	want := all(t, client(t, k, topic), end)
	if !slices.EqualFunc(got, want, sameRecord) {
		t.Errorf("read %d records under faults, and %d without", len(got), len(want))
	}
	t.Logf("%d records, from %d", len(got), from.Offset)
}

// readMore reads so many further batches with records.
func readMore(t *testing.T, l *Lane, n int, got []Record, at Position) ([]Record, Position) {
	t.Helper()
	ctx := limited(t)
	for n > 0 {
		b, err := l.Next(ctx)
		if err != nil {
			t.Fatal(err)
		}
		checkBatch(t, b, at)
		if len(b.Records) > 0 {
			n--
		}
		got, at = append(got, b.Records...), b.To
	}
	return got, at
}

func TestABrokerThatIsKilledAndRestartedCostsNoRecord(t *testing.T) {
	t.Parallel()
	k := realtest.PrivateKafka(t, realtest.KafkaOptions{})
	topic := k.Topic(t, 1, nil)
	var mu sync.Mutex
	retries := 0
	c := client(t, k, topic, func(o *Options) {
		o.OnRetry = func(error) { mu.Lock(); defer mu.Unlock(); retries++ }
	})
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	members := roster{generations: map[int32]map[string][]int32{}, held: map[int32]string{}}
	members.join(t, c, topic)
	stop := produceAlways(t, k, topic)
	var got []Record
	at := from
	for range 3 {
		got, at = readMore(t, l, 20, got, at)
		k.Kill()
		if err := k.Restart(limited(t)); err != nil {
			t.Fatal(err)
		}
	}
	got, at = readMore(t, l, 20, got, at)
	stop()
	wantWhole(t, k, topic, l, from, got, at)
	mu.Lock()
	told := retries
	mu.Unlock()
	if told == 0 {
		t.Error("no retry was told of")
	}
	realtest.Eventually(t, patience, "the member has its partition", func() bool { return members.shared(1, 1) })
}

// through makes all connections go to the proxy: a broker would else give its own address.
func through(proxy *realtest.Proxy) dialFunc {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, proxy.Addr())
	}
}

func TestConnectionsThatBreakCostNoRecord(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	proxy := realtest.NewProxy(t, k.Addr())
	c := client(t, k, topic, func(o *Options) { o.Dial = through(proxy) })
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	stop := produceAlways(t, k, topic)
	var got []Record
	at := from
	for _, fault := range []func(){proxy.Cut, func() { proxy.Drop(100) }, func() { proxy.Drop(3000) }, proxy.Silence} {
		got, at = readMore(t, l, 10, got, at)
		fault()
		// Something must have met the fault.
		tried := make(chan struct{})
		go func() {
			defer close(tried)
			short, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _ = c.Topic(short)
		}()
		<-tried
		proxy.Heal()
	}
	got, at = readMore(t, l, 10, got, at)
	stop()
	wantWhole(t, k, topic, l, from, got, at)
}

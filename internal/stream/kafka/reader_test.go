package kafka

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"driftless/internal/realtest"
)

func TestReadsRecordsAsTheyWereWritten(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	at := time.Now().Add(-time.Hour).Truncate(time.Millisecond)
	produce(t, k, topic, 0,
		realtest.Record{Key: []byte("k"), Value: []byte("v"), Time: at,
			Headers: []kafka.Header{{Key: "trace", Value: []byte("1")}, {Key: "empty", Value: []byte{}}, {Key: "null"}}},
		realtest.Record{Value: []byte("no key"), Time: at.Add(time.Hour)},
		realtest.Record{Key: []byte("tombstone"), Time: at},
		realtest.Record{Key: []byte{}, Value: []byte{}, Time: at},
	)
	want := []Record{
		{Offset: 0, Time: at, Key: []byte("k"), Value: []byte("v"), Headers: []Header{{Key: "trace", Value: []byte("1")}, {Key: "empty", Value: []byte{}}, {Key: "null"}}},
		{Offset: 1, Time: at.Add(time.Hour), Value: []byte("no key")},
		{Offset: 2, Time: at, Key: []byte("tombstone")},
		{Offset: 3, Time: at, Key: []byte{}, Value: []byte{}},
	}
	got := all(t, client(t, k, topic), 4)
	if !slices.EqualFunc(got, want, sameRecord) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func sameRecord(a, b Record) bool {
	return a.Offset == b.Offset && a.Time.Equal(b.Time) && a.Appended == b.Appended && sameBytes(a.Key, b.Key) && sameBytes(a.Value, b.Value) &&
		slices.EqualFunc(a.Headers, b.Headers, func(a, b Header) bool { return a.Key == b.Key && sameBytes(a.Value, b.Value) })
}

// sameBytes tells null from empty.
func sameBytes(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) }

func TestRecordsOfATopicWithTheBrokersClockHaveTheTimeOfTheirAppend(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, map[string]string{"message.timestamp.type": "LogAppendTime"})
	before := time.Now().Truncate(time.Millisecond)
	produce(t, k, topic, 0, realtest.Record{Value: []byte("v"), Time: before.Add(-24 * time.Hour)})
	r := all(t, client(t, k, topic), 1)[0]
	if !r.Appended || r.Time.Before(before) || r.Time.After(time.Now()) {
		t.Errorf("got %v, appended %v, want now", r.Time, r.Appended)
	}
}

func TestReadsEveryCompression(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	for _, codec := range []kafka.Compression{kafka.Gzip, kafka.Snappy, kafka.Lz4, kafka.Zstd} {
		t.Run(codec.String(), func(t *testing.T) {
			topic := k.Topic(t, 1, nil)
			for first := 0; first < 3000; first += 1000 {
				if err := k.ProduceCompressed(limited(t), codec, topic, 0, numbered(first, 1000)...); err != nil {
					t.Fatal(err)
				}
			}
			wantNumbers(t, all(t, client(t, k, topic), 3000), 0, 3000)
		})
	}
}

// A fetch answers with whole batches: what stands before the position is not delivered again.
func TestStartsInsideABatch(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 100)...)
	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	from.Offset = 40
	records, _ := toEnd(t, running(t, c).Open(0, from), from, 100)
	wantNumbers(t, records, 40, 100)
}

func TestPartitionsOfABrokerShareARequest(t *testing.T) {
	t.Parallel()
	const partitions, each = 6, 200
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, partitions, nil)
	for p := range int32(partitions) {
		produce(t, k, topic, p, numbered(0, each)...)
	}
	var sent requests
	c := client(t, k, topic, func(o *Options) { o.Dial = sent.dial })
	from := places(t, c, Earliest)
	r := c.NewReader()
	lanes := make([]*Lane, partitions)
	for p := range lanes {
		lanes[p] = r.Open(int32(p), from[int32(p)])
	}
	start(t, r)
	for p, l := range lanes {
		records, last := toEnd(t, l, from[int32(p)], each)
		wantNumbers(t, records, 0, each)
		if last.Partition != int32(p) || last.HighWatermark != each || last.LogStart != 0 {
			t.Errorf("partition %d ends with %+v", p, last)
		}
	}
	if got := sent.fetches(); len(got) == 0 || got[0] != partitions {
		t.Errorf("partitions in each fetch: %v, want %d in the first", got, partitions)
	}
}

// The consumer of one partition stands still; what is fetched for it is bounded, and the other partition goes on.
func TestAPartitionWhoseConsumerIsBehindIsLeftOut(t *testing.T) {
	t.Parallel()
	const batches, size = 40, 64 << 10
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 2, nil)
	for p := range int32(2) {
		for range batches {
			produce(t, k, topic, p, realtest.Record{Value: bytes.Repeat([]byte{'x'}, size)})
		}
	}
	c := client(t, k, topic, func(o *Options) { o.PartitionBytes = 2 * size })
	from := places(t, c, Earliest)
	r := running(t, c)
	slow, quick := r.Open(0, from[0]), r.Open(1, from[1])
	records, _ := toEnd(t, quick, from[1], batches)
	if len(records) != batches {
		t.Errorf("the other partition: %d records, want %d", len(records), batches)
	}
	r.mu.Lock()
	waiting := slow.bytes
	r.mu.Unlock()
	if most := 4 * size; waiting == 0 || waiting > most {
		t.Errorf("%d bytes wait for the consumer that is behind, want some and at most %d", waiting, most)
	}
	records, _ = toEnd(t, slow, from[0], batches)
	if len(records) != batches {
		t.Errorf("the partition that was behind: %d records, want %d", len(records), batches)
	}
}

// A broker holds a fetch that finds nothing. One partition has nothing to read, and the other's consumer makes room now and then.
func TestAnIdlePartitionDoesNotHoldUpAnother(t *testing.T) {
	t.Parallel()
	const batches, size, wait = 20, 64 << 10, 20 * time.Second
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 2, nil)
	for range batches {
		produce(t, k, topic, 1, realtest.Record{Value: bytes.Repeat([]byte{'x'}, size)})
	}
	var sent requests
	c := client(t, k, topic, func(o *Options) { o.PartitionBytes, o.Wait, o.Dial = size, wait, sent.dial })
	from := places(t, c, Earliest)
	r := running(t, c)
	idle := r.Open(0, from[0])
	if _, err := idle.Next(limited(t)); err != nil { // it has found nothing, and now waits for news
		t.Fatal(err)
	}
	started := time.Now()
	records, _ := toEnd(t, r.Open(1, from[1]), from[1], batches)
	if len(records) != batches || time.Since(started) > wait/2 {
		t.Errorf("%d records in %v", len(records), time.Since(started))
	}
	if n := len(sent.fetches()); n > 2*batches {
		t.Errorf("%d fetches for %d batches: the idle partition is asked for without rest", n, batches)
	}
}

// Large batches may leave no room in an answer for the partitions at the end of a request.
func TestAPartitionThatWasServedGoesBehindTheOthers(t *testing.T) {
	r := (&Client{}).NewReader()
	var lanes []*Lane
	for p := range int32(3) {
		lanes = append(lanes, r.Open(p, Position{}))
	}
	served := answer{records: encoded(t, 1, 1), lastStable: 100}
	r.fetched(t.Context(), room{}, lanes, []answer{{partition: 1, lastStable: 100}, served, {partition: 2, lastStable: 100}}, time.Now(), nil)
	if want := []*Lane{lanes[1], lanes[2], lanes[0]}; !slices.Equal(r.lanes, want) {
		t.Errorf("the next request begins with partition %d", r.lanes[0].partition)
	}
}

func TestAnIdlePartitionSaysSince(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 3)...)
	c := client(t, k, topic)
	from := places(t, c, Latest)[0]
	if from.Offset != 3 {
		t.Fatalf("latest is %d, want 3", from.Offset)
	}
	l := running(t, c).Open(0, from)
	var last time.Time
	for range 3 {
		b, err := l.Next(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(b.Records) != 0 || !b.ReachedEnd() || b.To.Offset != 3 || !b.AskedAt.After(last) {
			t.Errorf("got %+v after %v", b, last)
		}
		last = b.AskedAt
	}
	produce(t, k, topic, 0, numbered(3, 1)...)
	records, b := toEnd(t, l, from, 4)
	wantNumbers(t, records, 3, 4)
	if b.To.Epoch < 0 {
		t.Errorf("no leader epoch behind a record: %+v", b.To)
	}
}

func TestALargeRecordComesWhole(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 2, map[string]string{"max.message.bytes": "8000000"})
	for p := range int32(2) {
		produce(t, k, topic, p, numbered(0, 10)...)
		produce(t, k, topic, p, realtest.Record{Value: bytes.Repeat([]byte{'x'}, 3<<20)})
		produce(t, k, topic, p, numbered(11, 10)...)
	}
	c := client(t, k, topic, func(o *Options) { o.PartitionBytes = 1000 })
	from := places(t, c, Earliest)
	r := running(t, c)
	lanes := []*Lane{r.Open(0, from[0]), r.Open(1, from[1])}
	for p, l := range lanes {
		records, _ := toEnd(t, l, from[int32(p)], 21)
		if len(records) != 21 || len(records[10].Value) != 3<<20 {
			t.Errorf("partition %d: %d records", p, len(records))
		}
	}
}

package kafka

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"driftless/internal/realtest"
)

// BenchmarkRead reads a million records of about 100 bytes out of six partitions, again and again: `go test -bench Read -run ^$`.
// kafka-go's own partition readers do 1.8 million a second where its low-level connection does 2.5.
func BenchmarkRead(b *testing.B) {
	const partitions, each, batch = 6, 170_000, 1000
	k := realtest.SharedKafka(b)
	topic := k.Topic(b, partitions, nil)
	value := []byte(`{"type": "reaction.added", "post_id": 123456, "at": 1700000000000, "user": "somebody"}`)
	records := make([]realtest.Record, batch)
	for i := range records {
		records[i] = realtest.Record{Key: fmt.Append(nil, i), Value: value}
	}
	for p := range int32(partitions) {
		for range each / batch {
			produce(b, k, topic, p, records...)
		}
	}
	c := client(b, k, topic)
	from := places(b, c, Earliest)
	r := running(b, c)
	b.ReportAllocs()
	b.ResetTimer()
	started, read := time.Now(), 0
	for b.Loop() {
		read += readAll(b, r, from, each)
	}
	b.ReportMetric(float64(read)/time.Since(started).Seconds(), "records/s")
}

// readAll reads all partitions side by side and returns how many records there were.
func readAll(t testing.TB, r *Reader, from map[int32]Position, end int64) int {
	ctx := limited(t)
	counts := make([]int, len(from))
	var wg sync.WaitGroup
	for p := range int32(len(from)) {
		wg.Go(func() {
			l := r.Open(p, from[p])
			defer l.Close()
			for at := from[p].Offset; at < end; {
				b, err := l.Next(ctx)
				if err != nil {
					t.Error(err)
					return
				}
				counts[p] += len(b.Records)
				at = b.To.Offset
			}
		})
	}
	wg.Wait()
	total := 0
	for _, n := range counts {
		total += n
	}
	return total
}

package kafka

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"driftless/internal/realtest"
)

// Compaction removes records from within, from the end and from the beginning of batches, and whole batches. Whoever takes the
// last record for the end of its batch asks for the same batch for ever.
func TestReadsACompactedTopicToItsEnd(t *testing.T) {
	t.Parallel()
	const batches = 20
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, map[string]string{
		"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.001", "segment.ms": "200", "delete.retention.ms": "0",
	})
	// Each batch has one key of its own, and its last record's key comes again in the next batch.
	key := func(format string, i int) []byte { return fmt.Appendf(nil, format, i) }
	for i := range batches {
		produce(t, k, topic, 0,
			realtest.Record{Key: key("again %d", i-1), Value: []byte("first")},
			realtest.Record{Key: key("own %d", i), Value: []byte("own")},
			realtest.Record{Key: key("again %d", i), Value: []byte("last")},
		)
	}
	c := client(t, k, topic, func(o *Options) { o.PartitionBytes = 1 }) // a batch at a time
	from := places(t, c, Earliest)[0]

	var records []Record
	end := int64(3 * batches)
	realtest.Eventually(t, patience, "the broker has compacted the topic", func() bool {
		// Only a segment that is not written to any more is compacted, and the next append looks how old it is.
		produce(t, k, topic, 0, realtest.Record{Key: []byte("roll"), Value: []byte("roll")})
		end++
		records = all(t, c, end)
		return !slices.ContainsFunc(records, func(r Record) bool { return string(r.Value) == "last" && r.Offset < 3*batches-1 })
	})
	var got []string
	for _, r := range records {
		if string(r.Value) != "roll" {
			got = append(got, fmt.Sprintf("%d %s", r.Offset, r.Key))
		}
	}
	var want []string
	for i := range batches {
		want = append(want, fmt.Sprintf("%d again %d", 3*i, i-1), fmt.Sprintf("%d own %d", 3*i+1, i))
	}
	want = append(want, fmt.Sprintf("%d again %d", 3*batches-1, batches-1))
	if !slices.Equal(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}

	// A position inside the hole at a batch's end is moved out of it.
	from.Offset = 2
	l := running(t, c).Open(0, from)
	b, err := l.Next(limited(t))
	if err != nil || len(b.Records) != 0 || b.To.Offset != 3 {
		t.Errorf("from the hole: %+v, %v, want no record and to be at 3", b, err)
	}
}

func TestStartsAtATime(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 2, nil)
	noon := time.Now().Add(-time.Hour).Truncate(time.Second)
	for i := range 10 {
		produce(t, k, topic, 0, realtest.Record{Value: fmt.Append(nil, i), Time: noon.Add(time.Duration(i) * time.Minute)})
	}
	produce(t, k, topic, 1, realtest.Record{Value: []byte("early"), Time: noon})
	c := client(t, k, topic)
	for _, test := range []struct {
		name  string
		place Place
		want  []int64
	}{
		{"earliest", Earliest, []int64{0, 0}},
		{"latest", Latest, []int64{10, 1}},
		{"at a record", At(noon.Add(4 * time.Minute)), []int64{4, 1}},
		{"between two", At(noon.Add(4*time.Minute + time.Second)), []int64{5, 1}},
		{"before all", At(noon.Add(-time.Hour)), []int64{0, 0}},
		{"after all", At(noon.Add(time.Hour)), []int64{10, 1}},
	} {
		got := places(t, c, test.place)
		if got[0].Offset != test.want[0] || got[1].Offset != test.want[1] {
			t.Errorf("%s: offsets %d and %d, want %v", test.name, got[0].Offset, got[1].Offset, test.want)
		}
	}
}

package kafka

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"driftless/internal/realtest"
)

// Producers whose transactions overlap, half of which abort, among records outside of any. Requests are small, so that many of
// them begin inside a transaction.
func TestAbortedRecordsAndMarkersAreNeverDelivered(t *testing.T) {
	t.Parallel()
	const rounds, producers = 12, 3
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	var want []string
	record := func(value string, counts bool) realtest.Record {
		if counts {
			want = append(want, value)
		}
		return realtest.Record{Key: []byte("k"), Value: []byte(value)}
	}
	for round := range rounds {
		open := make([]*realtest.Transaction, producers)
		for p := range open {
			var err error
			if open[p], err = k.Begin(limited(t), fmt.Sprint(topic, p)); err != nil {
				t.Fatal(err)
			}
		}
		commits := func(p int) bool { return (round+p)%2 == 0 }
		for part := range 2 {
			for p, x := range open {
				value := fmt.Sprintf("round %d, producer %d, part %d", round, p, part)
				if err := x.Produce(limited(t), topic, 0, record(value+" a", commits(p)), record(value+" b", commits(p))); err != nil {
					t.Fatal(err)
				}
			}
			produce(t, k, topic, 0, record(fmt.Sprintf("round %d, outside, part %d", round, part), true))
		}
		for p, x := range open {
			if err := end(t, x, commits(p)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const end = rounds * (producers*(2*2+1) + 2)
	for _, bytes := range []int{1, 700, 1 << 20} {
		t.Run(strconv.Itoa(bytes), func(t *testing.T) {
			got := all(t, client(t, k, topic, func(o *Options) { o.PartitionBytes = bytes }), end)
			if !slices.Equal(values(got), want) {
				t.Errorf("got %d records, want %d\n%.500q\n%.500q", len(got), len(want), values(got), want)
			}
		})
	}
}

func end(t testing.TB, x *realtest.Transaction, commit bool) error {
	if commit {
		return x.Commit(limited(t))
	}
	return x.Abort(limited(t))
}

// What stands behind the begin of an open transaction waits, also what others have written outside of it, and the partition is
// not said to be complete.
func TestAnOpenTransactionHoldsBackWhatIsBehindIt(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 2)...)
	x, err := k.Begin(limited(t), topic)
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Produce(limited(t), topic, 0, numbered(2, 2)...); err != nil {
		t.Fatal(err)
	}
	produce(t, k, topic, 0, numbered(4, 2)...)

	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	var records []Record
	for at, empty := from, 0; empty < 2; {
		b, err := l.Next(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		checkBatch(t, b, at)
		records, at = append(records, b.Records...), b.To
		if b.ReachedEnd() || b.LastStable != 2 || b.HighWatermark != 6 {
			t.Errorf("while a transaction is open: %+v", b)
		}
		if len(b.Records) == 0 {
			empty++
		}
	}
	wantNumbers(t, records, 0, 2)

	if err := x.Commit(limited(t)); err != nil {
		t.Fatal(err)
	}
	from.Offset = 2
	records, last := toEnd(t, l, from, 7)
	wantNumbers(t, records, 2, 6)
	if last.LastStable != 7 {
		t.Errorf("after the commit the last stable offset is %d, want 7", last.LastStable)
	}
}

package incrementer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/stream"
)

// batchOf is one with events of the given documents' sizes; its token tells where it ends.
func batchOf(token byte, sizes ...int) stream.Batch {
	b := stream.Batch{Token: bson.Raw{token}}
	for _, size := range sizes {
		b.Events = append(b.Events, stream.Event{Doc: make(bson.Raw, size)})
	}
	return b
}

// most is how many events are gathered.
const most = 100

func many(n int) []int { return make([]int, n) }

// What waits is gathered up to a bound, and the news that there is no more is told behind it.
func TestBatchesThatWaitAreGathered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		batches []stream.Batch
		refused string // the batches that there was no room for
		want    string // events and token of each that is taken
	}{
		{"events", []stream.Batch{batchOf(1, 10), batchOf(2, 10, 10)}, "[]", "[3@2]"},
		{"news behind events", []stream.Batch{batchOf(1, 10), batchOf(2)}, "[]", "[1@1 0@2]"},
		{"older news", []stream.Batch{batchOf(1), batchOf(2)}, "[]", "[0@2]"},
		{"news that events have overtaken", []stream.Batch{batchOf(1, 10), batchOf(2), batchOf(3, 10), batchOf(4)}, "[]", "[2@3 0@4]"},
		{"events behind news", []stream.Batch{batchOf(1), batchOf(2, 10)}, "[]", "[1@2]"},
		{"too many", []stream.Batch{batchOf(1, many(most)...), batchOf(2, 10)}, "[2]", "[100@1]"},
		{"too large", []stream.Batch{batchOf(1, gatherBytes), batchOf(2, 10)}, "[2]", "[1@1]"},
		{"a single one that is too large", []stream.Batch{batchOf(1, gatherBytes+1, 1)}, "[]", "[2@1]"},
		{"news while there is no room", []stream.Batch{batchOf(1, gatherBytes), batchOf(2)}, "[]", "[1@1 0@2]"},
	} {
		t.Run(test.name, func(t *testing.T) {
			w, refused, taken := newWaiting(most), []int{}, []string{}
			for _, b := range test.batches {
				if !w.add(b) {
					refused = append(refused, int(b.Token[0]))
				}
			}
			w.close()
			for {
				b, more, err := w.take(t.Context())
				if err != nil || !more {
					break
				}
				taken = append(taken, fmt.Sprintf("%d@%d", len(b.Events), b.Token[0]))
			}
			if fmt.Sprint(refused) != test.refused || "["+strings.Join(taken, " ")+"]" != test.want {
				t.Errorf("refused %v, taken %v; want %s and %s", refused, taken, test.refused, test.want)
			}
		})
	}
}

// A reader waits for room, and an applier for news, each until its context ends.
func TestReaderAndApplierWaitForEachOther(t *testing.T) {
	t.Parallel()
	w, put := newWaiting(most), make(chan error)
	const n = 100
	go func() {
		for i := range n {
			if err := w.put(t.Context(), batchOf(byte(i), gatherBytes)); err != nil {
				put <- err
				return
			}
		}
		w.close()
		put <- nil
	}()
	taken := 0
	for {
		b, more, err := w.take(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !more {
			break
		}
		if int(b.Token[0]) != taken {
			t.Fatalf("batch %d comes as number %d", b.Token[0], taken)
		}
		taken++
	}
	if err := <-put; err != nil || taken != n {
		t.Errorf("%d batches were taken, want %d: %v", taken, n, err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := newWaiting(most).take(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("take: %v", err)
	}
	full := newWaiting(most)
	full.add(batchOf(1, gatherBytes))
	if err := full.put(ended, batchOf(2, 1)); !errors.Is(err, context.Canceled) {
		t.Errorf("put: %v", err)
	}
}

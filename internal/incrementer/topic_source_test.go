package incrementer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
	"driftless/internal/stream/envelope"
	"driftless/internal/stream/kafka"
)

// fetched are fetches that all wait, and what ends them.
type fetched struct {
	batches []kafka.Batch
	err     error
}

func (f *fetched) Next(context.Context) (kafka.Batch, error) {
	if len(f.batches) == 0 {
		return kafka.Batch{}, f.err
	}
	first := f.batches[0]
	f.batches = f.batches[1:]
	return first, nil
}

func (f *fetched) HasRecords() bool { return len(f.batches) > 0 && len(f.batches[0].Records) > 0 }
func (f *fetched) Close()           {}

// fetch continues f by so many records.
func (f *fetched) fetch(values ...string) {
	b := kafka.Batch{HighWatermark: 1000}
	if n := len(f.batches); n > 0 {
		b.From = f.batches[n-1].To
	}
	b.To = b.From
	for _, value := range values {
		b.Records = append(b.Records, kafka.Record{Offset: b.To.Offset, Time: time.UnixMilli(1_700_000_000_000), Value: []byte(value)})
		b.To.Offset++
	}
	f.batches = append(f.batches, b)
}

const (
	added    = `{"type":"added","post_id":1,"at":1700000000000}`
	unheard  = `{"type":"unheard of"}`
	unusable = `{"type":"added","at":1700000000000}`
)

// readAll returns how many events each batch has, where it ends, and what ends all. Every event must have the place behind it.
func readAll(t *testing.T, f *fetched, most int, stop bool) (sizes, ends []int64, ended error) {
	t.Helper()
	c := config.Counter{
		Name: "reactions", Source: "reactions", Format: config.FormatEvent, Key: "post_id", Rows: config.Rows{Database: "app", Collection: "r", CreatedAt: "at"},
		Target: config.Target{Database: "app", Collection: "posts", Base: "base", Live: "live", Upsert: true},
	}
	definitions, err := counter.DefineAll([]config.Counter{c})
	if err != nil {
		t.Fatal(err)
	}
	decoder := envelope.New(&config.Kafka{Format: config.FormatEvent, Event: config.Event{Type: "type", Key: "post_id", Time: "at", Deltas: map[string]int64{"added": 1}}})
	projector, err := counter.NewProjector(decoder, definitions, time.Minute, func() time.Duration { return 0 })
	if err != nil {
		t.Fatal(err)
	}
	r := &records{lane: f, projector: projector, stop: stop, most: most}
	last := int64(0)
	for {
		batch, err := r.Next(t.Context())
		if err != nil {
			return sizes, ends, err
		}
		for _, e := range batch.Events {
			at, err := stream.TopicPositionOf(e.Token)
			if err != nil || at.Offset <= last {
				t.Fatalf("event with the place %+v behind %d: %v", at, last, err)
			}
			last = at.Offset
		}
		end, err := stream.TopicPositionOf(batch.Token)
		if err != nil || end.Offset < last {
			t.Fatalf("batch with the place %+v behind %d: %v", end, last, err)
		}
		sizes, ends = append(sizes, int64(len(batch.Events))), append(ends, end.Offset)
	}
}

func TestFetchesThatWaitAreGatheredIntoOneBatch(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for _, test := range []struct {
		name        string
		fetches     [][]string
		most        int
		stop        bool
		sizes, ends string
		want        error
	}{
		{"all that wait", [][]string{{added, added}, {unheard, added}, {added}}, 100, false, "[4]", "[5]", broken},
		{"no more than a transaction takes", [][]string{{added, added}, {added, added}, {added, added}, {added}}, 5, false, "[4 3]", "[4 7]", broken},
		{"one that is larger", [][]string{{added, added, added}, {added}}, 2, false, "[3 1]", "[3 4]", broken},
		{"the news that there are none stays apart", [][]string{{added}, {}, {}, {added}, {added}}, 100, false, "[1 0 0 2]", "[1 1 1 3]", broken},
		{"a bad one among the dead letters", [][]string{{added}, {added, unusable, added}}, 100, false, "[4]", "[4]", broken},
		{"what is before a bad one that stops", [][]string{{added}, {added, unusable, added}, {added}}, 100, true, "[2]", "[2]", ErrDeadLetter},
		{"a bad one that begins a fetch", [][]string{{added, unheard}, {unheard, unusable}}, 100, true, "[1]", "[1]", ErrDeadLetter},
		{"nothing before a bad one", [][]string{{unheard, unusable}}, 100, true, "[]", "[]", ErrDeadLetter},
	} {
		t.Run(test.name, func(t *testing.T) {
			f := &fetched{err: broken}
			for _, values := range test.fetches {
				f.fetch(values...)
			}
			sizes, ends, ended := readAll(t, f, test.most, test.stop)
			if fmt.Sprint(sizes) != test.sizes || fmt.Sprint(ends) != test.ends || !errors.Is(ended, test.want) {
				t.Errorf("batches of %v events up to %v, then %v; want %s up to %s, then %v", sizes, ends, ended, test.sizes, test.ends, test.want)
			}
		})
	}
}

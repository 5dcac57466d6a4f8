package kafka

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"github.com/segmentio/kafka-go/protocol"
)

// encoded returns batches as a broker sends them, of n records each.
func encoded(t *testing.T, batches, n int) []byte {
	t.Helper()
	var all []byte
	for i := range batches {
		var list []protocol.Record
		for j := range n {
			list = append(list, protocol.Record{Key: protocol.NewBytes([]byte("k")), Value: protocol.NewBytes(fmt.Appendf(nil, "%02d", i*n+j)),
				Headers: []protocol.Header{{Key: "h", Value: []byte("v")}}})
		}
		var b bytes.Buffer
		set := protocol.RecordSet{Version: 2, Records: protocol.NewRecordReader(list...)}
		if _, err := set.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		batch := b.Bytes()[4:] // behind the size of the whole
		binary.BigEndian.PutUint64(batch, uint64(i*n))
		all = append(all, batch...)
	}
	return all
}

func TestABatchThatIsCutOffIsLeftForTheNextFetch(t *testing.T) {
	const batches, n = 3, 4
	whole := encoded(t, batches, n)
	size := len(whole) / batches
	for length := range whole {
		a := answer{records: whole[:length]}
		records, to, err := a.decode(Position{})
		if want := length / size * n; err != nil || len(records) != want || to.Offset != int64(want) || a.span(Position{}) != to {
			t.Fatalf("of %d bytes: %d records to %d, %v, want %d", length, len(records), to.Offset, err, want)
		}
	}
}

// Whatever comes, nothing is delivered that was not written, and what is before the fault is.
func TestABatchThatWasChangedIsCorrupt(t *testing.T) {
	const batches, n = 3, 4
	whole := encoded(t, batches, n)
	size := len(whole) / batches
	for at := size; at < 2*size; at++ {
		for bit := range 8 {
			changed := bytes.Clone(whole)
			changed[at] ^= 1 << bit
			records, to, err := answer{records: changed}.decode(Position{})
			// What a broker itself writes into a batch is not in its checksum: where it begins, its length, the leader's epoch.
			if at-size >= atCRC && (!errors.Is(err, ErrCorrupt) || to.Offset != n || len(records) != n) {
				t.Fatalf("byte %d, bit %d: %d records to %d, %v", at-size, bit, len(records), to.Offset, err)
			}
		}
	}
}

func TestAnAnswerThatIsCutOffIsAnError(t *testing.T) {
	var e encoder
	e.int32(0) // throttle time
	e.int16(0)
	e.int32(0) // session
	e.length(1)
	e.uuid(TopicID{1})
	e.length(1)
	e.int32(3) // partition
	e.int16(0)
	for _, offset := range []int64{100, 90, 10} {
		e.int64(offset)
	}
	e.length(1)
	e.int64(7)
	e.int64(20)
	e.tags()
	e.int32(-1)
	e.length(2)
	e.b = append(e.b, "ab"...)
	e.b = append(e.b, 1, 0, 13) // one tag: diverging epoch, 13 bytes
	e.int32(5)
	e.int64(42)
	e.tags()
	e.tags()
	e.tags()
	var f fetch
	if err := f.decode(&decoder{b: e.b}); err != nil || len(f.answers) != 1 {
		t.Fatal(err, f.answers)
	}
	a := f.answers[0]
	if a.partition != 3 || a.highWatermark != 100 || a.lastStable != 90 || a.logStart != 10 || a.aborted[0] != (abortedTransaction{7, 20}) ||
		string(a.records) != "ab" || !a.diverges || a.divergesAt != 42 {
		t.Errorf("got %+v", a)
	}
	for length := range len(e.b) {
		if err := new(fetch).decode(&decoder{b: e.b[:length]}); !errors.Is(err, errProtocol) {
			t.Fatalf("of %d bytes: %v", length, err)
		}
	}
}

// What stands before a batch that cannot be decoded is delivered, and then the lane has ended there.
func TestALaneEndsAtACorruptBatch(t *testing.T) {
	whole := encoded(t, 2, 3)
	whole[len(whole)-1] ^= 1
	a := answer{records: whole}
	r := (&Client{}).NewReader()
	l := r.Open(0, Position{})
	l.take(a, l.notBefore)
	b, err := l.Next(t.Context())
	if err != nil || len(b.Records) != 3 || b.To.Offset != 3 {
		t.Errorf("got %+v, %v", b, err)
	}
	wantEnd(t, l, ErrCorrupt, "offset 3")
}

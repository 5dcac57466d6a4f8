package kafka

import (
	"cmp"
	"encoding/binary"
	"slices"
	"time"
)

// Position is a place in a partition. To resume there, all of it is needed: the offset alone would also be found in a topic that
// was deleted and created again, or in a log that lost its end and has grown again.
type Position struct {
	Topic  TopicID
	Offset int64 // of the next record
	// Epoch is the leader's under which the records just before the offset were written, -1 when none of them were read.
	Epoch int32
}

// Batch is what one fetch brought of one partition. It moves the position even when it holds no record.
type Batch struct {
	Partition int32
	From, To  Position
	Records   []Record // in the order of their offsets, all of them at From or later and before To
	// HighWatermark is the end of the partition, LastStable the offset of the first record of a transaction that is not over, or
	// the high watermark; LogStart the oldest offset that is still there. All when the fetch was answered.
	HighWatermark, LastStable, LogStart int64
	AskedAt                             time.Time // when the fetch was sent, by our clock
}

// ReachedEnd reports whether all that the broker had acknowledged when the fetch was sent is before To: the partition is then
// complete through AskedAt. To reach the last stable offset is not enough: behind an open transaction stand records of others.
func (b Batch) ReachedEnd() bool { return b.To.Offset >= b.HighWatermark }

// span is the position behind the last whole batch in an answer, found without decoding records.
func (a answer) span(from Position) Position {
	to := from
	for batch, rest, _ := cutBatch(a.records); batch != nil; batch, rest, _ = cutBatch(rest) {
		to = to.behind(batch)
	}
	return to
}

// behind is the position behind a batch, unless it is there already.
func (p Position) behind(b rawBatch) Position {
	if b.next() > p.Offset {
		p.Offset, p.Epoch = b.next(), b.epoch()
	}
	return p
}

// decode returns the records that count in an answer, and the position behind them. With an error it is the batch at that
// position that cannot be decoded.
func (a answer) decode(from Position) ([]Record, Position, error) {
	var (
		filter  = newFilter(a.aborted)
		records = make([]Record, 0, a.count())
		headers []Header
		to      = from
	)
	for rest := a.records; ; {
		batch, after, err := cutBatch(rest)
		if batch == nil || err != nil {
			return records, to, err
		}
		counts, err := filter.passes(batch)
		if err == nil && counts {
			records, err = batch.decodeInto(records, &headers, from.Offset)
		}
		if err != nil {
			return truncate(records, to.Offset), to, err
		}
		to, rest = to.behind(batch), after
	}
}

// count is how many records an answer says it has. A batch that is not compressed cannot say too much: no record takes less than
// seven bytes; of others we believe so many that the list need not grow often.
func (a answer) count() (n int) {
	for batch, rest, _ := cutBatch(a.records); batch != nil; batch, rest, _ = cutBatch(rest) {
		n += min(max(batch.count(), 0), len(batch))
	}
	return n
}

// truncate drops the records at an offset and later.
func truncate(records []Record, before int64) []Record {
	i, _ := slices.BinarySearchFunc(records, before, func(r Record, offset int64) int { return cmp.Compare(r.Offset, offset) })
	return records[:i]
}

// filter says of one batch after another whether its records count.
type filter struct {
	coming []abortedTransaction // by first offset
	within map[int64]bool       // producers inside an aborted transaction
}

func newFilter(aborted []abortedTransaction) *filter {
	slices.SortFunc(aborted, func(a, b abortedTransaction) int { return cmp.Compare(a.first, b.first) })
	return &filter{coming: aborted, within: map[int64]bool{}}
}

// passes must be asked for each batch in turn. A producer has one transaction at a time, which ends with its marker.
func (f *filter) passes(b rawBatch) (bool, error) {
	for len(f.coming) > 0 && f.coming[0].first < b.next() {
		f.within[f.coming[0].producer] = true
		f.coming = f.coming[1:]
	}
	if b.has(controlBit) {
		aborts, err := b.aborts()
		if aborts {
			delete(f.within, b.producer())
		}
		return false, err
	}
	return !b.has(transactionBit) || !f.within[b.producer()], nil
}

// aborts reads the key of a control batch's only record, a version and a type: 0 is abort, 1 is commit, and others have nothing
// to do with transactions. Compaction may have removed the record when nothing of its transaction was left.
func (b rawBatch) aborts() (bool, error) {
	records, err := b.decodeInto(nil, new([]Header), 0)
	if err != nil || len(records) == 0 {
		return false, err
	}
	key := records[0].Key
	return len(key) == 4 && binary.BigEndian.Uint16(key[2:]) == 0, nil
}

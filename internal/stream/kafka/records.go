package kafka

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/segmentio/kafka-go/compress"
)

// Record is one record that counts: neither aborted nor a marker. Key, Value and Headers stay valid and must not be changed;
// nil is Kafka's null.
type Record struct {
	Offset int64
	Time   time.Time // to the millisecond, local; see Appended
	// Appended says whose clock Time is of: the broker's, when it appended the batch, else the producer's.
	Appended   bool
	Key, Value []byte
	Headers    []Header
}

// Header is one of a record's.
type Header struct {
	Key   string
	Value []byte
}

// The layout of a batch of format 2, https://kafka.apache.org/documentation/#recordbatch
const (
	atLength          = 8 // of what follows these 12 bytes
	atLeaderEpoch     = 12
	atMagic           = 16
	atCRC             = 17
	atAttributes      = 21
	atLastOffsetDelta = 23
	atFirstTime       = 27
	atMaxTime         = 35
	atProducer        = 43
	atCount           = 57
	headerSize        = 61

	compressionMask = 0x07
	appendTimeBit   = 0x08
	transactionBit  = 0x10
	controlBit      = 0x20
)

// rawBatch is one batch of records as it stands in an answer, whole.
type rawBatch []byte

// cutBatch divides what a broker sent for a partition after its first batch. It returns nil at the end, and also where the last
// one is cut off, which a broker does when it has sent as much as was asked for.
func cutBatch(b []byte) (first rawBatch, rest []byte, err error) {
	if len(b) < atMagic+1 {
		return nil, nil, nil
	}
	length := int64(atLength+4) + int64(int32(binary.BigEndian.Uint32(b[atLength:]))) //nolint:gosec // bits
	switch {
	case b[atMagic] != 2:
		return nil, nil, fmt.Errorf("%w: message format %d at offset %d, which is older than Kafka 0.11", ErrTooOld, b[atMagic], rawBatch(b).base())
	case length < headerSize:
		return nil, nil, fmt.Errorf("%w: %d bytes at offset %d", ErrCorrupt, length, rawBatch(b).base())
	case length > int64(len(b)):
		return nil, nil, nil
	}
	return b[:length:length], b[length:], nil
}

func (b rawBatch) int16(at int) int16 { return int16(binary.BigEndian.Uint16(b[at:])) } //nolint:gosec // bits
func (b rawBatch) int32(at int) int32 { return int32(binary.BigEndian.Uint32(b[at:])) } //nolint:gosec // bits
func (b rawBatch) int64(at int) int64 { return int64(binary.BigEndian.Uint64(b[at:])) } //nolint:gosec // bits

func (b rawBatch) base() int64     { return b.int64(0) }
func (b rawBatch) epoch() int32    { return b.int32(atLeaderEpoch) }
func (b rawBatch) producer() int64 { return b.int64(atProducer) }
func (b rawBatch) count() int      { return int(b.int32(atCount)) }

// next is the offset after the batch, also when compaction has removed its last records, or all.
func (b rawBatch) next() int64 { return b.base() + int64(b.int32(atLastOffsetDelta)) + 1 }

func (b rawBatch) has(bit int16) bool { return b.int16(atAttributes)&bit != 0 }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// body returns the batch's records, not compressed, after it has compared the checksum.
func (b rawBatch) body() ([]byte, error) {
	if crc32.Checksum(b[atAttributes:], castagnoli) != binary.BigEndian.Uint32(b[atCRC:]) {
		return nil, fmt.Errorf("%w: checksum of the batch at offset %d", ErrCorrupt, b.base())
	}
	compressed := b[headerSize:]
	kind := compress.Compression(b.int16(atAttributes) & compressionMask)
	if kind == compress.None {
		return compressed, nil
	}
	codec := kind.Codec()
	if codec == nil {
		return nil, fmt.Errorf("%w: unknown compression %d at offset %d", ErrCorrupt, kind, b.base())
	}
	reader := codec.NewReader(bytes.NewReader(compressed))
	defer func() { _ = reader.Close() }()
	var plain bytes.Buffer
	if _, err := plain.ReadFrom(reader); err != nil {
		return nil, fmt.Errorf("%w: %s at offset %d: %w", ErrCorrupt, codec.Name(), b.base(), err)
	}
	return plain.Bytes(), nil
}

// decodeInto appends the batch's records from an offset on.
func (b rawBatch) decodeInto(records []Record, headers *[]Header, from int64) ([]Record, error) {
	body, err := b.body()
	if err != nil {
		return records, err
	}
	d := decoder{b: body}
	first, maximum, appended := b.int64(atFirstTime), time.UnixMilli(b.int64(atMaxTime)), b.has(appendTimeBit)
	for range b.count() {
		r := Record{Time: maximum, Appended: appended}
		d.varint() // length
		d.take(1)  // attributes: none are defined
		delta := d.varint()
		if !appended {
			r.Time = time.UnixMilli(first + delta)
		}
		r.Offset = b.base() + d.varint()
		r.Key, r.Value = d.nullable(), d.nullable()
		r.Headers = d.headers(headers)
		if d.err != nil {
			return records, fmt.Errorf("%w: record at offset %d", ErrCorrupt, r.Offset)
		}
		if r.Offset >= from { // a fetch answers with whole batches, and may begin inside one
			records = append(records, r)
		}
	}
	return records, nil
}

// nullable reads bytes as records hold them, nil for null.
func (d *decoder) nullable() []byte {
	n := d.varint()
	if n < 0 {
		return nil
	}
	return d.take(int(min(n, maxAnswer)))
}

// headers reads a record's headers into a list that all records of a batch share.
func (d *decoder) headers(list *[]Header) []Header {
	n := d.varint()
	if n <= 0 {
		return nil
	}
	start := len(*list)
	for i := int64(0); i < n && d.err == nil; i++ {
		key := string(d.nullable())
		*list = append(*list, Header{Key: key, Value: d.nullable()})
	}
	end := len(*list)
	return (*list)[start:end:end]
}

package kafka

import (
	"time"

	"github.com/segmentio/kafka-go/protocol"
)

// fetchVersion is the first that names a topic by its id: what is asked for can then never be answered out of another topic of
// the same name. Kafka 3.1.
const fetchVersion = 13

// readCommitted leaves out what stands behind the begin of a transaction that is not over.
const readCommitted = 1

// fetch asks one broker for several partitions, https://kafka.apache.org/protocol.html#The_Messages_Fetch
type fetch struct {
	wait                time.Duration
	maxBytes, partBytes int32
	topic               TopicID
	wants               []want

	code    int16
	answers []answer
}

// want is one partition in a request.
type want struct {
	partition   int32
	leaderEpoch int32 // of the leader that we believe in
	Position
}

// answer is one partition in a response.
type answer struct {
	partition                           int32
	code                                int16
	highWatermark, lastStable, logStart int64
	aborted                             []abortedTransaction
	diverges                            bool // the log has another history than the position
	divergesAt                          int64
	records                             []byte
}

// abortedTransaction says from which offset on a producer's transactional records do not count, up to its next marker.
type abortedTransaction struct{ producer, first int64 }

func (*fetch) ApiKey() protocol.ApiKey { return protocol.Fetch } //nolint:revive // kafka-go's name
func (*fetch) apiVersion() int16       { return fetchVersion }

func (f *fetch) encode(e *encoder) {
	e.int32(-1)                           // not a replica
	e.int32(int32(f.wait.Milliseconds())) //nolint:gosec // seconds
	e.int32(1)                            // answer as soon as there is anything
	e.int32(f.maxBytes)
	e.byte(readCommitted)
	e.int32(0)  // no session
	e.int32(-1) // nor a new one
	e.length(1)
	e.uuid(f.topic)
	e.length(len(f.wants))
	for _, w := range f.wants {
		e.int32(w.partition)
		e.int32(w.leaderEpoch)
		e.int64(w.Offset)
		e.int32(w.Epoch)
		e.int64(-1) // a replica's
		e.int32(f.partBytes)
		e.tags()
	}
	e.tags()
	e.length(0) // forgotten topics
	e.text("")  // rack
	e.tags()
}

func (f *fetch) decode(d *decoder) error {
	d.int32() // throttle time, which the broker keeps by itself
	f.code = d.int16()
	d.int32() // session
	for range d.length() {
		d.uuid()
		for range d.length() {
			f.answers = append(f.answers, decodeAnswer(d))
			if d.err != nil {
				return d.err
			}
		}
		d.tags(nil)
	}
	d.tags(nil)
	return d.err
}

func decodeAnswer(d *decoder) answer {
	a := answer{
		partition: d.int32(), code: d.int16(),
		highWatermark: d.int64(), lastStable: d.int64(), logStart: d.int64(),
	}
	for range d.length() {
		a.aborted = append(a.aborted, abortedTransaction{producer: d.int64(), first: d.int64()})
		d.tags(nil)
	}
	d.int32() // another replica to read from: we name no rack, so there is none
	a.records = d.bytes()
	d.tags(func(tag uint64, d *decoder) {
		if tag == 0 { // diverging epoch
			d.int32()
			a.diverges, a.divergesAt = true, d.int64()
		}
	})
	return a
}

// Package stream reads what happened to the rows: ordered events with the position that each of them stands for.
// It is handed its pipeline and knows nothing about counters.
package stream

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// Start says where a lane begins: after Token, or, when that is nil, right after the cluster time Position. Beside a
// token, a position that is not zero is the instant before the token's time.
type Start struct {
	Token    bson.Raw
	Position bson.Timestamp
}

// check finds a damaged token, as far as that can be told without a server. A server does not notice another time: it
// would begin elsewhere, or wait for that time to come.
func (s Start) check() error {
	if s.Token == nil {
		return nil
	}
	at, err := TokenTime(s.Token)
	if err != nil {
		return err
	}
	if _, err := hex.DecodeString(s.Token.Lookup("_data").StringValue()); err != nil {
		return fmt.Errorf("%w: damaged resume token %v: %w", ErrPositionLost, s.Token, err)
	}
	if !s.Position.IsZero() && Before(at) != s.Position {
		return fmt.Errorf("%w: damaged resume token %v: it is of %v, its position is %v", ErrPositionLost, s.Token, at, s.Position)
	}
	return nil
}

// Event is one change as the pipeline projected it.
type Event struct {
	Token bson.Raw // resume token: everything up to and including this event
	Doc   bson.Raw // the projected document, valid as long as its Batch
}

// Batch is one answer of the server. It moves the position even when it holds no event.
type Batch struct {
	Events []Event
	// Token stands for all of Events and all that the server had scanned when it answered.
	Token bson.Raw
	// Behind is how many records of a topic lay between the token and the end of the partition, as far as offsets tell.
	Behind int64
}

// Source opens readers of one lane.
type Source interface {
	Open(ctx context.Context, from Start) (Reader, error)
}

// Reader returns batches in stream order. Next blocks until the server answers, which may be with an empty batch.
// Its errors are classified: see Classify.
type Reader interface {
	Next(ctx context.Context) (Batch, error)
	Close(ctx context.Context)
}

// keyStringTimestamp begins every resume token of MongoDB 4.0.7 and later: the KeyString type byte of a timestamp.
const keyStringTimestamp = "82"

// timeDigits is how many hexadecimal digits the type byte, the seconds and the increment take.
const timeDigits = 18

// TokenTime reads the cluster time out of a resume token: the first bytes of its hexadecimal _data are the type byte,
// then seconds and increment, big-endian. Another layout is another product's token, which must not be guessed at:
// ErrForeignToken. One that begins like MongoDB's, and is cut off or garbled before its time ends, is damaged:
// ErrPositionLost. The time of a topic's token is the second that it is in: what came before that second is there.
func TokenTime(token bson.Raw) (bson.Timestamp, error) {
	if p, err := TopicPositionOf(token); err == nil {
		return bson.Timestamp{T: uint32(p.Through.Unix())}, nil //nolint:gosec // a time after 1970
	}
	data, ok := token.Lookup("_data").StringValueOK()
	if !ok || !strings.HasPrefix(data, keyStringTimestamp[:min(len(data), len(keyStringTimestamp))]) {
		return bson.Timestamp{}, fmt.Errorf("%w: %v", ErrForeignToken, token)
	}
	var b [timeDigits / 2]byte
	if _, err := hex.Decode(b[:], []byte(data[:min(len(data), timeDigits)])); err != nil || len(data) < timeDigits {
		return bson.Timestamp{}, fmt.Errorf("%w: damaged resume token %v", ErrPositionLost, token)
	}
	return bson.Timestamp{T: binary.BigEndian.Uint32(b[1:]), I: binary.BigEndian.Uint32(b[5:])}, nil
}

// TopicPosition is where a lane is in a partition of a topic.
type TopicPosition struct {
	Topic  [16]byte // id of the topic: another of the same name is another one
	Offset int64    // of the next record
	Epoch  int32    // of the leader that wrote what is before it, -1 when not known
	// Through is the time that the lane is complete through: what is still to come is of no earlier time, but for what may be
	// under way.
	Through time.Time
}

// Token is the position as a resume token.
func (p TopicPosition) Token() bson.Raw { return p.AppendToken(make([]byte, 0, TopicTokenSize)) }

// TopicTokenSize is how many bytes the token of a position takes.
const TopicTokenSize = 4 + (1 + len("topic\x00") + 5 + 16) + (1 + len("offset\x00") + 8) + (1 + len("epoch\x00") + 4) + (1 + len("through\x00") + 8) + 1

// AppendToken appends the position as a resume token.
func (p TopicPosition) AppendToken(dst []byte) []byte {
	start, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendBinaryElement(dst, "topic", 0, p.Topic[:])
	dst = bsoncore.AppendInt64Element(dst, "offset", p.Offset)
	dst = bsoncore.AppendInt32Element(dst, "epoch", p.Epoch)
	dst = bsoncore.AppendDateTimeElement(dst, "through", p.Through.UnixMilli())
	dst, _ = bsoncore.AppendDocumentEnd(dst, start) // fails beyond 2 GiB
	return dst
}

// TopicPositionOf reads a token. ErrForeignToken: it is a change stream's.
func TopicPositionOf(token bson.Raw) (p TopicPosition, err error) {
	_, topic, isTopic := token.Lookup("topic").BinaryOK()
	offset, isOffset := token.Lookup("offset").Int64OK()
	epoch, isEpoch := token.Lookup("epoch").Int32OK()
	ms, isTime := token.Lookup("through").DateTimeOK()
	if !isTopic || len(topic) != len(p.Topic) || !isOffset || !isEpoch || !isTime {
		return p, fmt.Errorf("%w: %v", ErrForeignToken, token)
	}
	return TopicPosition{Topic: [16]byte(topic), Offset: offset, Epoch: epoch, Through: time.UnixMilli(ms).UTC()}, nil
}

// sameTime reports whether two tokens carry one cluster time, without decoding it.
func sameTime(a, b bson.Raw) bool {
	x, okX := a.Lookup("_data").StringValueOK()
	y, okY := b.Lookup("_data").StringValueOK()
	return okX && okY && len(x) >= timeDigits && len(y) >= timeDigits && x[:timeDigits] == y[:timeDigits]
}

// LastGroup returns the index of the first event that shares the cluster time of token, len(events) when none does:
// the events that a position just before that time does not cover.
func LastGroup(events []Event, token bson.Raw) int {
	for i, e := range slices.Backward(events) {
		if !sameTime(e.Token, token) {
			return i + 1
		}
	}
	return 0
}

// Clock is a cluster time as a time of day, the zero time for none.
func Clock(t bson.Timestamp) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(int64(t.T), 0).UTC()
}

// InWords is a cluster time as people read it, to the second.
func InWords(t bson.Timestamp) string { return Clock(t).Format(time.RFC3339) }

// Before returns the instant before t. A stream whose token carries t is complete through it: every event of t may not
// have been delivered yet, every earlier one has.
func Before(t bson.Timestamp) bson.Timestamp {
	if t.I > 0 {
		return bson.Timestamp{T: t.T, I: t.I - 1}
	}
	return bson.Timestamp{T: t.T - 1, I: ^uint32(0)}
}

// next returns the instant after t.
func next(t bson.Timestamp) bson.Timestamp {
	if t.I == ^uint32(0) {
		return bson.Timestamp{T: t.T + 1}
	}
	return bson.Timestamp{T: t.T, I: t.I + 1}
}

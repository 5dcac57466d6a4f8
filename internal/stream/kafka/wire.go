package kafka

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// TopicID tells a topic from an earlier or later one of the same name, in any cluster. The zero value is none.
type TopicID [16]byte

// String is the id as Kafka's own tools print it.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// message is a request that is encoded here, and the answer that it decodes into itself.
type message interface {
	protocol.Message
	apiVersion() int16
	encode(*encoder)
	decode(*decoder) error
}

// RawExchange writes the request and reads the answer, on a connection that carries no other meanwhile.
func (r *routed) RawExchange(rw io.ReadWriter) (protocol.Message, error) {
	m, ours := r.Message.(message)
	if !ours {
		return protocol.RoundTrip(rw, r.version, correlation, clientID, r.Message)
	}
	e := encoder{b: make([]byte, 4, 512)}
	e.int16(int16(m.ApiKey()))
	e.int16(m.apiVersion())
	e.int32(correlation)
	e.int16(int16(len(clientID)))
	e.b = append(e.b, clientID...)
	e.tags()
	m.encode(&e)
	binary.BigEndian.PutUint32(e.b, uint32(len(e.b)-4)) //nolint:gosec // some kB
	if _, err := rw.Write(e.b); err != nil {
		return nil, err
	}
	return m, readAnswer(rw, m)
}

// maxAnswer is far beyond what we ask for, and short of what would end the process.
const maxAnswer = 1 << 30

func readAnswer(r io.Reader, m message) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxAnswer {
		return fmt.Errorf("%w: an answer of %d bytes", errProtocol, n)
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return err
	}
	d := decoder{b: body}
	if id := d.int32(); id != correlation {
		return fmt.Errorf("%w: the answer to another request", errProtocol)
	}
	d.tags(nil)
	return m.decode(&d)
}

// errProtocol means: what the broker sent is not Kafka's protocol as we know it.
var errProtocol = errors.New("answer cannot be read")

// encoder writes the protocol's flexible form, https://kafka.apache.org/protocol.html#protocol_types
type encoder struct{ b []byte }

func (e *encoder) byte(v byte)    { e.b = append(e.b, v) }
func (e *encoder) int16(v int16)  { e.b = binary.BigEndian.AppendUint16(e.b, uint16(v)) } //nolint:gosec // bits
func (e *encoder) int32(v int32)  { e.b = binary.BigEndian.AppendUint32(e.b, uint32(v)) } //nolint:gosec // bits
func (e *encoder) int64(v int64)  { e.b = binary.BigEndian.AppendUint64(e.b, uint64(v)) } //nolint:gosec // bits
func (e *encoder) uuid(v TopicID) { e.b = append(e.b, v[:]...) }

// length is of a list or a text that is not null.
func (e *encoder) length(n int) { e.b = binary.AppendUvarint(e.b, uint64(n)+1) } //nolint:gosec // not negative

func (e *encoder) text(s string) {
	e.length(len(s))
	e.b = append(e.b, s...)
}

// tags are the optional fields at the end of everything, of which we send none.
func (e *encoder) tags() { e.b = append(e.b, 0) }

// decoder reads the flexible form. What it returns refers to b. After the first fault everything is zero, and err says so.
type decoder struct {
	b   []byte
	err error
}

// take returns the next n bytes, zeroes when there are none left.
func (d *decoder) take(n int) []byte {
	if d.err == nil && (n < 0 || n > len(d.b)) {
		d.err = fmt.Errorf("%w: it ends too early", errProtocol)
	}
	if d.err != nil {
		return make([]byte, min(max(n, 0), 16))
	}
	taken := d.b[:n:n]
	d.b = d.b[n:]
	return taken
}

func (d *decoder) int16() int16  { return int16(binary.BigEndian.Uint16(d.take(2))) } //nolint:gosec // bits
func (d *decoder) int32() int32  { return int32(binary.BigEndian.Uint32(d.take(4))) } //nolint:gosec // bits
func (d *decoder) int64() int64  { return int64(binary.BigEndian.Uint64(d.take(8))) } //nolint:gosec // bits
func (d *decoder) uuid() TopicID { return TopicID(d.take(16)) }

func (d *decoder) uvarint() uint64 {
	v, n := binary.Uvarint(d.b)
	if n <= 0 && d.err == nil {
		d.err = fmt.Errorf("%w: it ends too early", errProtocol)
	}
	if d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

// varint reads a number as records hold it, zigzag.
func (d *decoder) varint() int64 {
	v, n := binary.Varint(d.b)
	if n <= 0 && d.err == nil {
		d.err = fmt.Errorf("%w: it ends too early", errProtocol)
	}
	if d.err != nil {
		return 0
	}
	d.b = d.b[n:]
	return v
}

// length is of a list or a text, 0 also for null. It is at most the bytes that are left, so that nothing can ask for more memory
// than was sent.
func (d *decoder) length() int {
	n := d.uvarint()
	if n == 0 {
		return 0
	}
	if n-1 > uint64(len(d.b)) && d.err == nil {
		d.err = fmt.Errorf("%w: a length of %d where %d bytes are left", errProtocol, n-1, len(d.b))
	}
	if d.err != nil {
		return 0
	}
	return int(n - 1) //nolint:gosec // bounded above
}

func (d *decoder) bytes() []byte { return d.take(d.length()) }

// tags reads the optional fields, and hands those that somebody wants to field.
func (d *decoder) tags(field func(tag uint64, d *decoder)) {
	for range d.uvarint() {
		if d.err != nil {
			return
		}
		tag := d.uvarint()
		inner := decoder{b: d.take(int(min(d.uvarint(), maxAnswer)))}
		if field != nil && d.err == nil {
			field(tag, &inner)
			d.err = inner.err
		}
	}
}

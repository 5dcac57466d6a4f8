package counter

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Events from a topic have no position in common with the rows: what is under way when a row is there already is told by
// the event's time. So a counter document keeps its latest deltas by time, in buckets, until a reconcile has gone past
// them: base and live are divided at a moment, the cut, and the buckets at or after it lie beyond.

// Bucket is a span of event time, in Unix seconds: at or after Start, before Start + Width.
type Bucket struct{ Start, Width int64 }

// bucketsKept is about how many buckets one key may have, however long no reconcile has come.
const bucketsKept = 64

// FinestBucket is the width of buckets for changes that may be under way for so long.
func FinestBucket(settle time.Duration) time.Duration {
	return min(10*time.Second, max(time.Second, (settle/3).Truncate(time.Second)))
}

// BucketOf is the bucket of an event's time. finest is the width where reconciles come as they should and events at once; the
// longer the last one is ago, or the older the event, the wider a bucket is, so that their number stays bounded. Widths are the
// finest one times a power of two, and every bucket begins at a multiple of its width, so that two of them never overlap in
// part.
func BucketOf(t time.Time, finest, age time.Duration) Bucket {
	width := max(1, int64(finest/time.Second))
	for seconds := int64(age / time.Second); width*bucketsKept < seconds; {
		width *= 2
	}
	at := t.Unix()
	start := at - (at%width+width)%width
	return Bucket{start, width}
}

// Name is the bucket's field.
func (b Bucket) Name() string {
	return strconv.FormatInt(b.Start, 10) + "_" + strconv.FormatInt(b.Width, 10)
}

// End is the first second after the bucket.
func (b Bucket) End() int64 { return b.Start + b.Width }

func parseBucket(name string) (Bucket, error) {
	start, width, found := strings.Cut(name, "_")
	s, err := strconv.ParseInt(start, 10, 64)
	w, err2 := strconv.ParseInt(width, 10, 64)
	if !found || err != nil || err2 != nil || w < 1 {
		return Bucket{}, fmt.Errorf("%q is no bucket", name)
	}
	return Bucket{s, w}, nil
}

// Recent is what a counter document was incremented by of late, by event time.
type Recent map[Bucket]int64

// recentOf reads the buckets of a document.
func recentOf(v bson.RawValue) (Recent, error) {
	if v.Type == 0 {
		return nil, nil
	}
	doc, ok := v.DocumentOK()
	if !ok {
		return nil, fmt.Errorf("is of type %s, not a document", v.Type)
	}
	elements, err := doc.Elements()
	if err != nil {
		return nil, err
	}
	recent := make(Recent, len(elements))
	for _, e := range elements {
		b, err := parseBucket(e.Key())
		if err != nil {
			return nil, err
		}
		n, ok := e.Value().AsInt64OK()
		if !ok || e.Value().Type == bson.TypeDouble {
			return nil, fmt.Errorf("has a bucket %s of type %s, not an integer", e.Key(), e.Value().Type)
		}
		recent[b] = n
	}
	return recent, nil
}

// Split divides the buckets at a cut: the sum of those at or after it, and those before it. ok is false when one lies on both
// sides.
func (r Recent) Split(cut int64) (beyond int64, before Recent, ok bool) {
	before = Recent{}
	for b, n := range r {
		switch {
		case b.Start >= cut:
			beyond += n
		case b.End() <= cut:
			before[b] = n
		default:
			return 0, nil, false
		}
	}
	return beyond, before, true
}

// Late is the sum of the buckets before a cut that a reconcile has gone past: what came after it.
func (r Recent) Late(past int64) (sum int64) {
	for b, n := range r {
		if b.End() <= past {
			sum += n
		}
	}
	return sum
}

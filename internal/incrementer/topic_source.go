package incrementer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/stream"
	"driftless/internal/stream/kafka"
)

// ErrDeadLetter means: a record cannot be read, and the source is to stop there.
var ErrDeadLetter = errors.New("record cannot be read, and on_error is stop")

// Records is a partition of a topic as a source of projected events.
type Records struct {
	Reader    *kafka.Reader
	Partition int32
	Projector *counter.Projector
	Stop      bool // at a record that cannot be read, instead of putting it among the dead letters
}

// Open implements stream.Source.
func (r Records) Open(_ context.Context, from stream.Start) (stream.Reader, error) {
	at, err := stream.TopicPositionOf(from.Token)
	if err != nil {
		return nil, err
	}
	lane := r.Reader.Open(r.Partition, kafka.Position{Topic: at.Topic, Offset: at.Offset, Epoch: at.Epoch})
	return &records{lane: lane, projector: r.Projector, stop: r.Stop, through: at.Through}, nil
}

// records is a partition that is read from one position on.
type records struct {
	lane      *kafka.Lane
	projector *counter.Projector
	stop      bool
	through   time.Time
	ended     error // what comes next
}

// Next implements stream.Reader.
func (r *records) Next(ctx context.Context) (stream.Batch, error) {
	if r.ended != nil {
		return stream.Batch{}, r.ended
	}
	read, err := r.lane.Next(ctx)
	if err != nil {
		return stream.Batch{}, err
	}
	now, tokens := time.Now(), make([]byte, 0, len(read.Records)*stream.TopicTokenSize)
	batch := stream.Batch{Events: make([]stream.Event, 0, len(read.Records))}
	for _, record := range read.Records {
		doc, at, dead := r.projector.Project(record.Key, record.Value, now)
		if dead != nil && r.stop {
			r.ended = fmt.Errorf("%w: partition %d, offset %d: %w", ErrDeadLetter, read.Partition, record.Offset, dead)
			if len(batch.Events) == 0 {
				return stream.Batch{}, r.ended
			}
			batch.Token = batch.Events[len(batch.Events)-1].Token
			return batch, nil // what is before it comes first
		}
		r.passed(record.Time, at, now)
		if doc != nil {
			start := len(tokens)
			// The leader's epoch of a place inside the batch is not known.
			tokens = position(kafka.Position{Topic: read.To.Topic, Offset: record.Offset + 1, Epoch: -1}, r.through).AppendToken(tokens)
			batch.Events = append(batch.Events, stream.Event{Token: bson.Raw(tokens[start:len(tokens):len(tokens)]), Doc: doc})
		}
	}
	if read.ReachedEnd() && read.AskedAt.After(r.through) {
		r.through = read.AskedAt
	}
	batch.Token, batch.Behind = token(read.To, r.through), max(0, read.HighWatermark-read.To.Offset)
	return batch, nil
}

// passed notes the times of a record: what follows it in the partition is of no earlier one, but for what may be under way.
func (r *records) passed(appended, event, now time.Time) {
	if !event.IsZero() && event.Before(appended) {
		appended = event
	}
	if appended.After(r.through) && !appended.After(now) {
		r.through = appended
	}
}

// Close implements stream.Reader.
func (r *records) Close(context.Context) { r.lane.Close() }

// token stands for a position in a checkpoint. What came before through is there.
func token(p kafka.Position, through time.Time) bson.Raw { return position(p, through).Token() }

func position(p kafka.Position, through time.Time) stream.TopicPosition {
	return stream.TopicPosition{Topic: p.Topic, Offset: p.Offset, Epoch: p.Epoch, Through: through}
}

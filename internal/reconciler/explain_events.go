package reconciler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
	"driftless/internal/stream"
)

const (
	// maxKeyEvents is how many events of a key an explanation lists.
	maxKeyEvents = 20
	// eventsPerBatch is how many the server sends at once.
	eventsPerBatch = 1000
	// shortestLook ends the search for a moment that the oplog reaches back to.
	shortestLook = time.Second
)

// events reads the last events of the key, out of a change stream that begins in the past. That it cannot be read is
// noted beside them, and ends nothing.
func (x *explainer) events(ctx context.Context) error {
	if x.Since <= 0 {
		x.out.Events.Note = "not looked for"
		return nil
	}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	// Not a deadline: the driver would send it along as a second maxTimeMS.
	defer time.AfterFunc(x.Reading, cancel).Stop()
	err := x.readEvents(reading)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if reading.Err() != nil {
		x.note("time is over after %s: later ones were not read", x.Reading)
		return nil
	}
	if err != nil {
		x.note("%s", x.whyNoEvents(err))
	}
	return nil
}

// note adds what is missing of the events.
func (x *explainer) note(format string, args ...any) {
	e := &x.out.Events
	if e.Note != "" {
		e.Note += "; "
	}
	e.Note += fmt.Sprintf(format, args...)
}

func (x *explainer) whyNoEvents(err error) string {
	rows := x.Counter.Rows.Database + "." + x.Counter.Rows.Collection
	switch {
	case errors.Is(err, stream.ErrUnauthorized):
		return "not read: the user may not open a change stream: grant it changeStream on " + rows
	case errors.Is(err, stream.ErrPositionLost):
		return "not read: the server keeps no history, not even of the last second: " + inShort(err)
	default:
		return "not read: " + inShort(err)
	}
}

// readEvents reads up to the server's last write when the explanation began.
func (x *explainer) readEvents(ctx context.Context) error {
	reader, events, err := x.openBack(ctx)
	if err != nil {
		return err
	}
	defer reader.Close(ctx)
	for {
		batch, err := reader.Next(ctx)
		if errors.Is(err, stream.ErrCollectionChanged) {
			return nil // its event has told
		}
		if err != nil {
			return err
		}
		for _, e := range batch.Events {
			if err := x.event(events, e); err != nil {
				return err
			}
		}
		at, err := stream.TokenTime(batch.Token)
		if err != nil {
			return err
		}
		x.out.Events.Through = momentOf(at)
		// A batch that is not full ends where the server has nothing more.
		if !at.Before(x.last) && len(batch.Events) < eventsPerBatch {
			return nil
		}
	}
}

// openBack opens a stream as far back as was asked for, or as far as the server has history: it tells at once that it
// has none, so half the way is tried, and half of that.
func (x *explainer) openBack(ctx context.Context) (stream.Reader, *counter.KeyEvents, error) {
	events := x.Counter.EventsOf(x.Key)
	stages, err := events.Pipeline()
	if err != nil {
		return nil, nil, err
	}
	source := stream.NewChangeStream(x.client, x.Counter.Rows.Database, x.Counter.Rows.Collection, stages, eventsPerBatch)
	for since := x.Since; ; since /= 2 {
		from := bson.Timestamp{T: x.last.T - uint32(min(since/time.Second, time.Duration(x.last.T)))} //nolint:gosec // bounded on the line
		reader, err := source.Open(ctx, stream.Start{Position: from})
		if errors.Is(err, stream.ErrPositionLost) && since > shortestLook {
			continue
		}
		if err == nil && since < x.Since {
			x.note("the server's history does not reach back %s", x.Since)
		}
		x.out.Events.Since = momentOf(from)
		return reader, events, err
	}
}

// event adds one, and forgets the earliest when there are too many.
func (x *explainer) event(events *counter.KeyEvents, e stream.Event) error {
	event, mine, err := events.Read(e)
	if err != nil || !mine {
		return err
	}
	out := &x.out.Events
	switch {
	case event.Ended:
		x.note("the collection of the rows had a %s at %s", event.Operation, stream.InWords(event.At))
		return nil
	case event.Unknown:
		out.Unknown++
		return nil
	}
	out.Found++
	out.List = append(out.List, x.changed(event))
	if len(out.List) > maxKeyEvents {
		out.List = out.List[1:]
	}
	return nil
}

func (x *explainer) changed(e counter.KeyEvent) Changed {
	c := Changed{At: momentOf(e.At), Operation: e.Operation, Row: ExtendedJSON{e.Row}}
	mine := func(side counter.Contribution) (*Counted, int64) {
		switch {
		case side.Key.IsZero():
			return nil, 0
		case counter.Canonical(side.Key) != counter.Canonical(x.Key):
			return &Counted{ExtendedJSON{side.Key}, side.Weight}, 0
		default:
			return &Counted{ExtendedJSON{side.Key}, side.Weight}, side.Weight
		}
	}
	var before, after int64
	c.Before, before = mine(e.Before)
	c.After, after = mine(e.After)
	c.Change = after - before
	c.Beyond = x.lane >= 0 && x.lanes[x.lane].Position.Before(e.At)
	return c
}

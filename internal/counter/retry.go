package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// Outcomes of a retry.
const (
	RetryApplied = "applied"
	RetryCounted = "counted" // a reconcile has counted its row already, or its id was seen within the window of dedupe
	RetryMarked  = "marked"  // its key, or its counter, is recounted by the reconciler's next run
	RetryNothing = "nothing" // there is nothing to count in it
	RetryKept    = "kept"    // it cannot be counted still, and stands
	RetryGone    = "gone"    // it did not stand any more
)

// Retried is what became of one letter.
type Retried struct {
	Outcome string
	Why     string // it is kept
	Apart   []Apart
}

// TopicSource is how the records of a source's topic are read again.
type TopicSource struct {
	Topic     string
	Projector *Projector    // for all counters of the source
	Window    time.Duration // of dedupe, 0 for none
}

// Retrier applies dead letters again. It is used by one goroutine at a time.
type Retrier struct {
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *States
	definitions []*Definition
	sources     map[string]TopicSource
}

// NewRetrier applies letters to the given counters, records by the topics of their sources.
func NewRetrier(client *mongo.Client, checkpoints *checkpoint.Store, states *States, definitions []*Definition, sources map[string]TopicSource) *Retrier {
	return &Retrier{client, checkpoints, states, definitions, sources}
}

// Retry applies the letter of a name, in one transaction with its removal: two retries at once, or a lost answer, apply it once.
// An error leaves it as it was, or applied.
func (r *Retrier) Retry(ctx context.Context, name string) (Retried, error) {
	letter, found, err := r.states.Letter(ctx, name)
	var out Retried
	switch {
	case err != nil:
		return Retried{}, err
	case !found:
		return Retried{Outcome: RetryGone}, nil
	case letter.Kind == LetterRecord:
		out, err = r.record(ctx, letter)
	default:
		out, err = r.increments(ctx, letter)
	}
	if err != nil {
		return Retried{}, fmt.Errorf("retry dead letter %s: %w", name, err)
	}
	return out, nil
}

func kept(format string, args ...any) Retried {
	return Retried{Outcome: RetryKept, Why: fmt.Sprintf(format, args...)}
}

// increments asks for a recount of their key. They are not added: how much of them the document has got since, in a repair, only
// the rows can tell. The letter goes when the key has been compared.
func (r *Retrier) increments(ctx context.Context, letter Letter) (Retried, error) {
	for _, d := range r.definitions {
		if d.Name == letter.Counter {
			mark := touch(d, readRawKey(letter.RawKey), bson.NewObjectID())
			return Retried{Outcome: RetryMarked}, r.states.write(ctx, TouchedCollection, []mongo.WriteModel{mark})
		}
	}
	return kept("there is no counter %s in the configuration", letter.Counter), nil
}

// record reads a record as its source is declared now, and applies what it tells.
func (r *Retrier) record(ctx context.Context, letter Letter) (Retried, error) {
	name := checkpoint.SourceOf(letter.Lane)
	source, declared := r.sources[name]
	if !declared || letter.Topic != source.Topic {
		return kept("source %s does not read topic %s any more: what it counts has been recounted since, so discard it", name, letter.Topic), nil
	}
	if !letter.Whole() {
		return kept("only the first %d of its %d bytes are kept: send it again, then discard this one", maxDeadBytes, letter.Size), nil
	}
	at, err := r.checkpoints.Load(ctx, letter.Lane)
	if errors.Is(err, checkpoint.ErrNone) {
		return kept("its partition is not followed: run `incrementer run` first"), nil
	}
	if err != nil {
		return Retried{}, err
	}
	definitions := OfSource(r.definitions, name)
	for _, d := range definitions {
		if at.Counters[d.Name].Hash != d.Hash {
			return kept("counter %s is not counted as it is in this configuration: restart `incrementer run` with it first", d.Name), nil
		}
	}
	doc, _, dead := source.Projector.Project(bytesOf(letter.RecordKey), bytesOf(letter.Record), time.Now())
	if dead != nil {
		return kept("%v", dead), r.states.stillDead(ctx, letter, dead)
	}
	applier := NewApplier(r.client, r.checkpoints, r.states, definitions, definitions, 1, unobserved{})
	applier.Window, applier.belated = source.Window, true
	applier.once = removal{states: r.states, letter: letter}
	return applier.retry(ctx, at, doc)
}

// retry applies one event, nil for nothing, beside the lane that is at the given checkpoint.
func (a *Applier) retry(ctx context.Context, at checkpoint.Checkpoint, doc bson.Raw) (Retried, error) {
	p := &piece{from: at, to: at}
	p.to.Batch = bson.NewObjectID()
	if doc != nil {
		p.events = []stream.Event{{Token: at.Token, Doc: doc}}
	}
	var err error
	if p.folded, err = Fold(a.definitions, p.events); err != nil {
		return Retried{}, err
	}
	if p.folded.Ended != nil {
		return kept("it tells of no row, but that a collection came to its end (%s): discard it", p.folded.Ended.Operation), nil
	}
	if p.images, err = a.imageless(ctx, p.folded.Missing); err != nil {
		return Retried{}, err
	}
	switch err := a.commit(ctx, p); {
	case errors.Is(err, errRemoved):
		return Retried{Outcome: RetryGone}, nil
	case err != nil:
		return Retried{}, err
	}
	return Retried{Outcome: p.outcome(), Apart: p.apart}, nil
}

// outcome is what applying the piece of one letter came to.
func (p *piece) outcome() string {
	switch {
	case len(p.images.Keys) > 0, len(p.images.Recounts) > 0:
		return RetryMarked
	case p.folded.Repeated > 0, p.counted > 0 && p.counted == len(p.folded.Deltas):
		return RetryCounted
	case len(p.folded.Deltas) == 0:
		return RetryNothing
	default:
		return RetryApplied
	}
}

// withoutCounted leaves out what a reconcile has counted since, in a piece whose events come long after their time: of a document
// that was divided at a later moment, the rows of the event's time are in base. Its key is marked all the same.
func (a *Applier) withoutCounted(ctx context.Context, p *piece) error {
	if !a.belated {
		return nil
	}
	p.counted = 0
	for i := range p.folded.Deltas {
		d := &p.folded.Deltas[i]
		documents, err := d.Counter.Documents(ctx, a.client, Listed([]bson.RawValue{d.Key}))
		if err != nil {
			return err
		}
		cut := documents[Canonical(d.Key)].Cut
		for j := range d.Recent {
			if s := &d.Recent[j]; s.End() <= cut {
				d.N, s.N = d.N-s.N, 0
			}
		}
		if !d.moves() {
			p.counted++
		}
	}
	return nil
}

// errRemoved: the letter does not stand any more.
var errRemoved = errors.New("the dead letter is gone")

// removal is once by the removal of the letter that the piece is of.
type removal struct {
	states *States
	letter Letter
}

func (o removal) filter() bson.D {
	return bson.D{{Key: "_id", Value: o.letter.ID}, {Key: "stamp", Value: o.letter.Stamp}}
}

func (o removal) take(ctx context.Context, _ *piece) error {
	result, err := o.states.letters().DeleteOne(ctx, o.filter())
	if err != nil {
		return fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	if result.DeletedCount == 0 {
		return checkpoint.ErrFenced
	}
	return nil
}

// taken: where an attempt of ours got as far as its commit, and the letter is gone, it is that one or another retry which has
// applied it.
func (o removal) taken(ctx context.Context, p *piece) error {
	n, err := o.states.letters().CountDocuments(ctx, o.filter())
	switch {
	case err != nil:
		return err
	case n > 0:
		return errors.New("the removal of the dead letter has not reached a majority yet")
	case p.written:
		return nil
	default:
		return backoff.Permanent(errRemoved)
	}
}

// stillDead notes why a record cannot be counted now.
func (s *States) stillDead(ctx context.Context, letter Letter, err error) error {
	reason, why := faultOfRecord(err)
	_, err = s.letters().UpdateOne(ctx, bson.D{{Key: "_id", Value: letter.ID}, {Key: "stamp", Value: letter.Stamp}}, bson.D{
		{Key: "$set", Value: bson.D{{Key: "reason", Value: why}, {Key: "kind_of_fault", Value: reason}}},
		{Key: "$currentDate", Value: bson.D{{Key: "last_at", Value: true}}},
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", DeadLettersCollection, err)
	}
	return nil
}

// unobserved is told nothing that the outcome does not tell.
type unobserved struct{}

// Applied implements Observer.
func (unobserved) Applied(Applied) {}

// Retried implements Observer.
func (unobserved) Retried(string, error) {}

package counter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

const (
	// maxTail and maxTailBytes bound the tail that a checkpoint lists: its document has 16 MiB, and keys may be large.
	// Beyond them a reconciler waits for the next checkpoint.
	maxTail      = 2000
	maxTailBytes = 1 << 20
	// maxApart is the default of Applier.MaxApart.
	maxApart = 1000
)

// ErrRefused means that so many documents refuse their increment that setting them apart would only hide what is wrong.
var ErrRefused = errors.New("counter documents refuse their increments")

// Applier applies the batches of one lane. It is used by one goroutine at a time.
type Applier struct {
	// MaxApart is how many documents of one transaction may refuse their increment before that is no longer a few bad
	// documents but a wrong configuration, and ErrRefused.
	MaxApart int
	// Window is how long the id of an event is kept, so that a repeated one is not applied again; 0 is not at all.
	Window time.Duration

	once        once // makes the effect of a piece happen once
	belated     bool // events may come long after their time: what a reconcile has counted since is left out
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *States
	definitions []*Definition // in the order of the pipeline that the batches come from
	all         []*Definition // of the source, broken ones included
	maxEvents   int
	size        int // events in the next transaction: halved by conflicts, doubled by success
	observer    Observer
	reads       []reads // of all, once a change comes without an image
}

// Observer is told what an applier does.
type Observer interface {
	// Applied follows a committed transaction.
	Applied(Applied)
	// Retried follows a failed attempt at operation that will be made again.
	Retried(operation string, err error)
}

// Applied is one committed transaction.
type Applied struct {
	Folded
	Apart    []Apart
	Images   Imageless // what Missing comes to
	At       checkpoint.Checkpoint
	Duration time.Duration
}

// Apart is a delta that its document could not take, set apart with the server's reason.
type Apart struct {
	Delta  *Delta
	Code   int
	Reason string
}

// NewApplier applies batches whose contributions are those of definitions, in transactions of at most maxEvents
// events. A missing image may concern every counter in all.
func NewApplier(client *mongo.Client, checkpoints *checkpoint.Store, states *States, definitions, all []*Definition,
	maxEvents int, observer Observer,
) *Applier {
	return &Applier{
		once: advance{checkpoints}, client: client, checkpoints: checkpoints, states: states, definitions: definitions, all: all,
		maxEvents: maxEvents, MaxApart: maxApart, size: maxEvents, observer: observer,
	}
}

// Apply applies a batch in as many transactions as it takes and returns the checkpoint it got to, also with an error.
// checkpoint.ErrFenced: another owner was faster. stream.ErrCollectionChanged: all before that event is applied.
func (a *Applier) Apply(ctx context.Context, at checkpoint.Checkpoint, batch stream.Batch) (checkpoint.Checkpoint, error) {
	events := batch.Events
	for first := true; first || len(events) > 0; first = false {
		if err := ctx.Err(); err != nil {
			return at, err
		}
		n := min(a.size, len(events))
		token := batch.Token
		if n < len(events) {
			token = events[n-1].Token
		}
		p, err := a.piece(at, events[:n], token)
		if err != nil {
			return at, err
		}
		if p.images, err = a.imageless(ctx, p.folded.Missing); err != nil {
			return at, err
		}
		err = a.commit(ctx, p)
		if errors.Is(err, errConflict) {
			a.size = max(1, n/2)
			continue
		}
		if err != nil {
			return at, err
		}
		at, events, a.size = p.to, events[n:], min(2*a.size, a.maxEvents)
		if p.folded.Ended != nil {
			return at, fmt.Errorf("%w: %s", stream.ErrCollectionChanged, p.folded.Ended.Operation)
		}
	}
	return at, nil
}

// piece is the content of one transaction. Its checkpoint's batch id names exactly this content.
type piece struct {
	from, to checkpoint.Checkpoint
	events   []stream.Event
	folded   Folded
	apart    []Apart
	images   Imageless // what the changes without an image come to
	probed   bool      // every document has been tried apart from the others
	held     int       // attempts that found the checkpoint in another owner's transaction
	written  bool      // an attempt has got as far as its commit
	counted  int       // deltas that a reconcile has counted already
}

func (a *Applier) piece(from checkpoint.Checkpoint, events []stream.Event, token bson.Raw) (*piece, error) {
	folded, err := Fold(a.definitions, events)
	if err != nil {
		return nil, err
	}
	if folded.Ended != nil {
		// What ends the stream is not passed: the token stays on the last event before it.
		events = events[:folded.Events]
		token = from.Token
		if len(events) > 0 {
			token = events[len(events)-1].Token
		}
	}
	p := &piece{from: from, to: from, events: events, folded: folded}
	if token == nil { // ended before the first event of all
		p.to.Seq, p.to.Batch = from.Seq+1, bson.NewObjectID()
		return p, nil
	}
	if p.to, err = from.Next(token); err != nil {
		return nil, err
	}
	return p, a.addTail(p)
}

// addTail lists in p's checkpoint the deltas at the cluster time of its token, those set apart left out.
func (a *Applier) addTail(p *piece) error {
	group, err := p.lastGroup(a.definitions)
	if err != nil {
		return err
	}
	tail := checkpoint.Tail{}
	if p.to.Position == p.from.Position {
		tail = p.from.Tail
	}
	apart := make(map[string]bool, len(p.apart))
	for _, x := range p.apart {
		apart[keyID(x.Delta.Counter, x.Delta.Key)] = true
	}
	deltas := append([]checkpoint.Delta(nil), tail.Deltas...)
	for i := range group {
		d := &group[i]
		if d.N != 0 && (len(apart) == 0 || !apart[keyID(d.Counter, d.Key)]) {
			deltas = append(deltas, checkpoint.Delta{Counter: d.Counter.Name, Key: d.Key, Delta: d.N})
		}
	}
	if tail.TooLarge || tooLarge(deltas) {
		p.to.Tail = checkpoint.Tail{TooLarge: true}
		return nil
	}
	p.to.Tail = checkpoint.Tail{Deltas: deltas}
	return nil
}

func tooLarge(tail []checkpoint.Delta) bool {
	bytes := 0
	for _, d := range tail {
		bytes += len(d.Key.Value)
	}
	return len(tail) > maxTail || bytes > maxTailBytes
}

// lastGroup folds the events that share the cluster time of the piece's token.
func (p *piece) lastGroup(definitions []*Definition) ([]Delta, error) {
	switch first := stream.LastGroup(p.events, p.to.Token); first {
	case len(p.events):
		return nil, nil
	case 0:
		return p.folded.Deltas, nil
	default:
		folded, err := Fold(definitions, p.events[first:])
		return folded.Deltas, err
	}
}

// write fills the transaction in ctx. An error of one document comes back as *documentError.
func (a *Applier) write(ctx context.Context, p *piece) error {
	if err := a.once.take(ctx, p); err != nil {
		return err
	}
	if err := a.withoutRepeated(ctx, p); err != nil {
		return err
	}
	if err := a.withoutCounted(ctx, p); err != nil {
		return err
	}
	for _, group := range groupByTarget(p) {
		if err := a.increments(ctx, group, p.to.Batch); err != nil {
			return err
		}
	}
	if err := a.marks(ctx, p); err != nil {
		return err
	}
	for _, d := range p.images.Recounts {
		if err := a.states.mark(ctx, d, ReasonMissingImage, p.images.after); err != nil {
			return err
		}
	}
	if err := a.markDead(ctx, p); err != nil {
		return err
	}
	p.written = true
	return nil
}

// markDead asks for a recount where a record that cannot be read may be of any key, and the rows do not tell which (I6).
func (a *Applier) markDead(ctx context.Context, p *piece) error {
	if len(p.folded.Dead) == 0 {
		return nil
	}
	for _, d := range a.all {
		if d.ByTime() { // a reconcile finds the rows that were created or deleted meanwhile
			continue
		}
		if err := a.states.mark(ctx, d, ReasonMissingImage, stream.Before(p.to.Position)); err != nil {
			return err
		}
	}
	return nil
}

// marks writes into the state database what the counter documents cannot carry.
func (a *Applier) marks(ctx context.Context, p *piece) error {
	var touched, letters []mongo.WriteModel
	for i := range p.folded.Deltas {
		if d := &p.folded.Deltas[i]; !d.Counter.Target.Upsert {
			touched = append(touched, touch(d.Counter, d.Key, p.to.Batch))
		}
	}
	for _, x := range p.apart {
		touched = append(touched, touch(x.Delta.Counter, x.Delta.Key, p.to.Batch))
		letters = append(letters, deadLetter(x, p.from.Lane, p.to.Batch))
	}
	for _, k := range p.images.Keys {
		touched = append(touched, touchImageless(k, p.to.Batch))
	}
	if err := a.states.write(ctx, TouchedCollection, touched); err != nil {
		return err
	}
	if err := a.states.write(ctx, DeadLettersCollection, letters); err != nil {
		return err
	}
	return a.states.setApart(ctx, p.folded.Dead, p.from, p.to.Batch)
}

// increments sends the updates of one target collection.
func (a *Applier) increments(ctx context.Context, deltas []*Delta, stamp bson.ObjectID) error {
	models := make([]mongo.WriteModel, len(deltas))
	for i, d := range deltas {
		models[i] = increment(d, stamp)
	}
	target := deltas[0].Counter.Target
	_, err := database(a.client, target.Database).Collection(target.Collection).
		BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err == nil {
		return nil
	}
	if bad := documentFault(err, deltas); bad != nil {
		return bad
	}
	return fmt.Errorf("increment %s.%s: %w", target.Database, target.Collection, err)
}

// groupByTarget lists the deltas that are written, by target collection, without those set apart.
func groupByTarget(p *piece) [][]*Delta {
	type collection struct{ database, name string }
	apart := make(map[*Delta]bool, len(p.apart))
	for _, x := range p.apart {
		apart[x.Delta] = true
	}
	index := map[collection]int{}
	var groups [][]*Delta
	for i := range p.folded.Deltas {
		d := &p.folded.Deltas[i]
		if apart[d] || marksOnly(d) {
			continue
		}
		at := collection{d.Counter.Target.Database, d.Counter.Target.Collection}
		n, ok := index[at]
		if !ok {
			n = len(groups)
			index[at] = n
			groups = append(groups, nil)
		}
		groups[n] = append(groups[n], d)
	}
	return groups
}

package counter

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
)

// KeptFor is how long an entry of the journal and the record of a run are kept. An entry that was undone is kept until its
// key is released, and that long after.
const KeptFor = 30 * 24 * time.Hour

// Expiry is the date by which the server removes a record that is made now.
func Expiry() time.Time { return time.Now().Add(KeptFor).UTC() }

// Record is what the journal keeps of a repair beside its numbers.
type Record struct {
	Run      string
	Truth    int64
	Drift    int64 // displayed - truth, at Position
	Rebased  bool  // the first count of a counter, or of a changed one: no drift
	Cause    string
	Position bson.Timestamp
}

// Values are the three numbers of a counter document.
type Values struct {
	Base  int64 `bson:"base"`
	Live  int64 `bson:"live"`
	Total int64 `bson:"total"`
}

// Entry is one repair in the journal. Its _id is the stamp that the repair left in the document.
type Entry struct {
	ID        bson.ObjectID  `bson:"_id"`
	Run       string         `bson:"run"`
	Counter   string         `bson:"counter"`
	Hash      string         `bson:"hash"`   // of the definition that it was repaired by
	KeyID     string         `bson:"key_id"` // counter and canonical key, to look for
	Key       string         `bson:"key"`    // for people
	RawKey    bson.Binary    `bson:"raw_key"`
	Before    Values         `bson:"before"`
	After     Values         `bson:"after"`
	Made      bool           `bson:"made,omitempty"` // the repair made the document
	Truth     int64          `bson:"truth"`
	Drift     int64          `bson:"drift"`
	Rebased   bool           `bson:"rebased,omitempty"`
	Cause     string         `bson:"cause"`
	Position  bson.Timestamp `bson:"position"`
	At        time.Time      `bson:"at"`
	ExpiresAt time.Time      `bson:"expires_at,omitempty"`

	Undo bson.ObjectID `bson:"undo,omitempty"` // of whoever took it back
	Kept bool          `bson:"kept,omitempty"` // taken back, and its key not repaired until released
}

// KeyValue is the key as it stands in its document.
func (e Entry) KeyValue() bson.RawValue { return readRawKey(e.RawKey) }

// Journal makes repairs, each in one transaction with its entry, and takes them back. It is used by one goroutine at a
// time.
type Journal struct {
	client      *mongo.Client
	checkpoints *checkpoint.Store
	states      *States
	taken       bool
}

// NewJournal opens the journal of the state database.
func NewJournal(client *mongo.Client, checkpoints *checkpoint.Store, states *States) *Journal {
	return &Journal{client: client, checkpoints: checkpoints, states: states}
}

func (j *Journal) entries() *mongo.Collection { return j.states.db.Collection(RepairsCollection) }

// Indexes of the journal: for its expiry, for the repairs of a run and of a key, and for what is kept from repair.
func journalIndexes() []Index {
	return []Index{
		{Name: "expiry", Keys: one("expires_at", 1), Expires: true},
		{Name: "run", Keys: bson.D{{Key: "run", Value: 1}, {Key: "_id", Value: 1}}},
		{Name: "key", Keys: bson.D{{Key: "key_id", Value: 1}, {Key: "_id", Value: 1}}},
		{Name: "kept", Keys: bson.D{{Key: "kept", Value: 1}, {Key: "counter", Value: 1}, {Key: "run", Value: 1}}, Partial: one("kept", true)},
	}
}

// StateIndexes are the indexes of our own collections, by collection.
func StateIndexes() map[string][]Index {
	return map[string][]Index{
		TouchedCollection: {TouchedByCounter()},
		RepairsCollection: journalIndexes(),
		RunsCollection:    {{Name: "expiry", Keys: one("expires_at", 1), Expires: true}},
		DedupeCollection:  {{Name: "expiry", Keys: one("expires_at", 1), Expires: true}},

		// Few letters expire: the others need no entry.
		DeadLettersCollection: {{Name: "expiry", Keys: one("expires_at", 1), Expires: true, Partial: one("expires_at", one("$exists", true))}},
	}
}

// Repair makes repairs of a counter that change what it displays, in transactions of few documents: the documents, the
// entries, and the marks and dead letters of the keys. Each is guarded by the stamp of the last repair that was read, so
// that two reconcilers at one position repair once. The outcomes are in the order of the repairs; they hold also with an
// error, for what came true before it.
func (j *Journal) Repair(ctx context.Context, d *Definition, repairs []Repair) ([]Outcome, error) {
	outcomes, ids := make([]Outcome, len(repairs)), make([]bson.ObjectID, len(repairs))
	for i := range ids {
		ids[i] = bson.NewObjectID()
	}
	err := j.inPieces(ctx, len(repairs), pieces{
		write: func(ctx context.Context, piece []int, again bool) (func(), error) {
			w := repairing{Journal: j, d: d, again: again}
			for _, i := range piece {
				w.add(repairs[i], ids[i])
			}
			err := w.write(ctx)
			return func() {
				for n, i := range piece {
					outcomes[i] = w.outcomes[n]
				}
			}, err
		},
		refused: func(i int, why string) { outcomes[i] = Outcome{Refused: why} },
		busy:    func(i int) { outcomes[i] = Outcome{Busy: true} },
	})
	return outcomes, err
}

// repairing is one attempt at one transaction of repairs.
type repairing struct {
	*Journal
	d        *Definition
	again    bool // an earlier attempt's commit may have come true
	repairs  []Repair
	ids      []bson.ObjectID
	outcomes []Outcome
}

func (w *repairing) add(r Repair, id bson.ObjectID) {
	w.repairs, w.ids = append(w.repairs, r), append(w.ids, id)
}

// write fills the transaction in ctx. What is read in it is what is written to: a document that is changed meanwhile is a
// conflict.
func (w *repairing) write(ctx context.Context) error {
	now, err := w.d.Documents(ctx, w.client, Listed(keysOf(w.repairs)))
	if err != nil {
		return err
	}
	done, err := w.committed(ctx)
	if err != nil {
		return err
	}
	w.outcomes = make([]Outcome, len(w.repairs))
	var models []mongo.WriteModel
	var at []int
	var entries []any
	var cleared []Touched
	for i, r := range w.repairs {
		document := now[Canonical(r.Read.Key)]
		if done[w.ids[i]] {
			w.outcomes[i].Applied = true
			continue
		}
		if document.Repair != r.Read.Repair || !document.Exists && !w.d.upserts(r) {
			w.outcomes[i].Gone = !document.Exists
			continue
		}
		w.outcomes[i].Applied = true
		models, at = append(models, w.d.repair(r, w.ids[i])), append(at, i)
		entries, cleared = append(entries, w.entry(r, w.ids[i], document)), append(cleared, r.Mark)
	}
	if len(models) == 0 {
		return nil
	}
	if _, err := w.d.targets(w.client).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false)); err != nil {
		return refusal(err, at, "repair counters of "+w.d.Name)
	}
	if _, err := w.entries().InsertMany(ctx, entries); err != nil {
		return fmt.Errorf("write %s: %w", RepairsCollection, err)
	}
	return w.d.Untouch(ctx, w.states, cleared)
}

// committed are the repairs that an earlier attempt has made after all.
func (w *repairing) committed(ctx context.Context) (map[bson.ObjectID]bool, error) {
	if !w.again {
		return nil, nil
	}
	cursor, err := w.entries().Find(ctx, one("_id", one("$in", w.ids)), options.Find().SetProjection(one("_id", 1)))
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", RepairsCollection, err)
	}
	var found []struct {
		ID bson.ObjectID `bson:"_id"`
	}
	if err := cursor.All(ctx, &found); err != nil {
		return nil, fmt.Errorf("read %s: %w", RepairsCollection, err)
	}
	done := make(map[bson.ObjectID]bool, len(found))
	for _, entry := range found {
		done[entry.ID] = true
	}
	return done, nil
}

func (w *repairing) entry(r Repair, id bson.ObjectID, now Document) Entry {
	before := Values{now.Base, now.Live, now.Total}
	return Entry{
		ID: id, Run: r.Record.Run, Counter: w.d.Name, Hash: w.d.Hash,
		KeyID: keyID(w.d, r.Read.Key), Key: r.Read.Key.String(), RawKey: rawKey(r.Read.Key),
		Before: before, After: Values{before.Base + r.Base, before.Live + r.Live, before.Total + r.Total}, Made: !now.Exists,
		Truth: r.Record.Truth, Drift: r.Record.Drift, Rebased: r.Record.Rebased, Cause: r.Record.Cause,
		Position: r.Record.Position, At: time.Now().UTC(), ExpiresAt: Expiry(),
	}
}

func keysOf(repairs []Repair) []bson.RawValue {
	keys := make([]bson.RawValue, len(repairs))
	for i, r := range repairs {
		keys[i] = r.Read.Key
	}
	return keys
}

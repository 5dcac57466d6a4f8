package counter

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/cenkalti/backoff/v4"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/stream"
)

// Mend is the repair of a counter that the application increments itself.
type Mend struct {
	Look     bson.ObjectID // that found it wrong: one look mends once, whatever becomes of a commit
	Read     Document      // as found
	Truth    int64
	Run      string
	Cause    string
	Position bson.Timestamp
	Waited   bool // since the look: what comes so late overwrites nothing that has changed
}

var (
	errMissed = errors.New("a document is not as it was read")
	errMended = errors.New("the look has mended already")
)

// Mend repairs counters, each with an entry in the journal in the same transaction. It adds the difference, if the document
// still shows what was read; with repair: overwrite it sets the field, whatever it shows a moment later. The outcomes are in the
// order of the mends: what was neither applied nor refused has changed meanwhile, or is gone.
func (d *Definition) Mend(ctx context.Context, client *mongo.Client, states *States, mends []Mend) ([]Outcome, error) {
	session, err := client.StartSession()
	if err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	m := mender{Definition: d, client: client, states: states, session: session}
	outcomes := make([]Outcome, len(mends))
	for first := 0; first < len(mends); first += pieceDocuments {
		last := min(first+pieceDocuments, len(mends))
		if err := m.all(ctx, mends[first:last], outcomes[first:last]); err != nil {
			return outcomes, err
		}
	}
	return outcomes, nil
}

type mender struct {
	*Definition
	client  *mongo.Client
	states  *States
	session *mongo.Session
}

// all mends together what can be, and in halves what cannot: a transaction does not say which document it failed on.
func (m *mender) all(ctx context.Context, mends []Mend, outcomes []Outcome) error {
	err := m.insist(ctx, mends)
	var bulk mongo.BulkWriteException
	refused := errors.As(err, &bulk) && len(bulk.WriteErrors) > 0
	switch half := len(mends) / 2; {
	case err == nil:
		for i := range outcomes {
			outcomes[i].Applied = true
		}
		return nil
	case !refused && !errors.Is(err, errMissed) && !errors.Is(err, errMended) && !IsConflict(err):
		return fmt.Errorf("repair counters of %s: %w", m.Name, err)
	case half > 0:
		if err := m.all(ctx, mends[:half], outcomes[:half]); err != nil {
			return err
		}
		return m.all(ctx, mends[half:], outcomes[half:])
	case errors.Is(err, errMended):
		outcomes[0].Applied = true
	case refused && !IsConflict(err) && !racedUpsert(bulk.WriteErrors[0]):
		outcomes[0].Refused = bulk.WriteErrors[0].Message
	}
	return nil
}

// insist tries the transaction again for as long as the server is away. What an earlier try has committed after all, the
// journal knows.
func (m *mender) insist(ctx context.Context, mends []Mend) error {
	policy := backoff.NewExponentialBackOff(backoff.WithInitialInterval(20*time.Millisecond),
		backoff.WithMaxInterval(time.Second), backoff.WithMaxElapsedTime(retryFor))
	return backoff.Retry(func() error {
		err := transact(context.WithoutCancel(ctx), m.session, func(ctx context.Context) error { return m.write(ctx, mends) })
		if err == nil || !IsConflict(err) && errors.Is(stream.Classify(err), stream.ErrInterrupted) && !errors.Is(err, errMissed) && !errors.Is(err, errMended) {
			return err
		}
		return backoff.Permanent(err)
	}, backoff.WithContext(policy, ctx))
}

// write fills the transaction in ctx.
func (m *mender) write(ctx context.Context, mends []Mend) error {
	models, entries := make([]mongo.WriteModel, len(mends)), make([]any, len(mends))
	for i, mend := range mends {
		models[i], entries[i] = m.mend(mend), m.entry(mend)
	}
	if _, err := m.states.db.Collection(RepairsCollection).InsertMany(ctx, entries); err != nil {
		if mongo.IsDuplicateKeyError(err) {
			return errMended
		}
		return fmt.Errorf("write %s: %w", RepairsCollection, err)
	}
	result, err := m.targets(m.client).BulkWrite(ctx, models, options.BulkWrite().SetOrdered(false))
	if err != nil {
		return err
	}
	if int(result.MatchedCount+result.UpsertedCount) != len(mends) {
		return errMissed
	}
	return nil
}

// mend is the update of one document.
func (d *Definition) mend(m Mend) mongo.WriteModel {
	filter := bson.D{{Key: "_id", Value: one("$eq", m.Read.Key)}}
	var update bson.D
	switch {
	case d.Target.Count == "":
		filter = append(filter, still(d.Target.Base, m.Read.Base), still(d.Target.Live, m.Read.Live))
		update = one("$inc", bson.D{
			{Key: d.Target.Base, Value: small(m.Truth - m.Read.Base)}, {Key: d.Target.Live, Value: small(-m.Read.Live)},
		})
	case d.Target.Count != "" && d.Repair == "overwrite":
		update = one("$set", one(d.Target.Count, sameKind(m.Truth, m.Read.Kind)))
		if m.Waited {
			filter = append(filter, still(d.Target.Count, m.Read.Base))
		}
	default:
		filter = append(filter, still(d.Target.Count, m.Read.Base))
		update = one("$inc", one(d.Target.Count, small(m.Truth-m.Read.Base)))
	}
	if d.Target.ReconciledAt != "" {
		update = append(update, bson.E{Key: "$currentDate", Value: one(d.Target.ReconciledAt, true)})
	}
	return mongo.NewUpdateOneModel().SetFilter(filter).SetUpdate(update).SetUpsert(d.Target.Upsert && !m.Read.Exists).SetCollation(simple)
}

// still matches a field that has the value read. A missing one is 0.
func still(path string, n int64) bson.E {
	if n == 0 {
		return bson.E{Key: path, Value: one("$in", bson.A{int64(0), nil})}
	}
	return bson.E{Key: path, Value: one("$eq", n)}
}

// small is a number to add that does not make a long of a field that is none: not every driver reads one for the other.
func small(n int64) any {
	if n >= math.MinInt32 && n <= math.MaxInt32 {
		return int32(n)
	}
	return n
}

// sameKind is a number of the type that the field had.
func sameKind(n int64, kind bson.Type) any {
	switch kind { //nolint:exhaustive // all others are set apart, or missing
	case bson.TypeDouble:
		return float64(n)
	case bson.TypeInt64:
		return n
	default:
		return small(n)
	}
}

// entry is what the journal keeps of a repair, in the shape of every repair: a single field is its base.
func (d *Definition) entry(m Mend) Entry {
	return Entry{
		ID: m.Look, Run: m.Run, Counter: d.Name, Hash: d.Hash,
		KeyID: keyID(d, m.Read.Key), Key: m.Read.Key.String(), RawKey: rawKey(m.Read.Key),
		Before: Values{m.Read.Base, m.Read.Live, m.Read.Base + m.Read.Live}, After: Values{m.Truth, 0, m.Truth}, Made: !m.Read.Exists,
		Truth: m.Truth, Drift: m.Read.Base + m.Read.Live - m.Truth, Cause: m.Cause, Position: m.Position,
		At: time.Now().UTC(), ExpiresAt: Expiry(),
	}
}

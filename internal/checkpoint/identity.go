package checkpoint

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/stream"
)

// Why a checkpoint does not stand for the rows any more, although it can be read. Every one of them is a lost position,
// stream.ErrPositionLost or stream.ErrCollectionChanged, as well.
var (
	// ErrMissing means: the checkpoint was deleted. Its counters have been counted before.
	ErrMissing = errors.New("checkpoint is gone")
	// ErrWentBack means: the checkpoint is older than the one that this process left there: a backup was restored over it.
	ErrWentBack = errors.New("checkpoint is older than it was")
	// ErrRestored means: the state database is a copy, restored from a backup.
	ErrRestored = errors.New("state database was restored or remade")
	// ErrOtherCluster means: another replica set answers at the same address.
	ErrOtherCluster = errors.New("another replica set")
)

// ErrPartitions means: the source is divided into another number of lanes now. It is no loss: the new lanes start afresh.
var ErrPartitions = errors.New("another number of partitions")

// ErrNewer means: a later version of driftless wrote the checkpoint. This one must not guess what it means.
var ErrNewer = errors.New("checkpoint of a newer version of driftless: upgrade this instance, or stop it and leave the lane to the newer ones")

// Identity tells the deployment and the collection that a checkpoint belongs to from others at the same address.
type Identity struct {
	Set        string        `bson:"set"`              // name of the replica set
	SetID      bson.ObjectID `bson:"set_id,omitempty"` // zero where the user may not ask for it
	State      string        `bson:"state"`            // UUID of the collection of checkpoints: a restored one has another
	Collection string        `bson:"collection"`       // UUID of the rows' collection, "" when there is none
}

// Against returns nil when a checkpoint with the identity i holds for what is there now.
func (i Identity) Against(now Identity) error {
	switch {
	case i.Set != now.Set, !i.SetID.IsZero() && !now.SetID.IsZero() && i.SetID != now.SetID:
		return fmt.Errorf("%w: %w: %s, and not %s", stream.ErrPositionLost, ErrOtherCluster, now.set(), i.set())
	case i.State != now.State:
		return fmt.Errorf("%w: %w", stream.ErrPositionLost, ErrRestored)
	case i.Collection != now.Collection && i.Collection != "": // one that is made later is a legitimate beginning
		return fmt.Errorf("%w: its UUID is %q, and was %q", stream.ErrCollectionChanged, now.Collection, i.Collection)
	default:
		return nil
	}
}

func (i Identity) set() string {
	if i.SetID.IsZero() {
		return i.Set
	}
	return i.Set + " (" + i.SetID.Hex() + ")"
}

// Sighting is what the server says about a lane's rows.
type Sighting struct {
	Identity
	Images bool // changeStreamPreAndPostImages is on
}

// Look asks the server who it is and which collection the rows are in.
func (s *Store) Look(ctx context.Context, rowsDatabase, rowsCollection string) (Sighting, error) {
	var seen Sighting
	var err error
	if seen.Set, seen.SetID, err = s.replicaSet(ctx); err != nil {
		return seen, err
	}
	if seen.State, err = s.UUID(ctx, s.collection.Database().Name(), Collection); err != nil {
		return seen, err
	}
	rows, err := specification(ctx, s.client, rowsDatabase, rowsCollection)
	if rows != nil {
		seen.Collection = uuid(rows)
		seen.Images, _ = rows.Options.Lookup("changeStreamPreAndPostImages", "enabled").BooleanOK()
	}
	return seen, err
}

// UUID returns the identity of a collection, "" for one that does not exist.
func (s *Store) UUID(ctx context.Context, database, collection string) (string, error) {
	return UUIDOf(ctx, s.client, database, collection)
}

// UUIDOf returns the identity of a collection, in hexadecimal, "" for one that does not exist.
func UUIDOf(ctx context.Context, client *mongo.Client, database, collection string) (string, error) {
	spec, err := specification(ctx, client, database, collection)
	return uuid(spec), err
}

// replicaSet returns the name of the replica set and, where the user may ask for it (clusterMonitor may), its id.
func (s *Store) replicaSet(ctx context.Context) (name string, id bson.ObjectID, err error) {
	admin := s.client.Database("admin", options.Database().SetReadPreference(readpref.Primary()))
	var hello struct {
		SetName string `bson:"setName"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello); err != nil {
		return "", id, fmt.Errorf("ask which replica set it is: %w", err)
	}
	var reply struct {
		Config struct {
			Settings struct {
				ID bson.ObjectID `bson:"replicaSetId"`
			}
		}
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		return hello.SetName, id, nil //nolint:nilerr // the name has to do
	}
	return hello.SetName, reply.Config.Settings.ID, nil
}

// specification is nil for a collection that does not exist.
func specification(ctx context.Context, client *mongo.Client, database, collection string) (*mongo.CollectionSpecification, error) {
	if database == "" {
		return nil, nil
	}
	found, err := client.Database(database, options.Database().SetReadPreference(readpref.Primary())).
		ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: collection}})
	if err != nil {
		return nil, fmt.Errorf("look at collection %s.%s: %w", database, collection, err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

func uuid(spec *mongo.CollectionSpecification) string {
	if spec == nil || spec.UUID == nil {
		return ""
	}
	return hex.EncodeToString(spec.UUID.Data)
}

// Rival returns the lease of a lane of another source that is being followed, by whoever it is, and counts a counter of the
// given name and hash. It is not held where there is none.
func (s *Store) Rival(ctx context.Context, source, counter, hash string) (Lease, error) {
	cursor, err := s.collection.Find(ctx, bson.D{{Key: "counters." + counter + ".hash", Value: hash}},
		options.Find().SetProjection(bson.D{{Key: "_id", Value: 1}}))
	if err != nil {
		return Lease{}, fmt.Errorf("look who counts %s: %w", counter, err)
	}
	var lanes []struct {
		Lane string `bson:"_id"`
	}
	if err := cursor.All(ctx, &lanes); err != nil {
		return Lease{}, fmt.Errorf("look who counts %s: %w", counter, err)
	}
	for _, other := range lanes {
		if SourceOf(other.Lane) == source {
			continue
		}
		roster, err := (&Leases{collection: s.leases}).Roster(ctx)
		if err != nil {
			return Lease{}, err
		}
		if lease := roster.Leases[other.Lane]; lease.Held {
			return lease, nil
		}
	}
	return Lease{}, nil
}

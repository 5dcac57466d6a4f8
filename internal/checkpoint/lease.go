package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

// ErrNotHeld means: another instance has the lane's lease, or nobody has.
var ErrNotHeld = errors.New("lease not held")

// Prefixes of the _id of what is no lane: an instance's document, and the lease of a leader. No lane's name has a colon.
const (
	instancePrefix = "instance:"
	leaderPrefix   = "leader:"
)

// LeaderLane names the lease of whoever leads those that share the given work. It is taken, renewed and given back like a
// lane, without a registration.
func LeaderLane(work string) string { return leaderPrefix + work }

// Leases takes and gives back the lanes of one state database for one instance. A lease is for liveness alone: what makes
// an owner harmless whose lease has run out unnoticed is the checkpoint's compare-and-set (I1). All times are the
// server's: the clocks of the instances play no part.
type Leases struct {
	collection *mongo.Collection
	name       string
	run        bson.ObjectID // this process, of all that ever had the name
	term       time.Duration
	// When it registered first, or took the first lease without that, by the server's clock; set once, and read beside
	// Register and Acquire.
	started time.Time
}

// NewLeases takes leases for the instance of the given name, which lasts from one start of a process to the next, so that
// a restarted one has its lanes back at once. A lease that is not renewed within term is free.
func NewLeases(client *mongo.Client, stateDatabase, name string, term time.Duration) *Leases {
	db := client.Database(stateDatabase, options.Database().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()).SetWriteConcern(writeconcern.Majority()))
	return &Leases{collection: db.Collection(LeasesCollection), name: name, run: bson.NewObjectID(), term: term}
}

// Following is how an instance follows a source.
type Following struct {
	Hash  string   `bson:"hash"`  // of its configuration of the source
	Lanes []string `bson:"lanes"` // that the source has by it
}

// Instance is one process that follows sources.
type Instance struct {
	Name      string
	Run       bson.ObjectID
	Started   time.Time            // by the server's clock
	Sources   map[string]Following // by name
	Lives     bool                 // heard of within the term
	ExpiresIn time.Duration        // until it counts as gone; negative since
}

// Lease is who has a lane.
type Lease struct {
	Lane, Owner string
	Run         bson.ObjectID
	Held        bool          // not expired
	ExpiresIn   time.Duration // negative since
}

// Roster is all instances and leases at one moment.
type Roster struct {
	Instances []Instance
	Leases    map[string]Lease // by lane
}

// leaseDocument is both: an instance's document has sources, a lane's has none.
type leaseDocument struct {
	ID      string               `bson:"_id"`
	Owner   string               `bson:"owner"`
	Run     bson.ObjectID        `bson:"run"`
	Started time.Time            `bson:"started_at"` // of the instance: a lane's says it of its owner
	Sources map[string]Following `bson:"sources"`
	Held    bool                 `bson:"held"`
	Left    int64                `bson:"left"` // ms
}

// Register makes the instance known, or known again: it has to be called well within every term. It returns false when
// another process of the same name has registered since and lives: that one has the lanes.
func (l *Leases) Register(ctx context.Context, sources map[string]Following) (bool, error) {
	mine, started := any(bson.D{{Key: "$or", Value: bson.A{equals("$run", l.run), expired}}}), any(l.started)
	if l.started.IsZero() {
		mine, started = true, "$$NOW" // whoever had the name before is gone, or finds out
		if err := l.forget(ctx); err != nil {
			return false, err
		}
	}
	// Once started, always started then, also where the name comes back to it: its configuration is no newer for that.
	// $literal: in an expression, a document is one.
	set := bson.D{
		{Key: "started_at", Value: when(mine, started, "$started_at")},
		{Key: "sources", Value: when(mine, literal(sources), "$sources")},
		{Key: "expires_at", Value: when(mine, l.until(), "$expires_at")},
		{Key: "owner", Value: l.name},
		{Key: "run", Value: when(mine, l.run, "$run")},
	}
	now, err := l.update(ctx, instancePrefix+l.name, set, true)
	if err != nil {
		return false, fmt.Errorf("register instance %s: %w", l.name, err)
	}
	if now.Run != l.run {
		return false, nil
	}
	if l.started.IsZero() {
		l.started = now.Started
	}
	return true, nil
}

// forgetAfter is how long an instance that has died is remembered.
const forgetAfter = 24 * time.Hour

// forget removes the instances and leaders that died long ago.
func (l *Leases) forget(ctx context.Context) error {
	long := bson.D{{Key: "$lt", Value: bson.A{expiry, bson.D{{Key: "$subtract", Value: bson.A{"$$NOW", forgetAfter.Milliseconds()}}}}}}
	_, err := l.collection.DeleteMany(ctx, bson.D{
		{Key: "$or", Value: bson.A{begins(instancePrefix), begins(leaderPrefix)}},
		{Key: "$expr", Value: long},
	})
	if err != nil {
		return fmt.Errorf("forget instances that are gone: %w", err)
	}
	return nil
}

// begins selects the documents whose _id begins with a prefix that ends in a colon.
func begins(prefix string) bson.D {
	return bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: prefix}, {Key: "$lt", Value: strings.TrimSuffix(prefix, ":") + ";"}}}} // ; follows :
}

// Acquire takes a lane that is free, or that an earlier process of this instance has, which is gone or finds out. For a
// share of the lanes the instance must be registered. It reports whether this process has the lane now.
func (l *Leases) Acquire(ctx context.Context, lane string) (bool, error) {
	// Never from a later one: the two would take the lane from each other until the earlier one finds out.
	earlier := bson.D{{Key: "$and", Value: bson.A{
		equals("$owner", l.name), bson.D{{Key: "$lt", Value: bson.A{"$started_at", l.since()}}},
	}}}
	free := bson.D{{Key: "$or", Value: bson.A{equals("$run", l.run), earlier, expired}}}
	now, err := l.take(ctx, lane, free, true)
	if err != nil {
		return false, fmt.Errorf("take lane %s: %w", lane, err)
	}
	taken := now.Run == l.run
	if taken && l.started.IsZero() {
		l.started = now.Started
	}
	return taken, nil
}

// since is when this process started, the present for one that is not known yet.
func (l *Leases) since() any {
	if l.started.IsZero() {
		return "$$NOW"
	}
	return l.started
}

// Claim takes a lane whoever has it: somebody else decides who follows it, and the lease only tells. The instance must be
// registered.
func (l *Leases) Claim(ctx context.Context, lane string) error {
	if _, err := l.take(ctx, lane, true, true); err != nil {
		return fmt.Errorf("take lane %s: %w", lane, err)
	}
	return nil
}

// Renew keeps a lane that is this process's for another term. ErrNotHeld: it is another's, or was given back. It may be
// called beside the others, once the instance is registered.
func (l *Leases) Renew(ctx context.Context, lane string) error {
	now, err := l.take(ctx, lane, equals("$run", l.run), false)
	switch {
	case errors.Is(err, mongo.ErrNoDocuments):
		return fmt.Errorf("lane %s: %w", lane, ErrNotHeld)
	case err != nil:
		return fmt.Errorf("renew lane %s: %w", lane, err)
	case now.Owner == "":
		return fmt.Errorf("lane %s is nobody's: %w", lane, ErrNotHeld)
	case now.Run != l.run:
		return fmt.Errorf("lane %s is %s's: %w", lane, now.Owner, ErrNotHeld)
	}
	return nil
}

// Release gives a lane back, if it is this process's, so that another has it at once.
func (l *Leases) Release(ctx context.Context, lane string) error {
	_, err := l.collection.UpdateOne(ctx, bson.D{{Key: "_id", Value: lane}, {Key: "run", Value: l.run}},
		bson.D{{Key: "$unset", Value: bson.D{
			{Key: "owner", Value: ""}, {Key: "run", Value: ""}, {Key: "started_at", Value: ""}, {Key: "expires_at", Value: ""},
		}}})
	if err != nil {
		return fmt.Errorf("give back lane %s: %w", lane, err)
	}
	return nil
}

// Leave ends the registration, so that the others share the lanes at once. What it followed is remembered: an instance with
// an older configuration does not go back to that.
func (l *Leases) Leave(ctx context.Context) error {
	_, err := l.collection.UpdateOne(ctx, bson.D{{Key: "_id", Value: instancePrefix + l.name}, {Key: "run", Value: l.run}},
		bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "expires_at", Value: "$$NOW"}}}}})
	if err != nil {
		return fmt.Errorf("sign off instance %s: %w", l.name, err)
	}
	return nil
}

// Roster reads all instances, those that are gone for less than a day included, and all leases.
func (l *Leases) Roster(ctx context.Context) (Roster, error) {
	cursor, err := l.collection.Aggregate(ctx, bson.A{bson.D{{Key: "$set", Value: judged}}})
	if err != nil {
		return Roster{}, fmt.Errorf("read leases: %w", err)
	}
	var all []leaseDocument
	if err := cursor.All(ctx, &all); err != nil {
		return Roster{}, fmt.Errorf("read leases: %w", err)
	}
	r := Roster{Leases: map[string]Lease{}}
	for _, d := range all {
		left := time.Duration(d.Left) * time.Millisecond
		if name, is := strings.CutPrefix(d.ID, instancePrefix); is {
			r.Instances = append(r.Instances, Instance{Name: name, Run: d.Run, Started: d.Started, Sources: d.Sources, Lives: d.Held, ExpiresIn: left})
			continue
		}
		r.Leases[d.ID] = Lease{Lane: d.ID, Owner: d.Owner, Run: d.Run, Held: d.Held, ExpiresIn: left}
	}
	return r, nil
}

// Listed reports whether the roster has this very process under its name, as one that lives.
func (l *Leases) Listed(r Roster) bool {
	return slices.ContainsFunc(r.Instances, func(i Instance) bool { return i.Run == l.run && i.Lives })
}

// Mine reports whether this very process has the lane.
func (l *Leases) Mine(lease Lease) bool { return lease.Run == l.run && lease.Held }

// Self is the name that the instance is registered by.
func (l *Leases) Self() string { return l.name }

// Run is this process, of all that have had the name.
func (l *Leases) Run() bson.ObjectID { return l.run }

// take makes a lane's lease this process's where the condition holds.
func (l *Leases) take(ctx context.Context, lane string, condition any, upsert bool) (leaseDocument, error) {
	return l.update(ctx, lane, bson.D{
		{Key: "expires_at", Value: when(condition, l.until(), "$expires_at")},
		{Key: "owner", Value: when(condition, l.name, "$owner")},
		{Key: "run", Value: when(condition, l.run, "$run")},
		{Key: "started_at", Value: when(condition, l.since(), "$started_at")},
	}, upsert)
}

// update filters by _id alone: an upsert with $expr is an error, and one with a condition would collide.
func (l *Leases) update(ctx context.Context, id string, set bson.D, upsert bool) (leaseDocument, error) {
	var now leaseDocument
	err := l.collection.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: id}}, bson.A{bson.D{{Key: "$set", Value: set}}},
		options.FindOneAndUpdate().SetUpsert(upsert).SetReturnDocument(options.After)).Decode(&now)
	return now, err
}

// until is the end of a term that begins now.
func (l *Leases) until() bson.D {
	return bson.D{{Key: "$add", Value: bson.A{"$$NOW", l.term.Milliseconds()}}}
}

// expired is true where there is no lease in force.
var expired = bson.D{{Key: "$lte", Value: bson.A{expiry, "$$NOW"}}}

var expiry = bson.D{{Key: "$ifNull", Value: bson.A{"$expires_at", time.Unix(0, 0)}}}

// judged says by the server's clock what is in force, and for how long.
var judged = bson.D{
	{Key: "held", Value: bson.D{{Key: "$gt", Value: bson.A{expiry, "$$NOW"}}}},
	{Key: "left", Value: bson.D{{Key: "$subtract", Value: bson.A{expiry, "$$NOW"}}}},
}

func when(condition, then, otherwise any) bson.D {
	return bson.D{{Key: "$cond", Value: bson.A{condition, then, otherwise}}}
}

func equals(a, b any) bson.D { return bson.D{{Key: "$eq", Value: bson.A{a, b}}} }

func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

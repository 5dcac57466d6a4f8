package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Step is one thing that is missing in the database.
type Step struct {
	What string // what it does, as a sentence in the imperative
	// Required steps must be done before the incrementer runs; the others make recounts cheap.
	Required bool
	Do       func(context.Context) error
}

// ErrNotSetUp means: run was called before setup.
var ErrNotSetUp = errors.New("not set up")

// Plan lists what is missing for the configuration, in the order in which it can be done. Its errors are what no setup
// can create: a collection that is not there, or one that cannot be used.
func Plan(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition) ([]Step, error) {
	p := planner{client: client, known: map[string]bool{}}
	var faults []error
	for _, s := range c.Sources {
		if s.ChangeStream != nil {
			faults = append(faults, p.images(ctx, s))
		}
	}
	for _, d := range definitions {
		faults = append(faults, p.target(ctx, d), p.touchedIndex(ctx, d), p.rowsIndex(ctx, d))
	}
	faults = append(faults, p.stateDatabase(ctx, c.MongoDB.StateDatabase))
	return p.steps, errors.Join(faults...)
}

// Ready returns ErrNotSetUp with one line that says so when a required step is missing.
func Ready(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition) error {
	steps, err := Plan(ctx, client, c, definitions)
	if err != nil {
		return err
	}
	required := slices.DeleteFunc(steps, func(s Step) bool { return !s.Required })
	if len(required) == 0 {
		return nil
	}
	return fmt.Errorf("%w: run `incrementer setup` first, it would %s%s", ErrNotSetUp, required[0].What, andMore(len(required)-1))
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

type planner struct {
	client *mongo.Client
	steps  []Step
	known  map[string]bool // what already has a step
}

func (p *planner) add(s Step) {
	if !p.known[s.What] {
		p.known[s.What] = true
		p.steps = append(p.steps, s)
	}
}

// collection is what listCollections says, nil when it does not exist.
func (p *planner) collection(ctx context.Context, database, name string) (*mongo.CollectionSpecification, error) {
	found, err := p.client.Database(database).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return nil, explain(fmt.Errorf("look at collection %s.%s: %w", database, name, err))
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// images turns on what a change stream needs to tell what a row was before.
func (p *planner) images(ctx context.Context, s config.Source) error {
	database, name := s.ChangeStream.Database, s.ChangeStream.Collection
	spec, err := p.collection(ctx, database, name)
	if err != nil {
		return err
	}
	if spec == nil {
		return fmt.Errorf("%s: source %s: collection %s.%s does not exist: create it, or correct the name", s.Pos, s.Name, database, name)
	}
	if spec.Type != "collection" {
		return fmt.Errorf("%s: source %s: %s.%s is a %s, which has no change stream of its own: name its collection", s.Pos, s.Name, database, name, spec.Type)
	}
	if on, _ := spec.Options.Lookup("changeStreamPreAndPostImages", "enabled").BooleanOK(); on {
		return nil
	}
	p.add(Step{
		What: fmt.Sprintf("turn on changeStreamPreAndPostImages for %s.%s", database, name), Required: true,
		Do: func(ctx context.Context) error {
			return p.client.Database(database).RunCommand(ctx, bson.D{
				{Key: "collMod", Value: name},
				{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}},
			}).Err()
		},
	})
	return nil
}

// target refuses a collection whose default collation would take two keys for one.
func (p *planner) target(ctx context.Context, d *counter.Definition) error {
	spec, err := p.collection(ctx, d.Target.Database, d.Target.Collection)
	if err != nil {
		return err
	}
	if spec == nil {
		if !d.Target.Upsert {
			return fmt.Errorf("%s: counter %s: target collection %s.%s does not exist: create it, or set upsert: true",
				d.Pos, d.Name, d.Target.Database, d.Target.Collection)
		}
		p.create(d.Target.Database, d.Target.Collection)
		return nil
	}
	locale, ok := spec.Options.Lookup("collation", "locale").StringValueOK()
	if ok && locale != "simple" {
		return fmt.Errorf("%s: counter %s: target collection %s.%s has the default collation %q, by which two keys may be one: "+
			"use a collection without a collation", d.Pos, d.Name, d.Target.Database, d.Target.Collection, locale)
	}
	return nil
}

func (p *planner) create(database, name string) {
	p.add(Step{
		What: fmt.Sprintf("create collection %s.%s", database, name), Required: true,
		Do: func(ctx context.Context) error { return p.client.Database(database).CreateCollection(ctx, name) },
	})
}

func (p *planner) touchedIndex(ctx context.Context, d *counter.Definition) error {
	if !d.Target.Upsert {
		return nil // its marks stand in the state database
	}
	return p.index(ctx, d.Target.Database, d.Target.Collection, d.TouchedIndex(), true)
}

// rowsIndex makes recounts cheap, unless an index that serves them is there.
func (p *planner) rowsIndex(ctx context.Context, d *counter.Definition) error {
	have, err := p.indexes(ctx, d.Rows.Database, d.Rows.Collection)
	if err != nil {
		return err
	}
	wanted := d.RowsIndex()
	if slices.ContainsFunc(have, func(i existingIndex) bool { return i.serves(wanted.Keys) }) {
		return nil
	}
	return p.index(ctx, d.Rows.Database, d.Rows.Collection, wanted, false)
}

// existingIndex is an index as the server describes it.
type existingIndex struct {
	Name      string
	Key       bson.D
	Sparse    bool
	Partial   bson.Raw `bson:"partialFilterExpression"`
	Collation struct{ Locale string }
}

// serves reports whether the index begins with the wanted fields and holds every row by its plain value.
func (i existingIndex) serves(wanted bson.D) bool {
	if i.Sparse || i.Partial != nil || i.Collation.Locale != "" && i.Collation.Locale != "simple" || len(i.Key) < len(wanted) {
		return false
	}
	for n, w := range wanted {
		if _, text := i.Key[n].Value.(string); text || i.Key[n].Key != w.Key { // a text is "hashed", "2dsphere" and the like
			return false
		}
	}
	return true
}

func (p *planner) indexes(ctx context.Context, database, name string) ([]existingIndex, error) {
	cursor, err := p.client.Database(database).Collection(name).Indexes().List(ctx)
	const namespaceNotFound = 26
	var server mongo.ServerError
	if errors.As(err, &server) && server.HasErrorCode(namespaceNotFound) {
		return nil, nil
	}
	var have []existingIndex
	if err == nil {
		err = cursor.All(ctx, &have)
	}
	if err != nil {
		return nil, explain(fmt.Errorf("look at the indexes of %s.%s: %w", database, name, err))
	}
	return have, nil
}

func (p *planner) index(ctx context.Context, database, collection string, index counter.Index, required bool) error {
	have, err := p.indexes(ctx, database, collection)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(have, func(i existingIndex) bool { return i.Name == index.Name }) {
		return nil
	}
	p.add(Step{
		What: fmt.Sprintf("create index %s on %s.%s", index.Name, database, collection), Required: required,
		Do: func(ctx context.Context) error {
			_, err := p.client.Database(database).Collection(collection).Indexes().CreateOne(ctx, index.Model())
			return err
		},
	})
	return nil
}

// stateDatabase creates our own collections, so that no transaction has to.
func (p *planner) stateDatabase(ctx context.Context, database string) error {
	own := []string{
		checkpoint.Collection, counter.StatesCollection, counter.TouchedCollection, counter.DeadLettersCollection,
		counter.GapsCollection,
	}
	for _, name := range own {
		spec, err := p.collection(ctx, database, name)
		if err != nil {
			return err
		}
		if spec == nil {
			p.create(database, name)
		}
	}
	return p.index(ctx, database, counter.TouchedCollection, counter.TouchedByCounter(), false)
}

// explain says what a refused command needs.
func explain(err error) error {
	if errors.Is(stream.Classify(err), stream.ErrUnauthorized) {
		return fmt.Errorf("%w: grant the user read and collMod on the rows' database, readWrite on the counters' and the state database", err)
	}
	return err
}

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

// own are our collections in the state database. They are made by setup, so that no transaction has to.
var own = []string{
	checkpoint.Collection, checkpoint.LeasesCollection, counter.StatesCollection, counter.TouchedCollection, counter.DeadLettersCollection,
	counter.GapsCollection, counter.SweepsCollection, counter.RepairsCollection, counter.RunsCollection, counter.DedupeCollection,
}

// Step is one thing that is missing in the database.
type Step struct {
	What    string // what it does, as a sentence in the imperative
	Do      func(context.Context) error
	subject string // what it is about
	lacks   string // what is wrong with that
	missing missing
	needs   Privilege
}

// missing says what cannot be done before a step is.
type missing int

const (
	slows    missing = iota // nothing: recounts are dear without it
	degrades                // nothing: changes that need an image cost recounts without it
	grows                   // nothing: old records stay, and are long looked for
	rebuilds                // nothing: it was there once, and the programs make it and what it held again
	follows                 // an incrementer cannot follow the rows
	counts                  // neither program can do its work
)

func (m missing) String() string {
	return [...]string{"recounts are slow", "changes of rows cost recounts", "old records stay and slow down looking for one", "the programs make it again", "the incrementer does not start", "neither program starts"}[m]
}

// ErrNotSetUp means that something was to run before setup.
var ErrNotSetUp = errors.New("not set up")

// Plan lists what is missing for the configuration, in the order in which it can be done. Its errors are what no setup
// can create: a collection that is not there, or one that cannot be used. Do nothing then, since a name may be misspelt.
func Plan(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition) ([]Step, error) {
	return plan(ctx, client, c, definitions, past{})
}

// past is what the state database says of earlier runs.
type past struct {
	states   map[string]counter.State // by counter: what was counted before
	followed map[string]bool          // by source: what was followed before
	unasked  bool                     // the use does without the state database
}

func readPast(ctx context.Context, client *mongo.Client, stateDatabase string) (past, error) {
	states, err := counter.NewStates(client, stateDatabase).All(ctx)
	if err != nil {
		return past{}, err
	}
	lanes, err := checkpoint.NewStore(client, stateDatabase).Names(ctx)
	followed := map[string]bool{}
	for _, lane := range lanes {
		followed[checkpoint.SourceOf(lane)] = true
	}
	return past{states: states, followed: followed}, err
}

// plan is Plan where some of it has been at work before.
func plan(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition, before past) ([]Step, error) {
	p := planner{client: client, past: before, known: map[string]bool{}, rowsBy: map[string][]existingIndex{}}
	var faults []error
	for _, s := range c.Sources {
		if s.ChangeStream != nil {
			faults = append(faults, p.images(ctx, s))
		}
	}
	for _, d := range definitions {
		faults = append(faults, p.target(ctx, d), p.rows(ctx, c, d), p.changes(ctx, d))
	}
	if !before.unasked {
		faults = append(faults, p.stateDatabase(ctx, c.MongoDB.StateDatabase))
	}
	return p.steps, errors.Join(faults...)
}

// Ready returns nil when a use can begin: the user may do it and what it needs is there. What is missing is told in one
// line, as ErrNotSetUp where setup would help.
func Ready(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition, use Use) error {
	if err := Permitted(ctx, client, Privileges(c, definitions, use)); err != nil {
		return err
	}
	before := past{unasked: !needsState(definitions, use)}
	if !before.unasked {
		var err error
		if before, err = readPast(ctx, client, c.MongoDB.StateDatabase); err != nil {
			return err
		}
	}
	steps, err := plan(ctx, client, c, definitions, before)
	if err != nil {
		return err
	}
	required := slices.DeleteFunc(steps, func(s Step) bool { return s.missing < follows || s.missing == follows && use != Follow })
	if len(required) == 0 {
		return nil
	}
	return fmt.Errorf("%w: run `incrementer setup` first, it would %s%s", ErrNotSetUp, required[0].What, andMore(len(required)-1))
}

// needsState reports whether a use looks into the state database. It says nothing about counters of the application, so
// that comparing these alone needs no setup.
func needsState(definitions []*counter.Definition, use Use) bool {
	return use != Verify || len(definitions) == 0 || len(counter.Followed(definitions)) > 0
}

func andMore(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (and %d more)", n)
}

type planner struct {
	past
	client *mongo.Client
	steps  []Step
	known  map[string]bool            // what already has a step
	rowsBy map[string][]existingIndex // planned on a collection of rows, by database and collection
}

// add plans what is not planned yet. A step that is refused says which privileges it takes.
func (p *planner) add(step Step) {
	if p.known[step.What] {
		return
	}
	p.known[step.What] = true
	do := step.Do
	step.Do = func(ctx context.Context) error {
		err := do(ctx)
		if stream.HasCode(err, codeUnauthorized) {
			return fmt.Errorf("the user of mongodb.uri may not: grant it %s, or run setup as one who has it", inWords([]Privilege{step.needs}))
		}
		return err
	}
	p.steps = append(p.steps, step)
}

// collection is what listCollections says, nil when it does not exist.
func (p *planner) collection(ctx context.Context, database, name string) (*mongo.CollectionSpecification, error) {
	found, err := p.client.Database(database).ListCollectionSpecifications(ctx, bson.D{{Key: "name", Value: name}})
	if err != nil {
		return nil, fmt.Errorf("look at collection %s.%s: %w", database, name, err)
	}
	if len(found) == 0 {
		return nil, nil
	}
	return &found[0], nil
}

// images turns on what a change stream needs to tell what a row was before. A collection that was there once must not keep
// the programs from starting when it is gone, or without images: its lane finds that out, and says so.
func (p *planner) images(ctx context.Context, s config.Source) error {
	database, name := s.ChangeStream.Database, s.ChangeStream.Collection
	spec, err := p.collection(ctx, database, name)
	if err != nil {
		return err
	}
	if spec == nil && p.followed[s.Name] {
		return nil
	}
	if spec == nil {
		return &Fault{s.Pos, "source " + s.Name, fmt.Sprintf("collection %s.%s does not exist", database, name), "create it, or correct the name"}
	}
	if spec.Type != "collection" {
		return &Fault{s.Pos, "source " + s.Name, fmt.Sprintf("%s.%s is a %s, which has no change stream of its own", database, name, spec.Type),
			"name its collection"}
	}
	if on, _ := spec.Options.Lookup("changeStreamPreAndPostImages", "enabled").BooleanOK(); on {
		return nil
	}
	why := follows
	if p.followed[s.Name] {
		why = degrades
	}
	p.add(Step{
		What: fmt.Sprintf("turn on changeStreamPreAndPostImages for %s.%s", database, name),
		Do: func(ctx context.Context) error {
			return p.client.Database(database).RunCommand(ctx, bson.D{
				{Key: "collMod", Value: name},
				{Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: true}}},
			}).Err()
		},
		subject: imagesOf(s), lacks: "changeStreamPreAndPostImages is off",
		missing: why, needs: Privilege{database, name, []string{"collMod"}},
	})
	return nil
}

// imagesOf is the subject of what is found about the images of a source.
func imagesOf(s config.Source) string {
	return "images of " + s.ChangeStream.Database + "." + s.ChangeStream.Collection
}

// target makes the counter documents' collection and the index of their marks, unless it is one that cannot hold them.
// What has been counted before had both: a target that is gone since must not keep the programs from starting, or nobody
// would count again what it held.
func (p *planner) target(ctx context.Context, d *counter.Definition) error {
	t := d.Target
	why := counts
	if p.states[d.Name].Hash == d.Hash {
		why = rebuilds
	}
	spec, err := p.collection(ctx, t.Database, t.Collection)
	switch {
	case err != nil:
		return err
	case spec == nil && !t.Upsert && why == rebuilds:
		return nil // the application's to make again
	case spec == nil && !t.Upsert:
		return &Fault{d.Pos, "counter " + d.Name, fmt.Sprintf("target collection %s.%s does not exist", t.Database, t.Collection),
			"create it, or set upsert: true"}
	case spec == nil:
		p.create(why, t.Database, t.Collection)
	default:
		if found, fix := unfit(spec); found != "" {
			return &Fault{d.Pos, "counter " + d.Name, fmt.Sprintf("target collection %s.%s %s", t.Database, t.Collection, found), fix}
		}
	}
	if !t.Upsert || d.ByApplication() {
		return nil // its marks stand in the state database, or there are none
	}
	return p.index(ctx, t.Database, t.Collection, d.TouchedIndex(), why)
}

// unfit says why a collection cannot hold counter documents and what to do, "" when it can.
func unfit(spec *mongo.CollectionSpecification) (found, fix string) {
	locale, _ := spec.Options.Lookup("collation", "locale").StringValueOK()
	capped, _ := spec.Options.Lookup("capped").BooleanOK()
	switch {
	case spec.Type != "collection":
		return fmt.Sprintf("is a %s, which cannot hold counter documents", spec.Type), "use a collection"
	case locale != "" && locale != "simple":
		return fmt.Sprintf("has the default collation %q, by which two keys may be one", locale), "use a collection without a collation"
	case capped:
		return "is capped, and no transaction can write to it", "use a collection that is not"
	default:
		return "", ""
	}
}

func (p *planner) create(why missing, database, name string) {
	p.add(Step{
		What: fmt.Sprintf("create collection %s.%s", database, name),
		Do: func(ctx context.Context) error {
			err := p.client.Database(database).CreateCollection(ctx, name)
			if stream.HasCode(err, codeNamespaceExists) {
				return nil // somebody was faster
			}
			return err
		},
		subject: "collection " + database + "." + name, lacks: "does not exist",
		missing: why, needs: Privilege{database, name, []string{"createCollection"}},
	})
}

// rows makes recounts cheap, unless an index that serves them is there.
func (p *planner) rows(ctx context.Context, c *config.Config, d *counter.Definition) error {
	spec, err := p.collection(ctx, d.Rows.Database, d.Rows.Collection)
	if err != nil {
		return err
	}
	if source, ok := c.Source(d.Source); spec == nil && ok && source.ChangeStream != nil {
		return nil // told by its source; an index would create it
	}
	if spec == nil {
		return &Fault{d.Pos, "counter " + d.Name, fmt.Sprintf("collection of rows %s.%s does not exist", d.Rows.Database, d.Rows.Collection),
			"create it, or correct the name"}
	}
	if spec.Type != "collection" {
		return nil // no index of its own
	}
	have, err := p.indexes(ctx, d.Rows.Database, d.Rows.Collection)
	if err != nil {
		return err
	}
	wanted, at := d.RowsIndex(), d.Rows.Database+"."+d.Rows.Collection
	serves := func(i existingIndex) bool { return i.serves(wanted.Keys) }
	if slices.ContainsFunc(have, serves) || slices.ContainsFunc(p.rowsBy[at], serves) {
		return nil // another counter's will do as well
	}
	p.rowsBy[at] = append(p.rowsBy[at], existingIndex{Key: wanted.Keys})
	return p.index(ctx, d.Rows.Database, d.Rows.Collection, wanted, slows)
}

// changes makes it cheap to find the rows that were created or deleted of late.
func (p *planner) changes(ctx context.Context, d *counter.Definition) error {
	indexes := d.ChangeIndexes()
	if len(indexes) == 0 {
		return nil
	}
	spec, err := p.collection(ctx, d.Rows.Database, d.Rows.Collection)
	if err != nil || spec == nil || spec.Type != "collection" {
		return err
	}
	have, err := p.indexes(ctx, d.Rows.Database, d.Rows.Collection)
	if err != nil {
		return err
	}
	for _, wanted := range indexes {
		if slices.ContainsFunc(have, func(i existingIndex) bool { return i.serves(wanted.Keys) }) {
			continue
		}
		if err := p.index(ctx, d.Rows.Database, d.Rows.Collection, wanted, slows); err != nil {
			return err
		}
	}
	return nil
}

// stateDatabase creates our own collections and their indexes. Those of a state database that was dropped come back with their
// first write.
func (p *planner) stateDatabase(ctx context.Context, database string) error {
	why := counts
	if len(p.followed) > 0 {
		why = rebuilds
	}
	for _, name := range own {
		spec, err := p.collection(ctx, database, name)
		if err != nil {
			return err
		}
		if spec == nil {
			p.create(why, database, name)
		}
	}
	for _, name := range own {
		for _, index := range counter.StateIndexes()[name] {
			why := slows
			if name != counter.TouchedCollection {
				why = grows
			}
			if err := p.index(ctx, database, name, index, why); err != nil {
				return err
			}
		}
	}
	return nil
}

package incrementer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

const (
	source = "comments" // the source, its lane and its collection
	target = "counters"
	// patience is how long a test waits for what must come. It is generous: the machine is shared.
	patience = 20 * time.Second
)

// soak multiplies the numbers of a test when DRIFTLESS_SOAK is set.
func soak(n, times int) int {
	if os.Getenv("DRIFTLESS_SOAK") != "" {
		return n * times
	}
	return n
}

// perPost counts the comments of a post that are not deleted.
func perPost() config.Counter {
	return config.Counter{Name: "per_post", Key: "post", SoftDelete: "deleted_at"}
}

// wordsPerAuthor adds up the words of an author, deleted or not.
func wordsPerAuthor() config.Counter {
	return config.Counter{Name: "words_per_author", Key: "author", Sum: "words"}
}

// world is an installation in miniature: rows, counter documents and state, in databases of its own.
type world struct {
	t           testing.TB
	client      *mongo.Client // of the application and of the test
	uri         string
	name        string // of the database of rows and counters
	stateName   string // of the state database
	rows        *mongo.Collection
	counters    []config.Counter
	definitions []*counter.Definition
	checkpoints *checkpoint.Store
	states      *counter.States

	faulty bool // the server fails now and then, and changes with it

	mutex  sync.Mutex
	random *rand.Rand
	ends   int
}

// newWorld sets up the given counters on the shared server, perPost and wordsPerAuthor when none are given.
func newWorld(t testing.TB, counters ...config.Counter) *world {
	t.Helper()
	uri := realtest.Shared(t).URI()
	return newWorldOn(t, uri, realtest.Client(t, uri), counters...)
}

func newWorldOn(t testing.TB, uri string, client *mongo.Client, counters ...config.Counter) *world {
	t.Helper()
	w := &world{t: t, client: client, uri: uri, name: realtest.DatabaseOn(t, client), stateName: realtest.DatabaseOn(t, client)}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	w.random = rand.New(rand.NewPCG(seed, seed))
	w.rows = w.database().Collection(source)
	if len(counters) == 0 {
		counters = []config.Counter{perPost(), wordsPerAuthor()}
	}
	w.check(w.database().CreateCollection(t.Context(), source))
	w.definitions = w.define(counters...)
	w.setup()
	w.checkpoints = checkpoint.NewStore(client, w.stateName)
	w.states = counter.NewStates(client, w.stateName)
	return w
}

func (w *world) database() *mongo.Database { return w.client.Database(w.name) }

func (w *world) stateDatabase() *mongo.Database { return w.client.Database(w.stateName) }

func (w *world) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// define completes declarations with what all counters here have in common: each has fields of its own.
func (w *world) define(counters ...config.Counter) []*counter.Definition {
	w.t.Helper()
	w.counters = nil
	for _, c := range counters {
		c.Source = source
		c.Rows.Database, c.Rows.Collection = w.name, source
		if c.Target.Collection == "" {
			c.Target = config.Target{Collection: target + "_of_" + c.Name, Upsert: true}
		}
		c.Target.Database = w.name
		if c.Target.Base == "" {
			c.Target.Base, c.Target.Live = "base", "live"
		}
		w.counters = append(w.counters, c)
	}
	definitions, err := counter.DefineAll(w.counters)
	w.check(err)
	return definitions
}

// setup does what `incrementer setup` does.
func (w *world) setup() {
	w.t.Helper()
	c := w.configuration()
	steps, err := deployment.Plan(w.t.Context(), w.client, c, w.definitions)
	w.check(err)
	for _, step := range steps {
		w.check(step.Do(w.t.Context()))
	}
}

func (w *world) configuration() *config.Config {
	c := config.Default()
	c.MongoDB = config.MongoDB{URI: w.uri, StateDatabase: w.stateName}
	c.Sources = []config.Source{{Name: source, ChangeStream: &config.ChangeStream{Database: w.name, Collection: source}}}
	c.Counters = w.counters
	return c
}

// pick returns a number in [0, n). It may be called by several writers.
func (w *world) pick(n int) int {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return w.random.IntN(n)
}

const posts, authors = 40, 7

// row is a comment with a random post, author and length.
func (w *world) row() bson.D {
	return bson.D{
		{Key: "_id", Value: bson.NewObjectID()}, {Key: "post", Value: w.pick(posts)},
		{Key: "author", Value: fmt.Sprint("author ", w.pick(authors))}, {Key: "words", Value: w.pick(100)},
		{Key: "text", Value: "x"},
	}
}

func (w *world) someRows(n int) []bson.D {
	rows := make([]bson.D, n)
	for i := range rows {
		rows[i] = w.row()
	}
	return rows
}

func (w *world) insert(ctx context.Context, n int) {
	w.t.Helper()
	_, err := w.rows.InsertMany(ctx, w.someRows(n), options.InsertMany().SetOrdered(false))
	w.check(err)
}

// churn makes n random changes of every kind, some in transactions. It ends early with ctx. It may run beside the test.
func (w *world) churn(ctx context.Context, n int) {
	w.t.Helper()
	for range n {
		err := w.change(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil && !w.faulty {
			w.t.Errorf("change rows: %v", err)
			return
		}
	}
}

func (w *world) change(ctx context.Context) error {
	switch kind := w.pick(100); {
	case kind < 8:
		return w.transaction(ctx, 1+w.pick(20))
	case kind < 12:
		_, err := w.rows.DeleteMany(ctx, bson.D{{Key: "post", Value: w.pick(posts)}, {Key: "words", Value: bson.D{{Key: "$lt", Value: 20}}}})
		return err
	case kind < 20:
		_, err := w.rows.InsertMany(ctx, w.someRows(1+w.pick(30)))
		return err
	default:
		return w.changeOne(ctx)
	}
}

// transaction makes n changes at one cluster time. Its conflicts with other writers are nobody's fault.
func (w *world) transaction(ctx context.Context, n int) error {
	return w.client.UseSession(ctx, func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			for range n {
				if err := w.changeOne(ctx); err != nil {
					return nil, err
				}
			}
			return nil, nil
		})
		return err
	})
}

func (w *world) changeOne(ctx context.Context) error {
	of := bson.D{{Key: "post", Value: w.pick(posts)}}
	set := func(field string, value any) bson.D {
		return bson.D{{Key: "$set", Value: bson.D{{Key: field, Value: value}}}}
	}
	var err error
	switch w.pick(9) {
	default:
		_, err = w.rows.InsertOne(ctx, w.row())
	case 3:
		_, err = w.rows.UpdateOne(ctx, of, set("deleted_at", bson.NewDateTimeFromTime(time.Now())))
	case 4:
		_, err = w.rows.UpdateOne(ctx, append(of, bson.E{Key: "deleted_at", Value: bson.D{{Key: "$ne", Value: nil}}}), set("deleted_at", nil))
	case 5:
		_, err = w.rows.UpdateOne(ctx, of, set("post", w.pick(posts)))
	case 6:
		_, err = w.rows.UpdateOne(ctx, of, bson.D{{Key: "$inc", Value: bson.D{{Key: "words", Value: 1}}}})
	case 7:
		_, err = w.rows.DeleteOne(ctx, of)
	case 8:
		_, err = w.rows.ReplaceOne(ctx, of, w.row()[1:])
	}
	return err
}

// mark inserts a row like no other and waits until every one of the given counters has counted it: by then all
// that happened before is applied.
func (w *world) mark(definitions ...*counter.Definition) {
	w.t.Helper()
	if len(definitions) == 0 {
		definitions = w.definitions
	}
	w.mutex.Lock()
	w.ends++
	end := fmt.Sprint("end ", w.ends)
	w.mutex.Unlock()
	_, err := w.rows.InsertOne(w.t.Context(), bson.D{
		{Key: "_id", Value: end}, {Key: "post", Value: end}, {Key: "author", Value: end}, {Key: "words", Value: 1}, {Key: "tags", Value: bson.A{"end"}},
	})
	w.check(err)
	for _, d := range definitions {
		deadline := time.Now().Add(patience)
		realtest.Eventually(w.t, 2*patience, d.Name+" has counted "+end, func() bool {
			if time.Now().After(deadline) {
				w.whatIsUnderWay()
			}
			return w.displayed(d)[fmt.Sprintf("%q", end)] == 1
		})
	}
}

// whatIsUnderWay fails the test with what the server is busy with: an open transaction holds its documents.
func (w *world) whatIsUnderWay() {
	w.t.Helper()
	cursor, err := w.client.Database("admin").Aggregate(w.t.Context(), mongo.Pipeline{
		{{Key: "$currentOp", Value: bson.D{{Key: "idleSessions", Value: true}}}},
		{{Key: "$match", Value: bson.D{{Key: "transaction", Value: bson.D{{Key: "$exists", Value: true}}}}}},
		{{Key: "$project", Value: bson.D{{Key: "type", Value: 1}, {Key: "desc", Value: 1}, {Key: "lsid", Value: 1}, {Key: "transaction", Value: 1}, {Key: "lastOp", Value: 1}}}},
	})
	w.check(err)
	var operations []bson.M
	w.check(cursor.All(w.t.Context(), &operations))
	for _, o := range operations {
		w.t.Logf("open transaction: %v", o)
	}
	w.t.Fatal("not caught up in time")
}

// wantExact waits until all that happened is applied, and holds every counter to a plain count.
func (w *world) wantExact(definitions ...*counter.Definition) {
	w.t.Helper()
	if len(definitions) == 0 {
		definitions = w.definitions
	}
	w.mark(definitions...)
	w.wantEqual(definitions...)
}

// wantEqual holds every counter to a plain count, as things are.
func (w *world) wantEqual(definitions ...*counter.Definition) {
	w.t.Helper()
	if len(definitions) == 0 {
		definitions = w.definitions
	}
	for _, d := range definitions {
		w.wantCounts(d, w.truth(d))
	}
}

// wantCounts compares what a counter displays, zeros aside.
func (w *world) wantCounts(d *counter.Definition, want map[string]int64) {
	w.t.Helper()
	got := w.displayed(d)
	wrong := 0
	for _, key := range slices.Sorted(maps.Keys(union(got, want))) {
		if got[key] != want[key] {
			if wrong++; wrong <= 10 {
				w.t.Errorf("%s of %s displays %d, there are %d", d.Name, key, got[key], want[key])
			}
		}
	}
	if wrong > 0 {
		w.t.Fatalf("%s: %d of %d keys are wrong", d.Name, wrong, len(want))
	}
}

func union(a, b map[string]int64) map[string]int64 {
	u := maps.Clone(a)
	maps.Copy(u, b)
	return u
}

// displayed is base + live by key, zeros left out.
func (w *world) displayed(d *counter.Definition) map[string]int64 {
	w.t.Helper()
	cursor, err := w.targets(d).Find(w.t.Context(), bson.D{})
	w.check(err)
	var documents []bson.Raw
	w.check(cursor.All(w.t.Context(), &documents))
	shown := map[string]int64{}
	for _, document := range documents {
		n := integer(document, d.Target.Base) + integer(document, d.Target.Live)
		if n != 0 {
			shown[document.Lookup("_id").String()] = n
		}
	}
	return shown
}

func integer(document bson.Raw, field string) int64 {
	n, _ := document.Lookup(field).AsInt64OK()
	return n
}

func (w *world) targets(d *counter.Definition) *mongo.Collection {
	return w.database().Collection(d.Target.Collection)
}

// truth is a plain count of the rows, made here and not by the server.
func (w *world) truth(d *counter.Definition) map[string]int64 {
	w.t.Helper()
	cursor, err := w.rows.Find(w.t.Context(), bson.D{})
	w.check(err)
	counts := map[string]int64{}
	for cursor.Next(w.t.Context()) {
		row := cursor.Current
		if d.SoftDelete != "" {
			if deleted := row.Lookup(d.SoftDelete); deleted.Type != 0 && deleted.Type != bson.TypeNull {
				continue
			}
		}
		weight := int64(1)
		if d.Sum != "" {
			weight = integer(row, d.Sum)
		}
		key := row.Lookup(d.Key)
		if counts[key.String()] += weight; counts[key.String()] == 0 {
			delete(counts, key.String())
		}
	}
	w.check(cursor.Err())
	return counts
}

// at is the lane's checkpoint.
func (w *world) at() checkpoint.Checkpoint {
	w.t.Helper()
	at, err := w.checkpoints.Load(w.t.Context(), source)
	if errors.Is(err, checkpoint.ErrNone) {
		return checkpoint.Checkpoint{}
	}
	w.check(err)
	return at
}

// state is what the state database says of a counter.
func (w *world) state(name string) counter.State {
	w.t.Helper()
	all, err := w.states.All(w.t.Context())
	w.check(err)
	return all[name]
}

// activate makes all counters active, as a reconciler does that has recounted them.
func (w *world) activate() {
	w.t.Helper()
	all, err := w.states.All(w.t.Context())
	w.check(err)
	for _, state := range all {
		_, err := w.states.Activate(w.t.Context(), state)
		w.check(err)
	}
}

// moves are the sequence numbers that the checkpoint has had, in the order in which they were committed. The returned
// function waits for the move to the present one.
func (w *world) moves() func() []int64 {
	w.t.Helper()
	watched, err := w.stateDatabase().Collection(checkpoint.Collection).Watch(w.t.Context(), mongo.Pipeline{},
		options.ChangeStream().SetFullDocument(options.Default))
	w.check(err)
	w.t.Cleanup(func() { _ = watched.Close(context.WithoutCancel(w.t.Context())) })
	return func() []int64 {
		w.t.Helper()
		last := w.at().Seq
		var seqs []int64
		for len(seqs) == 0 || seqs[len(seqs)-1] != last {
			if !watched.Next(w.t.Context()) {
				w.t.Fatalf("checkpoints: %v", watched.Err())
			}
			if seq, ok := watched.Current.Lookup("updateDescription", "updatedFields", "seq").AsInt64OK(); ok {
				seqs = append(seqs, seq)
			}
		}
		return seqs
	}
}

// wantNoGaps: every number was committed once, in order.
func wantNoGaps(t testing.TB, seqs []int64) {
	t.Helper()
	for i, seq := range seqs {
		if seq != seqs[0]+int64(i) {
			t.Fatalf("checkpoint %d follows %d", seq, seqs[i-1])
		}
	}
}

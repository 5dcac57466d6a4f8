package reconciler

import (
	"fmt"
	"maps"
	"math/rand/v2"
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
	"driftless/internal/realtest"
	"driftless/internal/stream/envelope"
)

// misname adds a row and publishes it in a form that nobody reads, but a source that looks for the key at "post".
func (f *topical) misname(post any) {
	f.t.Helper()
	now := time.Now()
	must(f.rows.InsertOne(f.t.Context(), bson.D{{Key: "post_id", Value: post}, {Key: "created_at", Value: now}}))(f.t)
	value := fmt.Sprintf(`{"type":"added","post":%q,"at":%d}`, post, now.UnixMilli())
	f.check(f.kafka.Produce(f.t.Context(), f.topic, int32(rand.IntN(f.partitions)), realtest.Record{Value: []byte(value)}))
}

// waitLetters waits until so many dead letters stand, and returns their names.
func (f *topical) waitLetters(n int) (names []string) {
	f.t.Helper()
	realtest.Eventually(f.t, patience, "the dead letters", func() bool { return len(f.letters()) == n })
	return slices.Sorted(maps.Keys(f.letters()))
}

// retrier is a process of its own that reads the key at the given path.
func (f *topical) retrier(client *mongo.Client, key string) *counter.Retrier {
	f.t.Helper()
	topic := *f.config.Sources[0].Kafka
	topic.Event.Key = key
	projector := must(counter.NewProjector(envelope.New(&topic), f.definitions, f.config.Reconciler.Settle, func() time.Duration { return 0 }))(f.t)
	state := f.config.MongoDB.StateDatabase
	return counter.NewRetrier(client, checkpoint.NewStore(client, state), counter.NewStates(client, state), f.definitions,
		map[string]counter.TopicSource{sourceName: {Topic: f.topic, Projector: projector}})
}

// retry retries letters and counts what became of them.
func (f *topical) retry(r *counter.Retrier, names []string) map[string]int {
	f.t.Helper()
	outcomes := map[string]int{}
	for _, name := range names {
		outcomes[must(r.Retry(f.t.Context(), name))(f.t).Outcome]++
	}
	return outcomes
}

func wantOutcomes(t *testing.T, got, want map[string]int) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Errorf("outcomes %v, want %v", got, want)
	}
}

// Records that could not be read are counted once when they can, by however many retries at once, beside lanes at work, and not
// again where a reconcile has counted their rows.
func TestDeadRecordsThatAreRetriedCountOnce(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3, func(c *config.Config) { c.Reconciler.Settle = 6 * time.Second })
	f.react("a", false)
	f.join()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)

	for n := range 20 {
		f.misname([]string{"a", "b"}[n%2])
		f.react("a", false)
	}
	names := f.waitLetters(20)
	wantOutcomes(t, f.retry(f.retrier(f.client, "post_id"), names), map[string]int{counter.RetryKept: 20})
	var together sync.WaitGroup
	all := make([]map[string]int, 3)
	for i := range all {
		client := realtest.Client(t, f.uri)
		shuffled := slices.Clone(names)
		rand.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		together.Go(func() { all[i] = f.retry(f.retrier(client, "post"), shuffled) })
	}
	for range 10 {
		f.react("b", false)
	}
	together.Wait()
	sum := map[string]int{}
	for _, outcomes := range all {
		for outcome, n := range outcomes {
			sum[outcome] += n
		}
	}
	wantOutcomes(t, sum, map[string]int{counter.RetryApplied: 20, counter.RetryGone: 40})
	f.passed()
	report := f.run(r, Options{})
	wantDrift(t, report, nil)
	if late := only(t, report).Late; late != 0 {
		t.Errorf("%d late", late)
	}
	f.wantShown("a", 31)
	f.wantShown("b", 20)

	for range 5 {
		f.misname("b")
		f.misname("c")
	}
	names = f.waitLetters(10)
	f.passed()
	wantDrift(t, f.run(r, Options{}), map[any]int64{"b": -5, "c": -5})
	wantOutcomes(t, f.retry(f.retrier(f.client, "post"), names), map[string]int{counter.RetryCounted: 10})
	f.wantShown("b", 25)
	f.wantShown("c", 5)
	f.waitLetters(0)
	f.passed()
	report = f.run(r, Options{Full: true})
	wantDrift(t, report, nil)
	if late := only(t, report).Late; late != 0 {
		t.Errorf("%d late", late)
	}
}

// A retry whose answer is lost counts once all the same.
func TestADeadRecordCountsOnceWhenTheAnswerToItsRetryIsLost(t *testing.T) {
	f := onTopic(t, 1)
	f.join()
	f.misname("a")
	names := f.waitLetters(1)
	const name, writeConcernTimeout = "lost answers", 64
	client := realtest.Client(t, f.uri, options.Client().SetAppName(name))
	realtest.FailCommand(t, f.client, realtest.Failure{
		Commands: []string{"commitTransaction"}, AppName: name, WriteConcernCode: writeConcernTimeout, Times: 8,
	})
	wantOutcomes(t, f.retry(f.retrier(client, "post"), names), map[string]int{counter.RetryApplied: 1})
	f.wantShown("a", 1)
	wantOutcomes(t, f.retry(f.retrier(client, "post"), names), map[string]int{counter.RetryGone: 1})
	f.wantShown("a", 1)
}

// What a document cannot take, also in a retry, is a dead letter of its key, and a run makes it right once the document can.
func TestIncrementsThatARetryCannotApplyAreDeadLettersUntilTheirDocumentIsMended(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 1)
	f.react("a", false)
	f.join()
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	live := f.definitions[0].Target.Live
	f.edit("a", set(live, "text"))
	f.misname("a")
	names := f.waitLetters(1)
	retried := must(f.retrier(f.client, "post").Retry(t.Context(), names[0]))(t)
	if retried.Outcome != counter.RetryApplied || len(retried.Apart) != 1 {
		t.Errorf("retried: %+v", retried)
	}
	names = f.waitLetters(1)
	letter, _, err := f.states.Letter(t.Context(), names[0])
	if err != nil || letter.Kind != counter.LetterIncrement || letter.Delta != 1 || letter.Counter != counterName || letter.FirstAt.IsZero() {
		t.Errorf("letter %+v, %v", letter, err)
	}
	f.edit("a", set(live, int64(0)))
	must(f.state.Collection(counter.TouchedCollection).DeleteMany(t.Context(), bson.D{}))(t)
	wantOutcomes(t, f.retry(f.retrier(f.client, "post"), names), map[string]int{counter.RetryMarked: 1})
	f.passed()
	f.run(r, Options{})
	f.wantShown("a", 2)
	f.waitLetters(0)
}

// Letters that are discarded are on record until they expire, and count no more.
func TestDeadLettersThatAreDiscardedLeaveARecord(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 2)
	f.join()
	for n := range 450 {
		f.check(f.kafka.Produce(t.Context(), f.topic, int32(n%2), realtest.Record{Key: []byte("k"), Value: fmt.Appendf(nil, "bad %d", n)}))
	}
	names, ctx := f.waitLetters(450), t.Context()
	if n := must(f.states.LetterCount(ctx))(t); n != 450 {
		t.Errorf("%d letters stand", n)
	}
	if n := must(f.states.Discard(ctx, append(names[:449:449], "none")))(t); n != 449 {
		t.Errorf("%d discarded, want 449", n)
	}
	if n := must(f.states.LetterCount(ctx))(t); n != 1 {
		t.Errorf("%d letters stand, want 1", n)
	}
	wantOutcomes(t, f.retry(f.retrier(f.client, "post"), names[448:]), map[string]int{counter.RetryGone: 1, counter.RetryKept: 1})
	var gone []counter.Letter
	f.check(f.states.Letters(ctx, true, 0, func(l counter.Letter) error { gone = append(gone, l); return nil }))
	if len(gone) != 449 || gone[0].ID != names[0] || gone[0].DiscardedAt.IsZero() || string(gone[0].RecordKey.Data) != "k" || !gone[0].Whole() {
		t.Errorf("%d on record, the first %+v", len(gone), gone[0])
	}
	expiring := must(f.state.Collection(counter.DeadLettersCollection).CountDocuments(ctx, bson.D{{Key: "expires_at", Value: bson.D{{Key: "$gt", Value: time.Now().Add(29 * 24 * time.Hour)}}}}))(t)
	if expiring != 449 {
		t.Errorf("%d expire, want 449", expiring)
	}
}

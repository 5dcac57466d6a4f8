package reconciler

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// bad are records that cannot be counted.
var bad = []string{`{"type":"added"`, `{"type":"added","at":%d}`, `{"type":"added","post_id":1,"at":"yesterday %d"}`, `{"type":"added","post_id":[%d],"at":1}`, `%d`}

// One bad record in a hundred, and the process killed in the middle of them: each is among the dead letters, once, and all
// others are counted.
func TestBadRecordsAreDeadLettersOnceAndAllOthersAreCountedThoughTheProcessIsKilled(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3, underLoad)
	ctx, want := t.Context(), map[string]string{}
	offsets := map[int32]int64{}
	load := f.feed(0, 50, 0)
	produce := load.produce
	load.produce = func(ctx context.Context, p int32, records []realtest.Record) error {
		for i := rand.IntN(100); i < len(records); i += 100 {
			value := fmt.Sprintf(bad[rand.IntN(len(bad))], time.Now().UnixMilli())
			records = slices.Insert(slices.Clone(records), i, realtest.Record{Value: []byte(value)})
			want[fmt.Sprintf("%s/%s/%d@%d", sourceName, f.topic, p, offsets[p]+int64(i))] = value
		}
		offsets[p] += int64(len(records))
		return produce(ctx, p, records)
	}
	publish := func(until int) {
		for load.events.Load() < int64(until) {
			f.check(load.batch(ctx, 400))
		}
	}
	events := size(6000, 200_000)
	publish(events / 2)
	path := f.binary()
	kill := f.process(path)
	realtest.Eventually(t, 2*patience, "dead letters", func() bool { return len(f.letters()) > 3 })
	kill()
	before := len(f.letters())
	f.process(path)
	publish(events)
	f.check(load.end(ctx))
	f.passed()
	f.wantCounted()
	if got := f.letters(); !maps.Equal(got, want) {
		t.Errorf("%d dead letters, want %d: %v\n%v", len(got), len(want), got, want)
	}
	t.Logf("killed after %d of %d dead letters", before, len(want))
	r := f.reconciler(equipment{})
	f.passed()
	f.activate(r)
	f.passed()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

// letters are the records among the dead letters, by lane and offset.
func (f *topical) letters() map[string]string {
	f.t.Helper()
	var all []struct {
		ID     string `bson:"_id"`
		Record []byte `bson:"record"`
	}
	f.check(must(f.state.Collection(counter.DeadLettersCollection).Find(f.t.Context(), bson.D{}))(f.t).All(f.t.Context(), &all))
	letters := map[string]string{}
	for _, letter := range all {
		letters[letter.ID] = string(letter.Record)
	}
	return letters
}

// binary builds the incrementer as it is shipped.
func (f *topical) binary() string {
	f.t.Helper()
	path := filepath.Join(f.t.TempDir(), "incrementer")
	build := exec.CommandContext(f.t.Context(), "go", "build", "-o", path, "./cmd/incrementer")
	build.Dir = filepath.Join("..", "..")
	if out, err := build.CombinedOutput(); err != nil {
		f.t.Fatalf("build incrementer: %v\n%s", err, out)
	}
	return path
}

// process runs a member of the group as a process of its own, until it is killed, at the latest at the end of the test.
func (f *topical) process(path string) (kill func()) {
	f.t.Helper()
	var file, log strings.Builder
	k, c := f.config.Sources[0].Kafka, f.config.Counters[0]
	fmt.Fprintf(&file, "mongodb: {uri: %q, state_database: %s}\n", f.uri, f.config.MongoDB.StateDatabase)
	fmt.Fprintf(&file, "sources:\n  %s: {kafka: {brokers: [%q], topic: %s, group: %s, event: {type: type, key: post_id, time: at, deltas: %s}}}\n",
		sourceName, k.Brokers[0], k.Topic, k.Group, must(json.Marshal(k.Event.Deltas))(f.t))
	fmt.Fprintf(&file, "counters:\n  %s: {source: %s, rows: {database: %s, collection: %s, created_at: %s}, key: %s, soft_delete: %s, target: {database: %s, collection: %s, base: %s, live: %s, reconciled_at: %s}}\n",
		c.Name, c.Source, c.Rows.Database, c.Rows.Collection, c.Rows.CreatedAt, c.Key, c.SoftDelete,
		c.Target.Database, c.Target.Collection, c.Target.Base, c.Target.Live, c.Target.ReconciledAt)
	fmt.Fprintf(&file, "reconciler: {settle: %s}\n", f.config.Reconciler.Settle)
	name := filepath.Join(f.t.TempDir(), "driftless.yaml")
	f.check(os.WriteFile(name, []byte(file.String()), 0o600))
	if out, err := exec.CommandContext(f.t.Context(), path, "setup", "--config", name).CombinedOutput(); err != nil {
		f.t.Fatalf("setup: %v\n%s", err, out)
	}
	cmd := exec.Command(path, "run", "--config", name, "--incrementer-listen", "127.0.0.1:0",
		"--incrementer-max-batch-events", "100", "--incrementer-idle-checkpoint", "200ms", "--incrementer-lease", "6s")
	cmd.Stderr = &log
	f.check(cmd.Start())
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if f.t.Failed() {
			f.t.Logf("log of the incrementer:\n%s", log.String())
		}
	})
	f.t.Cleanup(kill)
	return kill
}

// with is the same installation after its file was changed.
func (f *topical) with(edit func(*config.Config)) *topical {
	f.t.Helper()
	c, installed, changed := *f.config, *f.fixture, *f
	c.Sources, c.Counters = slices.Clone(c.Sources), slices.Clone(c.Counters)
	edit(&c)
	installed.config, installed.stop, installed.stops = &c, nil, nil
	f.check(f.rows.Indexes().DropAll(f.t.Context())) // setup replaces one of another form
	installed.install()
	changed.fixture = &installed
	return &changed
}

// A counter whose source moves from a topic to the rows' own change stream and back is counted anew, and not twice.
func TestACounterThatMovesBetweenTopicAndChangeStreamIsRebased(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 3)
	leave := f.join()
	traffic := func() {
		for n := range 30 {
			row := f.react(n%5, false)
			if n%6 == 0 {
				f.retract(n%5, row)
			}
		}
	}
	wantRebased := func(g *topical) {
		t.Helper()
		r := g.reconciler(equipment{})
		report := g.run(r, Options{})
		if wantDrift(t, report, nil); g.stateOf(counterName).State != counter.Active {
			t.Errorf("not active: %s", show(report))
		}
	}
	traffic()
	f.passed()
	wantRebased(f)
	f.wantCounted()

	stream := f.with(func(c *config.Config) {
		c.Sources[0].Kafka = nil
		c.Sources[0].ChangeStream = &config.ChangeStream{Database: f.rows.Database().Name(), Collection: "comments", Partitions: 1}
		c.Counters[0].Format, c.Counters[0].Rows.CreatedAt = "", ""
	})
	stream.start() // before the last member of the group has left
	traffic()
	leave()
	traffic()
	stream.catchUp()
	wantRebased(stream)
	stream.wantExact()
	traffic()
	stream.wantExact()
	wantDrift(t, stream.run(stream.reconciler(equipment{}), Options{Full: true}), nil)
	stream.stop()

	back := f.with(func(*config.Config) {})
	back.join()
	back.passed()
	back.wantCounted() // before it is rebased: the topic's past is not counted again
	wantRebased(back)
	traffic()
	back.passed()
	back.wantCounted()
	wantDrift(t, back.run(back.reconciler(equipment{}), Options{Full: true}), nil)
}

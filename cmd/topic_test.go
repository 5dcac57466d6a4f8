package cmd_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// reacting is a place whose counter is incremented by events from a topic.
func reacting(t *testing.T, partitions int) (*place, *realtest.Kafka, string) {
	t.Helper()
	return reactingOn(t, plain.start(t), partitions)
}

func reactingOn(t *testing.T, m *realtest.Mongod, partitions int) (*place, *realtest.Kafka, string) {
	t.Helper()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, partitions, nil)
	client := realtest.Client(t, m.URI())
	p := &place{t: t, client: client, app: realtest.DatabaseOn(t, client), state: realtest.DatabaseOn(t, client)}
	if err := client.Database(p.app).CreateCollection(t.Context(), "reactions"); err != nil {
		t.Fatal(err)
	}
	p.write(fmt.Sprintf(`mongodb: {uri: %q, state_database: %s}
sources:
  reactions:
    kafka:
      brokers: [%q]
      topic: %s
      group: %[4]s
      event: {type: type, key: post_id, time: at, deltas: {added: 1, removed: -1}}
counters:
  reactions_per_post:
    source: reactions
    rows: {database: %[5]s, collection: reactions, created_at: created_at}
    key: post_id
    soft_delete: deleted_at
    target: {database: %[5]s, collection: post_counters}
incrementer: {listen: 127.0.0.1:0, idle_checkpoint: 200ms, lease: 6s}
reconciler: {listen: 127.0.0.1:0, judge_timeout: 10s, every: 1s, settle: 3s, lease: 2s}
`, m.URI(), p.state, k.Addr(), topic, p.app))
	return p, k, topic
}

func TestACounterIsKeptFromATopicAlsoWhenAnInstanceIsKilled(t *testing.T) {
	t.Parallel()
	p, k, topic := reacting(t, 2)
	p.want(0, "incrementer", "setup")
	react := func(n int) {
		t.Helper()
		for range n {
			now := time.Now()
			if _, err := p.client.Database(p.app).Collection("reactions").InsertOne(t.Context(), bson.D{{Key: "post_id", Value: 1}, {Key: "created_at", Value: now}}); err != nil {
				t.Fatal(err)
			}
			value := fmt.Sprintf(`{"type":"added","post_id":1,"at":%d}`, now.UnixMilli())
			if err := k.Produce(t.Context(), topic, int32(rand.IntN(2)), realtest.Record{Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := p.start("incrementer")
	first.becomes("/readyz", 200, `"ready": true`)
	p.start("reconciler")
	react(40)
	second := p.start("incrementer")
	second.becomes("/status", 200, `"following": true`)
	react(40)
	first.signal(syscall.SIGKILL)
	react(40)
	realtest.Eventually(t, 3*patience, "all reactions to be counted", func() bool { return p.displayed("post_counters", 1) == 120 })
	realtest.Eventually(t, 3*patience, "the first recount to end", func() bool {
		r := p.run("incrementer", "status")
		return strings.Count(r.stdout, "reactions/"+topic+"/") == 2 && strings.Contains(r.stdout, "active")
	})
	realtest.Eventually(t, 3*patience, "a run to find nothing wrong", func() bool {
		return p.run("reconciler", "verify", "--full").code == 0
	})
	if r := p.want(0, "reconciler", "report"); strings.Contains(r.stdout, "unknown") {
		t.Errorf("drift was found:\n%s", r.stdout)
	}
	if r := p.want(0, "incrementer", "check"); !strings.Contains(r.stdout, "2 partitions") {
		t.Errorf("%s", r.stdout)
	}
}

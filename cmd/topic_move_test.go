package cmd_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// While a service is moved from a topic to the change stream, instances with the old file leave the source to the new ones, instead
// of taking it back and forth.
func TestAnInstanceWithAnOlderFileLeavesATopicToTheNewerOnes(t *testing.T) {
	t.Parallel()
	p, k, topic := reacting(t, 2)
	react := func(n int) {
		t.Helper()
		for range n {
			now := time.Now()
			if _, err := p.client.Database(p.app).Collection("reactions").InsertOne(t.Context(), bson.D{{Key: "post_id", Value: 1}, {Key: "created_at", Value: now}}); err != nil {
				t.Fatal(err)
			}
			value := fmt.Sprintf(`{"type":"added","post_id":1,"at":%d}`, now.UnixMilli())
			if err := k.Produce(t.Context(), topic, 0, realtest.Record{Value: []byte(value)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	p.want(0, "incrementer", "setup")
	old := p.start("incrementer")
	old.becomes("/readyz", 200, `"ready": true`)
	react(10)
	realtest.Eventually(t, patience, "the reactions to be counted", func() bool { return p.displayed("post_counters", 1) == 10 })

	p.edit(func(text string) string {
		from, to := strings.Index(text, "    kafka:"), strings.Index(text, "counters:")
		text = text[:from] + fmt.Sprintf("    change_stream: {database: %s, collection: reactions}\n", p.app) + text[to:]
		return strings.Replace(text, fmt.Sprintf("    rows: {database: %s, collection: reactions, created_at: created_at}\n", p.app), "", 1)
	})
	p.want(0, "incrementer", "setup")
	newer := p.start("incrementer")
	old.becomes("/readyz", 503, "has another configuration of source reactions")
	newer.becomes("/readyz", 200, `"ready": true`)
	react(10)
	realtest.Eventually(t, patience, "the reactions to be counted", func() bool { return p.displayed("post_counters", 1) >= 20 })
	p.want(0, "reconciler", "run", "--once")
	before := p.gaps()
	react(10)
	realtest.Eventually(t, patience, "the reactions to be counted", func() bool { return p.displayed("post_counters", 1) == 30 })
	p.want(0, "reconciler", "verify", "--full")
	if after := p.gaps(); len(after) != len(before) {
		t.Errorf("gaps %v, and before %v", after, before)
	}
	if r := p.want(0, "incrementer", "status"); strings.Contains(r.stdout, topic) {
		t.Errorf("%s", r.stdout)
	}
	newer.terminate()
	newer.ended()
	old.becomes("/readyz", 503, "which started later and is gone, has another configuration of source reactions")
}

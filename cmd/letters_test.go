package cmd_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"driftless/internal/realtest"
)

func TestDeadLettersAreListedRetriedAndDiscarded(t *testing.T) {
	t.Parallel()
	p, k, topic := reacting(t, 2)
	p.want(0, "incrementer", "setup")
	if r := p.want(0, "incrementer", "deadletters", "list"); r.stdout != "there are none\n" {
		t.Errorf("%s", r.stdout)
	}
	p.start("incrementer").becomes("/readyz", 200, `"ready": true`)
	publish := func(value string) {
		t.Helper()
		if err := k.Produce(t.Context(), topic, 0, realtest.Record{Key: []byte{0xff}, Value: []byte(value)}); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now().UnixMilli()
	publish("no JSON \x1b[31m")
	for range 3 {
		publish(fmt.Sprintf(`{"type":"added","post":7,"at":%d}`, now))
	}
	publish(fmt.Sprintf(`{"type":"added","post_id":7,"at":%d}`, now))
	realtest.Eventually(t, patience, "the events to be applied", func() bool { return p.displayed("post_counters", 7) == 1 })

	id := func(offset int) string { return fmt.Sprintf("reactions/%s/0@%d", topic, offset) }
	r := p.want(0, "incrementer", "deadletters", "list")
	if !strings.HasPrefix(r.stdout, "ID ") || strings.Contains(r.stdout, "\x1b") || strings.Count(r.stdout, "\n") != 5 {
		t.Errorf("%q", r.stdout)
	}
	var letter struct {
		ID, Kind, Topic, Record, Reason string
		RecordKeyBase64                 string `json:"record_key_base64"`
		Partition, Offset               *int
		Bytes                           int
	}
	first, _, _ := strings.Cut(p.want(0, "incrementer", "deadletters", "list", "-o", "json").stdout, "\n")
	if err := json.Unmarshal([]byte(first), &letter); err != nil {
		t.Fatal(err)
	}
	if letter.ID != id(0) || letter.Kind != "record" || letter.Topic != topic || *letter.Partition != 0 || *letter.Offset != 0 || letter.RecordKeyBase64 != "/w==" || letter.Record != "no JSON \x1b[31m" || letter.Bytes != 14 {
		t.Errorf("%s", first)
	}
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "dead letters: 4 ") {
		t.Errorf("%s", r.stdout)
	}

	p.wantLine(2, []string{"retry which?", "--all"}, "incrementer", "deadletters", "retry")
	p.wantLine(2, []string{"got both"}, "incrementer", "deadletters", "discard", "--all", id(0))
	p.wantLine(2, []string{`"nonsense"`, "nothing was done"}, "incrementer", "deadletters", "retry", id(1), "nonsense")
	p.wantLine(2, []string{"limit"}, "incrementer", "deadletters", "list", "--limit", "-1")
	if r := p.run("incrementer", "deadletters", "retry", "--all"); r.code != 1 || !strings.Contains(r.stdout, "kept: 4") || !strings.Contains(r.stderr, "4 of 4 dead letters cannot be counted still") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	p.edit(func(text string) string { return strings.Replace(text, "key: post_id, time", "key: post, time", 1) })
	if r := p.want(0, "incrementer", "deadletters", "retry", id(1), id(1), id(2)); r.stdout != "applied: 2\n" {
		t.Errorf("%s", r.stdout)
	}
	if n := p.displayed("post_counters", 7); n != 3 {
		t.Errorf("%d are displayed, want 3", n)
	}
	r = p.run("incrementer", "deadletters", "retry", "--all", "-o", "json")
	if r.code != 1 || !strings.Contains(r.stdout, `"outcome":"kept"`) || !strings.Contains(r.stdout, `"outcome":"applied"`) || !strings.Contains(r.stderr, "1 of 2") {
		t.Errorf("exit %d\n%s%s", r.code, r.stdout, r.stderr)
	}
	if r := p.want(0, "incrementer", "deadletters", "discard", id(0)); !strings.HasPrefix(r.stdout, "discarded: 1;") {
		t.Errorf("%s", r.stdout)
	}
	if r := p.want(0, "incrementer", "deadletters", "list", "--discarded"); !strings.Contains(r.stdout, id(0)) || !strings.Contains(r.stdout, "DISCARDED") {
		t.Errorf("%s", r.stdout)
	}
	for _, verb := range []string{"retry", "discard"} {
		if r := p.want(0, "incrementer", "deadletters", verb, "--all"); r.stdout != "nothing to do: there are no dead letters\n" {
			t.Errorf("%s", r.stdout)
		}
	}
	if n := p.displayed("post_counters", 7); n != 4 {
		t.Errorf("%d are displayed, want 4", n)
	}
}

package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	oneSource = `sources:
  comments:
    change_stream: {database: app, collection: comments}
`
	oneCounter = `counters:
  per_post:
    source: comments
    key: post_id
    target: {database: app, collection: post_counters}
`
	valid = oneSource + oneCounter
)

// load reads text as driftless.yaml in a directory of its own.
func load(t testing.TB, text string, env, flags map[string]string) (*Config, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "driftless.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Load(Options{File: file, Env: lookup(env), Flags: flags})
	return c, err
}

func lookup(env map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := env[name]; return v, ok }
}

func mustLoad(t *testing.T, text string, env, flags map[string]string) *Config {
	t.Helper()
	c, err := load(t, text, env, flags)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// faultLines are the faults of err, one a line, with the file named driftless.yaml whichever it was.
func faultLines(t testing.TB, err error) string {
	t.Helper()
	if err == nil {
		return ""
	}
	var faults *Faults
	if !errors.As(err, &faults) || len(faults.List) == 0 {
		t.Fatalf("error is not *Faults: %#v", err)
	}
	for i := range faults.List {
		if p := &faults.List[i].Pos; strings.Contains(p.File, string(filepath.Separator)) {
			p.File = filepath.Base(p.File)
		}
	}
	return faults.Error()
}

func TestAMinimalFileGetsEveryDefault(t *testing.T) {
	c := mustLoad(t, valid, nil, nil)
	source, ok := c.Source("comments")
	if !ok || source.OnPositionLost != "recount" || source.ChangeStream.Partitions != 1 || source.Pos.Line != 2 {
		t.Errorf("source %+v", source)
	}
	counter, ok := c.Counter("per_post")
	if !ok || counter.Pos.Line != 5 || counter.Repair != "" || counter.AlertAbove != 0 || !counter.CountIf.IsZero() {
		t.Errorf("counter %+v", counter)
	}
	if want := (Rows{Database: "app", Collection: "comments"}); counter.Rows != want {
		t.Errorf("rows %+v, want those of the source", counter.Rows)
	}
	want := Target{Database: "app", Collection: "post_counters", Base: "base_count", Live: "live_delta", ReconciledAt: "reconciled_at", Upsert: true}
	if counter.Target != want {
		t.Errorf("target %+v, want %+v", counter.Target, want)
	}
	if _, ok := c.Counter("absent"); ok {
		t.Error("found a counter that is not there")
	}
	if _, ok := c.Source("absent"); ok {
		t.Error("found a source that is not there")
	}
}

func TestTheContractsExampleIsReadCompletely(t *testing.T) {
	c, err := Load(Options{File: "testdata/contract.yaml", Env: lookup(map[string]string{"MONGODB_URI": "mongodb://db:27017"})})
	if err != nil {
		t.Fatal(err)
	}
	k := c.Sources[1].Kafka
	if k.Topic != "reactions" || k.Brokers[0] != "127.0.0.1:9092" || k.Event.Key != "post_id" || k.Event.Deltas["reaction.removed"] != -1 ||
		k.Dedupe != (Dedupe{"id", 10 * time.Minute}) || k.Start != "earliest" || k.OnError != "dead_letter" || k.Group != "driftless" {
		t.Errorf("kafka %+v", k)
	}
	likes, _ := c.Counter("likes_per_post")
	if likes.Repair != "difference" || likes.Rows.CreatedAt != "created_at" {
		t.Errorf("counter %+v", likes)
	}
	if want := (Target{Database: "app", Collection: "posts", Count: "like_count"}); likes.Target != want {
		t.Errorf("target %+v, want %+v", likes.Target, want)
	}
	comments, _ := c.Counter("comments_per_post")
	if got, want := comments.CountIf.String(), `{"$ne": ["$status","spam"]}`; got != want {
		t.Errorf("count_if %s, want %s", got, want)
	}
}

func TestPrecedenceIsFlagEnvironmentFileDefault(t *testing.T) {
	file := valid + "incrementer: {lease: 20s, idle_checkpoint: 3s, max_batch_events: 7}\n"
	env := map[string]string{"DRIFTLESS_INCREMENTER_LEASE": "30s", "DRIFTLESS_INCREMENTER_IDLE_CHECKPOINT": "4s", "DRIFTLESS_LOG_LEVEL": ""}
	flags := map[string]string{"incrementer.lease": "40s"}
	got := mustLoad(t, file, env, flags)
	want := Incrementer{Listen: "127.0.0.1:9464", MaxBatchEvents: 7, IdleCheckpoint: 4 * time.Second, Lease: 40 * time.Second}
	if got.Incrementer != want {
		t.Errorf("got %+v, want %+v", got.Incrementer, want)
	}
	if got.Log.Level != "info" {
		t.Errorf("level %q: an empty variable counts as not set", got.Log.Level)
	}
}

func TestAHigherLayersURIReplacesBothURIAndFile(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "uri")
	if err := os.WriteFile(secret, []byte("mongodb://from-secret:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	uri, uriFile := "mongodb: {uri: mongodb://from-file:1}\n", "mongodb: {uri_file: "+secret+"}\n"
	for _, test := range []struct {
		name, file string
		env, flags map[string]string
		want       string
	}{
		{"file", uri, nil, nil, "mongodb://from-file:1"},
		{"uri_file without its newline", uriFile, nil, nil, "mongodb://from-secret:1"},
		{"environment over uri_file", uriFile, map[string]string{"DRIFTLESS_MONGODB_URI": "mongodb://from-env:1"}, nil, "mongodb://from-env:1"},
		{"uri_file of the environment over uri", uri, map[string]string{"DRIFTLESS_MONGODB_URI_FILE": secret}, nil, "mongodb://from-secret:1"},
		{"flag over environment", uri, map[string]string{"DRIFTLESS_MONGODB_URI_FILE": secret}, map[string]string{"mongodb.uri": "mongodb://from-flag:1"}, "mongodb://from-flag:1"},
		{"a hidden uri_file is not read", "mongodb: {uri_file: /does/not/exist}\n", nil, map[string]string{"mongodb.uri": "mongodb://from-flag:1"}, "mongodb://from-flag:1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := mustLoad(t, test.file+valid, test.env, test.flags).MongoDB.URI; got != test.want {
				t.Errorf("got %s, want %s", got, test.want)
			}
		})
	}
}

func TestWithoutAFileNothingNeedsToBeDeclared(t *testing.T) {
	c, err := Load(Options{Flags: map[string]string{"log.level": "debug"}})
	if err != nil || c.Log.Level != "debug" || len(c.Counters) != 0 {
		t.Errorf("got %+v, %v", c, err)
	}
}

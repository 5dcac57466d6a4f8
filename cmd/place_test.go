package cmd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/realtest"
)

const (
	patience = 20 * time.Second // until something is so
	password = "s3cret-pa55"    // must never be printed
)

// place is where one test keeps its rows, counters and state, with the file that says so.
type place struct {
	t          *testing.T
	client     *mongo.Client // of a user who may do everything
	app, state string        // databases
	file       string        // the configuration
	env        []string      // beside the file
}

// newPlace makes a collection of rows on the server and a configuration of two counters.
func newPlace(t *testing.T, m *realtest.Mongod) *place {
	t.Helper()
	return newPlaceAt(t, m.URI())
}

func newPlaceAt(t *testing.T, uri string) *place {
	t.Helper()
	client := realtest.Client(t, uri)
	p := &place{t: t, client: client, app: realtest.DatabaseOn(t, client), state: realtest.DatabaseOn(t, client)}
	p.configure(uri, "")
	if err := client.Database(p.app).CreateCollection(t.Context(), "comments"); err != nil {
		t.Fatal(err)
	}
	return p
}

// configure writes the configuration; source is what else it says about the source.
func (p *place) configure(uri, source string) {
	p.t.Helper()
	p.write(fmt.Sprintf(`mongodb: {uri: %q, state_database: %s}
sources:
  comments:
    change_stream: {database: %s, collection: comments}
    %s
counters:
  comments_per_post:
    source: comments
    key: post_id
    soft_delete: deleted_at
    target: {database: %[3]s, collection: post_counters, total: comment_count}
  likes_per_user:
    source: comments
    key: user_id
    sum: likes
    target: {database: %[3]s, collection: user_counters}
incrementer: {listen: 127.0.0.1:0, idle_checkpoint: 200ms, lease: 2s}
reconciler: {listen: 127.0.0.1:0, judge_timeout: 1s, every: 1s, lease: 2s}
`, uri, p.state, p.app, source))
}

func (p *place) write(text string) {
	p.t.Helper()
	p.file = filepath.Join(p.t.TempDir(), "driftless.yaml")
	if err := os.WriteFile(p.file, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// text is the configuration as it stands.
func (p *place) text() (string, error) {
	text, err := os.ReadFile(p.file)
	return string(text), err
}

// edit changes the configuration.
func (p *place) edit(change func(string) string) {
	p.t.Helper()
	text, err := p.text()
	if err != nil {
		p.t.Fatal(err)
	}
	p.write(change(text))
}

func (p *place) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(binaries, program), args...)
	// A race ends the program at once; the race detector would else wait a second at every end for one more.
	cmd.Env = append([]string{"DRIFTLESS_CONFIG=" + p.file, "GORACE=halt_on_error=1 atexit_sleep_ms=0"}, p.env...)
	// In order: the transaction of one that is killed would keep its databases from being dropped for a minute.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = patience
	return cmd
}

// result is how a program ended.
type result struct {
	code           int
	stdout, stderr string
}

// run runs a program to its end.
func (p *place) run(program string, args ...string) result {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), 3*patience)
	defer cancel()
	cmd := p.command(ctx, program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	r := result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		p.t.Fatalf("%s %s: %v", program, strings.Join(args, " "), err)
	}
	if strings.Contains(r.stdout+r.stderr, password) {
		p.t.Errorf("%s %s prints the password:\n%s%s", program, strings.Join(args, " "), r.stdout, r.stderr)
	}
	return r
}

// want fails the test unless the program ends with the code, and returns how it ended.
func (p *place) want(code int, program string, args ...string) result {
	p.t.Helper()
	r := p.run(program, args...)
	if r.code != code {
		p.t.Fatalf("%s %s: exit %d, want %d\nstdout: %s\nstderr: %s", program, strings.Join(args, " "), r.code, code, r.stdout, r.stderr)
	}
	return r
}

// wantLine fails the test unless the program ends with the code and tells why in one line, which holds all texts.
func (p *place) wantLine(code int, texts []string, program string, args ...string) {
	p.t.Helper()
	r := p.want(code, program, args...)
	line, isLine := strings.CutSuffix(r.stderr, "\n")
	if !isLine || strings.Contains(line, "\n") || !strings.HasPrefix(line, program+": ") {
		p.t.Errorf("%s %s: want one line of %s, got %q", program, strings.Join(args, " "), program, r.stderr)
	}
	for _, text := range texts {
		if strings.Count(r.stderr, text) != 1 {
			p.t.Errorf("%s %s: %q is not once in %q", program, strings.Join(args, " "), text, r.stderr)
		}
	}
}

// must runs a command as the user who may do everything.
func (p *place) must(database string, command bson.D) {
	p.t.Helper()
	if err := p.client.Database(database).RunCommand(p.t.Context(), command).Err(); err != nil {
		p.t.Fatalf("%v: %v", command, err)
	}
}

// comment inserts rows of posts 1 and 2: post 1 has two comments, user a has four likes.
func (p *place) comment() {
	p.t.Helper()
	_, err := p.client.Database(p.app).Collection("comments").InsertMany(p.t.Context(), []any{
		bson.D{{Key: "post_id", Value: 1}, {Key: "user_id", Value: "a"}, {Key: "likes", Value: 3}},
		bson.D{{Key: "post_id", Value: 1}, {Key: "user_id", Value: "b"}, {Key: "likes", Value: 4}},
		bson.D{{Key: "post_id", Value: 2}, {Key: "user_id", Value: "a"}, {Key: "likes", Value: 1}},
	})
	if err != nil {
		p.t.Fatal(err)
	}
}

// displayed is base + live of a counter document.
func (p *place) displayed(collection string, key any) int64 {
	p.t.Helper()
	var doc struct {
		Base int64 `bson:"base_count"`
		Live int64 `bson:"live_delta"`
	}
	err := p.client.Database(p.app).Collection(collection).FindOne(p.t.Context(), bson.D{{Key: "_id", Value: key}}).Decode(&doc)
	if err != nil && !errors.Is(err, mongo.ErrNoDocuments) {
		p.t.Fatal(err)
	}
	return doc.Base + doc.Live
}

// spoil makes the counter of post 1 wrong by n.
func (p *place) spoil(n int) {
	p.t.Helper()
	_, err := p.client.Database(p.app).Collection("post_counters").UpdateByID(p.t.Context(), 1,
		bson.D{{Key: "$inc", Value: bson.D{{Key: "live_delta", Value: n}}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// names lists the collections of a database.
func (p *place) names(database string) []string {
	p.t.Helper()
	names, err := p.client.Database(database).ListCollectionNames(context.WithoutCancel(p.t.Context()), bson.D{})
	if err != nil {
		p.t.Fatal(err)
	}
	return names
}

package envelope_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/stream/envelope"
)

var update = flag.Bool("update", false, "write what the decoders say into the golden files")

// sources are the sources whose records the golden files hold.
var sources = map[string]*config.Kafka{
	"event": {
		Format: "event",
		Event: config.Event{
			Type: "type", Key: "data.post_id", Time: "at",
			Deltas: map[string]int64{"reaction.added": 1, "reaction.removed": -1, "reaction.purged": -5, "7": 1, "true": 0},
		},
	},
	"event_with_id": {
		Format: "event", Dedupe: config.Dedupe{Field: "meta.id"},
		Event: config.Event{Type: "t", Key: "k", Time: "at", Deltas: map[string]int64{"+": 1}},
	},
	"debezium":      {Format: "debezium"},
	"change_stream": {Format: "change_stream", Dedupe: config.Dedupe{Field: "_id"}},
}

// record is one block of a golden file: a line "# what it is", a line "key …" when it has a key, its value, and what a
// decoder makes of it in lines that begin with "= ".
type record struct {
	name, key string
	value     string
	want      []string
}

func readGolden(t testing.TB, format string) (records []record) {
	t.Helper()
	data, err := os.ReadFile("testdata/" + format + ".golden")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if name, is := strings.CutPrefix(line, "# "); is {
			records = append(records, record{name: name})
			continue
		}
		r := &records[len(records)-1]
		if key, is := strings.CutPrefix(line, "key "); is {
			r.key = key
		} else if want, is := strings.CutPrefix(line, "= "); is {
			r.want = append(r.want, want)
		} else if line != "" {
			r.value += line + "\n"
		}
	}
	return records
}

func writeGolden(t *testing.T, format string, records []record) {
	t.Helper()
	var b strings.Builder
	for i, r := range records {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "# %s\n", r.name)
		if r.key != "" {
			fmt.Fprintf(&b, "key %s\n", r.key)
		}
		b.WriteString(r.value)
		for _, line := range r.want {
			fmt.Fprintf(&b, "= %s\n", line)
		}
	}
	if err := os.WriteFile("testdata/"+format+".golden", []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRecordsSayWhatTheGoldenFilesSay(t *testing.T) {
	total := 0
	for format, source := range sources {
		records := readGolden(t, format)
		total += len(records)
		for i, r := range records {
			c, err := envelope.New(source).Decode([]byte(r.key), []byte(r.value))
			got := describe(c, err)
			if want := strings.Join(r.want, "\n"); !*update && strings.Join(got, "\n") != want {
				t.Errorf("%s: %s:\ngot\n%s\nwant\n%s", format, r.name, strings.Join(got, "\n"), want)
			}
			records[i].want = got
		}
		if *update {
			writeGolden(t, format, records)
		}
	}
	if total < 60 {
		t.Errorf("%d records in the golden files, want at least 60", total)
	}
}

func describe(c envelope.Change, err error) []string {
	var wrong *envelope.Error
	switch {
	case errors.As(err, &wrong):
		return []string{"error " + wrong.Reason + ": " + wrong.Error()}
	case err != nil:
		return []string{"not an *Error: " + err.Error()}
	case c.Op == envelope.Irrelevant:
		return []string{"skip " + c.Skip}
	}
	head := string(c.Op)
	if c.Database != "" {
		head += " of " + c.Database + "." + c.Collection
	}
	if !c.Row.IsZero() {
		head += " row " + c.Row.String()
	}
	if c.Op == envelope.Event {
		head += fmt.Sprintf(" %s %+d key %s %v", c.Type, c.Delta, c.Key.Type, c.Key)
	}
	if !c.Time.IsZero() {
		head += " at " + c.Time.Format(time.RFC3339Nano)
	}
	if !c.ClusterTime.IsZero() {
		head += fmt.Sprintf(" cluster time %d.%d", c.ClusterTime.T, c.ClusterTime.I)
	}
	lines := []string{head}
	lines = append(lines, describeRow("before", c.Before, c.BeforeUnknown)...)
	lines = append(lines, describeRow("after", c.After, c.AfterUnknown)...)
	if len(c.Paths) > 0 {
		lines = append(lines, "changed "+strings.Join(c.Paths, ", "))
	}
	if c.ID != "" {
		lines = append(lines, "id "+c.ID)
	}
	return lines
}

func describeRow(name string, row bson.Raw, unknown bool) []string {
	switch {
	case row == nil && unknown:
		return []string{name + " unknown"}
	case row == nil:
		return nil
	case unknown:
		return []string{name + " both known and not"}
	}
	if err := row.Validate(); err != nil {
		return []string{name + " is not valid: " + err.Error()}
	}
	return []string{name + " " + row.String()}
}

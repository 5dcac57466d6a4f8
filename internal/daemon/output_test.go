package daemon

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestOutputFlag(t *testing.T) {
	for args, tt := range map[string]struct {
		want   Output
		stderr string
	}{
		"show":                {want: Text},
		"show -o text":        {want: Text},
		"show -o json":        {want: JSON},
		"show --output=js":    {stderr: "incrementer: invalid argument \"js\" for \"-o, --output\" flag: must be text or json (run 'incrementer show -h')\n"},
		"show -o csv":         {stderr: "incrementer: invalid argument \"csv\" for \"-o, --output\" flag: must be text or json (run 'incrementer show -h')\n"},
		"report":              {want: Text},
		"report --format csv": {want: CSV},
	} {
		t.Run(args, func(t *testing.T) {
			var got Output
			code, _, stderr := executeArgs(t.Context(), outputProgram(&got), strings.Fields(args)...)
			if got != tt.want || stderr != tt.stderr || (code == OK) != (tt.stderr == "") {
				t.Errorf("exit %d, output %q, stderr %q; want %q, %q", code, got, stderr, tt.want, tt.stderr)
			}
		})
	}
}

func TestOutputFlagCompletesAndShowsItsForms(t *testing.T) {
	var got Output
	_, stdout, _ := executeArgs(t.Context(), outputProgram(&got), "__complete", "report", "--format", "")
	if !strings.HasPrefix(stdout, "text\njson\ncsv\n") {
		t.Errorf("completions: %q", stdout)
	}
	_, stdout, _ = executeArgs(t.Context(), outputProgram(&got), "show", "-h")
	if want := "-o, --output text|json   how to print the data: text or json (default text)"; !strings.Contains(stdout, want) {
		t.Errorf("no %q in:\n%s", want, stdout)
	}
}

// outputProgram has one verb with -o and one with --format; either leaves what was asked for in got.
func outputProgram(got *Output) *cobra.Command {
	root := &cobra.Command{Use: "incrementer"}
	show := &cobra.Command{Use: "show"}
	shown := OutputFlag(show)
	show.Run = func(*cobra.Command, []string) { *got = *shown }
	report := &cobra.Command{Use: "report"}
	reported := FormatFlag(report, "format", "", Text, JSON, CSV)
	report.Run = func(*cobra.Command, []string) { *got = *reported }
	root.AddCommand(show, report)
	return root
}

func TestWriteJSON(t *testing.T) {
	var document, line bytes.Buffer
	v := map[string]any{"expr": "a < b"}
	if err := errors.Join(WriteJSON(&document, v), WriteJSONLine(&line, v)); err != nil {
		t.Fatal(err)
	}
	if got, want := document.String(), "{\n  \"expr\": \"a < b\"\n}\n"; got != want {
		t.Errorf("document %q, want %q", got, want)
	}
	if got, want := line.String(), "{\"expr\":\"a < b\"}\n"; got != want {
		t.Errorf("line %q, want %q", got, want)
	}
}

func TestTableAligns(t *testing.T) {
	var out bytes.Buffer
	table := NewTable(&out, "lane", "events", "owner")
	table.Row("comments", 3, "a")
	table.Row("reactions/orders/0", 120000, "")
	table.Row("bad\x1b[2J\tkey\n", -1, "é\xff")
	if err := table.Flush(); err != nil {
		t.Fatal(err)
	}
	want := `LANE                EVENTS  OWNER
comments            3       a
reactions/orders/0  120000
bad\x1b[2J\tkey\n   -1      é\xff
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestTableReportsWhatWritingReturns(t *testing.T) {
	table := NewTable(brokenPipe{}, "lane")
	table.Row("comments")
	if err := table.Flush(); message(err) != "write table: broken pipe" {
		t.Errorf("Flush = %v", err)
	}
}

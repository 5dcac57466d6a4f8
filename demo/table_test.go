package main

import (
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

var example = view{
	elapsed: 83 * time.Second, phase: "Ctrl-C ends it with a verdict", pages: []string{"http://127.0.0.1:1/", "http://127.0.0.1:2/"},
	changes: 812, batches: 3, lag: 1900 * time.Millisecond, kills: 14, up: true, crashes: 96, repeats: 1,
	measured: true, age: 640 * time.Millisecond,
	measurement: measurement{rows: 61204, usual: distance{412, 231}, ours: distance{37, 1}},
	totals:      totals{edits: 6, edited: 213, finds: 5, repaired: 176}, open: 1,
	news: []string{"12:03:22  one", "12:03:24  two"},
}

func TestTableWide(t *testing.T) {
	want := `driftless demo, 01:23, Ctrl-C ends it with a verdict

rows                             61,204   deleted ones included
row changes a second                812   and 3 transactions of thousands of rows so far
lag of the incrementer              1 s   running, killed with kill -9 14 times so far
error of the usual counter          412   on 231 posts, after 96 crashes between two writes and 1 retry applied twice
error of driftless                   37   on 1 post, at the incrementer's position, measured 0.6 s ago
drift edited in by hand             213   in 6 edits
drift found and repaired            176   in 5 finds; 1 post left to find

12:03:22  one
12:03:24  two




http://127.0.0.1:1/  http://127.0.0.1:2/`
	if got := strings.Join(example.lines(120, false), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A line that wraps would break the refresh in place, and the numbers must stay whatever is cut.
func TestTableKeepsItsNumbersAndFits(t *testing.T) {
	numbers := []string{"61,204", "812", "1 s", "412", "37", "213", "176"}
	for width := valueWidth; width <= 130; width++ {
		lines := example.lines(width, true)
		if len(lines) != len(example.lines(120, false)) {
			t.Fatalf("width %d: %d lines: their number must not depend on the width", width, len(lines))
		}
		for i, line := range lines {
			line = stripped(line)
			if n := utf8.RuneCountInString(line); n > width {
				t.Errorf("width %d: line of %d: %q", width, n, line)
			}
			if n := i - 2; n >= 0 && n < len(numbers) && !strings.Contains(line, numbers[n]) {
				t.Errorf("width %d: no %s in %q", width, numbers[n], line)
			}
		}
	}
}

func TestTableColours(t *testing.T) {
	for _, line := range example.lines(120, false) {
		if strings.Contains(line, "\x1b") {
			t.Errorf("colour without colours: %q", line)
		}
	}
	healthy := example
	healthy.measurement.ours = distance{}
	for _, test := range []struct {
		view view
		want string
	}{
		{example, "\x1b[33m        37\x1b[0m"}, // to be repaired
		{healthy, "\x1b[32m         0\x1b[0m"},
		{healthy, "\x1b[31m       412\x1b[0m"}, // for ever
	} {
		if got := strings.Join(test.view.lines(120, true), "\n"); !strings.Contains(got, test.want) {
			t.Errorf("no %q in\n%q", test.want, got)
		}
	}
}

func TestTableBeforeTheFirstMeasurement(t *testing.T) {
	for _, c := range (view{}).cells() {
		if strings.HasPrefix(c.label, "error") && c.value != "-" {
			t.Errorf("%s is %q before it was measured", c.label, c.value)
		}
	}
}

func TestPlainLine(t *testing.T) {
	want := "01:23  rows 61,204 (812/s)  lag 1 s  usual counter off by 412 on 231 posts  driftless off by 37 (0.6 s ago)  " +
		"edited by hand 213, found 176, 1 post left to find  kills 14"
	if got := example.line(); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The frame touches the lines that it drew before and what is below them, nothing above.
func TestFrame(t *testing.T) {
	if got, want := frame(0, []string{"a", "b"}), "a\x1b[K\nb\x1b[K\n\x1b[J"; got != want {
		t.Errorf("first frame %q, want %q", got, want)
	}
	if got, want := frame(2, []string{"c"}), "\x1b[2A\rc\x1b[K\n\x1b[J"; got != want {
		t.Errorf("next frame %q, want %q", got, want)
	}
}

func TestRate(t *testing.T) {
	r := newRate(3)
	for i, test := range []struct{ total, want int64 }{{100, 0}, {200, 100}, {400, 150}, {700, 200}, {1100, 300}, {1100, 233}} {
		if got := r.next(test.total); got != test.want {
			t.Errorf("reading %d: rate %d, want %d", i, got, test.want)
		}
	}
}

var sequences = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")

func stripped(line string) string { return sequences.ReplaceAllString(line, "") }

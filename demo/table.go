package main

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// view is everything that the table shows, at one moment.
type view struct {
	elapsed time.Duration
	phase   string
	pages   []string // addresses of the two status pages

	changes, batches int64         // row changes a second; transactions of thousands of rows
	lag              time.Duration // of the incrementer's position
	kills            int64
	up               bool
	crashes, repeats int64 // of the usual counter
	measured         bool
	age              time.Duration // of the measurement
	measurement      measurement
	totals           totals
	open             int64 // posts of which edits and finds differ
	news             []string
}

// colours of values. Their names are what they are for.
type colour string

const (
	plain   colour = ""
	right   colour = "32" // green
	wrongly colour = "31" // red
	pending colour = "33" // yellow
	faint   colour = "2"
)

// cell is a row of the table.
type cell struct {
	label, value string
	colour       colour
	more         string
}

const (
	labelWidth = 28
	valueWidth = 10
)

// lines lays the table out for a terminal of the given width. No line is longer, since a wrapped one could not be
// refreshed in place.
func (v view) lines(width int, colours bool) []string {
	paint := painter(colours)
	title := fmt.Sprintf("driftless demo, %s, %s", clock(v.elapsed), v.phase)
	lines := []string{cut(title, width), ""}
	label := max(0, min(labelWidth, width-valueWidth-1))
	for _, c := range v.cells() {
		value := fmt.Sprintf("%*s", valueWidth, c.value)
		if label+1+valueWidth > width {
			lines = append(lines, paint(c.colour, cut(value, width)))
			continue
		}
		more := cut("   "+c.more, width-label-1-valueWidth)
		lines = append(lines, pad(cut(c.label, label), label)+" "+paint(c.colour, value)+paint(faint, strings.TrimRight(more, " ")))
	}
	lines = append(lines, "")
	for i := range newsKept {
		text := ""
		if i < len(v.news) {
			text = v.news[i]
		}
		lines = append(lines, paint(faint, cut(text, width)))
	}
	return append(lines, cut(strings.Join(v.pages, "  "), width))
}

func (v view) cells() []cell {
	m := v.measurement
	state := "running"
	if !v.up {
		state = "dead right now"
	}
	return []cell{
		{"rows", v.ifMeasured(m.rows), plain, "deleted ones included"},
		{"row changes a second", thousands(v.changes), plain, fmt.Sprintf("and %s of thousands of rows so far", number(v.batches, "transaction"))},
		{"lag of the incrementer", seconds(v.lag), plain, fmt.Sprintf("%s, killed with kill -9 %s so far", state, number(v.kills, "time"))},
		{
			"error of the usual counter", v.ifMeasured(m.usual.sum), verdictColour(m.usual.sum, wrongly),
			fmt.Sprintf("on %s, after %s between two writes and %s applied twice",
				number(m.usual.posts, "post"), number(v.crashes, "crash", "crashes"), number(v.repeats, "retry", "retries")),
		},
		{
			"error of driftless", v.ifMeasured(m.ours.sum), verdictColour(m.ours.sum, pending),
			fmt.Sprintf("on %s, at the incrementer's position, measured %s ago", number(m.ours.posts, "post"), tenths(v.age)),
		},
		{"drift edited in by hand", thousands(v.totals.edited), plain, "in " + number(v.totals.edits, "edit")},
		{
			"drift found and repaired", thousands(v.totals.repaired), plain,
			fmt.Sprintf("in %s; %s", number(v.totals.finds, "find"), v.openInWords()),
		},
	}
}

func (v view) openInWords() string {
	if v.open == 0 {
		return "nothing left to find"
	}
	return number(v.open, "post") + " left to find"
}

// line is the same in short, for a log or a pipe.
func (v view) line() string {
	m := v.measurement
	return fmt.Sprintf("%s  rows %s (%s/s)  lag %s  usual counter off by %s on %s  driftless off by %s (%s ago)  "+
		"edited by hand %s, found %s, %s  kills %s",
		clock(v.elapsed), v.ifMeasured(m.rows), thousands(v.changes), seconds(v.lag), v.ifMeasured(m.usual.sum), number(m.usual.posts, "post"),
		v.ifMeasured(m.ours.sum), tenths(v.age), thousands(v.totals.edited), thousands(v.totals.repaired), v.openInWords(), thousands(v.kills))
}

func (v view) ifMeasured(n int64) string {
	if !v.measured {
		return "-"
	}
	return thousands(n)
}

func verdictColour(off int64, bad colour) colour {
	if off == 0 {
		return right
	}
	return bad
}

func painter(colours bool) func(colour, string) string {
	return func(c colour, text string) string {
		if !colours || c == plain || text == "" {
			return text
		}
		return "\x1b[" + string(c) + "m" + text + "\x1b[0m"
	}
}

// cut shortens text to width characters. All of ours is one cell a character.
func cut(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	return string([]rune(text)[:max(0, width)])
}

func pad(text string, width int) string {
	return text + strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
}

func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%02d:%02d", s/60, s%60)
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.0f s", d.Truncate(time.Second).Seconds()) }
func tenths(d time.Duration) string  { return fmt.Sprintf("%.1f s", d.Seconds()) }

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// plainEvery is how often a line is written where there is no terminal.
const plainEvery = 5 * time.Second

// screen shows views: in place on a terminal, as lines elsewhere.
type screen struct {
	out      io.Writer
	terminal int // file descriptor, -1 when out is none
	colours  bool
	drawn    int       // lines of the table on the terminal
	printed  time.Time // of the last plain line
	phase    string    // as last told in plain lines
}

func newScreen(out io.Writer) *screen {
	s := &screen{out: out, terminal: -1, colours: os.Getenv("NO_COLOR") == ""}
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) && os.Getenv("TERM") != "dumb" {
		s.terminal = int(file.Fd())
	}
	return s
}

// show draws the view over the last one.
func (s *screen) show(v view) {
	if s.terminal < 0 {
		s.print(v)
		return
	}
	width, height, err := term.GetSize(s.terminal)
	if err != nil || width <= 0 || height <= 0 {
		width, height = 80, 24
	}
	// The last column stays free: some terminals wrap when it is written. The last line is where the cursor waits.
	lines := v.lines(width-1, s.colours)
	lines = lines[:max(0, min(len(lines), height-1))]
	_, _ = io.WriteString(s.out, frame(s.drawn, lines)) // a terminal that went away is told by its signal
	s.drawn = len(lines)
}

// print tells a new phase at once, and the numbers now and then.
func (s *screen) print(v view) {
	if s.phase != v.phase {
		s.phase = v.phase
		say(s.out, "%s  %s", clock(v.elapsed), v.phase)
	}
	if time.Since(s.printed) >= plainEvery {
		s.printed = time.Now()
		say(s.out, "%s", v.line())
	}
}

// frame moves up over what was drawn and draws lines, each clearing the rest of its own and all that is left below.
func frame(drawn int, lines []string) string {
	var text strings.Builder
	if drawn > 0 {
		fmt.Fprintf(&text, "\x1b[%dA\r", drawn)
	}
	for _, line := range lines {
		text.WriteString(line + "\x1b[K\n")
	}
	text.WriteString("\x1b[J")
	return text.String()
}

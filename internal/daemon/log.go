package daemon

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

// NewLogger returns a logger that writes lines at or above level (debug, info, warn, error) to w. Format is text, json,
// or auto: text where a person reads along, JSON where a machine collects. The configuration has checked both; an
// unknown level is info and an unknown format auto. A program also makes the result slog's default, so that what the
// process reports about itself, signals for one, looks the same.
func NewLogger(w io.Writer, level, format string, isTerminal bool) *slog.Logger {
	options := &slog.HandlerOptions{Level: logLevel(level), ReplaceAttr: readableDuration}
	if format == "text" || (format != "json" && isTerminal) {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

// IsTerminal tells whether w is a terminal, so that a person reads it.
func IsTerminal(w io.Writer) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}

func logLevel(name string) slog.Level {
	switch name {
	case "debug":
		return slog.LevelDebug
	case "warn":
		return slog.LevelWarn
	case "error":
		return slog.LevelError
	default:
		return slog.LevelInfo
	}
}

// readableDuration writes 1.5s in JSON too, where slog would write a bare number of nanoseconds.
func readableDuration(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

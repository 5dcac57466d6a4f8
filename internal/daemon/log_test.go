package daemon

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"driftless/internal/logkey"
)

func TestLoggerFormat(t *testing.T) {
	for _, tt := range []struct {
		format     string
		isTerminal bool
		wantJSON   bool
	}{
		{"auto", true, false},
		{"auto", false, true},
		{"text", false, false},
		{"json", true, true},
	} {
		var line bytes.Buffer
		NewLogger(&line, "info", tt.format, tt.isTerminal).Info("committed", logkey.Source, "comments")
		if got := json.Valid(line.Bytes()); got != tt.wantJSON {
			t.Errorf("format %s, terminal %t: JSON %t, want %t: %s", tt.format, tt.isTerminal, got, tt.wantJSON, &line)
		}
	}
}

func TestLoggerLevel(t *testing.T) {
	levels := []string{"debug", "info", "warn", "error"}
	for i, level := range levels {
		var lines bytes.Buffer
		log := NewLogger(&lines, level, "text", false)
		for _, l := range []slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
			log.Log(t.Context(), l, "line")
		}
		if got, want := strings.Count(lines.String(), "\n"), len(levels)-i; got != want {
			t.Errorf("level %s: %d lines, want %d", level, got, want)
		}
	}
}

func TestLoggerWritesDurationsAndErrorsAsText(t *testing.T) {
	var line bytes.Buffer
	NewLogger(&line, "info", "json", false).
		Info("retry", logkey.Duration, 1500*time.Millisecond, logkey.Error, errors.New("no route"))
	for _, want := range []string{`"duration":"1.5s"`, `"error":"no route"`} {
		if !strings.Contains(line.String(), want) {
			t.Errorf("no %s in %s", want, &line)
		}
	}
}

func TestBufferIsNoTerminal(t *testing.T) {
	if IsTerminal(new(bytes.Buffer)) {
		t.Error("a buffer is taken for a terminal")
	}
}

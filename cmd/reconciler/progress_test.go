package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"driftless/internal/reconciler"
)

func TestALongFullPassTellsEveryHalfMinuteHowLongItStillTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []time.Duration
		progress := everySoOften(func(_ reconciler.Progress, left time.Duration) { told = append(told, left) })
		for _, counter := range []string{"short", "long"} {
			ranges := map[string]int{"short": 2, "long": 12}[counter]
			for done := 2; done <= ranges; done++ { // the first two are another run's
				progress(reconciler.Progress{Counter: counter, First: 2, Done: done, Of: ranges})
				time.Sleep(20 * time.Second) //nolint:forbidigo // in a bubble
			}
		}
		if want := []time.Duration{160 * time.Second, 120 * time.Second, 80 * time.Second, 40 * time.Second}; !slices.Equal(told, want) {
			t.Errorf("told of %v, want %v", told, want)
		}
	})
}

func TestABarIsDrawnForEachCounterAndWiped(t *testing.T) {
	var screen bytes.Buffer
	progress := bars(&screen)
	for _, counter := range []string{"likes", "views"} {
		for done := range 4 {
			progress(reconciler.Progress{Counter: counter, Done: done, Of: 3})
		}
	}
	if text := screen.String(); !strings.Contains(text, "likes") || !strings.Contains(text, "views") || strings.TrimSpace(text[strings.LastIndex(text, "\r"):]) != "" {
		t.Errorf("%q", text)
	}
}

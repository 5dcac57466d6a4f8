package reconciler

import (
	"regexp"
	"testing"
	"time"

	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// What a counter waits for whose events have just begun to be counted is said, and until when.
func TestACounterOfATopicThatWasJustTakenUpSaysUntilWhenItWaits(t *testing.T) {
	t.Parallel()
	f := onTopic(t, 2, impatient)
	f.join()
	f.react("a", false)
	realtest.Eventually(t, patience, "the event to be applied", func() bool { return f.applied() == 1 })
	r := f.reconciler(equipment{})
	report := f.run(r, Options{})
	wantNotJudged(t, report, skipPosition, "events that were under way then may take reconciler.settle (3s): waiting until its lanes have passed ")
	said := regexp.MustCompile(`took it up at (\S+), .* have passed (\S+)$`).FindStringSubmatch(only(t, report).Why)
	if said == nil {
		t.Fatalf("it says %q", only(t, report).Why)
	}
	began, until := must(time.Parse(time.RFC3339, said[1]))(t), must(time.Parse(time.RFC3339, said[2]))(t)
	if ago := time.Since(began); ago < -time.Second || ago > patience {
		t.Errorf("taken up %s ago, it says", ago)
	}
	realtest.Eventually(t, patience, "the lanes to pass that time", func() bool {
		lanes := must(f.checkpoints.Set(t.Context(), sourceName))(t)
		return stream.Clock(standing{lanes: lanes}.through()).After(until)
	})
	f.activate(r)
	f.wantShown("a", 1)
}

package reconciler

import (
	"testing"
	"time"
)

// The id of a run knows the second, and within it the process: two programs can run within one.
func TestTheLatestRunsComeFirstAlsoWithinOneSecond(t *testing.T) {
	t.Parallel()
	f := setUp(t)
	history := NewHistory(f.client, f.state.Name())
	begun := time.Now().UTC().Truncate(time.Second)
	for id, after := range map[string]time.Duration{"c first": 0, "a second": time.Millisecond, "b third": 2 * time.Millisecond} {
		f.check(history.begin(t.Context(), Run{ID: id, Started: begun.Add(after), Result: ResultHeld, ExpiresAt: begun.Add(time.Hour)}))
	}
	for what, list := range map[string][]Run{
		"last": must(history.Last(t.Context(), 2))(t), "held": must(history.Held(t.Context(), 2))(t),
	} {
		if len(list) != 2 || list[0].ID != "b third" || list[1].ID != "a second" {
			t.Errorf("%s: %+v", what, list)
		}
	}
}

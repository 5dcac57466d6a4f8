package reconciler

import (
	"maps"
	"slices"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
)

// sideBySide does everything at once.
func sideBySide(all ...func()) {
	var running sync.WaitGroup
	for _, do := range all {
		running.Go(do)
	}
	running.Wait()
}

// displays is what each post displays, by canonical key.
func (f *fixture) displays() map[string]int64 {
	f.t.Helper()
	documents := must(f.definitions[0].Documents(f.t.Context(), f.client, counter.Selection{{Key: "$exists", Value: true}}))(f.t)
	all := map[string]int64{}
	for key, d := range documents {
		all[key] = d.Base + d.Live
	}
	return all
}

// wantDisplays fails unless the posts display just that.
func (f *fixture) wantDisplays(want map[string]int64) {
	f.t.Helper()
	if got := f.displays(); len(got) == 0 || !maps.Equal(got, want) {
		f.t.Errorf("posts display\n%v, want\n%v", got, want)
	}
}

// An operator approves, runs and undoes beside a loop, twice for good measure: nothing is repaired or taken back twice.
func TestAnOperatorBesideTheLoopRepairsAndUndoesOnce(t *testing.T) {
	t.Parallel()
	const posts, wrong = 40, 20
	for name, begin := range map[string]func(*testing.T) *fixture{
		"followed": func(t *testing.T) *fixture {
			f, _ := guarded(t, posts)
			f.spoil(wrong)
			return f
		},
		"kept by the application": func(t *testing.T) *fixture {
			return keptPosts(t, posts, wrong, func(c *config.Config) { c.Reconciler.HoldMinKeys = 10 })
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := begin(t)
			spoilt := f.displays()
			run := func(approved ...string) func() {
				r := f.reconciler(equipment{})
				return func() {
					if _, err := r.RunOnce(t.Context(), Options{Full: true, Wait: true, Approved: approved}); err != nil {
						t.Error(err)
					}
				}
			}
			run()()
			if f.stateOf(counterName).Held == "" {
				t.Fatal("not held")
			}
			sideBySide(run(), run(counterName), run(), run(counterName))
			run(counterName)() // what two have left to each other
			f.wantDisplays(f.plainCount())

			var runs []string
			for _, e := range f.journal() {
				if !slices.Contains(runs, e.Run) {
					runs = append(runs, e.Run)
				}
			}
			work := []func(){run(), run(), run(counterName)}
			for _, id := range slices.Concat(runs, runs) {
				work = append(work, func() {
					journal := counter.NewJournal(f.client, checkpoint.NewStore(f.client, f.state.Name()), f.states) // as in a process of its own
					if _, err := journal.Undo(t.Context(), id, f.definitions); err != nil {
						t.Error(err)
					}
				})
			}
			sideBySide(work...)
			f.wantDisplays(spoilt)
			if n := must(f.state.Collection(counter.RepairsCollection).CountDocuments(t.Context(), bson.D{}))(t); n != wrong {
				t.Errorf("%d repairs, want %d", n, wrong)
			}
		})
	}
}

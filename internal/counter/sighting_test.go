package counter

import "testing"

func TestWhatPointsToDocumentsThatAreGone(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before, now Sighting
		lost        bool
	}{
		"nothing":                       {Sighting{"a", 100}, Sighting{"a", 100}, false},
		"more":                          {Sighting{"a", 100}, Sighting{"a", 1000}, false},
		"fewer":                         {Sighting{"a", 100}, Sighting{"a", 51}, false},
		"half":                          {Sighting{"a", 100}, Sighting{"a", 50}, true},
		"half of a few":                 {Sighting{"a", 9}, Sighting{"a", 4}, false},
		"all of a few":                  {Sighting{"a", 3}, Sighting{"a", 0}, true},
		"still empty":                   {Sighting{"a", 0}, Sighting{"a", 0}, false},
		"dropped":                       {Sighting{"a", 100}, Sighting{}, true},
		"dropped while empty":           {Sighting{"a", 0}, Sighting{}, true},
		"replaced by as many":           {Sighting{"a", 100}, Sighting{"b", 100}, true},
		"still not there":               {Sighting{}, Sighting{}, false},
		"made by whoever, perhaps anew": {Sighting{}, Sighting{"a", 1}, true},
	} {
		if words := tt.now.Lost(tt.before); (words != "") != tt.lost {
			t.Errorf("%s: %q, want a loss: %v", name, words, tt.lost)
		}
	}
}

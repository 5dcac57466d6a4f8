package command

import "driftless/internal/counter"

// Held is a counter whose repairs wait for an approval.
type Held struct {
	Counter string `json:"counter"`
	Run     string `json:"run"`     // that held them
	Approve string `json:"approve"` // the command line that repairs them
}

// HeldOf lists the counters that are held, in the order of their declaration. There may be none.
func HeldOf(definitions []*counter.Definition, states map[string]counter.State) []Held {
	all := []Held{}
	for _, d := range definitions {
		if run := states[d.Name].HeldBy(d); run != "" {
			all = append(all, Held{Counter: d.Name, Run: run, Approve: "reconciler approve " + run})
		}
	}
	return all
}

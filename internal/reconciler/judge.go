package reconciler

import (
	"maps"
	"slices"

	"driftless/internal/counter"
)

// judge compares every key of the view, those seen by only one of the two readings included. marks are the listed keys,
// nil for a range. The order is the same for the same view.
func (p *pass) judge(v view, marks []counter.Touched) []verdict {
	readings := readingsOf(v, marks)
	verdicts := make([]verdict, 0, len(readings))
	for _, key := range slices.Sorted(maps.Keys(readings)) {
		if p.seen[key] {
			continue
		}
		r := readings[key]
		if !r.mark.Stamp.IsZero() {
			p.seen[key] = true
		}
		verdicts = append(verdicts, compare(r, p.definition.Target.Upsert, p.asSighted(v.state)))
	}
	return verdicts
}

// readingsOf joins what a view holds about each key, by canonical key.
func readingsOf(v view, marks []counter.Touched) map[string]reading {
	readings := make(map[string]reading, len(v.documents))
	for key, document := range v.documents {
		truth, counted := v.truths[key]
		if !counted {
			truth.Key = document.Key
		}
		readings[key] = reading{document: document, truth: truth}
	}
	for key, truth := range v.truths {
		if _, known := v.documents[key]; known || truth.N == 0 && truth.Bad == "" {
			continue // known, or rows of which none counts, or that have no usable key, and nothing displayed
		}
		readings[key] = reading{truth: truth}
	}
	if marks != nil {
		readings = marked(readings, marks)
	}
	for key, r := range readings {
		tail, pending := v.tail[key], v.position(key).Before(r.mark.After)
		if tail != 0 || pending || v.cut != 0 { // seldom, of very many
			r.tail, r.pending, r.division = tail, pending, v.divisions[key]
			r.cut = v.cut
			readings[key] = r
		}
	}
	return readings
}

// marked keeps the readings of the listed keys, and makes one for a key that neither rows nor a document have. A row
// may bring another key along: an array that holds a listed one.
func marked(readings map[string]reading, marks []counter.Touched) map[string]reading {
	listed := make(map[string]reading, len(marks))
	for _, mark := range marks {
		key := counter.Canonical(mark.Key)
		r := readings[key]
		r.mark = mark
		if r.truth.Key.IsZero() {
			r.truth.Key = mark.Key
		}
		listed[key] = r
	}
	return listed
}

// recorded returns *unjudgedError unless the counter's record in the state database is of this very counter: it says
// whether a first recount is still due, and another counter's would be believed.
func recorded(d *counter.Definition, s counter.State) error {
	switch s.Hash {
	case d.Hash:
		return nil
	case "":
		return &unjudgedError{skipDefinition, "it has no record in the state database: `incrementer run`, while it runs, asks for its recount again"}
	default:
		return &unjudgedError{skipDefinition, "another deployment counts another counter of this name with the same state database: rename one of the two, or give one another mongodb.state_database"}
	}
}

package reconciler

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// busyKeys are the first keys of the fixture, at which users are at work. Nobody touches the others.
const busyKeys = 200

// crowd is a fixture of many counters, some of them busy, whose lane runs.
func crowd(t *testing.T, keys int) (*fixture, *Reconciler) {
	t.Helper()
	f := setUp(t, func(c *config.Config) { c.Reconciler.JudgeTimeout = patience })
	var rows []any
	for key := range keys {
		n := 1 + key%3
		if key < busyKeys {
			n = 20
		}
		for i := range n {
			row := bson.D{{Key: "post_id", Value: key}}
			if i == 2 {
				row = append(row, bson.E{Key: "deleted_at", Value: time.Now()})
			}
			rows = append(rows, row)
		}
	}
	for chunk := range slices.Chunk(rows, 20_000) {
		must(f.rows.InsertMany(t.Context(), chunk))(t)
	}
	f.start()
	r := f.reconciler(equipment{})
	f.activate(r)
	f.emptyJournal()
	return f, r
}

// work has users insert, delete, restore and move rows of the busy keys, until stop.
func (f *fixture) work(perSecond int) (stop func() int) {
	const writers = 4
	var stops []func() int
	for range writers {
		stops = append(stops, f.pace(perSecond/writers, f.mixed(busyKeys)))
	}
	return func() (done int) {
		for _, stop := range stops {
			done += stop()
		}
		return done
	}
}

// plantAll makes n of the counters wrong, some of them busy, in turn too high, too low, below zero and without a document,
// and returns by how much each is.
func (f *fixture) plantAll(keys, n int) map[any]int64 {
	f.t.Helper()
	planted := map[any]int64{}
	busy := min(n/4, busyKeys/4)
	for i := range n {
		key := i * busyKeys / busy
		if i >= busy {
			key = busyKeys + (i-busy)*(keys-busyKeys)/(n-busy)
		}
		switch size := int64(1 + i%9); i % 4 {
		case 0:
			planted[key] = size
		case 1:
			planted[key] = -size
		case 2:
			planted[key] = -1000
		default:
			planted[key] = f.takeAway(key)
			continue
		}
		f.plant(key, planted[key])
	}
	return planted
}

// takeAway deletes a counter document and returns what is lost by that.
func (f *fixture) takeAway(key any) int64 {
	f.t.Helper()
	document := must(f.targets.FindOneAndDelete(f.t.Context(), bson.D{{Key: "_id", Value: key}}).Raw())(f.t)
	return -shown(document, "base_count", "live_delta")
}

// quietDocuments are the documents of the counters that nobody works at and that are not planted, by canonical key.
func (f *fixture) quietDocuments(planted map[any]int64) map[string]bson.Raw {
	f.t.Helper()
	cursor := must(f.targets.Find(f.t.Context(), bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: busyKeys}}}}))(f.t)
	var all []bson.Raw
	f.check(cursor.All(f.t.Context(), &all))
	quiet := make(map[string]bson.Raw, len(all))
	for _, document := range all {
		quiet[counter.Canonical(document.Lookup("_id"))] = document
	}
	for key := range planted {
		delete(quiet, counter.Canonical(raw(key)))
	}
	return quiet
}

// wantUntouched fails unless the documents are the very same as before, also those that are not there.
func (f *fixture) wantUntouched(before map[string]bson.Raw, planted map[any]int64) {
	f.t.Helper()
	after := f.quietDocuments(planted)
	if len(after) != len(before) {
		f.t.Errorf("%d documents, want %d", len(after), len(before))
	}
	for key, document := range before {
		if !bytes.Equal(document, after[key]) {
			f.t.Fatalf("the document of a right counter was changed: %v, was %v", after[key], document)
		}
	}
}

// undoAll takes a run back. A document that an increment holds is left to the next attempt.
func (f *fixture) undoAll(run string, repairs int) {
	f.t.Helper()
	const attempts = 5
	var undone int64
	for range attempts {
		u := f.undo(run)
		if undone += u.Undone; u.Left == 0 {
			break
		}
	}
	if undone != int64(repairs) {
		f.t.Errorf("%d of %d repairs taken back", undone, repairs)
	}
}

// Of very many counters that users are at work on, a run finds those that are wrong, with the exact size and sign, and
// changes no other. Its undo makes the very same ones wrong again.
func TestPlantedDriftUnderLoadIsFoundRepairedAndTakenBackExactly(t *testing.T) {
	t.Parallel()
	keys, perSecond := 4000, 400
	if soak() {
		keys, perSecond = 100_000, 1000
	}
	f, r := crowd(t, keys)
	stop := f.work(perSecond)
	planted := f.plantAll(keys, keys/100)
	before := f.quietDocuments(planted)

	repaired := f.run(r, Options{Full: true})
	wantDrift(t, repaired, planted)
	if c := only(t, repaired); c.Repaired != int64(len(planted)) || c.Checked < int64(keys) {
		t.Errorf("%d checked and %d repaired, want %d: skipped %v", c.Checked, c.Repaired, len(planted), c.Skipped)
	}
	f.wantUntouched(before, planted)
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	f.wantUntouched(before, planted)
	f.wantJournalled(planted)

	f.undoAll(repaired.Run, len(planted))
	f.release(repaired.Run)
	wantDrift(t, f.run(r, Options{Full: true, DryRun: true}), planted)
	f.wantUntouched(before, planted)
	wantDrift(t, f.run(r, Options{Full: true}), planted)
	t.Logf("%d of %d counters planted, %d writes beside", len(planted), keys, stop())
	f.wantExact()
	wantDrift(t, f.run(r, Options{Full: true}), nil)
}

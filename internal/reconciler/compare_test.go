package reconciler

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
)

func TestCompare(t *testing.T) {
	key := raw("p")
	lane, own := counter.Touched{Key: key, Stamp: bson.NewObjectID()}, counter.Touched{Key: key, Stamp: ownStamp(t)}
	document := func(base, live int64, edits ...func(*counter.Document)) counter.Document {
		d := counter.Document{Key: key, Exists: true, Base: base, Live: live, Total: base + live, HasTotal: true}
		for _, edit := range edits {
			edit(&d)
		}
		return d
	}
	touched := func(d *counter.Document) { d.Touched = true }
	drifted := func(d *counter.Document) { d.Drifted = true }
	total := func(n int64) func(*counter.Document) { return func(d *counter.Document) { d.Total = n } }
	noTotal := func(d *counter.Document) { d.HasTotal, d.Total = false, 0 }
	bad := func(d *counter.Document) { d.Bad = "field live_delta is of type string" }
	truth := func(n int64) counter.Truth { return counter.Truth{Key: key, N: n} }

	const (
		right     = "right"    // and not written
		rebased   = "rebased"  // right, and written
		repaired  = "repaired" // wrong
		unmarked  = "unmarked" // right, and only its mark goes
		untouched = false
		upsert    = true
	)
	imageless := lane
	imageless.Reason = counter.ReasonMissingImage
	states := map[Cause]counter.State{
		"":                {State: counter.Active},
		"first":           {State: counter.Rebasing, Reason: counter.ReasonNew},
		CauseGap:          {State: counter.Rebasing, Reason: counter.ReasonGap},
		CauseMissingImage: {State: counter.Rebasing, Reason: counter.ReasonMissingImage},
	}
	for name, tt := range map[string]struct {
		reading   reading
		upsert    bool
		reason    Cause
		does      string // what it comes to: one of the above, or the reason of a skip
		drift     int64
		cause     Cause
		recurring bool
	}{
		"right and untouched":              {reading{document: document(3, 2), truth: truth(5)}, upsert, "", right, 0, "", false},
		"right and touched":                {reading{document: document(3, 2, touched), truth: truth(5)}, upsert, "", rebased, 0, "", false},
		"right, marked apart":              {reading{document: document(3, 2), truth: truth(5), mark: lane}, untouched, "", rebased, 0, "", false},
		"right with a tail":                {reading{document: document(3, 2), truth: truth(4), tail: 1}, upsert, "", right, 0, "", false},
		"right with a negative tail":       {reading{document: document(3, 2), truth: truth(9), tail: -4}, upsert, "", right, 0, "", false},
		"too high":                         {reading{document: document(3, 2), truth: truth(4)}, upsert, "", repaired, 1, CauseUnknown, false},
		"too low":                          {reading{document: document(3, 2), truth: truth(9)}, upsert, "", repaired, -4, CauseUnknown, false},
		"too high by what the tail hides":  {reading{document: document(3, 2), truth: truth(5), tail: 1}, upsert, "", repaired, -1, CauseUnknown, false},
		"below zero":                       {reading{document: document(3, -7), truth: truth(0)}, upsert, "", repaired, -4, CauseUnknown, false},
		"rows gone":                        {reading{document: document(3, 0), truth: truth(0)}, upsert, "", repaired, 3, CauseUnknown, false},
		"base edited":                      {reading{document: document(3, 2, total(4)), truth: truth(4)}, upsert, "", repaired, 1, CauseEdited, false},
		"only total edited":                {reading{document: document(3, 2, total(9)), truth: truth(5)}, upsert, "", repaired, 4, CauseEdited, false},
		"only total edited, with a tail":   {reading{document: document(3, 2, total(9)), truth: truth(4), tail: 1}, upsert, "", repaired, 4, CauseEdited, false},
		"only total gone":                  {reading{document: document(3, 2, noTotal), truth: truth(5)}, upsert, "", repaired, -5, CauseEdited, false},
		"total named anew":                 {reading{document: document(3, 2, noTotal), truth: truth(5)}, upsert, "first", rebased, -5, CauseEdited, false},
		"edited beside a gap":              {reading{document: document(3, 2, total(4)), truth: truth(4)}, upsert, CauseGap, repaired, 1, CauseEdited, false},
		"the first recount":                {reading{document: document(3, 2), truth: truth(4)}, upsert, "first", rebased, 1, CauseUnknown, false},
		"a gap":                            {reading{document: document(3, 2), truth: truth(4)}, upsert, CauseGap, repaired, 1, CauseGap, false},
		"a missing image":                  {reading{document: document(3, 2), truth: truth(4)}, upsert, CauseMissingImage, repaired, 1, CauseMissingImage, false},
		"an increment set apart":           {reading{document: document(3, 2), truth: truth(6), mark: lane}, upsert, "", repaired, -1, CauseSetApart, false},
		"looked at again":                  {reading{document: document(3, 2), truth: truth(6), mark: own}, upsert, "", repaired, -1, CauseUnknown, false},
		"its row changed without an image": {reading{document: document(3, 2), truth: truth(6), mark: imageless}, upsert, "", repaired, -1, CauseMissingImage, false},
		"edited beside such a row":         {reading{document: document(3, 2, total(4)), truth: truth(4), mark: imageless}, upsert, "", repaired, 1, CauseEdited, false},
		"no total to bear witness":         {reading{document: document(3, 2, noTotal), truth: truth(4)}, upsert, "", repaired, 1, CauseUnknown, false},
		"wrong again":                      {reading{document: document(3, 2, drifted), truth: truth(4)}, upsert, "", repaired, 1, CauseUnknown, true},
		"right after it was wrong":         {reading{document: document(3, 2, drifted), truth: truth(5)}, upsert, "", right, 0, "", false},
		"rows without a document":          {reading{truth: truth(4)}, upsert, "", repaired, -4, CauseNoDocument, false},
		"neither, marked":                  {reading{truth: truth(0), mark: lane}, upsert, "", unmarked, 0, "", false},
		"neither, but a tail":              {reading{truth: truth(0), tail: 2}, upsert, "", repaired, -2, CauseNoDocument, false},
		"no document and no upsert":        {reading{truth: truth(4), mark: lane}, untouched, "", skipNoDocument, 0, "", false},
		"no document, no rows, no upsert":  {reading{truth: truth(0), mark: lane}, untouched, "", unmarked, 0, "", false},
		"field of another type":            {reading{document: document(3, 0, bad), truth: truth(4)}, upsert, "", skipBadField, 0, "", false},
		"field near the end of its range":  {reading{document: document(largest+1, 0), truth: truth(4)}, upsert, "", skipBadField, 0, "", false},
		"sum beyond 64 bits":               {reading{document: document(3, 0), truth: counter.Truth{Key: key, Bad: "1e30"}}, upsert, "", skipBadSum, 0, "", false},
		"sum near the end of its range":    {reading{document: document(3, 0), truth: truth(-largest - 1)}, upsert, "", skipBadSum, 0, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			v := compare(tt.reading, tt.upsert, states[tt.reason])
			if v.drift != tt.drift || v.cause != tt.cause || v.recurring != tt.recurring {
				t.Errorf("drift %d of cause %q, recurring %v; want %d, %q, %v", v.drift, v.cause, v.recurring, tt.drift, tt.cause, tt.recurring)
			}
			if got := does(v); got != tt.does {
				t.Errorf("it is %s, want %s", got, tt.does)
			}
			if v.key.String() != key.String() {
				t.Errorf("key %s, want %s", v.key, key)
			}
			if v.skip != "" && v.why == "" {
				t.Error("skipped without words")
			}
			if want := tt.reading.document.Touched || !tt.reading.mark.Stamp.IsZero(); v.marked != want {
				t.Errorf("marked %v, want %v", v.marked, want)
			}
		})
	}
}

// TestAMarkStaysUntilItsChangeHasBeenSeen: the position may lie just before the change that the mark is for.
func TestAMarkStaysUntilItsChangeHasBeenSeen(t *testing.T) {
	d, err := counter.Define(declared("app", counterName, "base_count", "live_delta"))
	if err != nil {
		t.Fatal(err)
	}
	change := bson.Timestamp{T: 100, I: 5}
	mark := counter.Touched{Key: raw("p"), Stamp: bson.NewObjectID(), Reason: counter.ReasonMissingImage, After: change}
	for name, tt := range map[string]struct {
		at    bson.Timestamp
		stays bool
	}{
		"before it": {bson.Timestamp{T: 100, I: 4}, true},
		"at it":     {change, false},
		"after it":  {bson.Timestamp{T: 101, I: 1}, false},
	} {
		for there, v := range map[string]view{
			"a document": {documents: map[string]counter.Document{counter.Canonical(raw("p")): {Key: raw("p"), Exists: true}}},
			"nothing":    {},
		} {
			v.lanes = []checkpoint.Checkpoint{{Position: tt.at}}
			p := &pass{definition: d, seen: map[string]bool{}}
			verdict := p.judge(v, []counter.Touched{mark})[0]
			cleared := verdict.clear
			if verdict.repair != nil {
				cleared = verdict.repair.Mark
			}
			if stays := cleared.Stamp.IsZero(); stays != tt.stays {
				t.Errorf("%s, %s: the mark stays: %v, want %v", name, there, stays, tt.stays)
			}
		}
	}
}

// ownStamp is the stamp of a mark that a reconciler sets.
func ownStamp(t *testing.T) bson.ObjectID {
	t.Helper()
	stamp := bson.NewObjectID()
	copy(stamp[:4], make([]byte, 4))
	return stamp
}

// does says in one word what a verdict writes.
func does(v verdict) string {
	switch {
	case v.skip != "":
		return v.skip
	case v.repair != nil && v.repair.Drifted:
		return "repaired"
	case v.repair != nil:
		return "rebased"
	case !v.clear.Stamp.IsZero():
		return "unmarked"
	default:
		return "right"
	}
}

func TestRepairMakesDisplayedTrueWhateverCameSince(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := rapid.Int64Range(-1<<40, 1<<40)
		small := rapid.Int64Range(-1000, 1000)
		key := raw("p")
		truth, tail := number.Draw(t, "truth"), small.Draw(t, "tail")
		r := reading{truth: counter.Truth{Key: key, N: truth}, tail: tail, mark: counter.Touched{Key: key, Stamp: bson.NewObjectID()}}
		if rapid.Bool().Draw(t, "exists") {
			r.document = counter.Document{
				Key: key, Exists: true, Touched: rapid.Bool().Draw(t, "touched"), HasTotal: rapid.Bool().Draw(t, "has total"),
				Base: number.Draw(t, "base"), Live: number.Draw(t, "live"),
			}
			if r.document.HasTotal {
				r.document.Total = number.Draw(t, "total")
			}
		}
		later := rapid.SliceOf(small).Draw(t, "later")
		edit := small.Draw(t, "edit")

		v := compare(r, true, counter.State{State: counter.Active})
		d := r.document
		want := d.Base + d.Live - tail - truth
		if want == 0 && d.Exists {
			want = d.Total - tail - truth // what is displayed as well
		}
		if v.drift != want {
			t.Fatalf("drift %d, want displayed - truth = %d", v.drift, want)
		}
		if v.repair == nil { // neither a document nor rows
			if d.Exists || truth != 0 || tail != 0 {
				t.Fatalf("not repaired: %+v", v)
			}
			return
		}
		// Increments come between the reading and the repair, and so does an edit: none of them is lost.
		base, live, total, sum := d.Base, d.Live, d.Total, int64(0)
		for _, n := range later {
			live, total, sum = live+n, total+n, sum+n
		}
		base += edit
		base, live, total = base+v.repair.Base, live+v.repair.Live, total+v.repair.Total
		if want := truth + tail + sum; base+live != want+edit || total != want {
			t.Fatalf("displays %d by its parts and %d by its total, want truth + tail + later = %d, and the edit %d in the parts", base+live, total, want, edit)
		}
		if base != truth+edit || live != tail+sum {
			t.Fatalf("base %d and live %d, want %d and %d", base, live, truth+edit, tail+sum)
		}
	})
}

func TestKeysAreJudgedOnceWhicheverReadingSawThem(t *testing.T) {
	document := func(key any, base int64) counter.Document {
		return counter.Document{Key: raw(key), Exists: true, Base: base, Total: base, HasTotal: true}
	}
	documents := func(ds ...counter.Document) map[string]counter.Document {
		m := map[string]counter.Document{}
		for _, d := range ds {
			m[counter.Canonical(d.Key)] = d
		}
		return m
	}
	truths := func(ts ...counter.Truth) map[string]counter.Truth {
		m := map[string]counter.Truth{}
		for _, x := range ts {
			m[counter.Canonical(x.Key)] = x
		}
		return m
	}
	rows := func(key any, n int64) counter.Truth { return counter.Truth{Key: raw(key), N: n} }
	d, err := counter.Define(declared("app", counterName, "base_count", "live_delta"))
	if err != nil {
		t.Fatal(err)
	}
	stamp := bson.NewObjectID()
	for name, tt := range map[string]struct {
		view  view
		marks []counter.Touched
		seen  any
		want  map[string]int64 // drift by key
	}{
		"range: both, one, the other": {
			view: view{documents: documents(document("both", 3), document("document", 2)), truths: truths(rows("both", 3), rows("rows", 4))},
			want: map[string]int64{`"both"`: 0, `"document"`: 2, `"rows"`: -4},
		},
		"range: rows that count for nothing and have no document": {
			view: view{truths: truths(rows(nil, 0), rows(bson.A{1, 2}, 0), rows("deleted", 0))},
			want: map[string]int64{},
		},
		"one key in two numeric types": {
			view: view{documents: documents(document(int32(1), 3)), truths: truths(rows(1.0, 3))},
			want: map[string]int64{`1`: 0},
		},
		"range: compared by its mark already": {
			view: view{documents: documents(document("seen", 3), document("other", 1))}, seen: "seen",
			want: map[string]int64{`"other"`: 1},
		},
		"listed: what else the rows brought along is not judged": {
			view:  view{truths: truths(rows(bson.A{"a", "b"}, 0), rows("a", 1))},
			marks: []counter.Touched{{Key: raw("a")}},
			want:  map[string]int64{`"a"`: -1},
		},
		"listed: neither rows nor document": {
			view:  view{},
			marks: []counter.Touched{{Key: raw("gone"), Stamp: stamp}},
			want:  map[string]int64{`"gone"`: 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := &pass{definition: d, seen: map[string]bool{}}
			if tt.seen != nil {
				p.seen[counter.Canonical(raw(tt.seen))] = true
			}
			got := map[string]int64{}
			for _, v := range p.judge(tt.view, tt.marks) {
				if _, twice := got[ExtendedJSON{v.key}.String()]; twice {
					t.Errorf("%s judged twice", v.key)
				}
				got[ExtendedJSON{v.key}.String()] = v.drift
			}
			if len(got) != len(tt.want) {
				t.Fatalf("judged %v, want %v", got, tt.want)
			}
			for key, drift := range tt.want {
				if n, ok := got[key]; !ok || n != drift {
					t.Errorf("judged %v, want %v", got, tt.want)
				}
			}
			for _, mark := range tt.marks {
				if p.seen[counter.Canonical(mark.Key)] != !mark.Stamp.IsZero() {
					t.Error("a key with a mark in the state database is to be remembered, another is not")
				}
			}
		})
	}
}

func TestCauseOnRecord(t *testing.T) {
	for name, tt := range map[string]struct {
		state counter.State
		want  Cause
	}{
		"active":          {counter.State{State: counter.Active, Reason: counter.ReasonGap}, ""},
		"new":             {counter.State{State: counter.Rebasing, Reason: counter.ReasonNew}, ""},
		"gap":             {counter.State{State: counter.Rebasing, Reason: counter.ReasonGap}, CauseGap},
		"partitions":      {counter.State{State: counter.Rebasing, Reason: counter.ReasonPartitions}, CausePartitions},
		"reset":           {counter.State{State: counter.Rebasing, Reason: counter.ReasonReset}, CauseReset},
		"missing image":   {counter.State{State: counter.Rebasing, Reason: counter.ReasonMissingImage}, CauseMissingImage},
		"never heard of":  {counter.State{}, ""},
		"another's words": {counter.State{State: counter.Rebasing, Reason: "whatever"}, ""},
	} {
		if got := reasonOf(tt.state); got != tt.want {
			t.Errorf("%s: cause %q, want %q", name, got, tt.want)
		}
	}
}

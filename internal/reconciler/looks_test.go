package reconciler

import (
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"driftless/internal/counter"
)

func seen(displayed, truth, low, high, mark int64) look {
	return look{
		document: counter.Document{Exists: true, Base: displayed},
		detail:   counter.Detail{Truth: counter.Truth{N: truth, Rows: truth}, Low: low, High: high, Print: mark},
	}
}

func TestOpinionOfLooks(t *testing.T) {
	t.Parallel()
	bad, tooMuch := seen(5, 5, 0, 0, 1), seen(5, 5, 0, 0, 1)
	bad.document.Bad, tooMuch.detail.N = "a text", largest+1
	gone := seen(0, 7, 0, 0, 1)
	gone.document.Exists = false
	for name, tt := range map[string]struct {
		earlier *look
		between []int64
		now     look
		want    opinion
	}{
		"right at first sight":                      {nil, nil, seen(5, 5, 0, 0, 1), right},
		"right, and was wrong":                      {new(seen(4, 5, 0, 0, 1)), []int64{4, 4}, seen(5, 5, 0, 0, 1), right},
		"wrong, and nobody knows since when":        {nil, nil, seen(7, 5, 0, 0, 1), unsettled},
		"wrong and quiet":                           {new(seen(7, 5, 0, 0, 1)), []int64{7, 7}, seen(7, 5, 0, 0, 1), wrong},
		"wrong and quiet, too low":                  {new(seen(0, 5, 0, 0, 1)), nil, seen(0, 5, 0, 0, 1), wrong},
		"wrong and quiet, whatever the rows' times": {new(seen(4, 5, -1, 0, 1)), nil, seen(4, 5, -1, 0, 1), wrong},
		"the display moved":                         {new(seen(6, 5, 0, 0, 1)), nil, seen(7, 5, 0, 0, 1), unsettled},
		"the rows moved":                            {new(seen(7, 6, 0, 0, 1)), nil, seen(7, 5, 0, 0, 1), unsettled},
		"other rows, as many":                       {new(seen(7, 5, 0, 0, 2)), nil, seen(7, 5, 0, 0, 1), unsettled},
		"the display moved and came back":           {new(seen(7, 5, 0, 0, 1)), []int64{7, 8, 7}, seen(7, 5, 0, 0, 1), unsettled},
		"a document that was made meanwhile":        {&gone, nil, seen(0, 7, 0, 0, 1), unsettled},
		"no document":                               {&gone, nil, gone, wrong},
		"a young row explains it":                   {new(seen(4, 4, 0, 0, 2)), nil, seen(4, 5, -1, 0, 1), right},
		"young rows explain a part of it":           {new(seen(3, 4, 0, 0, 2)), nil, seen(3, 5, -1, 0, 1), unsettled},
		"a row that has just gone explains it":      {new(seen(6, 6, 0, 0, 2)), nil, seen(6, 5, 0, 1, 1), right},
		"the other direction is not explained":      {nil, nil, seen(6, 5, -1, 0, 1), unsettled},
		"no number":                                 {nil, nil, bad, unfit},
		"too large":                                 {nil, nil, tooMuch, unfit},
	} {
		if got := judgeLooks(tt.earlier, tt.between, tt.now); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

// imagined is an application in a simulation: one key, rows with identities, and increments that come late. Time is in
// ticks.
type imagined struct {
	settle    int
	rows      map[int]imaginedRow // by id
	next      int
	displayed int64
	late      []lateIncrement
	history   []look // at each tick
	planted   int64
	free      map[int]int // by row: when its last increment comes, since those of one row come in order
}

type imaginedRow struct{ deleted, changed int }

type lateIncrement struct {
	at int
	n  int64
}

func (s *imagined) now() int { return len(s.history) }

// tick lets due increments come, and remembers what a snapshot would hold.
func (s *imagined) tick() {
	s.late = slices.DeleteFunc(s.late, func(l lateIncrement) bool {
		if l.at <= s.now() {
			s.displayed += l.n
		}
		return l.at <= s.now()
	})
	var d counter.Detail
	for id, r := range s.rows {
		young := r.changed > s.now()-s.settle
		weight := int64(1)
		if r.deleted > 0 {
			weight = 0
		}
		d.N += weight
		d.Rows++
		d.Print += int64(id*1_000_003+r.deleted*1009+r.changed) * 7919
		switch {
		case young && weight == 1:
			d.Low--
		case young:
			d.High++
		}
	}
	s.history = append(s.history, look{document: counter.Document{Exists: true, Base: s.displayed}, detail: d})
}

// write changes a row, or makes one, and sends its increment. delay is below settle.
func (s *imagined) write(dice, pick, delay int, vanish bool) {
	ids := make([]int, 0, len(s.rows))
	for id := range s.rows {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	id, n := 0, int64(0)
	if len(ids) > 0 {
		id = ids[pick%len(ids)]
	}
	r := s.rows[id]
	switch {
	case dice < 50 || len(ids) == 0:
		s.next++
		id, n = s.next, 1
		s.rows[id] = imaginedRow{changed: s.now()}
	case dice < 70 && r.deleted == 0:
		s.rows[id], n = imaginedRow{deleted: s.now(), changed: s.now()}, -1
	case dice < 80 && r.deleted > 0:
		s.rows[id], n = imaginedRow{changed: s.now()}, 1
	case dice >= 80 && (vanish || r.changed <= s.now()-2*s.settle):
		delete(s.rows, id)
		if r.deleted == 0 {
			n = -1
		}
	}
	if n == 0 {
		return
	}
	at := max(s.now()+delay, s.free[id])
	at = min(at, s.now()+s.settle-1)
	s.free[id] = at
	s.late = append(s.late, lateIncrement{at, n})
}

// plant makes the display wrong.
func (s *imagined) plant(n int64) {
	s.displayed += n
	s.planted += n
}

// judge looks as a pass does, now.
func (s *imagined) judge() (opinion, int64) {
	now := s.history[len(s.history)-1]
	var earlier *look
	var between []int64
	if then := len(s.history) - 1 - s.settle; then >= 0 {
		earlier = &s.history[then]
		for _, t := range momentsBetween(uint32(then), uint32(len(s.history)-1)) {
			between = append(between, s.history[t].displayed())
		}
	}
	return judgeLooks(earlier, between, now), now.off()
}

func newImagined(settle int) *imagined {
	return &imagined{settle: settle, rows: map[int]imaginedRow{}, free: map[int]int{}}
}

// No history of inserts, soft deletes, undeletes and hard deletes, whose increments come late by up to settle, ever leads to
// a drift that was not planted, and a planted one is found, with its size, once the key has been quiet.
func TestDriftOfLooksIsThePlantedOne(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := newImagined(rapid.IntRange(3, 12).Draw(t, "settle"))
		s.tick()
		for range rapid.IntRange(1, 120).Draw(t, "ticks") {
			for range rapid.IntRange(0, 2).Draw(t, "writes") {
				s.write(rapid.IntRange(0, 99).Draw(t, "dice"), rapid.IntRange(0, 99).Draw(t, "pick"), rapid.IntRange(0, s.settle-1).Draw(t, "delay"), false)
			}
			if rapid.IntRange(0, 40).Draw(t, "plants") == 0 {
				s.plant(int64(rapid.IntRange(-2, 2).Draw(t, "planted")))
			}
			s.tick()
			if got, off := s.judge(); got == wrong && off != s.planted {
				t.Fatalf("drift %d, planted %d", off, s.planted)
			}
		}
		for range 2*s.settle + 1 {
			s.tick()
		}
		want := right
		if s.planted != 0 {
			want = wrong
		}
		if got, off := s.judge(); got != want || off != s.planted {
			t.Fatalf("quiet at last: %d with drift %d, planted %d", got, off, s.planted)
		}
	})
}

// Rows that come and go between two looks leave no trace in either. The moments between tell most of them, where two equal
// differences alone are always false here. What is left depends on how late increments are, and the bounds say how much.
func TestRowsThatComeAndGoAreSeldomDrift(t *testing.T) {
	t.Parallel()
	histories := 300
	if soak() {
		histories = 20_000
	}
	const settle, ticks = 30, 400
	for name, tt := range map[string]struct{ late, perMillion int }{
		"late by up to all that they may":        {settle, 50},
		"late by up to a tenth of what they may": {settle / 10, 2},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var wrongly, naive int
			for seed := range histories {
				random := rand.New(rand.NewPCG(1, uint64(seed)))
				s := newImagined(settle)
				s.tick()
				for range ticks {
					if random.IntN(20) == 0 { // the rate with the most false alarms, of those tried from one in 2 to one in 20
						s.write(random.IntN(100), random.IntN(100), random.IntN(tt.late), true)
					}
					s.tick()
					got, off := s.judge()
					if got == wrong { // nothing is planted
						wrongly++
					}
					if then := len(s.history) - 1 - settle; then >= 0 && off != 0 && s.history[then].off() == off {
						naive++
					}
				}
			}
			looks := histories * ticks
			t.Logf("%d looks, %d of them false; by two equal differences alone %d", looks, wrongly, naive)
			if limit := max(1, looks*tt.perMillion/1_000_000); wrongly > limit {
				t.Errorf("%d false alarms, want at most %d", wrongly, limit)
			}
			if naive <= 100*wrongly {
				t.Errorf("two equal differences alone are false %d times, and looking closer %d: it is hardly worth it", naive, wrongly)
			}
		})
	}
}

package reconciler

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"driftless/internal/counter"
)

// story is one key's history: rows that come and go, the events that tell of it on their way, and the document that they
// increment. Times are in seconds.
type story struct {
	*rapid.T
	now      int64
	rows     []life
	underway []message
	document counter.Document
	planted  []message // what each of them changes for good
	past     int64     // the last cut
}

type life struct{ created, deleted int64 } // deleted is 0 while it is not

type message struct {
	at, arrives, n int64
}

const (
	settleSeconds = 30
	finest        = 10 * time.Second
)

// send lets an event of this moment arrive before it has to, or much later, twice, or never.
func (s *story) send(n int64) {
	in := func(least, most int64) int64 { return s.now + rapid.Int64Range(least, most).Draw(s.T, "delay") }
	e := message{at: s.now, arrives: in(0, settleSeconds-1), n: n}
	switch rapid.IntRange(0, 9).Draw(s.T, "fate") {
	case 0: // lost
		s.planted = append(s.planted, message{at: s.now, arrives: s.now, n: -n})
		return
	case 1: // twice
		again := message{at: s.now, arrives: in(0, 5*settleSeconds), n: n}
		s.underway = append(s.underway, e, again)
		s.planted = append(s.planted, again)
		return
	case 2: // late: missed where it is asked for in between, and then once too many
		e.arrives = in(settleSeconds, 5*settleSeconds)
	}
	s.underway = append(s.underway, e)
}

// step lets time pass, and applies what has arrived, as the incrementer does.
func (s *story) step(seconds int64) {
	s.now += seconds
	s.underway = slices.DeleteFunc(s.underway, func(e message) bool {
		if e.arrives > s.now {
			return false
		}
		if s.document.Recent == nil {
			s.document.Recent = counter.Recent{}
		}
		s.document.Exists = true
		s.document.Live += e.n
		s.document.Total += e.n
		s.document.HasTotal, s.document.Touched = true, true
		s.document.Recent[counter.BucketOf(time.Unix(e.at, 0), finest, 0)] += e.n
		return true
	})
}

// reconcile compares at the latest cut that may be, and repairs. It returns what it reported.
func (s *story) reconcile() (unexplained, late int64, judged bool) {
	cut := (s.now - settleSeconds) / 10 * 10
	var truth int64
	for _, r := range s.rows {
		if r.created < cut && (r.deleted == 0 || r.deleted >= cut) {
			truth++
		}
	}
	tail, division := divideAt(s.document, cut)
	v := compare(reading{document: s.document, truth: counter.Truth{N: truth}, tail: tail, division: division}, true, counter.State{State: counter.Active})
	if v.skip != "" {
		return 0, 0, false
	}
	if v.repair == nil {
		if v.drift != 0 {
			s.Fatalf("drift %d and no repair", v.drift)
		}
		s.past = max(s.past, s.document.Cut)
		return 0, 0, true
	}
	s.apply(*v.repair)
	s.past = cut
	return v.unexplained(), v.late, true
}

// apply does what the repair's update does.
func (s *story) apply(r counter.Repair) {
	d := &s.document
	d.Exists, d.HasTotal = true, true
	d.Base += r.Base
	d.Live += r.Live
	d.Total += r.Total
	d.Cut = r.Cut
	for b, n := range r.Passed {
		if d.Recent[b] -= n; d.Recent[b] == 0 {
			delete(d.Recent, b)
		}
	}
}

func TestDivisionAtACutReportsWhatWasPlantedAndRepairsIt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &story{T: t, now: 1_000_000}
		var found, lateFound int64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				s.rows = append(s.rows, life{created: s.now})
				s.send(1)
			case 2:
				if i := slices.IndexFunc(s.rows, func(r life) bool { return r.deleted == 0 && r.created < s.now }); i >= 0 {
					s.rows[i].deleted = s.now
					s.send(-1)
				}
			case 3:
				drift, late, _ := s.reconcile()
				found, lateFound = found+drift, lateFound+late
			}
			s.step(rapid.Int64Range(0, 40).Draw(t, "pause"))
		}
		s.step(10 * settleSeconds) // all that comes has come
		drift, late, judged := s.reconcile()
		found, lateFound = found+drift, lateFound+late
		var truth, planted int64
		for _, r := range s.rows {
			if r.deleted == 0 {
				truth++
			}
		}
		for _, e := range s.planted {
			planted += e.n
		}
		if !judged || s.document.Base+s.document.Live != truth || s.document.Total != truth {
			t.Fatalf("displays %d + %d, total %d, with %d rows", s.document.Base, s.document.Live, s.document.Total, truth)
		}
		if found+lateFound != planted {
			t.Fatalf("%d were planted, %d and %d late were reported", planted, found, lateFound)
		}
		if s.step(60); len(s.document.Recent) > 0 {
			t.Fatalf("buckets are left: %v", s.document.Recent)
		}
		if drift, late, _ := s.reconcile(); drift != 0 || late != 0 {
			t.Fatalf("and again %d, %d late", drift, late)
		}
	})
}

// Where nothing is lost, repeated or later than it may be, nothing is reported, whenever it is asked.
func TestDivisionAtACutRaisesNoFalseAlarm(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &story{T: t, now: 1_000_000}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			e := message{at: s.now, arrives: s.now + rapid.Int64Range(0, settleSeconds-1).Draw(t, "delay"), n: 1}
			if i := slices.IndexFunc(s.rows, func(r life) bool { return r.deleted == 0 && r.created < s.now }); i >= 0 && rapid.Bool().Draw(t, "delete") {
				s.rows[i].deleted, e.n = s.now, -1
			} else {
				s.rows = append(s.rows, life{created: s.now})
			}
			s.underway = append(s.underway, e)
			if drift, late, _ := s.reconcile(); drift != 0 || late != 0 {
				t.Fatalf("drift %d, late %d", drift, late)
			}
			s.step(rapid.Int64Range(0, 15).Draw(t, "pause"))
		}
	})
}

func TestAnEventThatComesAfterItsTimeWasPassedIsLateAndNoDrift(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &story{T: t, now: 1_000_000, rows: []life{{created: 1_000_000}}}
		s.underway = []message{{at: s.now, arrives: s.now + 200, n: 1}}
		s.step(100)
		if drift, late, _ := s.reconcile(); drift != -1 || late != 0 {
			t.Fatalf("while it is missing: drift %d, late %d", drift, late)
		}
		s.step(100)
		if drift, late, _ := s.reconcile(); drift != 0 || late != 1 {
			t.Fatalf("when it has come: drift %d, late %d", drift, late)
		}
		if drift, late, _ := s.reconcile(); drift != 0 || late != 0 || s.document.Base+s.document.Live != 1 {
			t.Fatalf("after that: drift %d, late %d, %+v", drift, late, s.document)
		}
	})
}

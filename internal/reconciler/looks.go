package reconciler

import (
	"cmp"

	"driftless/internal/counter"
)

// look is what one snapshot holds about one key of a counter that the application increments itself.
type look struct {
	document counter.Document
	detail   counter.Detail
}

func (l look) displayed() int64 { return l.document.Base + l.document.Live }

// off is how far the display is from the rows: positive is too high.
func (l look) off() int64 { return l.displayed() - l.detail.N }

// explained reports whether the display lies where the rows that changed a moment ago allow it to be.
func (l look) explained() bool { return l.off() >= l.detail.Low && l.off() <= l.detail.High }

// same reports whether nothing that shows has happened to the key between two looks.
func (l look) same(other look) bool {
	return l.displayed() == other.displayed() && l.document.Exists == other.document.Exists &&
		l.detail.N == other.detail.N && l.detail.Rows == other.detail.Rows && l.detail.Print == other.detail.Print
}

// opinion is what looks at one key come to.
type opinion int

const (
	right     opinion = iota // the display is what the rows come to, or what they allow with their last changes under way
	wrong                    // it is not, and nothing has happened to the key for as long as a change may be under way
	unsettled                // it is not, and something has, so that a change may be under way
	unfit                    // one of the two is no number to compare
)

// fitness says why a display and a count cannot be compared, "" when they can.
func fitness(d counter.Document, t counter.Truth) (skip, why string) {
	switch {
	case d.Bad != "":
		return skipBadField, d.Bad
	case max(d.Base, d.Live) > largest, min(d.Base, d.Live) < -largest:
		return skipBadField, "a field is too large to add to"
	case t.Bad != "", t.N > largest, t.N < -largest:
		return skipBadSum, cmp.Or(t.Bad, "the sum is too large to add to")
	default:
		return "", ""
	}
}

// moments is at most how many moments between two looks the display is read at.
const moments = 14

// momentsBetween are the seconds between two at which the display is read.
func momentsBetween(from, to uint32) (all []uint32) {
	step := max(1, (to-from)/moments)
	for t := from + step; t < to; t += step {
		all = append(all, t)
	}
	return all
}

// judgeLooks judges one key by two looks that lie further apart than a change may be under way, and by what was displayed
// at moments between them: pure, so that it is tested without a database. earlier is nil where there was none.
//
// What is wrong and stays so while nothing happens is drift: every change that was under way at the first look has come to
// its end by the second, and one of a row that is still there would show. Rows that come and go between the two leave no
// trace in either, and both looks may find an increment equally late: the moments between tell most of these.
func judgeLooks(earlier *look, between []int64, now look) opinion {
	if skip, _ := fitness(now.document, now.detail.Truth); skip != "" {
		return unfit
	}
	quiet := earlier != nil && earlier.same(now)
	for _, displayed := range between {
		quiet = quiet && displayed == now.displayed()
	}
	switch {
	case now.off() == 0:
		return right
	case quiet:
		return wrong
	case now.explained():
		return right
	default:
		return unsettled
	}
}

package reconciler

import (
	"context"
	"iter"
	"sync"
	"time"

	"driftless/internal/counter"
)

// glimpse is what came of reading a selection.
type glimpse struct {
	view  view
	err   error
	began time.Time
}

// glimpse reads a selection as it stands at one cut, once it can be judged.
func (p *pass) glimpse(ctx context.Context, which counter.Selection) glimpse {
	g := glimpse{began: time.Now()}
	g.err = p.waitFor(ctx, func() (err error) {
		g.view, err = p.read(ctx, which)
		return err
	})
	return g
}

// inTurn compares ranges one after the other and yields what each came to.
func (p *pass) inTurn(ctx context.Context, ranges []counter.Selection) iter.Seq[error] {
	return func(yield func(error) bool) {
		if p.definition.ByApplication() {
			for _, which := range ranges {
				if !yield(p.within(ctx, which)) {
					return
				}
			}
			return
		}
		for which, glimpse := range p.ahead(ctx, ranges) {
			p.beat()
			if !yield(p.divided(ctx, which, p.compare(ctx, glimpse, nil))) {
				return
			}
		}
	}
}

// inFlight is how many ranges are compared or read at once: while one is compared, the rows of the next are counted and the
// documents of the one after that read, which is ready then even if the ranges differ in size.
const inFlight = 3

// ahead yields ranges with what was read of them, the next ones being read meanwhile. Ranges share no key, so that nothing
// which is written for one makes the reading of another wrong.
func (p *pass) ahead(ctx context.Context, ranges []counter.Selection) iter.Seq2[counter.Selection, glimpse] {
	return func(yield func(counter.Selection, glimpse) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var reading sync.WaitGroup
		defer reading.Wait()
		defer cancel()
		read := make([]chan glimpse, len(ranges))
		begin := func(i int) {
			if i < len(ranges) {
				read[i] = make(chan glimpse, 1)
				reading.Go(func() { read[i] <- p.glimpse(ctx, ranges[i]) })
			}
		}
		for i := range inFlight - 1 {
			begin(i)
		}
		for i, which := range ranges {
			begin(i + inFlight - 1)
			if !yield(which, <-read[i]) {
				return
			}
		}
	}
}

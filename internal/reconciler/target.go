package reconciler

import (
	"context"
	"fmt"

	"driftless/internal/counter"
	"driftless/internal/logkey"
)

// target is what a pass knows about the collection of its counter's documents.
type target struct {
	seen counter.Sighting
	lost string // what happened to its documents since the last complete pass, "" for nothing that is known
	err  error  // it could not be looked at
}

// sight looks at the target. A counter whose documents are gone is marked for a recount of every key: the marks of the
// touched keys went with them. That comes before the first pass of a run, since one counter's recount makes documents
// that another counter would miss.
func (p *pass) sight(ctx context.Context) error {
	d := p.definition
	return p.insist(ctx, func() error {
		states, err := p.states.All(ctx)
		if err != nil {
			return err
		}
		if p.target.seen, err = d.Sight(ctx, p.client); err != nil {
			return err
		}
		state := states[d.Name]
		if state.Hash != d.Hash || state.Target == nil {
			return nil
		}
		if p.target.lost = p.target.seen.Lost(*state.Target); p.target.lost == "" || p.options.DryRun {
			return nil
		}
		return p.states.MarkLost(ctx, state)
	})
}

// asSighted is the state of a counter after what was found. A run that writes nothing has not marked it.
func (p *pass) asSighted(state counter.State) counter.State {
	if p.target.lost != "" && state.State == counter.Active {
		state.State, state.Reason = counter.Rebasing, counter.ReasonTarget
	}
	return state
}

// prepare says what was found, and makes what went with the target: the index of the touched keys. *unjudgedError: the
// documents are the application's, and so is their collection.
func (p *pass) prepare(ctx context.Context) error {
	d := p.definition
	name := d.Target.Database + "." + d.Target.Collection
	if p.target.lost != "" {
		p.log.Warn("counter documents are gone: every key is recounted", logkey.Counter, d.Name,
			logkey.Reason, counter.ReasonTarget, logkey.Cause, name+" "+p.target.lost, logkey.Run, p.run)
	}
	switch {
	case !d.Target.Upsert && p.target.seen.Collection == "":
		return &unjudgedError{skipNoTarget, fmt.Sprintf("target collection %s does not exist, and upsert is off: create or restore it, and every key is recounted", name)}
	case !d.Target.Upsert, p.options.DryRun:
		return nil
	}
	return p.makeIndex(ctx, name)
}

// makeIndex makes the index of the touched keys where it is gone. A full pass goes without: that the user may not make
// it is told, and ends no pass.
func (p *pass) makeIndex(ctx context.Context, name string) error {
	if p.heart != nil {
		p.heart.Waiting() // it may take long in a collection that has many documents of others
		defer p.heart.Beat()
	}
	made, err := p.definition.MakeTouchedIndex(ctx, p.client)
	if err != nil {
		p.log.Warn("index of the touched keys is gone and not made again", logkey.Counter, p.definition.Name,
			logkey.Collection, name, logkey.Error, err, logkey.Action, "run `incrementer setup`", logkey.Run, p.run)
		return ctx.Err()
	}
	if !made {
		return nil
	}
	p.log.Info("made the index of the touched keys again", logkey.Counter, p.definition.Name, logkey.Collection, name)
	if p.target.seen.Collection != "" {
		return nil
	}
	return p.insist(ctx, func() (err error) { // the collection came with it
		p.target.seen, err = p.definition.Sight(ctx, p.client)
		return err
	})
}

// sameTarget looks at the target again at the end of a pass. *unjudgedError: it is another one than at the beginning, so
// that documents are gone that were right, and marks that were not listed.
func (p *pass) sameTarget(ctx context.Context) error {
	var now counter.Sighting
	err := p.insist(ctx, func() (err error) {
		now, err = p.definition.Sight(ctx, p.client)
		return err
	})
	if err != nil {
		return err
	}
	if t := p.definition.Target; p.target.seen.Collection != "" && now.Collection != p.target.seen.Collection {
		return &unjudgedError{skipNoTarget, fmt.Sprintf("target collection %s.%s was dropped, renamed or replaced during the run: the next one recounts every key", t.Database, t.Collection)}
	}
	p.target.seen.Documents = max(p.target.seen.Documents, now.Documents)
	return nil
}

// fewAnew is how many documents may be missing, or be made anew by increments, before that says something about others.
const fewAnew = 10

// emptied reports whether what this pass found wrong is documents that were deleted, for the most part, and that
// increments have made anew: those that no increment has come to since are gone as well, and the collection may by now
// hold as many as before. The pass itself does not know the others, unless it began with that in mind.
func (p *pass) emptied() bool {
	return p.began.state.State == counter.Active && p.target.lost == "" && p.report.anew >= fewAnew && 2*p.report.anew > p.report.Checked
}

// keepSighting records the target for the next run to compare with. Touched keys alone tell nothing of documents that are
// gone: only a full pass may lower the count.
func (p *pass) keepSighting(ctx context.Context, full bool) error {
	before := p.began.state.Target
	if !full && before != nil && p.target.seen.Documents <= before.Documents {
		return nil
	}
	return p.states.Sighted(ctx, p.began.state, p.target.seen)
}

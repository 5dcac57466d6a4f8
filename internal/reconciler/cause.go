package reconciler

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

// Cause of a drift: what the evidence says, and "unknown" where it says nothing.
type Cause string

// Causes.
const (
	CauseUnknown      Cause = "unknown"
	CauseEdited       Cause = "edited"         // base or live was written by somebody else: total bears witness
	CauseNoDocument   Cause = "no document"    // there are rows, and nothing to display them
	CauseGap          Cause = "gap"            // events were lost, and it is recorded
	CauseMissingImage Cause = "missing image"  // an event came without the image that tells what it did
	CauseSetApart     Cause = "set apart"      // the document could not take an increment: it is among the dead letters
	CauseTarget       Cause = "target_changed" // the collection of the documents was dropped, replaced or emptied
	CausePartitions   Cause = "partitions"     // the source was divided into another number of lanes
	CauseReset        Cause = "reset"          // an operator moved the checkpoint
	CauseLate         Cause = "late"           // events came after a reconcile had gone past their time
)

// reasonOf is the cause that is on record for a counter.
func reasonOf(s counter.State) Cause {
	if s.State != counter.Rebasing {
		return ""
	}
	switch s.Reason {
	case counter.ReasonGap:
		return CauseGap
	case counter.ReasonMissingImage:
		return CauseMissingImage
	case counter.ReasonTarget:
		return CauseTarget
	case counter.ReasonPartitions:
		return CausePartitions
	case counter.ReasonReset:
		return CauseReset
	default:
		return ""
	}
}

// cause names what the evidence points to. total is moved by the very updates that move base and live: where it
// differs from their sum, somebody else wrote one of them.
func cause(r reading, v verdict, upsert bool, reason Cause) Cause {
	switch {
	case v.unexplained() == 0:
		return CauseLate
	case v.totalAlone, r.document.HasTotal && r.document.Total-r.tail != v.displayed:
		return CauseEdited
	case reason != "":
		return reason
	case r.mark.Reason == counter.ReasonMissingImage:
		return CauseMissingImage
	case upsert && r.mark.ByLane():
		// The document could carry its own mark, and did not.
		return CauseSetApart
	case !r.document.Exists:
		return CauseNoDocument
	default:
		return CauseUnknown
	}
}

// askLetters names the cause of drifts that nothing else explains, where every touched key has its mark in the state database
// and the mark tells nothing. Only drifted keys are asked for, so that it costs nothing where nothing is wrong.
func (p *pass) askLetters(ctx context.Context, verdicts []verdict) error {
	if p.definition.Target.Upsert {
		return nil
	}
	unknown := map[string]*verdict{}
	var keys []bson.RawValue
	for i := range verdicts {
		if v := &verdicts[i]; v.drift != 0 && v.cause == CauseUnknown {
			unknown[counter.Canonical(v.key)] = v
			keys = append(keys, v.key)
		}
	}
	return p.insist(ctx, func() error {
		lettered, err := p.states.Lettered(ctx, p.definition, keys)
		for _, key := range lettered {
			unknown[counter.Canonical(key)].cause = CauseSetApart
		}
		return err
	})
}

package counter

import (
	"context"
	"errors"
	"fmt"

	"github.com/cenkalti/backoff/v4"

	"driftless/internal/checkpoint"
	"driftless/internal/stream"
)

// once makes the effect of a piece happen once, however often its transaction is tried.
type once interface {
	// take is the first write of the transaction. checkpoint.ErrFenced: it has been made before, by whomever.
	take(ctx context.Context, p *piece) error
	// taken decides, outside of the transaction, about one that was refused: nil when an earlier attempt of the piece has come
	// true, else an error that says, by backoff.Permanent, that another attempt cannot help.
	taken(ctx context.Context, p *piece) error
}

// advance is once by the compare-and-set of a lane's checkpoint.
type advance struct{ checkpoints *checkpoint.Store }

func (o advance) take(ctx context.Context, p *piece) error {
	err := o.checkpoints.Advance(ctx, p.from, p.to)
	if stream.HasCode(err, codeWriteConflict) {
		return fmt.Errorf("%w: %w", errHeld, err)
	}
	return err
}

// taken decides a lost compare-and-set by the batch id. The number alone would not do: another owner may have committed the
// same number while our commit was lost.
func (o advance) taken(ctx context.Context, p *piece) error {
	now, err := o.checkpoints.Load(ctx, p.from.Lane)
	switch {
	case errors.Is(err, checkpoint.ErrNone):
		return backoff.Permanent(fmt.Errorf("checkpoint of lane %s is gone: %w", p.from.Lane, checkpoint.ErrFenced))
	case err != nil:
		return err
	case now.Same(p.to):
		return nil
	case now.Same(p.from):
		return fmt.Errorf("the last move of lane %s has not reached a majority yet", p.from.Lane)
	default:
		return backoff.Permanent(fmt.Errorf("lane %s is at %d, not %d: %w", p.from.Lane, now.Seq, p.from.Seq, checkpoint.ErrFenced))
	}
}

package main

import (
	"context"
	"fmt"
	"time"

	"driftless/internal/reconciler"
)

// So many keys are touched, of so many rows each at first, and one more with every round. All others have one row.
const (
	touchedKeys   = 1000
	rowsOfTouched = 10
	touchedRounds = 9
)

// touched measures a run over as many touched keys among few keys and among a hundred times as many, in turn.
func touched(ctx context.Context, on bench, scale float64) error {
	client := on.client
	rowsOfKey := func(key int) int {
		if key < touchedKeys {
			return rowsOfTouched
		}
		return 1
	}
	large := max(10*touchedKeys, int(1_000_000*scale))
	few, err := newCounted(ctx, client, "few", max(touchedKeys, large/100), rowsOfKey)
	if err != nil {
		return err
	}
	many, err := newCounted(ctx, client, "many", large, rowsOfKey)
	if err != nil {
		return err
	}
	var ofFew, ofMany []cost
	for range touchedRounds {
		a, err := few.touchedRun(ctx)
		if err != nil {
			return err
		}
		b, err := many.touchedRun(ctx)
		if err != nil {
			return err
		}
		ofFew, ofMany = append(ofFew, a), append(ofMany, b)
		fmt.Printf("round: %d touched keys  of %d %s  of %d %s\n", touchedKeys, few.keys, a, many.keys, b)
	}
	a, b := middle(ofFew), middle(ofMany)
	fmt.Printf("touched keys: a run over %d takes %.2f times as long among %d keys as among %d, %.2f times the server's processor time (medians of %d rounds: %s and %s)\n",
		touchedKeys, b.took.Seconds()/a.took.Seconds(), many.keys, few.keys, b.server.Seconds()/a.server.Seconds(), touchedRounds, b, a)
	return sweepSlices(ctx, few, many, a.took, b.took)
}

// touchedRun has an incrementer touch the keys, by one new row each, and measures the run that follows.
func (c *counted) touchedRun(ctx context.Context) (cost, error) {
	rows := make([]any, touchedKeys)
	for key := range rows {
		rows[key] = comment(int64(key), false)
	}
	if err := insert(ctx, c.rows, rows); err != nil {
		return cost{}, err
	}
	if _, err := c.catchUp(ctx, len(rows)); err != nil {
		return cost{}, err
	}
	return timed(ctx, c.client, func() error {
		checked, err := c.run(ctx, reconciler.Options{})
		if err == nil && checked != touchedKeys {
			return fmt.Errorf("%d keys checked, want %d", checked, touchedKeys)
		}
		return err
	})
}

// sweepSlices tells what a run's slice of the sweep over all keys adds on average: a full pass, spread over all runs.
func sweepSlices(ctx context.Context, few, many *counted, ofFew, ofMany time.Duration) error {
	slice := func(c *counted) (pass time.Duration, err error) {
		err = c.followed(ctx, func(ctx context.Context) error {
			took, err := c.fullPass(ctx)
			pass = took.took
			return err
		})
		return pass / (c.config.Reconciler.Sweep / c.config.Reconciler.Every), err
	}
	a, err := slice(few)
	if err != nil {
		return err
	}
	b, err := slice(many)
	if err != nil {
		return err
	}
	settings := few.config.Reconciler
	fmt.Printf("with its slice of the sweep (every %s, sweep %s): %.2f times as long, %s and %s more a run on average\n",
		settings.Every, settings.Sweep, (ofMany+b).Seconds()/(ofFew+a).Seconds(), b.Round(time.Microsecond), a.Round(time.Microsecond))
	return nil
}

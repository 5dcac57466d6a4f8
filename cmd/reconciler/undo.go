package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

func undoCommand() *cobra.Command {
	var release bool
	cmd := &cobra.Command{
		Use:   "undo RUN",
		Short: "Take the repairs of a run back, and keep its keys from repair until released",
		Long: "undo takes off each counter exactly what the run's repair has added, once, whatever has come since. The keys are then\n" +
			"reported as skipped (undone) and not repaired until `reconciler undo RUN --release`. A document that the repair made\n" +
			"stays, at zero or what has come since. It exits with 1 when some repairs could not be taken back.",
		Example: "  reconciler undo 6b0e014554849a0878ce723b\n  reconciler undo 6b0e014554849a0878ce723b --release",
		Args:    oneRun,
	}
	cmd.Flags().BoolVar(&release, "release", false, "let the keys be repaired again that an undo of this run keeps from it")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, definitions, err := command.Load(cmd)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		client, err := connect(ctx, c, definitions, reconciler.Options{})
		if err != nil {
			return err
		}
		defer deployment.Close(ctx, client)
		state := c.MongoDB.StateDatabase
		journal := counter.NewJournal(client, checkpoint.NewStore(client, state), counter.NewStates(client, state))
		if release {
			return releaseKeys(cmd, client, c, journal, args[0], *output)
		}
		all, err := journal.Undo(ctx, args[0], definitions)
		if err == nil && len(all) == 0 {
			err = knownRun(ctx, client, c, journal, args[0])
		}
		if err := printUndone(cmd.OutOrStdout(), args[0], all, err, *output); err != nil {
			return err
		}
		return undoOutcome(all, err)
	}
	return cmd
}

// knownRun returns a usage error when nothing is known of a run that has nothing to take back.
func knownRun(ctx context.Context, client *mongo.Client, c *config.Config, journal *counter.Journal, id string) error {
	_, err := reconciler.NewHistory(client, c.MongoDB.StateDatabase).Run(ctx, id)
	if !errors.Is(err, reconciler.ErrNoRun) {
		return err
	}
	if known, err := journal.Knows(ctx, id); known || err != nil {
		return err
	}
	return daemon.Usagef("there is no run %s: `reconciler report` lists the runs", id)
}

func printUndone(w io.Writer, run string, all []*counter.Undone, failure error, output daemon.Output) error {
	switch {
	case failure != nil && len(all) == 0:
		return nil
	case output == daemon.JSON:
		if all == nil {
			all = []*counter.Undone{}
		}
		return daemon.WriteJSON(w, struct {
			Run      string            `json:"run"`
			Counters []*counter.Undone `json:"counters"`
		}{run, all})
	case len(all) == 0:
		_, err := fmt.Fprintf(w, "nothing to undo: no repair of run %s is left\n", run)
		return err
	}
	table := daemon.NewTable(w, "COUNTER", "UNDONE", "GONE", "LEFT", "WHY")
	for _, u := range all {
		table.Row(u.Counter, u.Undone, u.Gone, u.Left, orDash(u.Why))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\nThese keys are not repaired until `reconciler undo %s --release`.\n", run)
	return err
}

// undoOutcome is nil when everything was taken back.
func undoOutcome(all []*counter.Undone, failure error) error {
	if failure != nil {
		return failure
	}
	for _, u := range all {
		if u.Left > 0 {
			return fmt.Errorf("%s of %s not taken back: %s", count(u.Left, "repair"), u.Counter, u.Why)
		}
	}
	return nil
}

func releaseKeys(cmd *cobra.Command, client *mongo.Client, c *config.Config, journal *counter.Journal, run string, output daemon.Output) error {
	n, err := journal.Release(cmd.Context(), run)
	if err == nil && n == 0 {
		err = knownRun(cmd.Context(), client, c, journal, run)
	}
	if err != nil {
		return err
	}
	if output == daemon.JSON {
		return daemon.WriteJSON(cmd.OutOrStdout(), struct {
			Run      string `json:"run"`
			Released int64  `json:"released"`
		}{run, n})
	}
	text := fmt.Sprintf("released %s: the next run repairs what is wrong\n", count(n, "key"))
	if n == 0 {
		text = fmt.Sprintf("nothing to release: no key is kept from repair by an undo of run %s\n", run)
	}
	_, err = fmt.Fprint(cmd.OutOrStdout(), text)
	return err
}

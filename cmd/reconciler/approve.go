package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

func approveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "approve RUN",
		Short: "Repair the counters that a run has held",
		Long: "approve runs once more over the counters whose repairs the given run has held, and repairs them however many keys have\n" +
			"drifted. It looks at every key, since later runs may have found more than the one that is named. A counter that is held\n" +
			"no more is left to the next run.",
		Example: "  reconciler approve 6b0e014554849a0878ce723b",
		Args:    oneRun,
	}
	output := daemon.OutputFlag(cmd)
	limit := cmd.Flags().Int("limit", 1000, "drifted `keys` to list for each counter, the largest; 0 for all")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, definitions, err := command.Load(cmd)
		if err != nil {
			return err
		}
		options, err := approved(cmd.Context(), c, definitions, args[0])
		if err != nil {
			return err
		}
		if len(options.Approved) == 0 {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "nothing to approve: no counter is held by run %s any more\n", args[0])
			return err
		}
		options.Limit = *limit
		return runOnce(cmd, c, definitions, options, once{output: *output})
	}
	return cmd
}

// oneRun takes the id of one run.
func oneRun(cmd *cobra.Command, args []string) error {
	if len(args) != 1 || args[0] == "" {
		return daemon.Usagef("%s takes one run: its id stands in the log, in the report and in `reconciler report`", cmd.Name())
	}
	return nil
}

// approved are the options that approve a run: no counters when none of it is held any more.
func approved(ctx context.Context, c *config.Config, definitions []*counter.Definition, id string) (reconciler.Options, error) {
	client, err := connect(ctx, c, definitions, reconciler.Options{})
	if err != nil {
		return reconciler.Options{}, err
	}
	defer deployment.Close(ctx, client)
	history := reconciler.NewHistory(client, c.MongoDB.StateDatabase)
	run, err := history.Run(ctx, id)
	if errors.Is(err, reconciler.ErrNoRun) {
		return reconciler.Options{}, unknownRun(ctx, history, id)
	}
	if err != nil {
		return reconciler.Options{}, err
	}
	held, err := stillHeld(ctx, client, c, definitions, run.Held)
	return reconciler.Options{Full: true, Approved: held}, err
}

// stillHeld leaves out the counters that have been repaired since, or are no more.
func stillHeld(ctx context.Context, client *mongo.Client, c *config.Config, definitions []*counter.Definition, names []string) (held []string, err error) {
	states, err := counter.NewStates(client, c.MongoDB.StateDatabase).All(ctx)
	for _, d := range definitions {
		if slices.Contains(names, d.Name) && states[d.Name].HeldBy(d) != "" {
			held = append(held, d.Name)
		}
	}
	return held, err
}

// maxKnown is how many runs an error names.
const maxKnown = 5

// unknownRun says which runs there are to approve.
func unknownRun(ctx context.Context, history *reconciler.History, id string) error {
	runs, err := history.Held(ctx, maxKnown)
	if err != nil {
		return err
	}
	if len(runs) == 0 {
		return daemon.Usagef("there is no run %s, and none that has held a repair: `reconciler report` lists the runs", id)
	}
	known := make([]string, len(runs))
	for i, run := range runs {
		known[i] = fmt.Sprintf("%s (%s)", run.ID, strings.Join(run.Held, ", "))
	}
	return daemon.Usagef("there is no run %s: those that held a repair last are %s", id, strings.Join(known, ", "))
}

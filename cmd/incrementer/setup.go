package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/deployment"
)

// patience is how long a step may take before setup says that it is still at it.
const patience = 3 * time.Second

func setupCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create what is needed: images on the rows' collections, indexes, own collections",
		Long: "setup says what it does, one line a step, and does only what is missing: it can be run again at any time.\n" +
			"It never changes or deletes data. When something is wrong that it cannot create, it does nothing at all.",
		Example: "  incrementer setup --dry-run\n  incrementer setup",
		RunE:    func(cmd *cobra.Command, _ []string) error { return setup(cmd, dryRun) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	return cmd
}

func setup(cmd *cobra.Command, dryRun bool) error {
	c, definitions, err := command.Load(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	if err := deployment.Permitted(ctx, client, deployment.Privileges(c, definitions, deployment.Look)); err != nil {
		return err
	}
	steps, faults := deployment.Plan(ctx, client, c, definitions)
	switch {
	case faults != nil:
		return faults
	case len(steps) == 0:
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "nothing to do: everything is there")
		return err
	case dryRun:
		return announce(cmd.OutOrStdout(), steps)
	default:
		return do(ctx, cmd, steps)
	}
}

func announce(w io.Writer, steps []deployment.Step) error {
	for _, step := range steps {
		if _, err := fmt.Fprintln(w, "would "+step.What); err != nil {
			return err
		}
	}
	return nil
}

// do takes the steps one after the other; a long one, as an index of a large collection, shows that it is at work.
func do(ctx context.Context, cmd *cobra.Command, steps []deployment.Step) error {
	for _, step := range steps {
		slow := time.AfterFunc(patience, func() {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "still at it: %s\n", step.What)
		})
		err := step.Do(ctx)
		slow.Stop()
		if err != nil {
			return fmt.Errorf("%s: %w", step.What, err)
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), "done: "+step.What); err != nil {
			return err
		}
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"driftless/internal/deployment"
)

func setupCommand() *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Create what is needed: images on the rows' collections, indexes, own collections",
		Long: "setup says what it does, one line a step, and does only what is missing: it can be run again at any time.\n" +
			"It never changes or deletes data.",
		RunE: func(cmd *cobra.Command, _ []string) error { return setup(cmd, dryRun) },
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only say what would be done")
	return cmd
}

func setup(cmd *cobra.Command, dryRun bool) error {
	c, definitions, err := load(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	steps, faults := deployment.Plan(ctx, client, c, definitions)
	out := cmd.OutOrStdout()
	for _, step := range steps {
		if dryRun {
			fmt.Fprintln(out, "would "+step.What)
			continue
		}
		if err := step.Do(ctx); err != nil {
			return errors.Join(faults, fmt.Errorf("%s: %w", step.What, err))
		}
		fmt.Fprintln(out, "done: "+step.What)
	}
	if len(steps) == 0 && faults == nil {
		fmt.Fprintln(out, "nothing to do: everything is there")
	}
	return faults
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// choice is which counters and keys a verb looks at.
type choice struct {
	counter, key string
	full         bool
	limit        int
}

func (o *choice) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.counter, "counter", "", "only this counter (name; default all)")
	cmd.Flags().StringVar(&o.key, "key", "", "only this key: extended JSON, a bare text, or the 24 digits of an ObjectId (default all)")
	cmd.Flags().BoolVar(&o.full, "full", false, "every key, not only those touched since the last run")
	cmd.Flags().IntVar(&o.limit, "limit", 1000, "drifted keys to list for each counter, the largest (0 for all)")
}

// options checks a choice against what is declared.
func (o *choice) options(definitions []*counter.Definition) (reconciler.Options, error) {
	options := reconciler.Options{Counter: o.counter, Full: o.full, Limit: o.limit}
	names := make([]string, len(definitions))
	for i, d := range definitions {
		names[i] = d.Name
	}
	if o.counter != "" && !slices.Contains(names, o.counter) {
		return options, daemon.Usagef("--counter %s is not declared; the counters are %s", o.counter, strings.Join(names, ", "))
	}
	if o.limit < 0 {
		return options, daemon.Usagef("--limit %d is negative; 0 lists all", o.limit)
	}
	if o.key == "" {
		return options, nil
	}
	key, err := counter.ParseKey(o.key)
	if err != nil {
		return options, daemon.Usagef("--key %s: %v", o.key, err)
	}
	options.Key = key
	return options, nil
}

func runCommand() *cobra.Command {
	var (
		chosen                    choice
		once, dryRun, failOnDrift bool
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Reconcile every so often, or once: recount, report, repair",
	}
	chosen.register(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "one run, then exit: 0, or 1 when something could not be judged")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing, not even marks")
	cmd.Flags().BoolVar(&failOnDrift, "fail-on-drift", false, "exit 3 when drift was found (with --once)")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, definitions, err := load(cmd)
		if err != nil {
			return err
		}
		options, err := chosen.options(definitions)
		if err != nil {
			return err
		}
		options.DryRun = dryRun
		if !once {
			if failOnDrift || chosen.key != "" {
				return daemon.Usagef("--fail-on-drift and --key need --once")
			}
			return daemon.CleanStop(cmd.Context(), loop(cmd.Context(), c, definitions, options))
		}
		return runOnce(cmd, c, definitions, options, *output, failOnDrift)
	}
	return cmd
}

func verifyCommand() *cobra.Command {
	var chosen choice
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare and report, and change nothing: exits 3 on drift, 1 when a counter could not be judged",
	}
	chosen.register(cmd)
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, definitions, err := load(cmd)
		if err != nil {
			return err
		}
		options, err := chosen.options(definitions)
		if err != nil {
			return err
		}
		options.DryRun = true
		return runOnce(cmd, c, definitions, options, *output, true)
	}
	return cmd
}

// runOnce does one run and prints its report.
func runOnce(cmd *cobra.Command, c *config.Config, definitions []*counter.Definition, options reconciler.Options,
	output daemon.Output, failOnDrift bool,
) error {
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	r := newReconciler(client, c, definitions, prometheus.NewRegistry())
	report, failure := r.RunOnce(ctx, options)
	if output == daemon.JSON {
		err = daemon.WriteJSON(cmd.OutOrStdout(), report)
	} else {
		err = printReport(cmd.OutOrStdout(), report)
	}
	return errors.Join(failure, err, verdict(report, failOnDrift))
}

// verdict is the error that a report's exit code comes from: drift counts more than something not judged.
func verdict(report *reconciler.Report, failOnDrift bool) error {
	switch {
	case report.Result == reconciler.ResultFailed:
		return nil // its own error says it
	case failOnDrift && report.Drifted():
		return daemon.WithExitCode(errors.New("drift found"), daemon.Drift)
	case !report.Complete():
		return fmt.Errorf("not everything could be judged: the run is %s", report.Result)
	default:
		return nil
	}
}

func newReconciler(client *mongo.Client, c *config.Config, definitions []*counter.Definition, registry prometheus.Registerer) *reconciler.Reconciler {
	return reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler,
		reconciler.NewMetrics(registry, definitions), logger(c))
}

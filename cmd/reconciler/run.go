package main

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

func runCommand() *cobra.Command {
	var (
		chosen                    choice
		once, dryRun, failOnDrift bool
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Reconcile every so often, or once: recount, report, repair",
		Long: "run reconciles every so often until it is stopped; its port serves /status, /healthz, /readyz and /metrics.\n" +
			"With --once it does one run and prints its report: it exits with 0, with 1 when something could not be judged, and\n" +
			"with 3 when repairs were held (`reconciler approve RUN`), or drift was found and --fail-on-drift is given.",
		Example: "  reconciler run\n" +
			"  reconciler run --once --full -o json\n" +
			"  reconciler run --once --counter comments_per_post --key 42",
	}
	chosen.register(cmd)
	cmd.Flags().BoolVar(&once, "once", false, "one run, then exit")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing, not even marks")
	cmd.Flags().BoolVar(&failOnDrift, "fail-on-drift", false, "exit with 3 when drift was found; needs --once")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := onlyWithOnce(cmd, once); err != nil {
			return err
		}
		c, definitions, options, err := chosen.load(cmd)
		if err != nil {
			return err
		}
		options.DryRun = dryRun
		if !once {
			return daemon.CleanStop(cmd.Context(), loop(cmd.Context(), c, definitions, options))
		}
		return runOnce(cmd, c, definitions, options, *output, failOnDrift)
	}
	return cmd
}

// onlyWithOnce refuses flags that mean nothing to a loop.
func onlyWithOnce(cmd *cobra.Command, once bool) error {
	for _, name := range []string{"fail-on-drift", "key", "limit", "output"} {
		if !once && cmd.Flags().Changed(name) {
			return daemon.Usagef("--%s needs --once", name)
		}
	}
	return nil
}

func verifyCommand() *cobra.Command {
	var chosen choice
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare and report, and change nothing: exits with 3 on drift, 1 when a counter could not be judged",
		Long: "verify compares and reports, and changes nothing. It exits with 0 when every counter is right, with 3 when drift was\n" +
			"found, else with 1 when something could not be judged.",
		Example: "  reconciler verify --full\n" +
			"  reconciler verify --counter comments_per_post --key 42\n" +
			"  reconciler verify --full -o json | jq '.counters[].drifted[]'",
	}
	chosen.register(cmd)
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, definitions, options, err := chosen.load(cmd)
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
	client, err := connect(ctx, c, definitions, options)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	log := command.Logger(quietLevel(c.Log.Level, options.DryRun || daemon.IsTerminal(os.Stderr)), c.Log.Format)
	r := reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler,
		reconciler.NewMetrics(prometheus.NewRegistry(), definitions), log)
	report, failure := r.RunOnce(ctx, options)
	if output == daemon.JSON {
		err = daemon.WriteJSON(cmd.OutOrStdout(), report)
	} else {
		err = printReport(cmd.OutOrStdout(), report, options)
	}
	if err != nil {
		return err
	}
	return outcome{report, failure, failOnDrift, options.DryRun, options.Full}.err()
}

// quietLevel leaves out of the log what the report says as well, when someone reads both or nothing is written; a run
// that repairs unwatched leaves its trail before each repair.
func quietLevel(level string, quiet bool) string {
	if quiet && level != "debug" {
		return "error"
	}
	return level
}

package main

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

func runCommand() *cobra.Command {
	var (
		chosen                              choice
		single, dryRun, failOnDrift, resume bool
		metricsFile                         string
	)
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Reconcile every so often, or once: recount, report, repair",
		Long: "run reconciles every so often until it is stopped; its port serves /status, /healthz, /readyz and /metrics.\n" +
			"With --once it does one run and prints its report: it exits with 0, with 1 when something could not be judged, and\n" +
			"with 3 when repairs were held (`reconciler approve RUN`), or drift was found and --fail-on-drift is given.\n" +
			"A full run that was broken off goes on with --resume; the recounts that the loop has to make do so by themselves.",
		Example: "  reconciler run\n" +
			"  reconciler run --once --full -o json\n" +
			"  reconciler run --once --counter comments_per_post --key 42",
	}
	chosen.register(cmd)
	cmd.Flags().BoolVar(&single, "once", false, "one run, then exit")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "write nothing, not even marks")
	cmd.Flags().BoolVar(&failOnDrift, "fail-on-drift", false, "exit with 3 when drift was found; needs --once")
	cmd.Flags().BoolVar(&resume, "resume", false, "go on with a full run that was broken off; needs --full")
	cmd.Flags().StringVar(&metricsFile, "metrics-file", "", "`FILE` to write the metrics of the run to, for node_exporter's textfile collector; needs --once")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := errors.Join(onlyWithOnce(cmd, single), canHold(metricsFile)); err != nil {
			return err
		}
		c, definitions, options, err := chosen.load(cmd)
		if err != nil {
			return err
		}
		options.DryRun, options.Resume = dryRun, resume
		if resume && (!options.Full || dryRun) {
			return daemon.Usagef("--resume goes on with a full run, which a dry run leaves no trace of: give it with --full, and without --dry-run")
		}
		if !single {
			return daemon.CleanStop(cmd.Context(), loop(cmd.Context(), c, definitions, options))
		}
		return runOnce(cmd, c, definitions, options, once{output: *output, failOnDrift: failOnDrift, metricsFile: metricsFile})
	}
	return cmd
}

// canHold refuses a file in a directory that is not there, before a run whose metrics would be lost.
func canHold(file string) error {
	if file == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(file)); err != nil || !info.IsDir() {
		return daemon.Usagef("--metrics-file %s is in no directory that is there: create %s", file, filepath.Dir(file))
	}
	return nil
}

// onlyWithOnce refuses flags that mean nothing to a loop.
func onlyWithOnce(cmd *cobra.Command, once bool) error {
	for _, name := range []string{"fail-on-drift", "key", "limit", "output", "metrics-file", "resume"} {
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
			"found, else with 1 when something could not be judged. With --rows it compares a counter that the application keeps\n" +
			"by itself, without a configuration file and as a user that may read these two collections and nothing else.",
		Example: "  reconciler verify --rows app.likes --key post_id --count app.posts.like_count\n" +
			"  reconciler verify --full\n" +
			"  reconciler verify --counter comments_per_post --key 42\n" +
			"  reconciler verify --full -o json | jq '.counters[].drifted[]'",
	}
	chosen.register(cmd)
	registerUndeclared(cmd)
	cmd.Flags().Duration("settle", 0, "how long a change of the application may be under way between row and counter (default reconciler.settle)")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		given, err := undeclared(cmd)
		if err != nil {
			return err
		}
		seeing := reconciler.Options{DryRun: true, Limit: chosen.limit}
		if given != nil {
			return verifyUndeclared(cmd, given, seeing, *output)
		}
		c, definitions, options, err := chosen.load(cmd)
		if err == nil {
			err = settle(cmd, c)
		}
		if err != nil {
			return err
		}
		options.DryRun = true
		return runOnce(cmd, c, definitions, options, once{output: *output, failOnDrift: true})
	}
	return cmd
}

// settle lets the flag of that name go before the setting.
func settle(cmd *cobra.Command, c *config.Config) error {
	if !cmd.Flags().Changed("settle") {
		return nil
	}
	d, err := cmd.Flags().GetDuration("settle")
	if err == nil && d < 0 {
		err = daemon.Usagef("--settle %s is negative", d)
	}
	c.Reconciler.Settle = d
	return err
}

// once is how the report of one run is told.
type once struct {
	output      daemon.Output
	failOnDrift bool
	mend        string // how drift is repaired, "" for the verbs
	metricsFile string // "" for none
}

// runOnce does one run and prints its report.
func runOnce(cmd *cobra.Command, c *config.Config, definitions []*counter.Definition, options reconciler.Options, told once) error {
	client, err := connect(cmd.Context(), c, definitions, options)
	if err != nil {
		return err
	}
	defer deployment.Close(cmd.Context(), client)
	return onceWith(cmd, client, c, definitions, options, told)
}

// onceWith is runOnce on a connection.
func onceWith(cmd *cobra.Command, client *mongo.Client, c *config.Config, definitions []*counter.Definition, options reconciler.Options, told once) error {
	log := command.Logger(quietLevel(c.Log.Level, options.DryRun || daemon.IsTerminal(os.Stderr)), c.Log.Format)
	registry := prometheus.NewRegistry()
	r := reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler, reconciler.NewMetrics(registry, definitions), log)
	options.Wait, options.Tell, options.Progress = true, func(what string) { tell(cmd, what) }, progressOf(cmd)
	report, failure := r.RunOnce(cmd.Context(), options)
	var err error
	if told.output == daemon.JSON {
		err = daemon.WriteJSON(cmd.OutOrStdout(), report)
	} else {
		err = printReport(cmd.OutOrStdout(), report, scope{options, definitions, c.Reconciler.Settle})
	}
	if err == nil && told.metricsFile != "" {
		err = prometheus.WriteToTextfile(told.metricsFile, registry) // at once, under another name first
	}
	if err != nil {
		return err
	}
	return outcome{report, failure, told.failOnDrift, options.DryRun, options.Full, keyArgument(options), told.mend}.err()
}

// keyArgument is the one key that options look at, as a command line has it.
func keyArgument(o reconciler.Options) string {
	if o.Key.IsZero() {
		return ""
	}
	return counter.KeyArgument(o.Key)
}

// quietLevel leaves out of the log what the report says as well, when someone reads both or nothing is written; a run
// that repairs unwatched leaves its trail before each repair.
func quietLevel(level string, quiet bool) string {
	if quiet && level != "debug" {
		return "error"
	}
	return level
}

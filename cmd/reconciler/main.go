// Command reconciler compares counters with a recount of their rows, reports the drift and repairs it.
package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
)

const program = "reconciler"

func main() { os.Exit(daemon.Main(command())) }

// command is the tree of verbs.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Find out how wrong counters are, say why, and repair them",
		Long: "reconciler recounts the rows of the counters touched since its last run, at the very position that the counter\n" +
			"reflects, reports the drift (displayed - truth) with its sign, and repairs it. `reconciler verify` only looks.",
	}
	config.RegisterFlags(root.PersistentFlags(), "mongodb", "log", program)
	root.AddCommand(runCommand(), verifyCommand(), validateCommand(),
		daemon.HealthcheckCommand(listen), daemon.VersionCommand(program))
	return root
}

// load reads the configuration that the flags, the environment and the file give.
func load(cmd *cobra.Command) (*config.Config, []*counter.Definition, error) {
	c, err := config.Load(config.FromFlags(cmd.Flags(), os.LookupEnv))
	if err != nil {
		return nil, nil, err
	}
	definitions, err := counter.DefineAll(c.Counters)
	return c, definitions, err
}

func listen(cmd *cobra.Command) (string, error) {
	c, _, err := load(cmd)
	if err != nil {
		return "", err
	}
	return c.Reconciler.Listen, nil
}

func logger(c *config.Config) *slog.Logger {
	log := daemon.NewLogger(os.Stderr, c.Log.Level, c.Log.Format, daemon.IsTerminal(os.Stderr))
	slog.SetDefault(log)
	return log
}

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Read the configuration and report every fault at once; connects to nothing",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := load(cmd)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "configuration is valid: %d sources, %d counters\n", len(c.Sources), len(c.Counters))
			return err
		},
	}
}

// Command incrementer follows what happens to rows and keeps the counters that count them.
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

const program = "incrementer"

func main() { os.Exit(daemon.Main(command())) }

// command is the tree of verbs.
func command() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Keep counters right: apply what happens to rows, exactly once",
		Long: "incrementer follows MongoDB change streams and applies what happens to rows to the counters that count them,\n" +
			"exactly once: its position is committed in the same transaction.",
		Example: "  incrementer validate --config driftless.yaml\n" +
			"  incrementer setup --dry-run\n" +
			"  incrementer setup\n" +
			"  incrementer run",
	}
	config.RegisterFlags(root.PersistentFlags(), "mongodb", "log", program)
	root.AddCommand(runCommand(), validateCommand(), setupCommand(), statusCommand(),
		daemon.HealthcheckCommand(listen), daemon.VersionCommand(program))
	return root
}

// load reads the configuration that the flags, the environment and the file give.
func load(cmd *cobra.Command) (*config.Config, []*counter.Definition, error) {
	c, err := config.Load(config.FromFlags(cmd.Flags(), os.LookupEnv))
	if err != nil {
		return nil, nil, daemon.WithExitCode(err, daemon.Config)
	}
	definitions, err := counter.DefineAll(c.Counters)
	return c, definitions, daemon.WithExitCode(err, daemon.Config)
}

func listen(cmd *cobra.Command) (string, error) {
	c, _, err := load(cmd)
	if err != nil {
		return "", err
	}
	return c.Incrementer.Listen, nil
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
		Long: "validate reads the file, the variables and the flags, and reports every fault at once, each with its file and line.\n" +
			"It connects to nothing. It exits with 0, or with 78 when something is wrong.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := load(cmd)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid; sources: %d, counters: %d\n",
				config.FilePath(cmd.Flags(), os.LookupEnv), len(c.Sources), len(c.Counters))
			return err
		},
	}
}

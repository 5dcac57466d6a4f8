// Package command is what the command lines of both programs share: reading the configuration, logging, validate.
package command

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
)

// Load reads the configuration that the flags, the environment and the file give. Its errors end a program with
// daemon.Config.
func Load(cmd *cobra.Command) (*config.Config, []*counter.Definition, error) {
	c, err := config.Load(config.FromFlags(cmd.Flags(), os.LookupEnv))
	if err != nil {
		return nil, nil, daemon.WithExitCode(err, daemon.Config)
	}
	definitions, err := counter.DefineAll(c.Counters)
	return c, definitions, daemon.WithExitCode(err, daemon.Config)
}

// Logger logs to stderr, and is the process's default from then on.
func Logger(level, format string) *slog.Logger {
	log := daemon.NewLogger(os.Stderr, level, format, daemon.IsTerminal(os.Stderr))
	slog.SetDefault(log)
	return log
}

// Instance names this process among those that share its work, by the address it listens on. A restarted one has the name
// of the one before.
func Instance(address string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return host + "/" + address
}

// Validate builds the validate verb.
func Validate() *cobra.Command {
	return &cobra.Command{
		Use:   "validate",
		Short: "Read the configuration and report every fault at once; connects to nothing",
		Long: "validate reads the file, the variables and the flags, and reports every fault at once, each with its file and line.\n" +
			"It connects to nothing. It exits with 0, or with 78 when something is wrong.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, _, err := Load(cmd)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s is valid; sources: %d, counters: %d\n",
				config.FilePath(cmd.Flags(), os.LookupEnv), len(c.Sources), len(c.Counters))
			return err
		},
	}
}

// Listen builds what the healthcheck verb asks for its address.
func Listen(address func(*config.Config) string) func(*cobra.Command) (string, error) {
	return func(cmd *cobra.Command) (string, error) {
		c, _, err := Load(cmd)
		if err != nil {
			return "", err
		}
		return address(c), nil
	}
}

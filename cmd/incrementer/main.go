// Command incrementer follows what happens to rows and keeps the counters that count them.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
)

const program = "incrementer"

func main() { os.Exit(daemon.Main(verbs())) }

func listen(c *config.Config) string { return c.Incrementer.Listen }

// verbs is the tree of commands.
func verbs() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Keep counters right: apply what happens to rows, exactly once",
		Long: "incrementer follows MongoDB change streams and applies what happens to rows to the counters that count them,\n" +
			"exactly once: its position is committed in the same transaction.",
		Example: "  incrementer validate --config driftless.yaml\n" +
			"  incrementer setup --dry-run\n" +
			"  incrementer setup\n" +
			"  incrementer check\n" +
			"  incrementer run",
	}
	config.RegisterFlags(root.PersistentFlags(), "mongodb", "log", program)
	root.AddCommand(runCommand(), command.Validate(), command.Check(program, deployment.Follow, listen), setupCommand(), statusCommand(), checkpointCommand(), deadlettersCommand(),
		daemon.HealthcheckCommand(command.Listen(listen)), daemon.VersionCommand(program))
	return root
}

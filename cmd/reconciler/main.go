// Command reconciler compares counters with a recount of their rows, reports the drift and repairs it.
package main

import (
	"os"

	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
)

const program = "reconciler"

func main() { os.Exit(daemon.Main(verbs())) }

func listen(c *config.Config) string { return c.Reconciler.Listen }

// verbs is the tree of commands.
func verbs() *cobra.Command {
	root := &cobra.Command{
		Use:   program,
		Short: "Find out how wrong counters are, say why, and repair them",
		Long: "reconciler recounts the rows of the counters touched since its last run, at the very position that the counter\n" +
			"reflects, reports the drift (displayed - truth) with its sign, and repairs it. `reconciler verify` only looks,\n" +
			"`reconciler explain` shows what one counter is made of, `reconciler report` tells of the latest runs, and\n" +
			"`reconciler undo RUN` takes the repairs of one back.",
		Example: "  reconciler check\n" +
			"  reconciler verify --full\n" +
			"  reconciler run --once --full\n" +
			"  reconciler run",
	}
	config.RegisterFlags(root.PersistentFlags(), "mongodb", "log", program)
	root.AddCommand(runCommand(), verifyCommand(), explainCommand(), reportCommand(), approveCommand(), undoCommand(),
		command.Validate(), command.Check(program, deployment.Reconcile, listen),
		daemon.HealthcheckCommand(command.Listen(listen)), daemon.VersionCommand(program))
	return root
}

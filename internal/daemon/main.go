package daemon

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// Main runs the verb that the command line names and returns the process's exit code. Verbs get a context that ends at
// the first signal. An error is printed on stderr as one line that begins with the program's name; one that spans lines,
// as a list of faults does, keeps them. Main makes the command line strict: unknown verbs, unknown flags and stray
// arguments are errors wherever they stand, and a command without an Args rule takes none.
func Main(root *cobra.Command) int {
	ctx, stop := Signals(context.Background()) // the root of every other context
	defer stop()
	return execute(ctx, root)
}

func execute(ctx context.Context, root *cobra.Command) int {
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err: err} })
	root.InitDefaultCompletionCmd() // cobra would add it later, and leniently
	makeStrict(root)
	root.SetUsageTemplate(usageTemplate)

	cmd, err := root.ExecuteContextC(ctx)
	if err != nil {
		printError(ctx, root.ErrOrStderr(), cmd, err)
	}
	return ExitCode(err)
}

// printError ignores what writing to stderr returns: there is nowhere left to report it.
func printError(ctx context.Context, w io.Writer, cmd *cobra.Command, err error) {
	text := strings.TrimRight(err.Error(), "\n")
	switch code := ExitCode(err); {
	case code == Usage:
		text += fmt.Sprintf(" (run '%s -h')", cmd.CommandPath())
	case code == Config && strings.Contains(text, "\n"):
		text = "the configuration has faults\n" + text // each fault begins its line with file:line, as editors expect
	case code == Failed && interrupted(ctx, err):
		text = fmt.Sprintf("%s before it was done (%s)", context.Cause(ctx), text)
	}
	_, _ = fmt.Fprintf(w, "%s: %s\n", cmd.Root().Name(), text)
}

// makeStrict closes the gaps that cobra leaves open below cmd: it lets a group without a verb, or with a misspelt one,
// print help and exit 0, and lets a command without an Args rule ignore its arguments.
func makeStrict(cmd *cobra.Command) {
	switch {
	case !cmd.Runnable():
		cmd.Args, cmd.RunE = knownVerb, missingVerb
		cmd.SuggestionsMinimumDistance = 2         // edits, as many as cobra allows where it suggests by itself
		cmd.FParseErrWhitelist.UnknownFlags = true // so that "rnu --once" is about rnu, not about --once
	case cmd.Args == nil:
		cmd.Args = noArgs
	}
	cmd.Args = asUsage(cmd.Args)
	for _, sub := range cmd.Commands() {
		makeStrict(sub)
	}
}

// asUsage marks what is wrong with arguments and flags as bad usage. Required and exclusive flags are checked here,
// since cobra returns those faults without passing them to the FlagErrorFunc.
func asUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		if err == nil {
			err = cmd.ValidateRequiredFlags()
		}
		if err == nil {
			err = cmd.ValidateFlagGroups()
		}
		if err != nil {
			return &usageError{err: err}
		}
		return nil
	}
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%s takes no arguments, but got %q", cmd.Name(), args[0])
	}
	return nil
}

func knownVerb(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if similar := cmd.SuggestionsFor(args[0]); len(similar) > 0 {
		return fmt.Errorf("unknown command %q, did you mean %s?", args[0], strings.Join(similar, " or "))
	}
	return fmt.Errorf("unknown command %q: it is one of %s", args[0], verbs(cmd))
}

func missingVerb(cmd *cobra.Command, _ []string) error {
	return Usagef("no command given: it is one of %s", verbs(cmd))
}

func verbs(cmd *cobra.Command) string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return strings.Join(names, ", ")
}

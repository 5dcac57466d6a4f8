package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// faults stands for config.Faults: several lines, an exit code of its own.
type faults struct{}

func (faults) Error() string { return "d.yaml:3: unknown key\nd.yaml:9: no such source\n" }
func (faults) ExitCode() int { return Config }

// program is a command line with every kind of verb; run is what its leaf verbs do.
func program(run func(context.Context) error) *cobra.Command {
	runE := func(cmd *cobra.Command, _ []string) error { return run(cmd.Context()) }
	root := &cobra.Command{Use: "incrementer"}

	loop := &cobra.Command{Use: "run", RunE: runE}
	loop.Flags().Bool("once", false, "")

	reset := &cobra.Command{Use: "reset LANE", Args: cobra.ExactArgs(1), RunE: runE}
	reset.Flags().String("to", "", "")
	if err := reset.MarkFlagRequired("to"); err != nil {
		panic(err)
	}
	reset.Flags().Bool("all", false, "")
	reset.Flags().Bool("one", false, "")
	reset.MarkFlagsMutuallyExclusive("all", "one")

	checkpoint := &cobra.Command{Use: "checkpoint"}
	checkpoint.AddCommand(reset, &cobra.Command{Use: "list", RunE: runE})
	root.AddCommand(loop, checkpoint)
	return root
}

func executeArgs(ctx context.Context, root *cobra.Command, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&errs)
	root.SetArgs(args)
	code = execute(ctx, root)
	return code, out.String(), errs.String()
}

func TestMainMapsErrorsToExitCodesAndOneLine(t *testing.T) {
	for name, tt := range map[string]struct {
		args   string
		err    error
		code   int
		stderr string
	}{
		"success":             {args: "run", code: OK},
		"help":                {args: "run -h", code: OK},
		"help of a group":     {args: "checkpoint -h", code: OK},
		"help verb":           {args: "help run", code: OK},
		"completion":          {args: "completion bash", code: OK},
		"argument and flag":   {args: "checkpoint reset comments --to now", code: OK},
		"failure":             {args: "run", err: errors.New("open change stream: no route"), code: Failed, stderr: "incrementer: open change stream: no route\n"},
		"exit code of error":  {args: "run", err: fmt.Errorf("verify: %w", WithExitCode(errors.New("3 keys drifted"), Drift)), code: Drift, stderr: "incrementer: verify: 3 keys drifted\n"},
		"faults keep lines":   {args: "run", err: faults{}, code: Config, stderr: "incrementer: the configuration has faults\nd.yaml:3: unknown key\nd.yaml:9: no such source\n"},
		"usage from the verb": {args: "run", err: Usagef("--to %q is no time", "x"), code: Usage, stderr: "incrementer: --to \"x\" is no time (run 'incrementer run -h')\n"},

		"no verb":               {args: "", code: Usage, stderr: "incrementer: no command given: it is one of checkpoint, completion, run (run 'incrementer -h')\n"},
		"unknown verb":          {args: "frobnicate", code: Usage, stderr: "incrementer: unknown command \"frobnicate\": it is one of checkpoint, completion, run (run 'incrementer -h')\n"},
		"misspelt verb":         {args: "rnu --once", code: Usage, stderr: "incrementer: unknown command \"rnu\", did you mean run? (run 'incrementer -h')\n"},
		"no verb of a group":    {args: "checkpoint", code: Usage, stderr: "incrementer: no command given: it is one of list, reset (run 'incrementer checkpoint -h')\n"},
		"misspelt in a group":   {args: "checkpoint lst", code: Usage, stderr: "incrementer: unknown command \"lst\", did you mean list? (run 'incrementer checkpoint -h')\n"},
		"unknown flag":          {args: "run --twice", code: Usage, stderr: "incrementer: unknown flag: --twice (run 'incrementer run -h')\n"},
		"bad flag value":        {args: "run --once=maybe", code: Usage, stderr: "incrementer: invalid argument \"maybe\" for \"--once\" flag: strconv.ParseBool: parsing \"maybe\": invalid syntax (run 'incrementer run -h')\n"},
		"stray argument":        {args: "run now", code: Usage, stderr: "incrementer: run takes no arguments, but got \"now\" (run 'incrementer run -h')\n"},
		"missing argument":      {args: "checkpoint reset --to now", code: Usage, stderr: "incrementer: accepts 1 arg(s), received 0 (run 'incrementer checkpoint reset -h')\n"},
		"missing required flag": {args: "checkpoint reset comments", code: Usage, stderr: "incrementer: required flag(s) \"to\" not set (run 'incrementer checkpoint reset -h')\n"},
		"exclusive flags":       {args: "checkpoint reset comments --to now --all --one", code: Usage, stderr: "incrementer: if any flags in the group [all one] are set none of the others can be; [all one] were all set (run 'incrementer checkpoint reset -h')\n"},
		"unknown shell":         {args: "completion dos", code: Usage, stderr: "incrementer: unknown command \"dos\": it is one of bash, fish, powershell, zsh (run 'incrementer completion -h')\n"},
	} {
		t.Run(name, func(t *testing.T) {
			root := program(func(context.Context) error { return tt.err })
			code, _, stderr := executeArgs(t.Context(), root, strings.Fields(tt.args)...)
			if code != tt.code || stderr != tt.stderr {
				t.Errorf("%q: exit %d, stderr %q\nwant exit %d, stderr %q", tt.args, code, stderr, tt.code, tt.stderr)
			}
		})
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	_, stdout, stderr := executeArgs(t.Context(), program(nil), "checkpoint", "-h")
	if !strings.Contains(stdout, "Usage:\n  incrementer checkpoint [command]\n") || stderr != "" {
		t.Errorf("stdout %q, stderr %q", stdout, stderr)
	}
}

func TestVerbsStillComplete(t *testing.T) {
	_, stdout, _ := executeArgs(t.Context(), program(nil), "__complete", "checkpoint", "")
	if !strings.HasPrefix(stdout, "list\nreset\n") {
		t.Errorf("completions: %q", stdout)
	}
}

func TestExitCode(t *testing.T) {
	failure := errors.New("no route")
	for name, tt := range map[string]struct {
		err  error
		want int
	}{
		"nil":                {nil, OK},
		"plain":              {failure, Failed},
		"position lost":      {WithExitCode(failure, PositionLost), PositionLost},
		"wrapped":            {fmt.Errorf("run: %w", WithExitCode(failure, PositionLost)), PositionLost},
		"joined":             {errors.Join(failure, WithExitCode(failure, Drift)), Drift},
		"outermost decides":  {WithExitCode(WithExitCode(failure, Drift), Failed), Failed},
		"nil stays nil":      {WithExitCode(nil, Drift), OK},
		"interface of other": {faults{}, Config},
		"usage":              {Usagef("no"), Usage},
		"bare cancellation":  {context.Canceled, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			if got := ExitCode(tt.err); got != tt.want {
				t.Errorf("ExitCode(%v) = %d, want %d", tt.err, got, tt.want)
			}
		})
	}
	if err := WithExitCode(failure, Drift); !errors.Is(err, failure) {
		t.Errorf("%v does not unwrap to its cause", err)
	}
}

// A service that a signal stopped has done its job; a verb that a signal stopped has not.
func TestSignalIsSuccessOnlyForVerbsThatRunUntilStopped(t *testing.T) {
	failure := errors.New("no route")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(&SignalError{Signal: syscall.SIGTERM})
	drain := func(err error) func(context.Context) error {
		return func(ctx context.Context) error { return CleanStop(ctx, err) }
	}
	for name, tt := range map[string]struct {
		run    func(context.Context) error
		code   int
		stderr string
	}{
		"service, cancelled": {drain(fmt.Errorf("commit: %w", context.Canceled)), OK, ""},
		"service, the cause": {drain(fmt.Errorf("commit: %w", context.Cause(ctx))), OK, ""},
		"service, drained":   {drain(nil), OK, ""},
		"service, failed":    {drain(failure), Failed, "incrementer: no route\n"},
		"service, lost":      {drain(WithExitCode(context.Canceled, PositionLost)), PositionLost, "incrementer: context canceled\n"},
		"one-shot verb": {func(ctx context.Context) error { return fmt.Errorf("verify: %w", ctx.Err()) },
			Failed, "incrementer: stopped by SIGTERM before it was done (verify: context canceled)\n"},
	} {
		t.Run(name, func(t *testing.T) {
			code, _, stderr := executeArgs(ctx, program(tt.run), "run")
			if code != tt.code || stderr != tt.stderr {
				t.Errorf("exit %d, stderr %q; want %d, %q", code, stderr, tt.code, tt.stderr)
			}
		})
	}
}

func TestCleanStopKeepsACancellationThatNoSignalCaused(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := CleanStop(ctx, ctx.Err()); !errors.Is(err, context.Canceled) {
		t.Errorf("CleanStop = %v", err)
	}
}

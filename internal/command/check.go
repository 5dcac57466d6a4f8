package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
)

// Check builds the check verb of a program for its use of the database.
func Check(program string, use deployment.Use, listen func(*config.Config) string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Connect and look whether everything is in order, with the fix beside what is not; changes nothing",
		Long: "check connects, looks and changes nothing. It prints a line for each thing that it looked at: OK, WARN (it works, and\n" +
			"is worth a look) or FAIL (`" + program + " run` does not work), with the command or action that mends it.\n" +
			"It exits with 0 when nothing failed, else with 1.",
		Example: "  " + program + " check\n  " + program + " check -o json | jq '.findings[] | select(.level != \"OK\")'",
	}
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, definitions, err := Load(cmd)
		if err != nil {
			return err
		}
		findings, err := deployment.Check(cmd.Context(), c, definitions, program, use)
		if err != nil {
			return err
		}
		findings = append(findings, address(cmd.Context(), program, listen(c)))
		if err := printFindings(cmd.OutOrStdout(), findings, *output); err != nil {
			return err
		}
		return failed(findings)
	}
	return cmd
}

// address looks whether the port can be had, or a running program of ours has it.
func address(ctx context.Context, program, listen string) deployment.Finding {
	f := deployment.Finding{Level: deployment.OK, Subject: "listen address", Found: listen + " is free"}
	answered, err := daemon.Probe(ctx, program, listen)
	if answered {
		f.Found = "a running " + program + " answers on " + listen
	}
	if taken, is := errors.AsType[*daemon.ListenError](err); is {
		f.Level, f.Found, f.Fix = deployment.Warn, taken.Found(), taken.Fix()
	}
	return f
}

// printFindings writes one table, or one document.
func printFindings(w io.Writer, findings []deployment.Finding, output daemon.Output) error {
	if output == daemon.JSON {
		return daemon.WriteJSON(w, struct {
			Result   string               `json:"result"` // the gravest level
			Findings []deployment.Finding `json:"findings"`
		}{string(gravest(findings)), findings})
	}
	table := daemon.NewTable(w, "LEVEL", "LOOKED AT", "FOUND", "FIX")
	for _, f := range findings {
		table.Row(f.Level, f.Subject, f.Found, f.Fix)
	}
	return table.Flush()
}

func gravest(findings []deployment.Finding) deployment.Level {
	for _, level := range []deployment.Level{deployment.Fail, deployment.Warn} {
		if len(of(findings, level)) > 0 {
			return level
		}
	}
	return deployment.OK
}

// of lists the subjects of one level.
func of(findings []deployment.Finding, level deployment.Level) []string {
	var subjects []string
	for _, f := range findings {
		if f.Level == level {
			subjects = append(subjects, f.Subject)
		}
	}
	return subjects
}

// failed is nil when nothing failed.
func failed(findings []deployment.Finding) error {
	const named = 3
	subjects := of(findings, deployment.Fail)
	switch n := len(subjects); {
	case n == 0:
		return nil
	case n > named:
		return fmt.Errorf("%d of %d looks failed: %s and %d more", n, len(findings), strings.Join(subjects[:named], ", "), n-named)
	default:
		return fmt.Errorf("%d of %d looks failed: %s", n, len(findings), strings.Join(subjects, ", "))
	}
}

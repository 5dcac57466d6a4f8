package daemon

import (
	"os"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// The width of help: that of the terminal within these bounds, else the default.
const (
	defaultWidth  = 110
	smallestWidth = 80
	largestWidth  = 130
)

// usageTemplate differs from cobra's in that a group by itself does nothing, that flags wrap, and that the settings are
// told from a verb's own flags.
const usageTemplate = `Usage:
{{- if and .Runnable (not .HasAvailableSubCommands)}}
  {{.UseLine}}{{end}}
{{- if .HasAvailableSubCommands}}
  {{.CommandPath}} [command]{{end}}
{{- if .HasExample}}

Examples:
{{.Example}}{{end}}
{{- if .HasAvailableSubCommands}}

Commands:
{{- range .Commands}}{{if or .IsAvailableCommand (eq .Name "help")}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}{{end}}
{{- if ownFlags .}}

Flags:
{{wrapped (ownFlags .) | trimTrailingWhitespaces}}{{end}}
{{- if settings .}}

Settings, each also a key of the file (log.level) and a variable (DRIFTLESS_LOG_LEVEL); a flag goes before a variable,
a variable before the file:
{{wrapped (settings .) | trimTrailingWhitespaces}}{{end}}
{{- if .HasAvailableSubCommands}}

Use "{{.CommandPath}} [command] -h" for more about a command.{{end}}
`

func init() {
	cobra.AddTemplateFunc("wrapped", func(flags *pflag.FlagSet) string { return flags.FlagUsagesWrapped(helpWidth()) })
	cobra.AddTemplateFunc("ownFlags", func(cmd *cobra.Command) *pflag.FlagSet { return shown(cmd, false) })
	cobra.AddTemplateFunc("settings", func(cmd *cobra.Command) *pflag.FlagSet { return shown(cmd, true) })
}

// shown returns a command's own flags, or the settings, which are the flags that the root hands down; nil for none.
func shown(cmd *cobra.Command, settings bool) *pflag.FlagSet {
	if settings && !readsSettings(cmd) {
		return nil
	}
	handedDown := cmd.Root().PersistentFlags()
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	all := func(f *pflag.Flag) {
		if (handedDown.Lookup(f.Name) != nil) == settings {
			flags.AddFlag(f)
		}
	}
	cmd.LocalFlags().VisitAll(all)
	cmd.InheritedFlags().VisitAll(all)
	if !flags.HasAvailableFlags() {
		return nil
	}
	return flags
}

// readsSettings is false for the verbs that every program has and that look at no configuration.
func readsSettings(cmd *cobra.Command) bool {
	for c := cmd; c.HasParent(); c = c.Parent() {
		if slices.Contains([]string{"completion", "help", "version"}, c.Name()) {
			return false
		}
	}
	return true
}

func helpWidth() int {
	width, is := TerminalWidth()
	if !is {
		return defaultWidth
	}
	return min(max(width, smallestWidth), largestWidth)
}

// TerminalWidth is that of the terminal that stdout is, in characters; false where it is none.
func TerminalWidth() (int, bool) {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	return width, err == nil
}

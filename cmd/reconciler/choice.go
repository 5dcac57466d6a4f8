package main

import (
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

// choice is which counters and keys a verb looks at.
type choice struct {
	counter, key string
	full         bool
	limit        int
}

func (o *choice) register(cmd *cobra.Command) {
	o.registerKey(cmd, "only this counter, a `name` (default all)", "only this `key`: "+keyForms+" (default all)")
	cmd.Flags().BoolVar(&o.full, "full", false, "every key, not only those touched since the last run")
	cmd.Flags().IntVar(&o.limit, "limit", 1000, "drifted `keys` to list for each counter, the largest; 0 for all")
}

// keyForms are what ParseKey reads.
const keyForms = "extended JSON, a bare text, or the 24 digits of an ObjectId"

// registerKey adds the flags that name a counter and a key.
func (o *choice) registerKey(cmd *cobra.Command, counterHelp, keyHelp string) {
	cmd.Flags().StringVar(&o.counter, "counter", "", counterHelp)
	cmd.Flags().StringVar(&o.key, "key", "", keyHelp)
	_ = cmd.RegisterFlagCompletionFunc("counter", completeCounters) // fails only for a flag that is not there
}

// completeCounters offers the counters of the configuration, none when that cannot be read.
func completeCounters(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := config.Load(config.FromFlags(cmd.Flags(), os.LookupEnv))
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	names := make([]string, len(c.Counters))
	for i, declared := range c.Counters {
		names[i] = declared.Name
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// load reads the configuration and checks the choice against what it declares.
func (o *choice) load(cmd *cobra.Command) (*config.Config, []*counter.Definition, reconciler.Options, error) {
	if err := notEmpty(cmd); err != nil {
		return nil, nil, reconciler.Options{}, err
	}
	c, definitions, err := command.Load(cmd)
	if err != nil {
		return nil, nil, reconciler.Options{}, err
	}
	options, err := o.options(definitions)
	return c, definitions, options, err
}

// notEmpty refuses a flag that names nothing, such as one from a variable of a script that is not set.
func notEmpty(cmd *cobra.Command) error {
	for _, name := range []string{"counter", "key"} {
		if f := cmd.Flags().Lookup(name); f.Changed && f.Value.String() == "" {
			return daemon.Usagef("--%s is empty: name one, or leave the flag out for all; an empty text as a key is '\"\"'", name)
		}
	}
	return nil
}

// options checks a choice against what is declared.
func (o *choice) options(definitions []*counter.Definition) (reconciler.Options, error) {
	options := reconciler.Options{Counter: o.counter, Full: o.full, Limit: o.limit}
	switch {
	case o.counter != "" && !slices.ContainsFunc(definitions, func(d *counter.Definition) bool { return d.Name == o.counter }):
		return options, daemon.Usagef("--counter %s is not declared: it may be %s", o.counter, namesOf(definitions))
	case o.limit < 0:
		return options, daemon.Usagef("--limit %d is negative: 0 lists all", o.limit)
	case o.key == "":
		return options, nil
	case o.full:
		return options, daemon.Usagef("--key and --full exclude each other: drop one")
	}
	key, err := counter.ParseKey(o.key)
	if err != nil {
		return options, daemon.Usagef("--key %s %v", o.key, err)
	}
	options.Key = key
	return options, nil
}

// namesOf lists counters for people.
func namesOf(definitions []*counter.Definition) string {
	names := make([]string, len(definitions))
	for i, d := range definitions {
		names[i] = d.Name
	}
	return strings.Join(names, ", ")
}

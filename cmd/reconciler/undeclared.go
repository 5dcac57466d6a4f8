package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// registerUndeclared adds the flags for a counter that no file declares.
func registerUndeclared(cmd *cobra.Command) {
	for _, f := range config.Undeclared {
		cmd.Flags().String(f.Flag, "", strings.Replace(f.Help, "with --rows:", "with --rows, a `"+f.Value+"`:", 1))
	}
}

// undeclared are the flags of a counter that no file declares, by name; nil when there are none.
func undeclared(cmd *cobra.Command) (map[string]string, error) {
	given := map[string]string{}
	for _, f := range config.Undeclared {
		if flag := cmd.Flags().Lookup(f.Flag); flag.Changed {
			given[f.Flag] = flag.Value.String()
		}
	}
	if len(given) == 0 {
		return nil, nil
	}
	for _, name := range []string{"config", "counter"} {
		if cmd.Flags().Changed(name) {
			return nil, daemon.Usagef("--%s is for counters that a configuration file declares, and --rows for one that none does: drop one", name)
		}
	}
	if key := cmd.Flags().Lookup("key"); key.Changed {
		given["key"] = key.Value.String()
	}
	return given, nil
}

// verifyUndeclared compares one counter of the application's without a configuration file. All it takes is the right to
// read two collections.
func verifyUndeclared(cmd *cobra.Command, given map[string]string, options reconciler.Options, output daemon.Output) error {
	declared, err := config.UndeclaredCounter(given)
	if err != nil {
		return daemon.WithExitCode(oneLine(err), daemon.Usage)
	}
	settings := config.FromFlags(cmd.Flags(), os.LookupEnv)
	settings.File = ""
	c, err := config.Load(settings)
	if err != nil {
		return daemon.WithExitCode(err, daemon.Config)
	}
	if err := settle(cmd, c); err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	if declared.Target, err = locate(ctx, client, declared.Target); err != nil {
		return err
	}
	d, err := counter.Define(declared)
	if err != nil {
		return err
	}
	if err := warnOfIndex(ctx, cmd, client, d); err != nil {
		return err
	}
	options.Full = true
	return onceWith(cmd, client, c, []*counter.Definition{d}, options, once{
		output: output, failOnDrift: true,
		mend: "declare the counter in driftless.yaml, with source: application, and `reconciler run --once` repairs it",
	})
}

// oneLine is what is wrong with a command line, as such an error is told.
func oneLine(err error) error {
	return fmt.Errorf("%s", strings.ReplaceAll(err.Error(), "\n", "; ")) //nolint:err113 // the faults in another form
}

// locate finds the collection of a counter whose place can be read in several ways.
func locate(ctx context.Context, client *mongo.Client, t config.Target) (config.Target, error) {
	for _, other := range slices.Concat([]config.Target{t}, t.Elsewhere()) {
		there, err := counter.Present(ctx, client, other.Database, other.Collection)
		if err != nil {
			return t, err
		}
		if there {
			return other, nil
		}
	}
	return t, nil // the pass says so
}

// warnOfIndex says how to make a slow comparison fast.
func warnOfIndex(ctx context.Context, cmd *cobra.Command, client *mongo.Client, d *counter.Definition) error {
	there, err := counter.Present(ctx, client, d.Rows.Database, d.Rows.Collection)
	if err != nil || !there {
		return err
	}
	indexed, err := d.RangesIndexed(ctx, client)
	if err != nil || indexed {
		return err
	}
	keys, err := bson.MarshalExtJSON(d.RowsIndex().Keys, false, false)
	if err != nil {
		return err
	}
	tell(cmd, fmt.Sprintf("no index finds the rows of a key, so all of them are read several times; this makes it fast: db.getSiblingDB(%q).getCollection(%q).createIndex(%s)",
		d.Rows.Database, d.Rows.Collection, keys))
	return nil
}

// tell writes a line of progress.
func tell(cmd *cobra.Command, what string) {
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", program, what)
}

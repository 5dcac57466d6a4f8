package main

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/reconciler"
)

// readingEvents bounds the look for the events of a key.
const readingEvents = 5 * time.Second

func explainCommand() *cobra.Command {
	var (
		chosen choice
		since  time.Duration
	)
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Show what one counter is made of, its true count, its last repairs and events, and the verdict",
		Long: "explain tells of one key what is shown, what its rows come to at the position that it reflects and right now, its\n" +
			"marks, its last repairs, the last events of its rows, and where its lane is. It ends with a verdict and the command that\n" +
			"repairs what is wrong. It changes nothing. It exits with 0 whatever the verdict, with 1 when the key could not be judged.",
		Example: "  reconciler explain --counter comments_per_post --key 42\n" +
			"  reconciler explain --key '{\"$oid\": \"6b0e014554849a0878ce723b\"}' --since 1h\n" +
			"  reconciler explain --counter comments_per_post --key 42 -o json | jq .now.truth",
	}
	chosen.registerKey(cmd, "the counter's `name` (default the only one)", "the `key` to explain: "+keyForms)
	cmd.Flags().DurationVar(&since, "since", 10*time.Minute, "how far back to look for events of the key; 0 for not at all")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if since < 0 {
			return daemon.Usagef("--since %s is negative: 0 looks for no events", since)
		}
		c, definitions, options, err := chosen.load(cmd)
		if err != nil {
			return err
		}
		d, err := theOne(definitions, options)
		if err != nil {
			return err
		}
		return explain(cmd, c, reconciler.Question{
			Counter: d, Key: options.Key, Since: since, Reading: readingEvents, Tell: func(what string) { tell(cmd, what) },
		}, *output)
	}
	return cmd
}

// theOne is the counter that was asked for, or the only one.
func theOne(definitions []*counter.Definition, options reconciler.Options) (*counter.Definition, error) {
	if options.Key.IsZero() {
		return nil, daemon.Usagef("--key is missing: explain looks at one key")
	}
	if options.Counter == "" && len(definitions) == 1 {
		return definitions[0], nil
	}
	for _, d := range definitions {
		if d.Name == options.Counter {
			return d, nil
		}
	}
	return nil, daemon.Usagef("--counter is missing: it may be %s", namesOf(definitions))
}

// explain asks and prints.
func explain(cmd *cobra.Command, c *config.Config, q reconciler.Question, output daemon.Output) error {
	definitions := []*counter.Definition{q.Counter}
	client, err := connect(cmd.Context(), c, definitions, reconciler.Options{DryRun: true})
	if err != nil {
		return err
	}
	defer deployment.Close(cmd.Context(), client)
	log := command.Logger(quietLevel(c.Log.Level, true), c.Log.Format)
	metrics := reconciler.NewMetrics(prometheus.NewRegistry(), definitions)
	e, err := reconciler.New(client, c.MongoDB.StateDatabase, definitions, c.Reconciler, metrics, log).Explain(cmd.Context(), q)
	if err != nil {
		return err
	}
	if output == daemon.JSON {
		err = daemon.WriteJSON(cmd.OutOrStdout(), e)
	} else {
		err = explained{cmd.OutOrStdout(), e, q.Counter, time.Now()}.print()
	}
	if err == nil && e.Unjudged != nil {
		err = fmt.Errorf("%s not judged: %s", q.Counter.Name, e.Unjudged.Why)
	}
	return err
}

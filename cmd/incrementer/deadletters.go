package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
)

func deadlettersCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "deadletters",
		Short: "List what could not be read or applied, apply it again or drop it",
		Long: "deadletters shows what an incrementer could not count and set apart, with the reason, instead of standing still:\n" +
			"records of a topic that it could not read, and increments that a counter document could not take.",
	}
	cmd.AddCommand(deadlettersListCommand(), deadlettersRetryCommand(), deadlettersDiscardCommand())
	return cmd
}

// letterChoice is which letters a verb is about.
type letterChoice struct{ all bool }

func (l *letterChoice) flag(cmd *cobra.Command, doing string) {
	cmd.Flags().BoolVar(&l.all, "all", false, doing+" every dead letter")
}

// ids returns those chosen, all of which stand. Nothing is done when one of them does not.
func (l *letterChoice) ids(ctx context.Context, states *counter.States, args []string) ([]string, error) {
	if l.all {
		return states.LetterNames(ctx, nil)
	}
	ids := slices.Compact(slices.Sorted(slices.Values(args)))
	found, err := states.LetterNames(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		if _, there := slices.BinarySearch(found, id); !there {
			return nil, daemon.Usagef("no dead letter %q, so nothing was done: `incrementer deadletters list` shows their ids", id)
		}
	}
	return found, nil
}

// fault says what is wrong with the command line, before anything is connected to.
func (l *letterChoice) fault(verb string, args []string) error {
	switch {
	case l.all && len(args) > 0:
		return daemon.Usagef("%s takes ids or --all, but got both", verb)
	case !l.all && len(args) == 0:
		return daemon.Usagef("%s which? Give ids as `incrementer deadletters list` shows them, or --all", verb)
	}
	return nil
}

func deadlettersRetryCommand() *cobra.Command {
	var which letterChoice
	cmd := &cobra.Command{
		Use:   "retry [ID...] [--all]",
		Short: "Apply dead letters again, each exactly once",
		Long: "retry reads records again with the configuration as it is now, and applies each in one transaction with the removal of\n" +
			"its letter: two retries at once, or a lost answer, count it once. What a reconcile has counted from the rows meanwhile is\n" +
			"not added again. What still cannot be read stays, with its new reason, and the exit code is 1.\n" +
			"Increments that a document could not take are not added: their keys are marked, the reconciler's next run makes their\n" +
			"counts right from the rows, and takes the letters, once the documents are mended.\n" +
			"retry works beside `incrementer run`.",
		Example: "  incrementer deadletters retry reactions/reactions/0@1234\n" +
			"  incrementer deadletters retry --all",
	}
	cmd.Args = cobra.ArbitraryArgs
	which.flag(cmd, "retry")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return retryLetters(cmd, which, args, *output) }
	return cmd
}

// retriedLetter is a line of `deadletters retry -o json`.
type retriedLetter struct {
	ID      string `json:"id"`
	Outcome string `json:"outcome"` // applied, counted, marked, nothing, kept, gone
	Why     string `json:"why,omitempty"`
	Refused int    `json:"refused,omitempty"` // increments of it that their documents could not take: dead letters of their own
}

func retryLetters(cmd *cobra.Command, which letterChoice, args []string, output daemon.Output) error {
	if err := which.fault("retry", args); err != nil {
		return err
	}
	c, definitions, err := command.Load(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	if err := deployment.Permitted(ctx, client, deployment.Privileges(c, definitions, deployment.Follow)); err != nil {
		return err
	}
	states := counter.NewStates(client, c.MongoDB.StateDatabase)
	ids, err := which.ids(ctx, states, args)
	if err != nil {
		return err
	}
	sources, err := topicSources(c, definitions)
	if err != nil {
		return err
	}
	retrier := counter.NewRetrier(client, checkpoint.NewStore(client, c.MongoDB.StateDatabase), states, definitions, sources)
	report := retryReport{w: cmd.OutOrStdout(), json: output == daemon.JSON}
	for _, id := range ids {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w; %s", err, report.summary())
		}
		retried, err := retrier.Retry(ctx, id)
		if err != nil {
			return fmt.Errorf("%w: it is applied, or stands and can be retried; %s", err, report.summary())
		}
		if err := report.add(id, retried); err != nil {
			return err
		}
	}
	return report.end(len(ids))
}

func deadlettersDiscardCommand() *cobra.Command {
	var which letterChoice
	cmd := &cobra.Command{
		Use:   "discard [ID...] [--all]",
		Short: "Drop dead letters, with a record",
		Long: "discard drops letters that are not to be counted. A record of each stays for 30 days: `deadletters list --discarded`\n" +
			"shows them, and status counts them no more. It changes no count: what the rows say, the reconciler makes right.",
		Example: "  incrementer deadletters discard reactions/reactions/0@1234\n" +
			"  incrementer deadletters discard --all",
	}
	cmd.Args = cobra.ArbitraryArgs
	which.flag(cmd, "discard")
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return discardLetters(cmd, which, args) }
	return cmd
}

func discardLetters(cmd *cobra.Command, which letterChoice, args []string) error {
	if err := which.fault("discard", args); err != nil {
		return err
	}
	c, _, err := command.Load(cmd)
	if err != nil {
		return err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return err
	}
	defer deployment.Close(ctx, client)
	if err := deployment.Permitted(ctx, client, deployment.DiscardPrivileges(c.MongoDB.StateDatabase)); err != nil {
		return err
	}
	states := counter.NewStates(client, c.MongoDB.StateDatabase)
	ids, err := which.ids(ctx, states, args)
	if err != nil {
		return err
	}
	n, err := states.Discard(ctx, ids)
	if err != nil {
		return fmt.Errorf("%w: %d of %d are discarded, the others stand", err, n, len(ids))
	}
	text := noLetters
	if n > 0 {
		text = fmt.Sprintf("discarded: %d; a record stays for 30 days: `incrementer deadletters list --discarded`", n)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
	return err
}

// noLetters is said where --all comes to none.
const noLetters = "nothing to do: there are no dead letters"

func deadlettersListCommand() *cobra.Command {
	var discarded bool
	var limit int64
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List dead letters with their reasons",
		Long: "list shows what could not be counted and why. A letter of kind record is a record of a topic that could not be read, and\n" +
			"its id is SOURCE/TOPIC/PARTITION@OFFSET; one of kind increment is what the document of a counter's key could not take,\n" +
			"added up. With -o json it prints one object a line, with the record as far as it is kept.",
		Example: "  incrementer deadletters list\n" +
			"  incrementer deadletters list -o json --limit 0 | jq -r 'select(.kind == \"record\") | .id'\n" +
			"  incrementer deadletters list --discarded",
	}
	cmd.Flags().BoolVar(&discarded, "discarded", false, "those that were discarded in the last 30 days instead")
	cmd.Flags().Int64Var(&limit, "limit", 100, "at most `N` letters, 0 for all")
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if limit < 0 {
			return daemon.Usagef("--limit %d: write how many letters to list at most, 0 for all", limit)
		}
		c, _, err := command.Load(cmd)
		if err != nil {
			return err
		}
		ctx := cmd.Context()
		client, err := deployment.ConnectToRead(ctx, c, program)
		if err != nil {
			return err
		}
		defer deployment.Close(ctx, client)
		states := counter.NewStates(client, c.MongoDB.StateDatabase)
		if *output == daemon.JSON {
			return states.Letters(ctx, discarded, limit, func(l counter.Letter) error {
				return daemon.WriteJSONLine(cmd.OutOrStdout(), letterOf(l))
			})
		}
		return printer{w: cmd.OutOrStdout(), now: time.Now()}.deadLetters(ctx, states, discarded, limit)
	}
	return cmd
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
	"driftless/internal/stream"
	"driftless/internal/stream/kafka"
)

func checkpointResetCommand() *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "reset LANE --to now|earliest|TIME",
		Short: "Move a lane to another position, record it and mark its counters for a recount",
		Long: "reset moves a lane to now, to the earliest change that the oplog keeps, or to a time within it; a lane of a topic behind the\n" +
			"last record, to the first one that is kept, or to the first one of a time or later. It is recorded as a gap with the reason\n" +
			"reset, and every counter of the lane is marked: the reconciler's next run makes right what is then counted twice or not at\n" +
			"all. An incrementer that follows the lane goes on from the new position by itself.",
		Example: "  incrementer checkpoint reset comments --to now\n" +
			"  incrementer checkpoint reset comments/3 --to 2026-11-30T08:00:00Z\n" +
			"  incrementer checkpoint reset reactions/topic/0 --to earliest",
		Args:              oneLane,
		ValidArgsFunction: completeLanes,
	}
	cmd.Flags().StringVar(&to, "to", "", "where to: `now`, earliest, or a time as in 2026-11-30T08:00:00Z")
	_ = cmd.RegisterFlagCompletionFunc("to", cobra.FixedCompletions([]string{"now", "earliest"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return reset(cmd, args[0], to) }
	return cmd
}

func oneLane(_ *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("reset takes one lane, but got %d arguments: `incrementer checkpoint list` shows the lanes", len(args))
	}
	return nil
}

// completeLanes offers the lanes of the configuration, none when that cannot be read.
func completeLanes(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := config.Load(config.FromFlags(cmd.Flags(), os.LookupEnv))
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return namesOf(lanesOf(c)), cobra.ShellCompDirectiveNoFileComp
}

func namesOf(ids []checkpoint.LaneID) []string {
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.String()
	}
	return names
}

func reset(cmd *cobra.Command, lane, to string) error {
	goal, err := goalOf(to)
	if err != nil {
		return err
	}
	c, definitions, err := command.Load(cmd)
	if err != nil {
		return err
	}
	id, err := laneNamed(c, lane)
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
	definitions = counter.OfSource(definitions, id.Source)
	before, after, err := goal.move(ctx, client, c, id, definitions)
	switch {
	case errors.Is(err, counter.ErrAhead):
		return daemon.WithExitCode(err, daemon.Usage)
	case errors.Is(err, counter.ErrNeverStarted):
		return fmt.Errorf("%w: `incrementer run` starts it", err)
	case errors.Is(err, checkpoint.ErrPartitions):
		return fmt.Errorf("%w: restart `incrementer run`, which starts the lanes of the configuration afresh", err)
	case err != nil:
		return err
	}
	return toldOf(cmd.OutOrStdout(), before, after, definitions, c.Reconciler.Settle)
}

// laneNamed finds a lane of the configuration. How many a topic has is not known here.
func laneNamed(c *config.Config, name string) (checkpoint.LaneID, error) {
	ids := lanesOf(c)
	if i := slices.IndexFunc(ids, func(id checkpoint.LaneID) bool { return id.String() == name }); i >= 0 {
		return ids[i], nil
	}
	names := namesOf(ids)
	for _, source := range c.Sources {
		if source.Kafka == nil {
			continue
		}
		id := checkpoint.LaneID{Source: source.Name, Topic: source.Kafka.Topic}
		id.Partition, _ = strconv.Atoi(name[strings.LastIndex(name, "/")+1:])
		if id.Partition >= 0 && id.String() == name {
			return id, nil
		}
		names = append(names, id.Source+"/"+id.Topic+"/PARTITION")
	}
	return checkpoint.LaneID{}, daemon.Usagef("no lane %q in the configuration: it may be %s", name, strings.Join(names, ", "))
}

// toldOf says what a reset did.
func toldOf(w io.Writer, before, after checkpoint.Checkpoint, definitions []*counter.Definition, settle time.Duration) error {
	names := make([]string, len(definitions))
	for i, d := range definitions {
		names[i] = d.Name
	}
	effect, until := "what happened in between is not counted", "the reconciler's next run"
	if isBefore(after, before) {
		effect = "what happened in between is counted a second time, and shown so,"
	}
	if after.Topic != "" {
		until = fmt.Sprintf("a run of the reconciler when the lane has come to the present and reconciler.settle (%s) is over", settle)
	}
	_, err := fmt.Fprintf(w, "lane %s moved from %s to %s\nrecorded as a gap with the reason %s; marked for a full recount: %s\n"+
		"%s until %s, which makes it right\n",
		after.Lane, placeOf(before), placeOf(after), counter.ReasonReset, cmp.Or(strings.Join(names, ", "), "none"), effect, until)
	return err
}

// placeOf is where a lane is, as people read it.
func placeOf(at checkpoint.Checkpoint) string {
	if at.Seq == 0 {
		return "no checkpoint"
	}
	if p, err := stream.TopicPositionOf(at.Token); err == nil {
		return fmt.Sprintf("offset %d", p.Offset)
	}
	return stream.InWords(at.Position)
}

// isBefore reports whether a lane is less far at a than at b.
func isBefore(a, b checkpoint.Checkpoint) bool {
	p, err := stream.TopicPositionOf(a.Token)
	q, err2 := stream.TopicPositionOf(b.Token)
	if err == nil && err2 == nil {
		return p.Offset < q.Offset
	}
	return a.Position.Before(b.Position)
}

// goal is where --to leads.
type goal struct {
	earliest bool
	at       time.Time // zero for now and earliest
}

func goalOf(to string) (goal, error) {
	switch to {
	case "":
		return goal{}, daemon.Usagef("--to is missing: it may be now, earliest, or a time as in 2026-11-30T08:00:00Z")
	case "now":
		return goal{}, nil
	case "earliest":
		return goal{earliest: true}, nil
	}
	at, err := time.Parse(time.RFC3339, to)
	if err != nil || at.Unix() <= 0 || at.Unix() > 1<<32-1 {
		return goal{}, daemon.Usagef("--to %s is neither now, nor earliest, nor a time as in 2026-11-30T08:00:00Z", to)
	}
	return goal{at: at}, nil
}

// move resets a lane to the goal, and returns the states before and after.
func (g goal) move(ctx context.Context, client *mongo.Client, c *config.Config, id checkpoint.LaneID, definitions []*counter.Definition) (before, after checkpoint.Checkpoint, err error) {
	store, states := checkpoint.NewStore(client, c.MongoDB.StateDatabase), counter.NewStates(client, c.MongoDB.StateDatabase)
	if id.Topic == "" {
		position, err := g.position(ctx, client)
		if err != nil {
			return before, after, err
		}
		return counter.NewLane(id, client, store, states, definitions).Reset(ctx, position)
	}
	source, _ := c.Source(id.Source)
	broker, err := kafka.New(kafka.OptionsOf(source.Kafka))
	if err != nil {
		return before, after, err
	}
	defer broker.Close()
	places := incrementer.Places{Client: broker, Start: g.start()}
	if id.Partitions, err = places.Partitions(ctx); err != nil {
		return before, after, err
	}
	if id.Partition >= id.Partitions {
		return before, after, daemon.Usagef("topic %s has %d partitions, numbered from 0: there is no lane %s", id.Topic, id.Partitions, id)
	}
	return counter.NewLane(id, client, store, states, definitions).OfTopic(places, c.Reconciler.Settle).Reset(ctx)
}

// start is the goal as a source that is a topic says where it starts.
func (g goal) start() string {
	switch {
	case g.earliest:
		return "earliest"
	case g.at.IsZero():
		return "latest"
	default:
		return g.at.Format(time.RFC3339Nano)
	}
}

// position is the cluster time of the goal, one that the history reaches back to; zero for now.
func (g goal) position(ctx context.Context, client *mongo.Client) (bson.Timestamp, error) {
	if !g.earliest && g.at.IsZero() {
		return bson.Timestamp{}, nil
	}
	oldest, err := deployment.Oldest(ctx, client)
	if errors.Is(err, deployment.ErrNoOplog) {
		return oldest, fmt.Errorf("how far the history reaches back is not known: %w: grant it find on local.oplog.rs, or use --to now", err)
	}
	if err != nil || g.earliest {
		return oldest, err
	}
	// No change has the increment 0: all that happened before the time is left behind, and nothing at or after it.
	position := bson.Timestamp{T: uint32(g.at.Unix())} //nolint:gosec // bounded by goalOf
	if position.T == oldest.T {                        // as near as a time of whole seconds gets
		return oldest, nil
	}
	if position.Before(oldest) {
		return position, daemon.Usagef("--to %s is older than the oldest change that the oplog keeps, of %s: use --to earliest",
			g.at.Format(time.RFC3339), stream.InWords(oldest))
	}
	return position, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
)

func checkpointCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "List where the lanes are, or move one of them",
		Long: "checkpoint shows how far each lane has got, and moves one by hand. Neither is needed in daily work: a position that\n" +
			"cannot be resumed is left, recorded and recounted by `incrementer run` itself.",
	}
	cmd.AddCommand(checkpointListCommand(), checkpointResetCommand())
	return cmd
}

// checkpointState is a line of `checkpoint list -o json`.
type checkpointState struct {
	Lane       string    `json:"lane"`
	Owner      string    `json:"owner,omitempty"`      // the instance that follows it
	Position   time.Time `json:"position,omitzero"`    // everything up to here is applied
	Seq        int64     `json:"seq"`                  // how often the checkpoint has moved
	Tail       int       `json:"tail"`                 // deltas applied beyond the position; -1 when too many to list
	Partitions int       `json:"partitions"`           // lanes of its source
	Collection string    `json:"collection,omitempty"` // UUID of the rows' collection, none while there is no such collection
	UpdatedAt  time.Time `json:"updated_at,omitzero"`
	Note       string    `json:"note,omitempty"` // what an operator should know
}

func checkpointListCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List every lane of the state database, and what belongs to nothing in the configuration",
		Long: "list shows every lane that has a checkpoint, also those of sources that are not in the configuration any more, and\n" +
			"those of the configuration that have none. With -o json it prints one object a line.",
		Example: "  incrementer checkpoint list\n  incrementer checkpoint list -o json | jq -r 'select(.note) | .lane'",
	}
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, _, err := command.Load(cmd)
		if err != nil {
			return err
		}
		all, err := listCheckpoints(cmd.Context(), c)
		if err != nil {
			return err
		}
		if *output == daemon.JSON {
			for _, s := range all {
				if err := daemon.WriteJSONLine(cmd.OutOrStdout(), s); err != nil {
					return err
				}
			}
			return nil
		}
		return printer{w: cmd.OutOrStdout(), now: time.Now()}.checkpoints(all)
	}
	return cmd
}

func listCheckpoints(ctx context.Context, c *config.Config) ([]checkpointState, error) {
	client, err := deployment.ConnectToRead(ctx, c, program)
	if err != nil {
		return nil, err
	}
	defer deployment.Close(ctx, client)
	return readCheckpoints(ctx, client, c)
}

// readCheckpoints reads lane by lane, so that one of a later version hides no other.
func readCheckpoints(ctx context.Context, client *mongo.Client, c *config.Config) ([]checkpointState, error) {
	store := checkpoint.NewStore(client, c.MongoDB.StateDatabase)
	names, err := store.Names(ctx)
	if err != nil {
		return nil, err
	}
	for _, id := range lanesOf(c) {
		if !slices.Contains(names, id.String()) {
			names = append(names, id.String())
		}
	}
	slices.Sort(names)
	roster, err := checkpoint.NewLeases(client, c.MongoDB.StateDatabase, "", 0).Roster(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]checkpointState, 0, len(names))
	for _, name := range names {
		at, err := store.Load(ctx, name)
		if err != nil && !errors.Is(err, checkpoint.ErrNone) && !errors.Is(err, checkpoint.ErrNewer) {
			return nil, err
		}
		var others []checkpoint.Checkpoint // of its source, for what has no checkpoint itself
		if errors.Is(err, checkpoint.ErrNone) {
			var other error
			if others, other = store.OfSource(ctx, checkpoint.SourceOf(name)); other != nil && !errors.Is(other, checkpoint.ErrNewer) {
				return nil, other
			}
		}
		s := checkpointOf(at)
		s.Lane, s.Note = name, noteOn(c, name, at, others, err)
		if lease := roster.Leases[name]; lease.Held {
			s.Owner = lease.Owner
		}
		all = append(all, s)
	}
	return all, nil
}

func checkpointOf(at checkpoint.Checkpoint) checkpointState {
	l := laneOf(at)
	return checkpointState{
		Position: l.Position, Seq: l.Seq, Tail: l.Tail, Partitions: at.Partitions, Collection: at.Identity.Collection, UpdatedAt: l.UpdatedAt,
	}
}

// noteOn says what is to be known about a lane that was loaded with err, beside others of its source; "" for nothing.
func noteOn(c *config.Config, lane string, at checkpoint.Checkpoint, others []checkpoint.Checkpoint, err error) string {
	source, declared := c.Source(checkpoint.SourceOf(lane))
	switch {
	case !declared, (source.Kafka == nil) != (at.Topic == "") && err == nil:
		return "belongs to no source of the configuration"
	case source.Kafka != nil && (err == nil || errors.Is(err, checkpoint.ErrNone)):
		return ""
	case errors.Is(err, checkpoint.ErrNone):
		return notStarted(others, max(1, source.ChangeStream.Partitions))
	case errors.Is(err, checkpoint.ErrNewer):
		return err.Error()
	default:
		return dividedOtherwise(at, max(1, source.ChangeStream.Partitions))
	}
}

// dividedOtherwise says that a lane is of another division of its source than the configuration's, "" when it is not.
func dividedOtherwise(at checkpoint.Checkpoint, partitions int) string {
	if at.Partitions == partitions {
		return ""
	}
	return fmt.Sprintf("one of %d lanes, and the configuration says %d: restart `incrementer run`", at.Partitions, partitions)
}

// notStarted says why a lane of the configuration has no checkpoint; others are those of its source.
func notStarted(others []checkpoint.Checkpoint, partitions int) string {
	for _, other := range others {
		if other.Partitions != partitions {
			return fmt.Sprintf("its source has %d lanes, and this configuration says %d: use the file that the running instances have, or restart them all with this one",
				other.Partitions, partitions)
		}
	}
	return "never started: run `incrementer run`"
}

func (p printer) checkpoints(all []checkpointState) error {
	table := daemon.NewTable(p.w, "LANE", "OWNER", "POSITION", "SEQ", "TAIL", "PARTITIONS", "COLLECTION", "MOVED", "NOTE")
	for _, s := range all {
		if s.Position.IsZero() {
			table.Row(s.Lane, orNone(s.Owner), "-", "-", "-", "-", "-", "-", s.Note)
			continue
		}
		table.Row(s.Lane, orNone(s.Owner), s.Position.Format(time.RFC3339), s.Seq, tail(s.Tail), s.Partitions, orNone(s.Collection),
			p.ago(s.UpdatedAt), s.Note)
	}
	return table.Flush()
}

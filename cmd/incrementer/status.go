package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/incrementer"
)

// status is what `status -o json` and /status print.
type status struct {
	Lanes    []laneState    `json:"lanes"`
	Counters []counterState `json:"counters,omitempty"`
}

type laneState struct {
	Lane       string            `json:"lane"`
	Seq        int64             `json:"seq"`
	Position   time.Time         `json:"position,omitzero"` // everything up to here is applied
	UpdatedAt  time.Time         `json:"updated_at,omitzero"`
	Tail       int               `json:"tail"` // deltas applied beyond the position
	Following  *bool             `json:"following,omitempty"`
	LagSeconds *float64          `json:"lag_seconds,omitempty"`
	Broken     map[string]string `json:"broken,omitempty"` // the server's message by counter
	Error      string            `json:"error,omitempty"`
}

type counterState struct {
	Counter         string    `json:"counter"`
	State           string    `json:"state"`
	Reason          string    `json:"reason,omitempty"`
	VerifiedThrough time.Time `json:"verified_through,omitzero"`
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the lanes with their positions, and the counters with how far they are verified",
	}
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := readStatus(cmd)
		if err != nil {
			return err
		}
		if *output == daemon.JSON {
			return daemon.WriteJSON(cmd.OutOrStdout(), s)
		}
		return printStatus(cmd.OutOrStdout(), s)
	}
	return cmd
}

// readStatus reads the state database: it works whether or not an incrementer is running.
func readStatus(cmd *cobra.Command) (status, error) {
	c, definitions, err := load(cmd)
	if err != nil {
		return status{}, err
	}
	ctx := cmd.Context()
	client, err := deployment.Connect(ctx, c.MongoDB, program)
	if err != nil {
		return status{}, err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	states, err := counter.NewStates(client, c.MongoDB.StateDatabase).All(ctx)
	if err != nil {
		return status{}, err
	}
	s := status{Lanes: []laneState{}}
	checkpoints := checkpoint.NewStore(client, c.MongoDB.StateDatabase)
	for _, source := range c.Sources {
		at, err := checkpoints.Load(ctx, source.Name)
		if errors.Is(err, checkpoint.ErrNone) {
			s.Lanes = append(s.Lanes, laneState{Lane: source.Name, Error: "never started: run `incrementer run`"})
			continue
		}
		if err != nil {
			return s, err
		}
		s.Lanes = append(s.Lanes, laneOf(at))
	}
	for _, d := range definitions {
		s.Counters = append(s.Counters, counterOf(d.Name, states))
	}
	return s, nil
}

func laneOf(at checkpoint.Checkpoint) laneState {
	l := laneState{Lane: at.Lane, Seq: at.Seq, Position: seconds(at.Position), UpdatedAt: at.UpdatedAt, Tail: len(at.Tail.Deltas)}
	for name, counting := range at.Counters {
		if counting.Broken != "" {
			if l.Broken == nil {
				l.Broken = map[string]string{}
			}
			l.Broken[name] = counting.Broken
		}
	}
	return l
}

func counterOf(name string, states map[string]counter.State) counterState {
	state, ok := states[name]
	if !ok {
		return counterState{Counter: name, State: "unknown", Reason: "no incrementer has taken it up yet"}
	}
	return counterState{Counter: name, State: state.State, Reason: state.Reason, VerifiedThrough: seconds(state.VerifiedThrough)}
}

// seconds is a cluster time on the clock, the zero time for none.
func seconds(t bson.Timestamp) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	return time.Unix(int64(t.T), 0).UTC()
}

// laneStatus is what /status shows: the lanes as this process sees them, without asking the database.
func laneStatus(lanes []*incrementer.Lane) status {
	s := status{}
	for _, l := range lanes {
		v := l.State.View()
		lane := laneOf(v.At)
		lag := v.Lag.Seconds()
		lane.Lane, lane.Following, lane.LagSeconds, lane.Broken = l.Name, &v.Owned, &lag, v.Broken
		if v.LastErr != nil {
			lane.Error = v.LastErr.Error()
		}
		s.Lanes = append(s.Lanes, lane)
	}
	return s
}

func printStatus(w io.Writer, s status) error {
	lanes := daemon.NewTable(w, "LANE", "SEQ", "POSITION", "AGE", "NOTE")
	for _, l := range s.Lanes {
		note := l.Error
		for name, message := range l.Broken {
			note += fmt.Sprintf("counter %s is broken: %s ", name, message)
		}
		lanes.Row(l.Lane, l.Seq, orNever(l.Position), age(l.Position), note)
	}
	if err := lanes.Flush(); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	counters := daemon.NewTable(w, "COUNTER", "STATE", "WHY", "VERIFIED THROUGH")
	for _, c := range s.Counters {
		counters.Row(c.Counter, c.State, c.Reason, orNever(c.VerifiedThrough))
	}
	return counters.Flush()
}

func orNever(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.Format(time.RFC3339)
}

func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return time.Since(t).Round(time.Second).String()
}

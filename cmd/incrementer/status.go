package main

import (
	"context"
	"errors"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/deployment"
	"driftless/internal/stream"
)

// status is what `status -o json` and /status print.
type status struct {
	Lanes       []laneState        `json:"lanes"`
	Instances   []instanceState    `json:"instances"`
	Counters    []counterState     `json:"counters"`
	Held        []command.Held     `json:"held"`            // counters whose repairs wait for an approval, also those that the application keeps
	Undone      []counter.KeptBack `json:"undone"`          // keys that are kept from repair, since the repairs of a run were taken back
	DeadLetters int64              `json:"dead_letters"`    // increments that their document could not take, records that could not be read
	Error       string             `json:"error,omitempty"` // why the counters, gaps and dead letters are not as of now
}

// instanceState is an instance that lives.
type instanceState struct {
	Instance  string    `json:"instance"`
	StartedAt time.Time `json:"started_at"`
	Lanes     []string  `json:"lanes"` // that it follows
}

type laneState struct {
	Lane              string            `json:"lane"`
	Owner             string            `json:"owner,omitempty"`   // the instance that follows it
	Position          time.Time         `json:"position,omitzero"` // everything up to here is applied
	Tail              int               `json:"tail"`              // deltas applied beyond the position; -1 when too many to list
	Seq               int64             `json:"seq"`               // how often the checkpoint has moved
	UpdatedAt         time.Time         `json:"updated_at,omitzero"`
	Following         *bool             `json:"following,omitempty"`
	LagSeconds        *float64          `json:"lag_seconds,omitempty"`
	ImagesOff         bool              `json:"images_off,omitempty"` // a change that needs an image costs a recount
	HeadroomSecs      *float64          `json:"headroom_seconds,omitempty"`
	CollectionMissing bool              `json:"collection_missing,omitempty"` // there are no rows: every count is 0
	Gaps              int64             `json:"gaps"`                         // stretches of history lost so far
	LastGap           *lastGap          `json:"last_gap,omitempty"`
	Broken            map[string]string `json:"broken,omitempty"` // the server's message by counter
	Error             string            `json:"error,omitempty"`
}

type lastGap struct {
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

type counterState struct {
	Counter         string    `json:"counter"`
	State           string    `json:"state"` // rebasing, active, or unknown before an incrementer has taken it up
	Reason          string    `json:"reason,omitempty"`
	Held            string    `json:"held,omitempty"`            // run that has held its repairs
	Kept            bool      `json:"kept,omitempty"`            // the application increments it itself
	VerifiedThrough time.Time `json:"verified_through,omitzero"` // all that was touched up to here is verified
	SweptThrough    time.Time `json:"swept_through,omitzero"`    // every key has been verified at or after this
}

// unknown is the state of a counter that no incrementer has taken up.
const unknown = "unknown"

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the lanes with their positions, and the counters with how far they are verified",
		Long: "status reads the state database, so it works whether or not an incrementer is running. What a running one sees,\n" +
			"its lag for one, is at /status on its port.",
		Example: "  incrementer status\n  incrementer status -o json | jq '.counters[] | select(.state != \"active\")'",
	}
	output := daemon.OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, definitions, err := command.Load(cmd)
		if err != nil {
			return err
		}
		s, err := readStatus(cmd.Context(), c, definitions)
		if err != nil {
			return err
		}
		if *output == daemon.JSON {
			return daemon.WriteJSON(cmd.OutOrStdout(), s)
		}
		return printer{cmd.OutOrStdout(), time.Now(), c.Incrementer.IdleCheckpoint}.status(s)
	}
	return cmd
}

// readStatus reads the state database.
func readStatus(ctx context.Context, c *config.Config, definitions []*counter.Definition) (status, error) {
	client, err := deployment.ConnectToRead(ctx, c, program)
	if err != nil {
		return status{}, err
	}
	defer deployment.Close(ctx, client)
	seen, err := readRecords(ctx, client, c.MongoDB.StateDatabase)
	if err != nil {
		return status{}, err
	}
	s := status{Lanes: []laneState{}}
	checkpoints := checkpoint.NewStore(client, c.MongoDB.StateDatabase)
	oldest, err := deployment.Oldest(ctx, client)
	if err != nil && !errors.Is(err, deployment.ErrNoOplog) {
		return s, err
	}
	ids, err := lanesFound(ctx, c, checkpoints)
	if err != nil {
		return s, err
	}
	for _, id := range ids {
		at, err := checkpoints.Load(ctx, id.String())
		switch {
		case errors.Is(err, checkpoint.ErrNone):
			others, err := checkpoints.OfSource(ctx, id.Source)
			if err != nil {
				return s, err
			}
			s.Lanes = append(s.Lanes, laneState{Lane: id.String(), Error: notStarted(others, id.Count())})
		case errors.Is(err, checkpoint.ErrNewer):
			s.Lanes = append(s.Lanes, laneState{Lane: id.String(), Error: err.Error()})
		case err != nil:
			return s, err
		default:
			lane := laneOf(at)
			lane.headroom(headroom(at, oldest))
			if id.Topic == "" {
				lane.Error = dividedOtherwise(at, id.Count())
			}
			s.Lanes = append(s.Lanes, lane)
		}
	}
	s.add(seen, definitions)
	return s, nil
}

// lanesFound lists the lanes of all sources: those of a topic are the ones that were followed.
func lanesFound(ctx context.Context, c *config.Config, checkpoints *checkpoint.Store) ([]checkpoint.LaneID, error) {
	ids := lanesOf(c)
	for _, source := range c.Sources {
		if source.Kafka == nil {
			continue
		}
		all, err := checkpoints.OfSource(ctx, source.Name)
		if err != nil {
			return nil, err
		}
		mine := slices.DeleteFunc(all, func(at checkpoint.Checkpoint) bool { return at.Topic != source.Kafka.Topic })
		if len(mine) > 0 {
			ids = append(ids, checkpoint.LanesOf(source.Name, mine)...)
		}
	}
	return ids, nil
}

// lanesOf lists the lanes of the sources that are change streams.
func lanesOf(c *config.Config) []checkpoint.LaneID {
	var ids []checkpoint.LaneID
	for _, source := range c.Sources {
		if source.ChangeStream == nil {
			continue
		}
		ids = append(ids, checkpoint.Lanes(source.Name, source.ChangeStream.Partitions)...)
	}
	return ids
}

// status is what /status shows: the lanes as this process sees them, and what the watch saw last.
func (p *process) status() status {
	s := status{Lanes: []laneState{}}
	for _, l := range p.allLanes() {
		v := l.State.View()
		lane, lag := laneOf(v.At), v.Lag.Seconds()
		lane.Lane, lane.Following, lane.LagSeconds, lane.Broken = l.ID.String(), &v.Owned, &lag, v.Broken
		if v.Standby != "" { // the one that follows it knows
			lane = laneState{Lane: l.ID.String(), Following: &v.Owned}
		}
		lane.ImagesOff = v.Owned && v.ImagesOff
		lane.headroom(p.watch.headroom(v))
		if v.LastErr != nil {
			lane.Error = v.LastErr.Error()
		}
		s.Lanes = append(s.Lanes, lane)
	}
	seen, err := p.watch.view()
	s.add(seen, p.definitions)
	if err != nil {
		s.Error = err.Error()
	}
	return s
}

// headroom takes NaN for not known.
func (l *laneState) headroom(seconds float64) {
	if !math.IsNaN(seconds) {
		l.HeadroomSecs = &seconds
	}
}

func laneOf(at checkpoint.Checkpoint) laneState {
	l := laneState{
		Lane: at.Lane, Seq: at.Seq, Position: stream.Clock(at.Position), UpdatedAt: at.UpdatedAt.UTC().Truncate(time.Millisecond),
		Tail: len(at.Tail.Deltas), CollectionMissing: at.Seq > 0 && at.Identity.Collection == "" && at.Topic == "",
	}
	if at.Tail.TooLarge {
		l.Tail = -1
	}
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

// add fills in what stands beside the checkpoints.
func (s *status) add(seen records, definitions []*counter.Definition) {
	for i := range s.Lanes {
		lane := &s.Lanes[i]
		if g, some := seen.gaps[lane.Lane]; some {
			lane.Gaps, lane.LastGap = g.Count, &lastGap{At: g.At.UTC(), Reason: g.Reason}
		}
		if lease := seen.roster.Leases[lane.Lane]; lease.Held {
			lane.Owner = lease.Owner
		}
	}
	s.Instances = instancesOf(seen.roster)
	for _, d := range definitions {
		s.Counters = append(s.Counters, counterOf(d, seen.states))
	}
	s.Held = command.HeldOf(definitions, seen.states)
	s.Undone = append([]counter.KeptBack{}, seen.kept...)
	s.DeadLetters = seen.deadLetters
}

func instancesOf(r checkpoint.Roster) []instanceState {
	all := []instanceState{}
	for _, i := range r.Instances {
		if !i.Lives {
			continue
		}
		state := instanceState{Instance: i.Name, StartedAt: i.Started.UTC(), Lanes: []string{}}
		for _, name := range slices.Sorted(maps.Keys(r.Leases)) {
			if lease := r.Leases[name]; lease.Held && lease.Owner == i.Name {
				state.Lanes = append(state.Lanes, name)
			}
		}
		all = append(all, state)
	}
	return all
}

func counterOf(d *counter.Definition, states map[string]counter.State) counterState {
	state, known := states[d.Name]
	if !known {
		return counterState{Counter: d.Name, State: unknown, Kept: d.ByApplication()}
	}
	return counterState{
		Counter: d.Name, State: state.State, Reason: state.Reason, Held: state.HeldBy(d), Kept: d.ByApplication(),
		VerifiedThrough: stream.Clock(state.VerifiedThrough), SweptThrough: stream.Clock(state.SweptThrough),
	}
}

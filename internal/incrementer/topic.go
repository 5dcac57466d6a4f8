package incrementer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"driftless/internal/logkey"
	"driftless/internal/stream"
	"driftless/internal/stream/kafka"
)

// Topic is a source whose lanes, the partitions of a topic, are spread over instances by a consumer group. Where each lane is
// stands in its checkpoint, and what fences a member that has lost a partition without knowing is its compare-and-set (I1).
type Topic struct {
	Client *kafka.Client
	Reader *kafka.Reader
	Group  kafka.GroupOptions
	Lane   func(partition int32) *Lane                  // the same one for a partition each time
	Claim  func(ctx context.Context, lane string) error // tells others who follows it; nil for nobody
	// Outside says why this instance has to stay out of the consumer group, nil while it may be in it: see Group.Outside. A nil
	// function lets it be in the group always.
	Outside func() error
	Log     *slog.Logger

	mutex   sync.Mutex
	lanes   map[int32]*Lane // that this instance has followed
	problem error           // why this instance is not in the group
}

// errJoining: a group may take a while until all members have given back what they have.
var errJoining = errors.New("joining the consumer group")

// Problem says why this instance is not in the group, nil when it is.
func (t *Topic) Problem() error {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.lanes == nil && t.problem == nil {
		return errJoining
	}
	return t.problem
}

func (t *Topic) failed(err error) {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	t.problem = err
}

const (
	// commitOffsetsEvery is how often the group is told how far lanes are, for tools that show lag.
	commitOffsetsEvery = 5 * time.Second
	// joinAgain is the pause after a failure to join that waiting may end.
	joinAgain = 5 * time.Second
)

// lookOutside is how often what Outside says is asked for, which costs nothing and holds up the start.
const lookOutside = 25 * time.Millisecond

// Run follows the partitions that the group gives to this instance until ctx ends, or until a lane ends for good.
func (t *Topic) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	running.Go(func() { t.Reader.Run(ctx) })
	for {
		if err := t.until(ctx, func(why error) bool { return why == nil }); err != nil {
			return err
		}
		inside, leave := context.WithCancel(ctx)
		running.Go(func() {
			_ = t.until(inside, func(why error) bool { return why != nil })
			leave()
		})
		err := t.member(inside)
		leave()
		if ctx.Err() != nil || !errors.Is(err, context.Canceled) {
			return err
		}
	}
}

// until waits until what Outside says is as wanted, or until ctx ends, and publishes why this instance is out of the group.
func (t *Topic) until(ctx context.Context, wanted func(error) bool) error {
	ticker := time.NewTicker(lookOutside)
	defer ticker.Stop()
	for {
		var why error
		if t.Outside != nil {
			why = t.Outside()
		}
		if why != nil {
			t.out(why)
		}
		if wanted(why) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
}

// out has all lanes stand by.
func (t *Topic) out(why error) {
	t.mutex.Lock()
	before := t.problem
	t.problem = why
	t.mutex.Unlock()
	if !same(before, why) && !errors.Is(why, errNotLooked) {
		t.Log.Warn("out of the consumer group", "group", t.Group.Name, logkey.Reason, why)
	}
	for _, lane := range t.Lanes() {
		lane.State.standingBy("", why)
	}
}

// member is in the group until ctx ends, or until a lane ends for good.
func (t *Topic) member(ctx context.Context) error {
	group, err := t.Client.Join(t.Group)
	if err != nil {
		return err
	}
	defer group.Close()
	for {
		generation, err := group.Next(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			t.failed(err)
			t.Log.Error("group not joined, trying again", logkey.Error, err, "after", joinAgain)
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(joinAgain):
			}
			continue
		}
		t.failed(nil)
		t.Log.Info("joined", "group", t.Group.Name, "generation", generation.ID, "partitions", generation.Partitions)
		var ended error
		generation.Run(ctx, func(ctx context.Context) { ended = t.follow(ctx, generation) })
		if ended != nil && !errors.Is(ended, context.Canceled) {
			return ended
		}
	}
}

// follow follows the lanes of a generation until it ends, or one of them ends for good.
func (t *Topic) follow(ctx context.Context, generation *kafka.Generation) error {
	mine := t.take(generation.Partitions)
	group, ctx := errgroup.WithContext(ctx)
	for _, lane := range mine {
		group.Go(func() error { return lane.Run(ctx) })
	}
	group.Go(func() error { return t.commitOffsets(ctx, generation, mine) })
	return group.Wait()
}

// take returns the lanes of some partitions, and has all others stand by.
func (t *Topic) take(partitions []int32) map[int32]*Lane {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	if t.lanes == nil {
		t.lanes = map[int32]*Lane{}
	}
	mine := map[int32]*Lane{}
	for _, p := range partitions {
		if t.lanes[p] == nil {
			t.lanes[p] = t.Lane(p)
		}
		mine[p] = t.lanes[p]
	}
	for p, lane := range t.lanes {
		if mine[p] == nil {
			lane.State.standingBy("another member of the group", nil)
		}
	}
	return mine
}

// claim tells others who follows the lanes. It is for their eyes alone, so a failure is no harm.
func (t *Topic) claim(ctx context.Context, lanes map[int32]*Lane) {
	if t.Claim == nil {
		return
	}
	for _, lane := range lanes {
		if err := t.Claim(ctx, lane.ID.String()); err != nil && ctx.Err() == nil {
			t.Log.Debug("lane not claimed", logkey.Lane, lane.ID.String(), logkey.Error, err)
		}
	}
}

// Lanes are all that this instance has followed.
func (t *Topic) Lanes() []*Lane {
	t.mutex.Lock()
	defer t.mutex.Unlock()
	lanes := make([]*Lane, 0, len(t.lanes))
	for _, lane := range t.lanes {
		lanes = append(lanes, lane)
	}
	return lanes
}

// commitOffsets tells the group where lanes are, now and then. That fails without harm: nobody resumes there.
func (t *Topic) commitOffsets(ctx context.Context, generation *kafka.Generation, lanes map[int32]*Lane) error {
	ticker := time.NewTicker(commitOffsetsEvery)
	defer ticker.Stop()
	told := map[int32]int64{}
	for {
		t.claim(ctx, lanes)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		offsets := map[int32]int64{}
		for p, lane := range lanes {
			at, err := stream.TopicPositionOf(lane.State.View().At.Token)
			if err == nil && at.Offset != told[p] {
				offsets[p], told[p] = at.Offset, at.Offset
			}
		}
		if len(offsets) == 0 {
			continue
		}
		if err := generation.Commit(offsets); err != nil {
			t.Log.Warn("offsets not committed to the group; tools that show lag are behind", logkey.Error, err)
		}
	}
}

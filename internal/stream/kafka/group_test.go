package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"

	"driftless/internal/realtest"
)

// roster notes which member had which partitions in each generation.
type roster struct {
	mu          sync.Mutex
	generations map[int32]map[string][]int32
	held        map[int32]string // by partition, the member that reads it now
	faults      []string
}

// take is called by a member that begins to read, and the result when it has stopped.
func (r *roster) take(g *Generation) (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.generations[g.ID] == nil {
		r.generations[g.ID] = map[string][]int32{}
	}
	r.generations[g.ID][g.Member] = g.Partitions
	for _, p := range g.Partitions {
		if other, taken := r.held[p]; taken {
			r.faults = append(r.faults, fmt.Sprintf("generation %d: partition %d is read by %s and %s", g.ID, p, other, g.Member))
		}
		r.held[p] = g.Member
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, p := range g.Partitions {
			delete(r.held, p)
		}
	}
}

// shared reports whether the partitions are read by so many members now, all of them.
func (r *roster) shared(partitions, members int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owners := map[string]bool{}
	for _, member := range r.held {
		owners[member] = true
	}
	return len(r.held) == partitions && len(owners) == members
}

// join makes a client a member until leave is called.
func (r *roster) join(t *testing.T, c *Client, name string) (leave func()) {
	t.Helper()
	g, err := c.Join(GroupOptions{Name: name, Session: 6 * time.Second, Watch: 300 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			generation, err := g.Next(ctx)
			if err != nil {
				return
			}
			generation.Run(ctx, func(ctx context.Context) {
				defer r.take(generation)()
				<-ctx.Done()
			})
		}
	})
	leave = sync.OnceFunc(func() {
		cancel()
		g.Close()
		wg.Wait()
	})
	t.Cleanup(leave)
	return leave
}

func TestEveryPartitionHasOneOwnerWhileMembersComeAndGo(t *testing.T) {
	t.Parallel()
	const partitions = 6
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, partitions, nil)
	r := roster{generations: map[int32]map[string][]int32{}, held: map[int32]string{}}
	wait := func(partitions, members int) {
		t.Helper()
		realtest.Eventually(t, patience, fmt.Sprintf("%d partitions are read by %d members", partitions, members), func() bool {
			return r.shared(partitions, members)
		})
	}
	first := r.join(t, client(t, k, topic), topic)
	wait(partitions, 1)
	second := r.join(t, client(t, k, topic), topic)
	wait(partitions, 2)
	first()
	wait(partitions, 1)
	r.join(t, client(t, k, topic), topic)
	wait(partitions, 2)
	if err := k.GrowTopic(limited(t), topic, partitions+2); err != nil {
		t.Fatal(err)
	}
	wait(partitions+2, 2)
	second()
	wait(partitions+2, 1)

	r.mu.Lock()
	defer r.mu.Unlock()
	for _, fault := range r.faults {
		t.Error(fault)
	}
	for id, members := range r.generations {
		var list []int32
		for _, part := range members {
			list = append(list, part...)
		}
		slices.Sort(list)
		if len(slices.Compact(slices.Clone(list))) != len(list) {
			t.Errorf("generation %d: %v", id, members)
		}
	}
	t.Logf("%d generations: %v", len(r.generations), slices.Sorted(maps.Keys(r.generations)))
}

// A topic may grow, or be made again, just when the leader has looked.
func TestPartitionsThatComeWhileTheyAreSharedOutAreFound(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	grow := sync.OnceFunc(func() {
		if err := k.GrowTopic(limited(t), topic, 3); err != nil {
			t.Error(err)
		}
	})
	g, err := client(t, k, topic).Join(GroupOptions{Name: topic, Session: 6 * time.Second, Watch: 300 * time.Millisecond, shared: grow})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for range 2 {
		generation, err := g.Next(limited(t))
		if err != nil {
			t.Fatal(err)
		}
		if len(generation.Partitions) == 3 {
			return
		}
		ctx := limited(t)
		generation.Run(ctx, func(ctx context.Context) { <-ctx.Done() })
		if ctx.Err() != nil {
			break
		}
	}
	t.Error("two of three partitions are nobody's")
}

func TestOffsetsAreCommittedForOthersToSee(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 2, nil)
	g, err := client(t, k, topic).Join(GroupOptions{Name: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	generation, err := g.Next(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(generation.Partitions, []int32{0, 1}) {
		t.Errorf("assigned %v", generation.Partitions)
	}
	if err := generation.Commit(map[int32]int64{0: 7, 1: 9}); err != nil {
		t.Fatal(err)
	}
	response, err := k.Client().OffsetFetch(limited(t), &kafka.OffsetFetchRequest{GroupID: topic, Topics: map[string][]int{topic: {0, 1}}})
	if err != nil || response.Error != nil {
		t.Fatal(err, response.Error)
	}
	for i, want := range []int64{7, 9} {
		if got := response.Topics[topic][i].CommittedOffset; got != want {
			t.Errorf("partition %d: committed %d, want %d", i, got, want)
		}
	}
}

// A member that does not come back from its generation holds up a rebalance, and with it whoever has asked to join.
func TestAMemberThatWaitsToJoinCanBeClosed(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	join := func() *Group {
		g, err := client(t, k, topic).Join(GroupOptions{Name: topic, Session: 30 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	first := join()
	defer first.Close()
	generation, err := first.Next(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	var busy sync.WaitGroup
	defer busy.Wait()
	defer close(release)
	ended := make(chan struct{})
	busy.Go(func() {
		generation.Run(t.Context(), func(ctx context.Context) {
			<-ctx.Done()
			close(ended)
			<-release
		})
	})
	second := join()
	<-ended // the second has asked to join, and the first knows
	started := time.Now()
	second.Close()
	if took := time.Since(started); took > 15*time.Second {
		t.Errorf("closed after %v", took)
	}
}

// A partition that is added is there to be opened, from its beginning.
func TestAddedPartitionsAreListedAndRead(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	c := client(t, k, topic)
	r := running(t, c)
	before := places(t, c, Earliest)
	toEnd(t, r.Open(0, before[0]), before[0], 0)
	if err := k.GrowTopic(limited(t), topic, 3); err != nil {
		t.Fatal(err)
	}
	produce(t, k, topic, 2, numbered(0, 10)...)
	after := places(t, c, Earliest)
	if len(before) != 1 || len(after) != 3 {
		t.Fatalf("%d partitions, then %d", len(before), len(after))
	}
	records, _ := toEnd(t, r.Open(2, after[2]), after[2], 10)
	wantNumbers(t, records, 0, 10)
}

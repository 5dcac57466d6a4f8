package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/segmentio/kafka-go"

	"driftless/internal/stream"
)

// Group is this process's membership in a consumer group, which spreads the partitions of the topic over its members.
type Group struct {
	client *Client
	group  *kafka.ConsumerGroup
	conns  *connections
	watch  time.Duration
	shared *atomic.Int64 // partitions that this member has shared out as the leader of the next generation, or unshared
}

// unshared: another member leads.
const unshared = -1

// balancer tells how many partitions the leader has shared out.
type balancer struct {
	kafka.GroupBalancer
	shared *atomic.Int64
	told   func() // nil, or called when that is known
}

// AssignGroups implements kafka.GroupBalancer. It is called for the leader alone.
func (b balancer) AssignGroups(members []kafka.GroupMember, partitions []kafka.Partition) kafka.GroupMemberAssignments {
	b.shared.Store(int64(len(partitions)))
	if b.told != nil {
		b.told()
	}
	return b.GroupBalancer.AssignGroups(members, partitions)
}

// GroupOptions say how quickly a member that died is noticed.
type GroupOptions struct {
	// Name is the group's.
	Name string
	// Session is how long a member may be silent before its partitions go to others; 0 is 15 s. A tenth of it is how long the
	// others take to learn of a change.
	Session time.Duration
	// Watch is how often the leader of the group looks for new partitions; 0 is 10 s.
	Watch time.Duration

	shared func() // for tests: the leader has listed the partitions
}

// Generation is what this member has been assigned until the next change in the group. No other member of the same generation has
// any of it.
type Generation struct {
	ID         int32
	Member     string
	Partitions []int32 // in order; may be empty

	topic string
	inner *kafka.Generation
}

// Join starts to be a member. It connects in the background: [Group.Next] has the errors.
func (c *Client) Join(o GroupOptions) (*Group, error) {
	g := &Group{
		client: c, conns: &connections{dial: c.conns.dial}, watch: orDefault(o.Watch, 10*time.Second), shared: new(atomic.Int64),
	}
	g.shared.Store(unshared)
	session := orDefault(o.Session, 15*time.Second)
	var err error
	g.group, err = kafka.NewConsumerGroup(kafka.ConsumerGroupConfig{
		ID: o.Name, Topics: []string{c.options.Topic}, Brokers: c.options.Brokers,
		Dialer: &kafka.Dialer{
			ClientID: clientID, DialFunc: g.conns.open, SASLMechanism: c.sasl, Timeout: requestTimeout,
		},
		// Consecutive partitions to each member, as most clients do first; all members must have one strategy in common.
		GroupBalancers: []kafka.GroupBalancer{
			balancer{kafka.RangeGroupBalancer{}, g.shared, o.shared}, balancer{kafka.RoundRobinGroupBalancer{}, g.shared, o.shared},
		},
		SessionTimeout:   session,
		RebalanceTimeout: session,
		// A member learns of a change with its heartbeat.
		HeartbeatInterval: session / 10,
		JoinGroupBackoff:  time.Second,
		Timeout:           requestTimeout,
	})
	if err != nil {
		return nil, fmt.Errorf("join group %s: %w", o.Name, err)
	}
	return g, nil
}

// Next waits for the next generation, after everything that the last one ran has returned. A coordinator that is not there yet is
// waited for; while there is no such topic a generation has no partitions. Other errors are classified: [stream.ErrUnauthorized], [ErrUnknownTopic]; the group goes on trying meanwhile, so
// that Next may be called again.
func (g *Group) Next(ctx context.Context) (*Generation, error) {
	for {
		inner, err := g.group.Next(ctx)
		switch {
		case err == nil:
			return g.generation(inner), nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case errors.Is(err, kafka.ErrGroupClosed):
			return nil, net.ErrClosed
		}
		err = Classify(err)
		if !errors.Is(err, stream.ErrInterrupted) {
			return nil, fmt.Errorf("join group: %w", err)
		}
		g.client.tellRetry(fmt.Errorf("join group: %w", err))
	}
}

func (g *Group) generation(inner *kafka.Generation) *Generation {
	topic := g.client.options.Topic
	generation := &Generation{ID: inner.ID, Member: inner.MemberID, topic: topic, inner: inner}
	for _, p := range inner.Assignments[topic] {
		generation.Partitions = append(generation.Partitions, int32(p.ID)) //nolint:gosec // came as such
	}
	slices.Sort(generation.Partitions)
	if n := g.shared.Swap(unshared); n != unshared {
		inner.Start(func(ctx context.Context) { g.untilOthers(ctx, int(n)) })
	}
	return generation
}

// untilOthers waits until the topic has another number of partitions than the leader has shared out: that ends the generation.
// kafka-go's own watch compares with what it finds a moment later, so that a topic which was made in between stayed nobody's.
func (g *Group) untilOthers(ctx context.Context, shared int) {
	ticker := time.NewTicker(g.watch)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		topic, err := g.client.Topic(ctx)
		if (err == nil || errors.Is(err, ErrUnknownTopic)) && len(topic.Partitions) != shared {
			return
		}
	}
}

// Run runs f until the generation ends, which ends its context. The member asks for its next partitions only when f has returned:
// whoever takes too long holds up all members, at most for a session. When f returns before, the generation ends.
func (g *Generation) Run(ctx context.Context, f func(context.Context)) {
	done := make(chan struct{})
	g.inner.Start(func(generation context.Context) {
		defer close(done)
		within, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(generation, cancel)()
		f(within)
	})
	<-done
}

// Commit tells the group how far partitions are read, for tools that show lag. Nobody resumes there. An offset is the next one to
// read.
func (g *Generation) Commit(offsets map[int32]int64) error {
	partitions := make(map[int]int64, len(offsets))
	for partition, offset := range offsets {
		partitions[int(partition)] = offset
	}
	if err := g.inner.CommitOffsets(map[string]map[int]int64{g.topic: partitions}); err != nil {
		return fmt.Errorf("commit offsets: %w", Classify(err))
	}
	return nil
}

// closeGrace is how long [Group.Close] waits for an answer to a request to join, which others may hold up for a session.
const closeGrace = 2 * time.Second

// Close leaves the group, so that the others need not wait for the session to end, and returns when everything has returned that
// the generation ran.
func (g *Group) Close() {
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = g.group.Close() // its error is always nil
	}()
	timer := time.NewTimer(closeGrace)
	defer timer.Stop()
	select {
	case <-left:
	case <-timer.C:
		g.conns.cut()
		<-left
	}
	g.conns.close()
}

package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// stormyPosts is how many counters the load is spread over.
const stormyPosts = 30

// reactions is an application that makes rows, takes some of them away softly, and publishes an event of each time.
type reactions struct {
	*place
	kafka      *realtest.Kafka
	topic      string
	partitions int

	alive  []reaction
	events atomic.Int64 // that were published
}

type reaction struct {
	id   bson.ObjectID
	post int
}

// burst makes n rows and takes a few away.
func (r *reactions) burst(ctx context.Context, n int) error {
	now, rows, gone := time.Now(), []any{}, bson.A{}
	var events []realtest.Record
	publish := func(kind string, post int) {
		events = append(events, realtest.Record{Value: fmt.Appendf(nil, `{"type":%q,"post_id":%d,"at":%d}`, kind, post, now.UnixMilli())})
	}
	for range min(n/5, len(r.alive)) {
		i := rand.IntN(len(r.alive))
		gone = append(gone, r.alive[i].id)
		publish("removed", r.alive[i].post)
		r.alive[i] = r.alive[len(r.alive)-1]
		r.alive = r.alive[:len(r.alive)-1]
	}
	for range n {
		made := reaction{bson.NewObjectID(), rand.IntN(stormyPosts)}
		rows = append(rows, bson.D{{Key: "_id", Value: made.id}, {Key: "post_id", Value: made.post}, {Key: "created_at", Value: now}})
		publish("added", made.post)
		r.alive = append(r.alive, made)
	}
	collection := r.client.Database(r.app).Collection("reactions")
	_, err := collection.InsertMany(ctx, rows)
	_, err2 := collection.UpdateMany(ctx, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: gone}}}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: now}}}})
	for p := rand.IntN(r.partitions); len(events) > 0 && err == nil; p++ {
		part := min(len(events), 1+n/r.partitions)
		err = r.kafka.Produce(ctx, r.topic, int32(p%r.partitions), events[:part]...)
		r.events.Add(int64(part))
		events = events[part:]
	}
	return errors.Join(err, err2)
}

// flow makes bursts all the time until stop is called.
func (r *reactions) flow() (stop func()) {
	ctx, cancel := context.WithCancel(r.t.Context())
	var flowing sync.WaitGroup
	flowing.Go(func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if err := r.burst(context.WithoutCancel(ctx), 20); err != nil {
				r.t.Errorf("load: %v", err)
			}
			<-ticker.C
		}
	})
	stop = func() {
		cancel()
		flowing.Wait()
	}
	r.t.Cleanup(stop)
	return stop
}

// applied is how many events are before the places of the lanes.
func (r *reactions) applied() (n int64) {
	r.t.Helper()
	lanes, err := checkpoint.NewStore(r.client, r.state).Set(r.t.Context(), "reactions")
	if err != nil && !errors.Is(err, checkpoint.ErrIncomplete) && !errors.Is(err, checkpoint.ErrNone) {
		r.t.Fatal(err)
	}
	for _, at := range lanes {
		position, err := stream.TopicPositionOf(at.Token)
		if err != nil {
			r.t.Fatal(err)
		}
		n += position.Offset
	}
	return n
}

// storm is a number of instances of which one joins or leaves at every blow, in order or by kill -9. Another one sleeps through
// several blows, for longer than its session, and wakes up in the belief that its partitions are its own.
type storm struct {
	p      *place
	up     []*service
	asleep *service
	blows  int
	joined int
	ended  map[syscall.Signal]int
}

func (s *storm) join() {
	s.up = append(s.up, s.p.start("incrementer"))
	s.joined++
}

// take is one of those that are up, which is not any more.
func (s *storm) take() *service {
	i := rand.IntN(len(s.up))
	taken := s.up[i]
	s.up = append(s.up[:i], s.up[i+1:]...)
	return taken
}

func (s *storm) leave(how syscall.Signal) {
	s.take().signal(how)
	s.ended[how]++
}

func (s *storm) wake() {
	if s.asleep != nil {
		s.asleep.signal(syscall.SIGCONT)
		s.up, s.asleep = append(s.up, s.asleep), nil
	}
}

func (s *storm) blow() {
	if s.blows%3 == 0 {
		s.wake()
		s.asleep = s.take()
		s.asleep.pause()
	}
	s.blows++
	switch n := len(s.up); {
	case n < 2, n < 4 && rand.IntN(2) == 0:
		s.join()
	case s.ended[syscall.SIGKILL] <= s.ended[syscall.SIGTERM]:
		s.leave(syscall.SIGKILL)
	default:
		s.leave(syscall.SIGTERM)
	}
}

// Whoever comes, goes or dies, and however soon after the last one: every event of the topic is applied once. The recount is
// over before the storm begins, so that nothing but the events can make the counters right.
func TestInstancesOfATopicThatComeGoAndDieUnderLoadApplyEveryEventOnce(t *testing.T) {
	t.Parallel()
	p, k, topic := reacting(t, 6)
	p.env = []string{"DRIFTLESS_INCREMENTER_LEASE=" + lease.String()}
	r := &reactions{place: p, kafka: k, topic: topic, partitions: 6}
	p.want(0, "incrementer", "setup")
	s := &storm{p: p, ended: map[syscall.Signal]int{}}
	s.join()
	stop := r.flow()
	realtest.Eventually(t, 3*patience, "the first recount to end", func() bool {
		return p.run("reconciler", "run", "--once").code == 0 && p.active()
	})
	s.join()
	s.join()

	before := r.applied()
	blows := time.NewTicker(2 * time.Second)
	defer blows.Stop()
	for range soak(6, 30) {
		s.blow()
		<-blows.C
	}
	t.Logf("%d instances joined, %d were stopped and %d killed; %d of %d events were applied meanwhile", s.joined,
		s.ended[syscall.SIGTERM], s.ended[syscall.SIGKILL], r.applied()-before, r.events.Load()-before)
	s.wake()
	stop()
	realtest.Eventually(t, 3*patience, "all events to be applied", func() bool { return r.applied() == r.events.Load() })
	r.wantCounted()
	realtest.Eventually(t, 3*patience, "the moment that counters are judged at to pass", func() bool {
		return p.run("reconciler", "verify", "--full").code != 1
	})
	p.want(0, "reconciler", "verify", "--full")
	if gaps := p.reasons(); len(gaps) != 0 {
		t.Errorf("gaps are recorded for %v", gaps)
	}
}

// wantCounted holds the counters to the rows, once all events are applied.
func (r *reactions) wantCounted() {
	r.t.Helper()
	if got, want := r.displayedAndRows(); len(want) == 0 || !maps.Equal(got, want) {
		r.t.Errorf("displayed are\n%v, the rows say\n%v", got, want)
	}
}

func (r *reactions) isRight() bool {
	r.t.Helper()
	got, want := r.displayedAndRows()
	return maps.Equal(got, want)
}

// displayedAndRows are what the counters display and what there is, by post.
func (r *reactions) displayedAndRows() (displayed, rows map[string]int64) {
	r.t.Helper()
	displayed = r.numbers("post_counters", bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$add", Value: bson.A{
		bson.D{{Key: "$ifNull", Value: bson.A{"$base_count", 0}}}, bson.D{{Key: "$ifNull", Value: bson.A{"$live_delta", 0}}},
	}}}}}}}})
	rows = r.numbers("reactions", bson.A{
		bson.D{{Key: "$match", Value: bson.D{{Key: "deleted_at", Value: nil}}}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$post_id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	})
	return displayed, rows
}

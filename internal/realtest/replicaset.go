package realtest

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// ReplicaSet is a replica set of several members, each a process of its own that can be killed, restarted and paused.
type ReplicaSet struct {
	Members []*Mongod
	options Options
}

// StartReplicaSet starts n members with the same options and returns when one is primary and the others follow it. LogTo and
// Standalone are not for sets.
func StartReplicaSet(ctx context.Context, n int, options Options) (*ReplicaSet, error) {
	options.inSet, options.Standalone, options.LogTo = true, false, ""
	if options.Auth {
		options.key = rand.Text()
	}
	set := &ReplicaSet{options: options}
	if err := set.start(ctx, n); err != nil {
		return nil, errors.Join(err, set.Stop())
	}
	return set, nil
}

func (s *ReplicaSet) start(ctx context.Context, n int) error {
	for range n {
		member, err := startProcessFor(ctx, s.options)
		if err != nil {
			return err
		}
		s.Members = append(s.Members, member)
	}
	if err := s.Members[0].initiate(ctx, s.Members); err != nil {
		return err
	}
	primary, err := s.Primary(ctx)
	if err != nil {
		return err
	}
	for _, member := range s.Members {
		if err := member.waitReady(ctx); err != nil {
			return err
		}
	}
	return primary.createRoot(ctx)
}

// URI connects to the set, with credentials if it asks for them.
func (s *ReplicaSet) URI() string {
	return mongoURI(s.options, "replicaSet="+replicaSetName, s.Members...)
}

// Stop ends all members and removes their data. Calling it again does nothing.
func (s *ReplicaSet) Stop() error {
	errs := make([]error, len(s.Members))
	var wg sync.WaitGroup
	for i, member := range s.Members {
		wg.Go(func() { errs[i] = member.Stop() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Primary returns the member that takes writes, and waits until there is one.
func (s *ReplicaSet) Primary(ctx context.Context) (*Mongod, error) {
	return s.primaryOtherThan(ctx, nil)
}

// Secondaries returns the members other than the primary, and waits until there is one.
func (s *ReplicaSet) Secondaries(ctx context.Context) ([]*Mongod, error) {
	primary, err := s.Primary(ctx)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(s.Members), func(m *Mongod) bool { return m == primary }), nil
}

// StepDown makes the primary step down, and returns the one that follows it. The period, in whole seconds and at least two, is
// how long it cannot be elected again: in a set of three, that leaves two, and one when the next steps down within it.
func (s *ReplicaSet) StepDown(ctx context.Context, period time.Duration) (*Mongod, error) {
	old, err := s.Primary(ctx)
	if err != nil {
		return nil, err
	}
	seconds := int(period.Seconds())
	command := bson.D{{Key: "replSetStepDown", Value: seconds}, {Key: "secondaryCatchUpPeriodSecs", Value: seconds - 1}}
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		err := old.admin(ctx, func(admin *mongo.Database) error { return admin.RunCommand(ctx, command).Err() })
		var server mongo.ServerError
		switch {
		case errors.As(err, &server) && server.HasErrorCode(notWritablePrimary): // an attempt whose answer was lost
			return true, nil
		case errors.As(err, &server) && server.HasErrorCode(exceededTimeLimit): // nobody who may be elected has caught up
			return false, nil
		case mongo.IsNetworkError(err), mongo.IsTimeout(err):
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return nil, fmt.Errorf("step down: %w", err)
	}
	return s.primaryOtherThan(ctx, old)
}

// The server's error codes of these names.
const (
	exceededTimeLimit  = 262
	notWritablePrimary = 10107
)

// primaryOtherThan asks all members side by side: one that is paused does not answer, and must not keep us from the others.
func (s *ReplicaSet) primaryOtherThan(ctx context.Context, old *Mongod) (*Mongod, error) {
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	found := make(chan *Mongod, len(s.Members))
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for _, member := range s.Members {
		if member == old {
			continue
		}
		wg.Go(func() {
			if member.waitRole(asking, func(r role) bool { return r.Writable }) == nil {
				found <- member
			}
		})
	}
	select {
	case primary := <-found:
		return primary, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a primary: %w", ctx.Err())
	}
}

// Pause stops members as [Mongod.Pause] does, side by side, until they are resumed, killed or the test ends.
func Pause(t testing.TB, members ...*Mongod) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	errs := make([]error, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		t.Cleanup(m.Resume)
		wg.Go(func() { errs[i] = m.Pause(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatalf("pause servers: %v", err)
	}
}

// HoldReplication keeps members from fetching what the primary writes, until release or the end of the test: what it writes from
// then on, no other member has. They stay members that vote, so the primary stays primary. (Pausing them would not do: the
// primary's batches wait in their sockets, and are applied afterwards even if the primary is dead by then.)
func HoldReplication(t testing.TB, members ...*Mongod) (release func()) {
	t.Helper()
	release = sync.OnceFunc(func() {
		ctx, cancel := cleanupContext(t)
		defer cancel()
		for _, m := range members {
			// A member that is gone has forgotten it.
			_ = m.admin(ctx, func(admin *mongo.Database) error { return holdFetching(ctx, admin, "off").Err() })
		}
	})
	t.Cleanup(release)
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	for _, m := range members {
		err := m.admin(ctx, func(admin *mongo.Database) error {
			var reply struct{ Count int64 }
			if err := holdFetching(ctx, admin, "alwaysOn").Decode(&reply); err != nil {
				return err
			}
			// The driver adds the limit that the server asks for, since the context has one.
			return admin.RunCommand(ctx, bson.D{{Key: "waitForFailPoint", Value: stopFetching}, {Key: "timesEntered", Value: reply.Count + 1}}).Err()
		})
		if err != nil {
			t.Fatalf("hold the replication of %s: %v", m.Addr(), err)
		}
	}
	return release
}

const stopFetching = "stopReplProducer"

func holdFetching(ctx context.Context, admin *mongo.Database, mode string) *mongo.SingleResult {
	return admin.RunCommand(ctx, bson.D{{Key: "configureFailPoint", Value: stopFetching}, {Key: "mode", Value: mode}})
}

// PrivateSet starts a replica set of n members for one test, with fail points, and stops it at cleanup.
func PrivateSet(t testing.TB, n int, o Options) *ReplicaSet {
	t.Helper()
	o.TestCommands = true
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	set, err := StartReplicaSet(ctx, n, o)
	if err != nil {
		t.Fatalf("start replica set: %v", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			set.tell(t)
		}
		if err := set.Stop(); err != nil {
			t.Errorf("stop replica set: %v", err)
		}
	})
	return set
}

// tell logs what each member says of elections, of whom it follows and of rollbacks, the last hundred lines.
func (s *ReplicaSet) tell(t testing.TB) {
	for _, m := range s.Members {
		var lines []string
		for line := range strings.Lines(string(m.log.from(0))) {
			if strings.Contains(line, `"c":"REPL`) || strings.Contains(line, `"c":"ELECTION`) || strings.Contains(line, `"c":"ROLLBACK`) {
				lines = append(lines, line)
			}
		}
		t.Logf("log of %s:\n%s", m.Addr(), strings.Join(lines[max(0, len(lines)-100):], ""))
	}
}

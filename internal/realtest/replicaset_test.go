package realtest_test

import (
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"driftless/internal/realtest"
)

func TestReplicaSetFailsOver(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{Auth: true})
	client := realtest.Client(t, set.URI())
	if err := insert(limited(t), client, "rows"); err != nil {
		t.Fatal(err)
	}

	first, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	second, err := set.StepDown(limited(t), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if first == second {
		t.Error("the primary is the same after a stepdown")
	}
	if err := insert(limited(t), client, "rows"); err != nil {
		t.Errorf("insert after stepdown: %v", err)
	}

	// The first may not be elected for a minute, so it is the third one's turn, and two of three are a majority.
	second.Kill()
	third, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if third == second {
		t.Error("the primary is the one that was killed")
	}
	realtest.Eventually(t, patience, "an insert after the kill", func() bool {
		return insert(limited(t), client, "rows") == nil
	})
	if err := second.Restart(limited(t)); err != nil {
		t.Fatal(err)
	}
	if n := countRows(t, client, "rows"); n < 3 {
		t.Errorf("rows after two failovers: got %d, want at least 3", n)
	}
}

func TestReplicaSetStepsDownAgainAndAgain(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	last, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	for n := range 4 { // more often than there are members
		next, err := set.StepDown(limited(t), 3*time.Second)
		if err != nil {
			t.Fatalf("stepdown %d: %v", n, err)
		}
		if next == last {
			t.Errorf("stepdown %d: the primary is the same", n)
		}
		last = next
	}
}

func TestReplicaSetWithoutAMajorityHasNoPrimaryUntilItIsBack(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	others, err := set.Secondaries(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(others) != 2 {
		t.Fatalf("%d secondaries", len(others))
	}
	realtest.Pause(t, others...)
	lonely := realtest.Client(t, set.URI(), options.Client().SetServerSelectionTimeout(100*time.Millisecond))
	realtest.Eventually(t, patience, "there is no primary", func() bool { return insert(limited(t), lonely, "rows") != nil })
	for _, m := range others {
		m.Resume()
	}
	realtest.Eventually(t, patience, "there is one again", func() bool { return insert(limited(t), lonely, "rows") == nil })
}

func TestReplicaSetHoldsBackWhatThePrimaryWritesUntilItIsReleased(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	primary, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	others, err := set.Secondaries(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	alone := realtest.Client(t, primary.URI(), options.Client().SetWriteConcern(writeconcern.W1()))
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() { // what is held back must be fetched to be noticed
		for {
			select {
			case <-stop:
				return
			default:
				_ = insert(t.Context(), alone, "others")
			}
		}
	})
	release := realtest.HoldReplication(t, others...)
	close(stop)
	writing.Wait()
	if err := insert(limited(t), alone, "rows"); err != nil {
		t.Fatal(err)
	}
	has := func(m *realtest.Mongod) bool { return countRows(t, realtest.Client(t, m.URI()), "rows") > 0 }
	if !has(primary) || has(others[0]) || has(others[1]) {
		t.Errorf("the row is at the primary: %v, at the others: %v, %v", has(primary), has(others[0]), has(others[1]))
	}
	release()
	realtest.Eventually(t, patience, "the others have the row", func() bool { return has(others[0]) && has(others[1]) })
}

func TestReplicaSetFindsThePrimaryPastAPausedOne(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	first, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Pause(limited(t)); err != nil {
		t.Fatal(err)
	}
	defer first.Resume()
	start := time.Now()
	next, err := set.Primary(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if next == first {
		t.Error("the paused member answered")
	}
	t.Logf("new primary after %v", time.Since(start))
}

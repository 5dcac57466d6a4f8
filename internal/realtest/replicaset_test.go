package realtest_test

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo/options"

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

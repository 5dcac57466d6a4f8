package main

import (
	"errors"
	"testing"

	"driftless/internal/counter"
	"driftless/internal/incrementer"
)

func TestALaneIsReadyWhileItIsFollowed(t *testing.T) {
	failure := errors.New("no route")
	for name, tt := range map[string]struct {
		view incrementer.View
		want string
	}{
		"followed":            {incrementer.View{Owned: true}, ""},
		"interrupted":         {incrementer.View{LastErr: failure}, "no route"},
		"left without reason": {incrementer.View{}, "being opened"},
		"on standby":          {incrementer.View{Standby: "another"}, ""},
		"kept from it":        {incrementer.View{Standby: "another", LastErr: failure}, "no route"},
	} {
		got := ""
		if err := following(tt.view); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A first start is ready as soon as its lanes are followed, whatever waits for its first recount.
func TestOnlyAGapKeepsFromBeingReady(t *testing.T) {
	definitions := named("a", "b", "c")
	if err := healed(states(active, first), definitions); err != nil {
		t.Errorf("healed = %v", err)
	}
	both := gap
	both.Name = "c"
	if err := healed(states(gap, first, both), definitions); err == nil ||
		err.Error() != "events were lost, and a, c are not recounted since: the next run of the reconciler does it" {
		t.Errorf("healed = %v", err)
	}
	for _, reason := range []string{counter.ReasonPartitions, counter.ReasonReset} {
		moved := gap
		moved.Reason = reason
		if healed(states(moved), definitions) == nil {
			t.Errorf("ready after %s", reason)
		}
	}
	if err := healed(states(gap), named("b")); err != nil {
		t.Errorf("another lane's gap: %v", err)
	}
}

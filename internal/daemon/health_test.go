package daemon

import (
	"testing"
	"testing/synctest"
	"time"
)

// pass lets time go by.
var pass = time.Sleep //nolint:forbidigo // in a bubble, where it takes none

func TestHealthJudgesLoopsByTheirHeartbeat(t *testing.T) {
	const allowed = 30 * time.Second
	for name, tt := range map[string]struct {
		steps func(*Heartbeat)
		want  string // "" when healthy
	}{
		"just registered":       {func(*Heartbeat) {}, ""},
		"never beats":           {func(*Heartbeat) { pass(31 * time.Second) }, "loop comments has not moved for 31s, at most 30s is expected"},
		"exactly at the limit":  {func(*Heartbeat) { pass(allowed) }, ""},
		"beats in time":         {func(b *Heartbeat) { pass(20 * time.Second); b.Beat(); pass(20 * time.Second) }, ""},
		"stops beating":         {func(b *Heartbeat) { b.Beat(); pass(2 * time.Minute) }, "loop comments has not moved for 2m0s, at most 30s is expected"},
		"waits for long":        {func(b *Heartbeat) { b.Waiting(); pass(24 * time.Hour) }, ""},
		"is judged after it":    {func(b *Heartbeat) { b.Waiting(); pass(time.Hour); b.Beat(); pass(40 * time.Second) }, "loop comments has not moved for 40s, at most 30s is expected"},
		"recovers":              {func(b *Heartbeat) { pass(time.Hour); b.Beat() }, ""},
		"has ended":             {func(b *Heartbeat) { b.Done(); pass(time.Hour) }, ""},
		"beats after its end":   {func(b *Heartbeat) { b.Done(); b.Beat(); pass(time.Hour) }, ""},
		"time is still running": {func(b *Heartbeat) { b.Beat(); pass(29 * time.Second) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				health := NewHealth()
				tt.steps(health.Loop("comments", allowed))
				if got := message(health.Check()); got != tt.want {
					t.Errorf("Check = %q, want %q", got, tt.want)
				}
			})
		})
	}
}

func TestHealthNamesEveryStuckLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		health := NewHealth()
		health.Loop("reactions", time.Second)
		health.Loop("comments", time.Second)
		health.Loop("sweep", time.Hour)
		pass(time.Minute)
		want := "loop comments has not moved for 1m0s, at most 1s is expected\n" +
			"loop reactions has not moved for 1m0s, at most 1s is expected"
		if got := message(health.Check()); got != want {
			t.Errorf("Check = %q, want %q", got, want)
		}
	})
}

func TestLeavingALaneDoesNotEndItsNextHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		health := NewHealth()
		first := health.Loop("comments", time.Second)
		health.Loop("comments", time.Second)
		first.Done()
		pass(time.Minute)
		if health.Check() == nil {
			t.Error("the second heartbeat of the name is not judged")
		}
	})
}

func message(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

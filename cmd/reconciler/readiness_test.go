package main

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"driftless/internal/config"
	"driftless/internal/daemon"
	"driftless/internal/reconciler"
)

func TestAReconcilerIsReadyWhileItLeadsOrStandsBy(t *testing.T) {
	failure := errors.New("no route")
	for name, tt := range map[string]struct {
		standing reconciler.Standing
		want     string
	}{
		"leads":            {reconciler.Standing{Leads: true, Leader: "me"}, ""},
		"stands by":        {reconciler.Standing{Leader: "another"}, ""},
		"has not looked":   {reconciler.Standing{}, "looking who leads"},
		"could not look":   {reconciler.Standing{Problem: failure}, "no route"},
		"is there no more": {reconciler.Standing{Leader: "another", Problem: failure}, "no route"},
	} {
		got := ""
		if err := led(tt.standing); err != nil {
			got = err.Error()
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// A run may take hours: it is overdue when nothing has moved for long, be it in the pause or within a batch.
func TestARunIsOverdueWhenNothingMoves(t *testing.T) {
	for name, tt := range map[string]struct {
		every, settle, limit time.Duration
	}{
		"often":    {time.Second, 0, 5 * time.Minute},
		"seldom":   {24 * time.Hour, 0, 72 * time.Hour},
		"patient":  {time.Second, time.Hour, time.Hour + 5*time.Minute},
		"standard": {time.Minute, 30 * time.Second, 5*time.Minute + 30*time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := config.Reconciler{Every: tt.every, Settle: tt.settle}
				heart := daemon.NewHealth().Loop("runs", runSilence)
				for _, sign := range []func(){heart.Beat, heart.Waiting, heart.Beat} {
					sign()
					<-time.After(tt.limit)
					if err := overdue(heart.Silent(), c); err != nil {
						t.Errorf("after %v: %v", tt.limit, err)
					}
				}
				<-time.After(time.Second)
				if overdue(heart.Silent(), c) == nil {
					t.Errorf("not overdue after more than %v", tt.limit)
				}
			})
		})
	}
}

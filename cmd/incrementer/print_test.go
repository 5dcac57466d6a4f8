package main

import (
	"bytes"
	"testing"
	"time"

	"driftless/internal/checkpoint"
	"driftless/internal/command"
	"driftless/internal/counter"
)

func TestStatusForPeople(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	headroom := (25 * time.Hour).Seconds()
	s := status{
		Instances: []instanceState{
			{Instance: "web-1/:9464", StartedAt: now.Add(-time.Hour), Lanes: []string{"comments", "follows"}},
			{Instance: "web-2/:9464", StartedAt: now.Add(-time.Minute)},
		},
		Lanes: []laneState{
			{Lane: "comments", Owner: "web-1/:9464", HeadroomSecs: &headroom, Position: now.Add(-3 * time.Second), UpdatedAt: now.Add(-time.Second), Seq: 12345, Tail: 2},
			{
				Lane: "likes", Position: now.Add(-3 * time.Hour), UpdatedAt: now.Add(-3 * time.Hour), Seq: 7, Tail: -1, Gaps: 2,
				LastGap: &lastGap{At: now.Add(-72 * time.Hour), Reason: "position_lost"},
				Broken:  map[string]string{"b": "no array", "a": "no number"},
			},
			{Lane: "views", Error: "never started: run `incrementer run`"},
		},
		Counters: []counterState{
			{Counter: "comments_per_post", State: counter.Active, VerifiedThrough: now.Add(-4 * time.Minute), SweptThrough: now.Add(-20 * time.Hour)},
			{Counter: "likes_per_user", State: counter.Rebasing, Reason: counter.ReasonGap, VerifiedThrough: now.Add(-90 * time.Second)},
			{Counter: "views", State: unknown},
			{Counter: "words", State: counter.Active, Held: "6b0e014554849a0878ce723b"},
		},
		Held: []command.Held{
			{Counter: "words", Run: "6b0e014554849a0878ce723b", Approve: "reconciler approve 6b0e014554849a0878ce723b"},
			{Counter: "shares", Run: "6b0e014554849a0878ce723c", Approve: "reconciler approve 6b0e014554849a0878ce723c"},
		},
		DeadLetters: 3,
	}
	var out bytes.Buffer
	if err := (printer{&out, now, 2 * time.Second}).status(s); err != nil {
		t.Fatal(err)
	}
	want := `LANE      OWNER        POSITION              LAG  HEADROOM  TAIL   SEQ    MOVED   GAPS  NOTE
comments  web-1/:9464  2026-03-01T11:59:57Z  3s   25h       2      12345  1s ago  0
likes     none         2026-03-01T09:00:00Z  3h   -         large  7      3h ago  2     no instance follows it; has not moved for 3h: is ` + "`incrementer run`" + ` running?; last gap 3d ago (position_lost); a is broken: no number; b is broken: no array
views     none         -                     -    -         -      -      -       0     never started: run ` + "`incrementer run`" + `

INSTANCE     STARTED  LANES
web-1/:9464  60m ago  comments, follows
web-2/:9464  60s ago  on standby

COUNTER            STATE     REASON                              VERIFIED THROUGH      AGE  ALL KEYS
comments_per_post  active    -                                   2026-03-01T11:56:00Z  4m   20h ago
likes_per_user     rebasing  gap: events were lost               2026-03-01T11:58:30Z  90s  never
views              unknown   no incrementer has taken it up yet  never                 -    never
words              active    repairs held                        never                 -    never

so many keys have drifted that none was repaired; if rows and definition are right:
HELD    REPAIRED BY
words   reconciler approve 6b0e014554849a0878ce723b
shares  reconciler approve 6b0e014554849a0878ce723c

dead letters: 3 (records that could not be read, and increments that their document could not take): ` + "`incrementer deadletters list`" + ` shows them
`
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

func TestEveryReasonHasWords(t *testing.T) {
	for _, code := range []string{counter.ReasonNew, counter.ReasonChanged, counter.ReasonGap, counter.ReasonMissingImage, counter.ReasonBroken, counter.ReasonPartitions, counter.ReasonReset, counter.ReasonTarget} {
		if reason(counterState{State: counter.Rebasing, Reason: code}) == code {
			t.Errorf("no words for %s", code)
		}
	}
	if got := reason(counterState{State: counter.Rebasing, Reason: "later"}); got != "later" {
		t.Errorf("a reason that is not known prints as %q", got)
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Minute: "0s", 1500 * time.Millisecond: "1s", 119 * time.Second: "119s", 2 * time.Minute: "2m", 119 * time.Minute: "119m",
		2 * time.Hour: "2h", 47 * time.Hour: "47h", 48 * time.Hour: "2d", 1000 * time.Hour: "41d",
	} {
		if got := short(d); got != want {
			t.Errorf("short(%s) = %q, want %q", d, got, want)
		}
	}
}

func TestALaneTellsItsTailAndWhatIsBroken(t *testing.T) {
	l := laneOf(checkpoint.Checkpoint{
		Tail:     checkpoint.Tail{Deltas: make([]checkpoint.Delta, 4)},
		Counters: map[string]checkpoint.Counting{"a": {}, "b": {Broken: "no array"}},
	})
	if l.Tail != 4 || len(l.Broken) != 1 || l.Broken["b"] != "no array" {
		t.Errorf("%+v", l)
	}
	if l := laneOf(checkpoint.Checkpoint{Tail: checkpoint.Tail{TooLarge: true}}); l.Tail != -1 {
		t.Errorf("%+v", l)
	}
}

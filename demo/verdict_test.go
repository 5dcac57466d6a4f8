package main

import "testing"

func TestVerdict(t *testing.T) {
	edits := totals{edits: 6, edited: 213, finds: 5, repaired: 213}
	tests := []struct {
		name     string
		outcome  outcome
		ok       bool
		sentence string
		details  string
	}{
		{
			name:    "exact",
			outcome: outcome{judged: true, kills: 14, totals: edits, counters: 812, usual: distance{412, 231}},
			ok:      true,
			sentence: "OK: after 14 kills and 6 hand edits, all 812 counters of driftless are exact, and the drift of 213 that it reported " +
				"is what was edited; the usual counter was wrong on 231 posts by 412 in all.",
		},
		{
			name:    "one of each",
			outcome: outcome{judged: true, kills: 1, totals: totals{1, 1200, 1, 1200}, counters: 1},
			ok:      true,
			sentence: "OK: after 1 kill and 1 hand edit, the 1 counter of driftless is exact, and the drift of 1,200 that it reported " +
				"is what was edited; the usual counter happened to be right as well.",
		},
		{
			name:     "wrong counters",
			outcome:  outcome{judged: true, counters: 812, wrong: []wrong{{17, 41, 41, 40}, {18, 3, 3, 5}}},
			sentence: "FAILED: 2 of 812 counters of driftless wrong by 3 in all; logs are kept in /kept.",
			details: "post 17: base + live is 41, total is 41, live rows are 40\n" +
				"post 18: base + live is 3, total is 3, live rows are 5\n",
		},
		{
			name:     "false alarm",
			outcome:  outcome{judged: true, counters: 812, open: []entry{{"17", 0, -1}}},
			sentence: "FAILED: drift reported and drift edited differ on 1 post; logs are kept in /kept.",
			details:  "post 17: edited by +0, reported as -1\n",
		},
		{
			name:     "everything",
			outcome:  outcome{judged: true, counters: 3, wrong: []wrong{{post: 1, rows: 1}}, open: []entry{{"1", 5, 0}, {"2", 1, 0}}, problems: []string{"it rained"}},
			sentence: "FAILED: 1 of 3 counters of driftless wrong by 1 in all; drift reported and drift edited differ on 2 posts; it rained; logs are kept in /kept.",
			details: "post 1: base + live is 0, total is 0, live rows are 1\n" +
				"post 1: edited by +5, reported as +0\npost 2: edited by +1, reported as +0\n",
		},
		{
			name:     "broke off",
			outcome:  outcome{problems: []string{"incrementer ended by itself (exit status 1)"}},
			sentence: "FAILED: incrementer ended by itself (exit status 1); logs are kept in /kept.",
		},
		{
			name:     "no comparison is no success",
			outcome:  outcome{},
			sentence: "FAILED: it did not come to a verdict; logs are kept in /kept.",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := test.outcome.ok(); got != test.ok {
				t.Errorf("ok is %v", got)
			}
			if got := test.outcome.sentence("/kept"); got != test.sentence {
				t.Errorf("sentence\n%s\nwant\n%s", got, test.sentence)
			}
			if got := test.outcome.details(); got != test.details {
				t.Errorf("details\n%s\nwant\n%s", got, test.details)
			}
		})
	}
}

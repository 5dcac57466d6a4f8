package config

import (
	"strings"
	"testing"
)

func TestSubstitute(t *testing.T) {
	env := lookup(map[string]string{"A": "one", "EMPTY": "", "NESTED": "${A}", "PASSWORD": "pa$$word$1: #'\""})
	const (
		notSet    = "variable B is not set"
		noForm    = "none of ${VAR}"
		notClosed = "without its }"
	)
	for _, test := range []struct{ in, want, wrong string }{
		{"plain", "plain", ""},
		{"${A}", "one", ""},
		{"<${A}-${A}>", "<one-one>", ""},
		{"${EMPTY}", "", ""},
		{"${B:-two}", "two", ""},
		{"${EMPTY:-two}", "two", ""},
		{"${A:-two}", "one", ""},
		{"${B:-}", "", ""},
		{"${B:-mongodb://h:1/?a=b}", "mongodb://h:1/?a=b", ""},
		{"${A:?say}", "one", ""},
		{"${NESTED}", "${A}", ""},
		{"${PASSWORD}", "pa$$word$1: #'\"", ""},
		{"$status", "$status", ""},
		{"$$ROOT.a", "$$ROOT.a", ""},
		{"pa$$word$1", "pa$$word$1", ""},
		{"$", "$", ""},
		{"$${A}", "${A}", ""},
		{"$${A} ${A}", "${A} one", ""},
		{"$$${A}", "$${A}", ""},
		{"${B}", "", notSet},
		{"${B:?set it to the URI}", "", "variable B is not set: set it to the URI"},
		{"${EMPTY:?needed}", "", "variable EMPTY is not set: needed"},
		{"${A", "", notClosed},
		{"${}", "", noForm},
		{"${1}", "", noForm},
		{"${a.b}", "", noForm},
		{"${A-two}", "", noForm},
		{"${A:+two}", "", noForm},
		{"${A:-${B}}", "}", noForm},
		{"${B} and ${C}", " and ", notSet},
	} {
		got, _, wrong := substitute(test.in, env)
		if test.wrong == "" && (got != test.want || len(wrong) > 0) {
			t.Errorf("%s: got %q and %q, want %q", test.in, got, wrong, test.want)
		}
		if test.wrong != "" && (len(wrong) == 0 || !strings.Contains(wrong[0], test.wrong)) {
			t.Errorf("%s: got %q, want a fault with %q", test.in, wrong, test.wrong)
		}
	}
}

func TestAVariableCannotBreakTheFile(t *testing.T) {
	value := "a: b # c\n- 'd' \"e\" {f: [g"
	c := mustLoad(t, oneSource+strings.Replace(oneCounter, "key: post_id", `count_if: {$eq: ["$a", "${X}"]}`+"\n    key: ${KEY}", 1),
		map[string]string{"X": value, "KEY": "post.id"}, nil)
	if got := c.Counters[0].CountIf.Document().Lookup("$eq").Array().Index(1).StringValue(); got != value {
		t.Errorf("got %q", got)
	}
	if c.Counters[0].Key != "post.id" {
		t.Errorf("key %q", c.Counters[0].Key)
	}
}

func TestASubstitutedValueIsReadAsTheTypeOfItsPlace(t *testing.T) {
	c := mustLoad(t, valid+`incrementer:
  max_batch_events: ${N:-5}
  lease: "${LEASE}"
reconciler: {hold_when_drifted_share: "${SHARE:-0.5}"}
`, map[string]string{"LEASE": "3s"}, nil)
	if c.Incrementer.MaxBatchEvents != 5 || c.Incrementer.Lease.Seconds() != 3 || c.Reconciler.HoldWhenDriftedShare != 0.5 {
		t.Errorf("%+v %+v", c.Incrementer, c.Reconciler)
	}
	u := mustLoad(t, strings.Replace(valid, "collection: post_counters", `collection: p, upsert: "${U:-false}"`, 1), nil, nil)
	if u.Counters[0].Target.Upsert {
		t.Error("upsert is true")
	}
}

func TestKeysAreNotSubstituted(t *testing.T) {
	_, err := load(t, valid+"\"${A}\": x\n", map[string]string{"A": "log"}, nil)
	if got := faultLines(t, err); !strings.Contains(got, `["${A}"]: unknown key`) {
		t.Errorf("got %s", got)
	}
}

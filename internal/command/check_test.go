package command

import (
	"testing"

	"driftless/internal/deployment"
)

func levels(all ...deployment.Level) []deployment.Finding {
	findings := make([]deployment.Finding, len(all))
	for i, level := range all {
		findings[i] = deployment.Finding{Level: level, Subject: string(rune('a' + i))}
	}
	return findings
}

func TestTheGravestFindingIsTheResultAndOnlyAFailureFails(t *testing.T) {
	t.Parallel()
	const good, warn, fail = deployment.OK, deployment.Warn, deployment.Fail
	for name, tt := range map[string]struct {
		findings []deployment.Finding
		result   deployment.Level
		err      string
	}{
		"in order":   {levels(good, good), good, ""},
		"a warning":  {levels(good, warn), warn, ""},
		"a failure":  {levels(warn, fail, good), fail, "1 of 3 looks failed: b"},
		"three":      {levels(fail, fail, fail), fail, "3 of 3 looks failed: a, b, c"},
		"many of it": {levels(fail, fail, fail, warn, fail, fail), fail, "5 of 6 looks failed: a, b, c and 2 more"},
	} {
		text := ""
		if err := failed(tt.findings); err != nil {
			text = err.Error()
		}
		if got := gravest(tt.findings); got != tt.result || text != tt.err {
			t.Errorf("%s: %s, %q", name, got, text)
		}
	}
}

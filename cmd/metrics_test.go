package cmd_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
)

// promised are the metrics of the contract by program.
var promised = map[string][]string{
	"incrementer": {
		"incrementer_events_consumed_total", "incrementer_events_skipped_total", "incrementer_events_dead_lettered_total",
		"incrementer_increments_applied_total", "incrementer_batches_committed_total", "incrementer_batch_events",
		"incrementer_batch_commit_duration_seconds", "incrementer_event_latency_seconds", "incrementer_lag_seconds",
		"incrementer_lag_events", "incrementer_checkpoint_timestamp_seconds", "incrementer_checkpoint_position_timestamp_seconds",
		"incrementer_resume_headroom_seconds", "incrementer_retries_total", "incrementer_stream_restarts_total",
		"incrementer_gaps_total", "incrementer_fenced_total", "incrementer_degraded", "incrementer_lane_owned",
		"incrementer_build_info",
	},
	"reconciler": {
		"counter_drift", "counter_drift_keys", "counter_drift_max", "counter_drift_threshold", "reconciler_drift_size",
		"reconciler_recurring_drift_keys", "reconciler_rows_without_key", "reconciler_runs_total",
		"reconciler_run_duration_seconds", "reconciler_last_success_timestamp_seconds",
		"reconciler_verified_through_timestamp_seconds", "reconciler_keys_checked_total", "reconciler_keys_repaired_total",
		"reconciler_keys_skipped_total", "reconciler_rows_counted_total", "reconciler_touched_backlog_keys",
		"reconciler_oldest_touched_timestamp_seconds", "reconciler_leader", "reconciler_build_info",
	},
}

// notBuilt are those that do not exist yet, with the reason.
var notBuilt = map[string]string{
	"incrementer_lag_events": "it is of lanes of a topic",
}

// labelled are the labels by which a series may be told; everything else may be a key.
var labelled = []string{"source", "lane", "counter", "op", "reason", "direction", "operation", "result", "le", "quantile", "version", "revision", "goversion"}

func TestMetricsAreThereFromTheStartAndLint(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	for program, names := range promised {
		_, body := p.start(program).get("/metrics")
		problems, err := promlint.New(strings.NewReader(body)).Lint()
		if err != nil {
			t.Errorf("lint %s: %v", program, err)
		}
		for _, problem := range problems {
			t.Errorf("%s: %s: %s", program, problem.Metric, problem.Text)
		}
		var have []string
		for line := range strings.Lines(body) {
			if strings.HasPrefix(line, "#") {
				continue
			}
			series, _, _ := strings.Cut(line, " ")
			name, labels, _ := strings.Cut(series, "{")
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				name = strings.TrimSuffix(name, suffix)
			}
			have = append(have, name)
			if ours := strings.HasPrefix(name, program) || strings.HasPrefix(name, "counter"); ours {
				checkLabels(t, line, labels)
			}
		}
		for _, name := range names {
			why, missing := notBuilt[name]
			if found := slices.Contains(have, name); found == missing {
				t.Errorf("%s: there from the start: %v; known as not built (%s): %v", name, found, why, missing)
			}
		}
	}
}

func checkLabels(t *testing.T, line, labels string) {
	t.Helper()
	for pair := range strings.SplitSeq(strings.TrimSuffix(labels, "}"), `",`) {
		name, _, _ := strings.Cut(pair, "=")
		if name != "" && !slices.Contains(labelled, name) {
			t.Errorf("label %s in %s", name, line)
		}
	}
}

package deployment

import (
	"testing"
	"time"

	"driftless/internal/config"
	"driftless/internal/realtest"
)

func TestWhichSettleIsLongEnough(t *testing.T) {
	t.Parallel()
	counters := []string{"a", "b"}
	wantFinding(t, "as long", settle(time.Minute, time.Minute, counters), OK, "60 s, and a transaction of the application may last 60 s", "")
	wantFinding(t, "less", settle(30*time.Second, time.Minute, counters), Warn,
		"30 s, but a transaction of the application may last 60 s (transactionLifetimeLimitSeconds): a row that it makes visible so late may be taken for drift of a, b",
		"set reconciler.settle: 60s; or, where no transaction takes longer than 30 s, db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: 30}) on every member")
	wantFinding(t, "next to nothing", settle(time.Second/2, 150*time.Second, counters), Warn, "may last 2 min", "set reconciler.settle: 150s; ")
	wantFinding(t, "next to nothing", settle(time.Second/2, time.Minute, counters), Warn, "", "transactionLifetimeLimitSeconds: 1}")
}

// The server is asked how long transactions may last, where a row's own time decides; where events carry the times of their
// commits there is nothing to wait for.
func TestSettleIsHeldToTheServersTransactions(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{})
	s := newSiteOn(t, server.URI())
	broker := &config.Kafka{Brokers: []string{"127.0.0.1:1"}, Topic: "t", Group: "g", Format: config.FormatEvent,
		Event: config.Event{Type: "type", Key: "post_id", Time: "at", Deltas: map[string]int64{"added": 1}}}
	s.config.Sources[0] = config.Source{Name: s.config.Sources[0].Name, Kafka: broker}
	s.config.Counters[0].Format, s.config.Counters[0].Rows.CreatedAt = config.FormatEvent, "created_at"
	s.config.Reconciler.Settle = 100 * time.Second
	s.define()
	s.setUp()
	s.wantOnly(Reconcile)
	const fix = "db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: 100}) on every member"
	s.admin(fixOf(t, "db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: 120}) on every member"))
	short := Finding{Warn, subjectSettle, "100 s, but a transaction of the application may last 2 min ", "set reconciler.settle: 120s; or, where no transaction takes longer than 100 s, " + fix}
	s.wantOnly(Reconcile, short)
	s.wantOnly(Follow, Finding{Fail, "topic t", "connection refused", "create it"}, short)
	s.admin(fixOf(t, fix))
	s.wantOnly(Reconcile)
	s.admin(fixOf(t, "db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: 120}) on every member"))
	s.config.Counters[0].Format, broker.Format, s.config.Counters[0].Rows.CreatedAt = "debezium", "debezium", ""
	s.define()
	s.wantOnly(Reconcile)
	s.config.Reconciler.Settle = 5 * time.Minute // snapshots do not reach back so far
	s.wantOnly(Reconcile, Finding{Warn, subjectSnapshots, "5 min: ", "minSnapshotHistoryWindowInSeconds: 360"})
}

package deployment

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

const (
	subjectSettle       = "reconciler.settle"
	subjectTransactions = "transaction lifetime"
)

// usualLifetime is the server's default.
const usualLifetime = time.Minute

// settling looks whether rows may become visible later than events are waited for: in a transaction they say when they were
// created, and are seen when it commits. Where events carry the times of their commits, rows are read as of these, and no
// transaction is too long.
func (k *checker) settling(ctx context.Context) []Finding {
	var timed []string
	for _, d := range k.definitions {
		if d.ByTime() {
			timed = append(timed, d.Name)
		}
	}
	if len(timed) == 0 {
		return nil
	}
	var answer struct {
		Seconds int64 `bson:"transactionLifetimeLimitSeconds"`
	}
	err := k.ask(ctx, &answer, bson.E{Key: "getParameter", Value: 1}, bson.E{Key: "transactionLifetimeLimitSeconds", Value: 1})
	if err != nil {
		return []Finding{k.unseen(subjectTransactions, err, onCluster("getParameter")), settle(k.config.Reconciler.Settle, usualLifetime, timed)}
	}
	return []Finding{settle(k.config.Reconciler.Settle, time.Duration(answer.Seconds)*time.Second, timed)}
}

// settle judges how long events and rows of these counters are waited for, beside the time that a transaction may last.
func settle(settle, lifetime time.Duration, counters []string) Finding {
	if settle >= lifetime {
		return ok(subjectSettle, "%s, and a transaction of the application may last %s", span(settle), span(lifetime))
	}
	return Finding{Warn, subjectSettle,
		fmt.Sprintf("%s, but a transaction of the application may last %s (transactionLifetimeLimitSeconds): a row that it makes visible so late may be taken for drift of %s",
			span(settle), span(lifetime), strings.Join(counters, ", ")),
		fmt.Sprintf("set reconciler.settle: %.0fs; or, where no transaction takes longer than %s, "+
			"db.adminCommand({setParameter: 1, transactionLifetimeLimitSeconds: %.0f}) on every member", lifetime.Seconds(), span(settle), max(1, math.Floor(settle.Seconds())))}
}

// asOfSettle is how long ago rows are read as of, at least: where events carry the times of their commits.
func (k *checker) asOfSettle() time.Duration {
	if slices.ContainsFunc(k.definitions, func(d *counter.Definition) bool { return d.ByEvents() && !d.ByTime() }) {
		return k.config.Reconciler.Settle
	}
	return 0
}

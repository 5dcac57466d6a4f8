package deployment

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// What is enough of each history. A stop of the incrementer, or of the night shift, should fit into it.
const (
	enoughOplog     = 24 * time.Hour
	enoughImages    = time.Hour
	enoughSnapshots = time.Minute
)

const (
	subjectOplog     = "oplog window"
	subjectExpiry    = "images kept"
	subjectSnapshots = "snapshot window"
)

// history is what the primary's oplog reaches over.
type history struct {
	oldest, newest bson.Timestamp
	whole          bool // nothing has been dropped yet: it holds everything since the set was made
}

func (h history) window() time.Duration { return between(h.oldest, h.newest) }

// between is how much later b is than a.
func between(a, b bson.Timestamp) time.Duration {
	return time.Duration(int64(b.T)-int64(a.T)) * time.Second
}

// oplog looks how far back a position may lie that can be resumed. What it reads is for the looks behind it as well.
func (k *checker) oplog(ctx context.Context) []Finding {
	h, err := k.readOplog(ctx)
	if err != nil {
		return []Finding{k.unseen(subjectOplog, err, readOplog)}
	}
	k.history = &h
	return []Finding{oplogWindow(h)}
}

func oplogWindow(h history) Finding {
	switch {
	case h.whole:
		return ok(subjectOplog, "%s: everything since the set was made", span(h.window()))
	case h.window() < enoughOplog:
		return Finding{Warn, subjectOplog, fmt.Sprintf("%s: a position that is older cannot be resumed, and everything is recounted", span(h.window())),
			fmt.Sprintf("db.adminCommand({replSetResizeOplog: 1, minRetentionHours: %.0f}) on every member", enoughOplog.Hours())}
	default:
		return ok(subjectOplog, "%s", span(h.window()))
	}
}

// readOplog reads both ends of the primary's oplog.
func (k *checker) readOplog(ctx context.Context) (history, error) {
	first, err := oplogEnd(ctx, k.client, oldest)
	if err != nil {
		return history{}, fmt.Errorf("read oplog: %w", err)
	}
	last, err := oplogEnd(ctx, k.client, newest)
	if err != nil {
		return history{}, fmt.Errorf("read oplog: %w", err)
	}
	return history{first.At, last.At, first.Op.Message == "initiating set"}, nil
}

// imageExpiry looks how long the server keeps the rows' old versions.
func (k *checker) imageExpiry(ctx context.Context) []Finding {
	var answer struct {
		Parameters []struct {
			Images struct {
				ExpireAfter bson.RawValue `bson:"expireAfterSeconds"`
			} `bson:"preAndPostImages"`
		} `bson:"clusterParameters"`
	}
	err := k.ask(ctx, &answer, bson.E{Key: "getClusterParameter", Value: "changeStreamOptions"})
	if err != nil {
		return []Finding{k.unseen(subjectExpiry, err, onCluster("getClusterParameter"))}
	}
	if len(answer.Parameters) == 1 {
		if seconds, is := answer.Parameters[0].Images.ExpireAfter.AsInt64OK(); is {
			return []Finding{expiry(time.Duration(seconds)*time.Second, k.history)}
		}
	}
	return []Finding{ok(subjectExpiry, "as long as the oplog reaches back")}
}

// expiry judges a time after which images are dropped, beside the oplog where it is known.
func expiry(after time.Duration, h *history) Finding {
	const off = `db.adminCommand({setClusterParameter: {changeStreamOptions: {preAndPostImages: {expireAfterSeconds: "off"}}}})`
	const without = "a change that is read later has no image, and its counters are recounted"
	switch {
	case after < enoughImages:
		return Finding{Warn, subjectExpiry, fmt.Sprintf("%s: %s", span(after), without), off}
	case h != nil && after < h.window():
		return Finding{Warn, subjectExpiry, fmt.Sprintf("%s, but the oplog %s: %s", span(after), span(h.window()), without), off}
	default:
		return ok(subjectExpiry, "%s", span(after))
	}
}

// snapshots looks how old a position may be that can still be judged.
func (k *checker) snapshots(ctx context.Context) []Finding {
	var answer struct {
		Seconds int64 `bson:"minSnapshotHistoryWindowInSeconds"`
	}
	err := k.ask(ctx, &answer, bson.E{Key: "getParameter", Value: 1}, bson.E{Key: "minSnapshotHistoryWindowInSeconds", Value: 1})
	if err != nil {
		return append([]Finding{k.unseen(subjectSnapshots, err, onCluster("getParameter"))}, k.judged(ctx, usualSnapshots)...)
	}
	window := time.Duration(answer.Seconds) * time.Second
	return append([]Finding{snapshotWindow(window, k.asOfSettle(), k.config.Reconciler.JudgeTimeout)}, k.judged(ctx, window)...)
}

// usualSnapshots is the server's default.
const usualSnapshots = 300 * time.Second

// snapshotWindow judges how far snapshots reach back, where rows are read as of so long ago.
func snapshotWindow(window, ago, judgeTimeout time.Duration) Finding {
	if need := ago + max(enoughSnapshots, judgeTimeout); window < need {
		return Finding{Warn, subjectSnapshots, fmt.Sprintf("%s: a count of rows that takes longer, or a position that is older, is not judged", span(window)),
			fmt.Sprintf("db.adminCommand({setParameter: 1, minSnapshotHistoryWindowInSeconds: %.0f}) on every member", max(usualSnapshots, need).Seconds())}
	}
	return ok(subjectSnapshots, "%s", span(window))
}

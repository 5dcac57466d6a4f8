package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
)

const (
	pollEvery    = 100 * time.Millisecond
	catchUpLimit = 2 * time.Minute // a transaction that died with its incrementer holds its documents for one
	quietLimit   = 20 * time.Second
)

// conclude is what follows the load: everything is applied, everything is recounted, everything is compared.
func (s *show) conclude(ctx context.Context) (outcome, error) {
	s.phase("waiting for the incrementer to catch up, Ctrl-C gives up")
	if err := s.catchUp(ctx); err != nil {
		return outcome{}, err
	}
	s.phase("waiting for the reconciler to look at what was touched, Ctrl-C gives up")
	if err := s.untilQuiet(ctx); err != nil {
		return outcome{}, err
	}
	if err := s.reconciler.stop(ctx); err != nil {
		return outcome{}, fmt.Errorf("stop the reconciler: %w", err)
	}
	if err := s.drift.read(); err != nil {
		return outcome{}, err
	}
	s.phase("recounting every counter once more, Ctrl-C gives up")
	if err := s.recountAll(ctx); err != nil {
		return outcome{}, err
	}
	if err := s.measureOnce(ctx); err != nil {
		return outcome{}, err
	}
	if err := s.chaos.current.stop(ctx); err != nil {
		return outcome{}, fmt.Errorf("stop the incrementer: %w", err)
	}
	return s.compare(ctx)
}

// catchUp waits until the incrementer's position is behind everything that was written until now.
func (s *show) catchUp(ctx context.Context) error {
	end, err := s.clusterTime(ctx)
	if err != nil {
		return err
	}
	return s.await(ctx, catchUpLimit, "the incrementer to catch up", func(ctx context.Context) (bool, error) {
		at, err := s.stage.checkpoints.Load(ctx, source)
		return err == nil && !at.Position.Before(end), err
	})
}

// measureOnce makes the last table show what the verdict is about.
func (s *show) measureOnce(ctx context.Context) error {
	m, err := s.stage.measure(ctx, s.service.usual)
	if errors.Is(err, errNotNow) {
		return nil
	}
	if err != nil {
		return err
	}
	s.publish(m)
	return nil
}

// clusterTime writes something and returns the cluster time of that.
func (s *show) clusterTime(ctx context.Context) (bson.Timestamp, error) {
	session, err := s.stage.client.StartSession()
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("start session: %w", err)
	}
	defer session.EndSession(context.WithoutCancel(ctx))
	db := s.stage.client.Database(s.stage.names.app, options.Database().SetWriteConcern(writeconcern.Majority()))
	_, err = db.Collection("ended").InsertOne(mongo.NewSessionContext(ctx, session), bson.D{{Key: "at", Value: time.Now()}})
	if err != nil {
		return bson.Timestamp{}, fmt.Errorf("mark the end of the load: %w", err)
	}
	return *session.OperationTime(), nil
}

// untilQuiet waits until the reconciler has looked at every touched key: it is then not stopped between a report and its
// repair, which would be reported again.
func (s *show) untilQuiet(ctx context.Context) error {
	return s.await(ctx, quietLimit, "the reconciler to look at what was touched", func(ctx context.Context) (bool, error) {
		left, err := s.stage.definition.TouchedBacklog(ctx, s.stage.client, s.stage.states, 1)
		return left == 0, err
	})
}

// await polls until done, as long as both binaries run.
func (s *show) await(ctx context.Context, limit time.Duration, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("after %s still waiting for %s", limit, what))
	defer cancel()
	for {
		ok, err := done(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			return fmt.Errorf("wait for %s: %w", what, err)
		case ok:
			return nil
		case s.reconciler.ended():
			return s.stage.programs.unexpected(reconciler, s.reconciler)
		case s.chaos.current.ended():
			return s.stage.programs.unexpected(incrementer, s.chaos.current)
		}
		if !pause(ctx, pollEvery) {
			return context.Cause(ctx)
		}
	}
}

// runReport is the part of `reconciler run --once -o json` that we look at.
type runReport struct {
	Result   string
	Counters []struct {
		Drift   struct{ Keys int64 }
		Drifted []struct {
			Key   json.RawMessage
			Drift int64
		}
	}
}

// recountAll runs the reconciler over every key: an edit of a post that nobody touched since is found only so.
func (s *show) recountAll(ctx context.Context) error {
	printed, err := s.stage.programs.output(ctx, reconciler, "run", "--once", "--full", "--limit", "0", "-o", "json")
	if err != nil {
		return err
	}
	var report runReport
	if err := json.Unmarshal(printed, &report); err != nil {
		return fmt.Errorf("read the report of the last run: %w: %s", err, printed)
	}
	if report.Result != "ok" || len(report.Counters) != 1 {
		return fmt.Errorf("the last run was to judge everything: %s", printed)
	}
	for _, d := range report.Counters[0].Drifted {
		s.ledger.find(string(d.Key), d.Drift)
		s.news.add("the last run finds post %s %s and repairs it", d.Key, tooMuch(d.Drift))
	}
	return nil
}

// compare holds every counter against a plain count of the live rows. Nothing is written any more.
func (s *show) compare(ctx context.Context) (outcome, error) {
	result := outcome{kills: s.chaos.kills.Load(), totals: s.ledger.sums(), open: s.ledger.open()}
	rows, err := s.countRows(ctx)
	if err != nil {
		return result, err
	}
	counters, err := s.counters(ctx)
	if err != nil {
		return result, err
	}
	result.counters = int64(len(counters))
	for post := range rows {
		if _, displayed := counters[post]; !displayed {
			counters[post] = counterDocument{ID: post}
		}
	}
	for post, c := range counters {
		if n := rows[post]; c.Base+c.Live != n || c.Total != n {
			result.wrong = append(result.wrong, wrong{post: post, displayed: c.Base + c.Live, total: c.Total, rows: n})
		}
	}
	slices.SortFunc(result.wrong, func(a, b wrong) int { return cmp.Compare(a.post, b.post) })
	usual, err := s.service.usual.counts(ctx)
	if err != nil {
		return result, err
	}
	for post, n := range usual {
		result.usual.add(n, rows[post])
	}
	result.judged = true
	return result, nil
}

// countRows is the plain count, on purpose without any code of driftless.
func (s *show) countRows(ctx context.Context) (map[int64]int64, error) {
	cursor, err := s.service.comments.Aggregate(ctx, bson.A{
		bson.D{{Key: "$match", Value: isLive}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$post_id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("count the comments: %w", err)
	}
	var all []struct {
		ID int64 `bson:"_id"`
		N  int64
	}
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("count the comments: %w", err)
	}
	counts := make(map[int64]int64, len(all))
	for _, post := range all {
		counts[post.ID] = post.N
	}
	return counts, nil
}

// counterDocument is what an application reads.
type counterDocument struct {
	ID    int64 `bson:"_id"`
	Base  int64 `bson:"base_count"`
	Live  int64 `bson:"live_delta"`
	Total int64 `bson:"comment_count"`
}

func (s *show) counters(ctx context.Context) (map[int64]counterDocument, error) {
	target := s.stage.definition.Target
	cursor, err := s.stage.client.Database(target.Database).Collection(target.Collection).Find(ctx, bson.D{})
	if err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	var all []counterDocument
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("read the counters: %w", err)
	}
	if len(all) == 0 {
		return nil, errors.New("read the counters: there are none")
	}
	byPost := make(map[int64]counterDocument, len(all))
	for _, c := range all {
		byPost[c.ID] = c
	}
	return byPost, nil
}

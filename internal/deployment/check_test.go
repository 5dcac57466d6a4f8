package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

func TestWhatIsInOrderIsOK(t *testing.T) {
	t.Parallel()
	s := orderly(t, realtest.Shared(t).URI())
	both := []string{"connection", "server version", "majority", "replica set", "default write concern", "privileges",
		"images of app.comments", "collections and indexes", "documents of app.post_counters", "expressions"}
	for use, more := range map[Use][]string{
		Follow:    {"oplog window", "images kept", "replica set id", "lane comments"},
		Reconcile: {"snapshot window", "lane comments"},
	} {
		s.wantOnly(use)
		var subjects []string
		for _, f := range s.check(use) {
			subjects = append(subjects, f.Subject)
		}
		if want := slices.Concat(both, more); !slices.Equal(subjects, want) {
			t.Errorf("use %d looks at %q, want %q", use, subjects, want)
		}
	}
}

func TestLookingChangesNothing(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]*site{"before setup": newSite(t), "after it": orderly(t, realtest.Shared(t).URI())} {
		before := s.contents()
		for _, use := range []Use{Follow, Reconcile} {
			s.check(use)
		}
		if after := s.contents(); after != before {
			t.Errorf("%s: from\n%s\nto\n%s", name, before, after)
		}
	}
}

// contents tell a change of any document, collection or index.
func (s *site) contents() (text string) {
	s.t.Helper()
	for _, database := range []string{s.app, s.state} {
		db := s.client.Database(database)
		hash, err := db.RunCommand(s.t.Context(), bson.D{{Key: "dbHash", Value: 1}}).Raw()
		if err != nil {
			s.t.Fatal(err)
		}
		text += hash.Lookup("collections").String()
		all, err := db.ListCollectionSpecifications(s.t.Context(), bson.D{})
		if err != nil {
			s.t.Fatal(err)
		}
		for _, c := range all {
			indexes, err := db.Collection(c.Name).Indexes().ListSpecifications(s.t.Context())
			if err != nil {
				s.t.Fatal(err)
			}
			text += fmt.Sprintln(c.Name, c.Options, len(indexes))
		}
	}
	return text
}

func TestEveryFaultHasItsLine(t *testing.T) {
	t.Parallel()
	const marks = "driftless_comments_per_post_touched is missing: neither program starts"
	for name, tt := range map[string]struct {
		spoil func(*site)
		want  map[Use][]Finding
	}{
		"images off": {func(s *site) {
			s.command(bson.D{{Key: "collMod", Value: "comments"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}}})
		}, map[Use][]Finding{
			Follow:    {{Warn, "images of app.comments", "changeStreamPreAndPostImages is off: changes of rows cost recounts", "incrementer setup"}},
			Reconcile: {{Warn, "images of app.comments", "changeStreamPreAndPostImages is off", "incrementer setup"}},
		}},
		"nobody follows": {func(s *site) { s.release("comments") }, both(Finding{Warn, "lane comments", "no instance follows it", "incrementer run"})},
		"an expression that the server refuses": {func(s *site) {
			c := s.definitions[0].Counter
			c.CountIf = expression(s.t, bson.D{{Key: "$ne", Value: bson.A{"$status"}}})
			refused, err := counter.Define(c)
			if err != nil {
				s.t.Fatal(err)
			}
			s.definitions = []*counter.Definition{refused}
		}, both(Finding{Fail, "expression of comments_per_post", "the server refuses it: ", "mend counters.comments_per_post.count_if"})},
		"an expression that failed on a row": {func(s *site) {
			s.move("comments", bson.D{{Key: "counters", Value: bson.D{{Key: "comments_per_post", Value: bson.D{{Key: "hash", Value: "h"}, {Key: "broken", Value: "no array"}}}}}})
		}, both(Finding{Warn, "expression of comments_per_post", "set apart, it failed on a row: no array", "mend counters.comments_per_post.count_if, or the rows"})},
		"no index of the rows": {func(s *site) {
			s.command(bson.D{{Key: "dropIndexes", Value: "comments"}, {Key: "index", Value: "driftless_comments_per_post"}})
		}, both(Finding{Warn, "index of app.comments", "driftless_comments_per_post is missing: recounts are slow", "incrementer setup"})},
		"no index of the marks": {func(s *site) {
			s.command(bson.D{{Key: "dropIndexes", Value: "post_counters"}, {Key: "index", Value: "driftless_comments_per_post_touched"}})
		}, both(Finding{Fail, "index of app.post_counters", marks, "incrementer setup"})},
		"no target": {func(s *site) { s.command(bson.D{{Key: "drop", Value: "post_counters"}}) }, both(
			Finding{Fail, "collection app.post_counters", "does not exist: neither program starts", "incrementer setup"},
			Finding{Fail, "index of app.post_counters", marks, "incrementer setup"})},
		"a target that was counted before": {func(s *site) {
			if err := counter.NewStates(s.client, s.state).Mark(s.t.Context(), s.definitions[0], counter.ReasonNew); err != nil {
				s.t.Fatal(err)
			}
			s.command(bson.D{{Key: "drop", Value: "post_counters"}})
		}, both(
			Finding{Warn, "collection app.post_counters", "does not exist: the programs make it again", "incrementer setup"},
			Finding{Warn, "index of app.post_counters", "driftless_comments_per_post_touched is missing: the programs make it again", "incrementer setup"})},
		"no rows": {func(s *site) { s.command(bson.D{{Key: "drop", Value: "comments"}}) }, map[Use][]Finding{
			Follow: {{Warn, "rows of comments", "collection app.comments does not exist: every count is 0 until it is made", "create or restore it"},
				{Fail, "lane comments", "cannot be resumed: collection dropped, renamed or replaced", "incrementer run"}},
			Reconcile: {{Warn, "rows of comments", "collection app.comments does not exist", "create or restore it"}},
		}},
		"target that cannot be": {func(s *site) {
			s.command(bson.D{{Key: "drop", Value: "post_counters"}})
			s.command(bson.D{{Key: "create", Value: "post_counters"}, {Key: "capped", Value: true}, {Key: "size", Value: 4096}})
			s.put(bson.D{{Key: "_id", Value: 1}, {Key: "title", Value: "of others"}})
		}, both(Finding{Fail, "counter comments_per_post", "target collection app.post_counters is capped", "use a collection that is not"})},
		"fields of others in the target": {func(s *site) {
			s.put(bson.D{{Key: "_id", Value: 1}, {Key: "base_count", Value: 1}, {Key: "driftless", Value: bson.D{{Key: "x", Value: 1}}}})
			s.put(bson.D{{Key: "_id", Value: 2}, {Key: "title", Value: "a"}, {Key: "body", Value: "b"}})
		}, both(Finding{Warn, "documents of app.post_counters", "have fields of others (title, body)", "counters.comments_per_post.target.collection"})},
		"only our fields in the target": {func(s *site) {
			s.put(bson.D{{Key: "_id", Value: 1}, {Key: "base_count", Value: 1}, {Key: "live_delta", Value: 1}, {Key: "driftless", Value: bson.D{}}})
		}, nil},
		"never followed": {func(s *site) { s.forgetLanes() }, map[Use][]Finding{
			Reconcile: {{Warn, "lane comments", "no incrementer has followed it yet", "incrementer run"}},
		}},
		"several lanes": {func(s *site) {
			s.divide(2)
			s.followed("comments/0", "comments/1")
			s.followed("comments2/0")
			s.age("comments/1")
			s.age("comments2/0")
		}, map[Use][]Finding{
			Reconcile: {{Warn, "lane comments/1", "and snapshots reach back 5 min: its counters cannot be judged", "incrementer run"}},
		}},
		"history gone": {func(s *site) { s.lose("comments") }, map[Use][]Finding{
			Follow:    {{Fail, "lane comments", "cannot be resumed: position lost", "incrementer run, which starts afresh, then reconciler run --once"}},
			Reconcile: {{Warn, "lane comments", "its counters cannot be judged", "incrementer run"}},
		}},
		"history gone, and that is to stop": {func(s *site) {
			s.config.Sources[0].OnPositionLost = "stop"
			s.lose("comments")
		}, map[Use][]Finding{
			Follow: {{Fail, "lane comments", "cannot be resumed", "set sources.comments.on_position_lost to recount, "}},
		}},
		"divided anew": {func(s *site) { s.config.Sources[0].ChangeStream.Partitions = 2 }, both(
			Finding{Warn, "lanes of comments", "1, and the file says 2: a start begins afresh", "set sources.comments.change_stream.partitions to 1"})},
		"a checkpoint deleted": {func(s *site) {
			s.divide(2)
			s.followed("comments/0", "comments/1")
			s.forget("comments/1")
		}, both(Finding{Fail, "lane comments/1", "checkpoint is gone", "incrementer run, which starts afresh"})},
		"rows replaced": {func(s *site) {
			s.command(bson.D{{Key: "drop", Value: "comments"}})
			s.command(bson.D{{Key: "create", Value: "comments"}})
			s.setUp()
		}, map[Use][]Finding{
			Follow:    {{Fail, "lane comments", "cannot be resumed: collection dropped, renamed or replaced: its UUID is", "incrementer run"}},
			Reconcile: nil,
		}},
		"a checkpoint of a later version": {func(s *site) { s.move("comments", bson.D{{Key: "version", Value: 99}}) }, both(
			Finding{Fail, "lanes", "checkpoint of a newer version of driftless", "upgrade this program"})},
		"two of three lanes lost": {func(s *site) {
			s.divide(3)
			s.followed("comments/0", "comments/1", "comments/2")
			s.lose("comments/1")
			s.lose("comments/2")
		}, map[Use][]Finding{Follow: {
			{Fail, "lane comments/1", "cannot be resumed", "incrementer run"},
			{Fail, "lane comments/2", "cannot be resumed", "incrementer run"},
		}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := orderly(t, realtest.Shared(t).URI())
			s.config.Sources[0].Pos = config.Pos{File: "driftless.yaml", Line: 3}
			tt.spoil(s)
			for _, use := range []Use{Follow, Reconcile} {
				if want, given := tt.want[use]; given || tt.want == nil {
					s.wantOnly(use, want...)
				}
			}
		})
	}
}

func TestATimeThatIsOverEndsTheCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Check(ctx, s.config, s.definitions, "test", Follow); !errors.Is(err, context.Canceled) {
		t.Errorf("Check = %v", err)
	}
}

func TestWhatDoesNotConnectIsOneFinding(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err  error
		want Finding
	}{
		"a fault":    {&Fault{Found: "a standalone", Fix: "restart it"}, Finding{Fail, "connection", "a standalone", "restart it"}},
		"by the way": {stream.ErrInterrupted, Finding{Fail, "connection", "interrupted", againLater}},
	} {
		if got := unconnected(tt.err); got != tt.want {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

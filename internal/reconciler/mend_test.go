package reconciler

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// unguarded repairs however many keys have drifted.
func unguarded(c *config.Config) { c.Reconciler.HoldWhenDriftedShare = 1 }

func overwriting(c *config.Config) { c.Counters[0].Repair = "overwrite" }

// wantField fails unless a counter document has the value, of that very type.
func (f *fixture) wantField(post any, path string, want any) {
	f.t.Helper()
	if got := lookup(f.document(post), path); !got.Equal(raw(want)) {
		f.t.Errorf("%v.%s is %v, want %v", post, path, got, want)
	}
}

// entries are the journal's, in the order of the repairs.
func (f *fixture) entries() (all []counterEntry) {
	f.t.Helper()
	cursor := must(f.state.Collection(counter.RepairsCollection).Find(f.t.Context(), bson.D{}))(f.t)
	f.check(cursor.All(f.t.Context(), &all))
	return all
}

type counterEntry struct {
	ID            bson.ObjectID `bson:"_id"`
	Run           string
	Counter       string
	Key           string
	Before, After struct{ Base, Live, Total int64 }
	Truth, Drift  int64
	Cause         string
	Position      bson.Timestamp
	ExpiresAt     time.Time `bson:"expires_at"`
}

func TestAKeptCounterIsRepairedByTheDifference(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(*config.Config){"difference": func(*config.Config) {}, "overwrite": overwriting} {
		f := kept(t, edit, func(c *config.Config) { c.Counters[0].Target.ReconciledAt = "counted_at" })
		for _, post := range []string{"int", "long", "double", "missing", "right"} {
			f.comment(post, 3)
		}
		f.post("int", count(int32(7)))
		f.post("long", count(int64(-2)))
		f.post("double", count(5.0))
		f.post("missing", bson.E{Key: "title", Value: "a"})
		f.post("right", count(int32(3)))
		f.post("text", count("3"))
		r := f.reconciler(equipment{})
		found := f.run(r, Options{Wait: true})
		if c := only(t, found); c.Drift.Keys != 4 || c.Repaired != 4 || c.Skipped[skipBadField] != 1 {
			t.Errorf("%s: %s", name, show(found))
		}
		f.wantField("int", "comment_count", int32(3))
		f.wantField("long", "comment_count", int64(3))
		f.wantField("double", "comment_count", 3.0)
		f.wantField("missing", "comment_count", int32(3))
		f.wantField("text", "comment_count", "3")
		for post, set := range map[string]bool{"int": true, "missing": true, "right": false} {
			if has := lookup(f.document(post), "counted_at").Type == bson.TypeDateTime; has != set {
				t.Errorf("%s: %s has a time of its repair: %v", name, post, has)
			}
		}
		if document := f.document("int"); len(must(document.Elements())(t)) != 3 {
			t.Errorf("%s: the application's document has fields of ours: %v", name, document)
		}
		entries := f.entries()
		if len(entries) != 4 {
			t.Fatalf("%s: %d entries, want 4", name, len(entries))
		}
		for _, e := range entries {
			if e.Key == `"int"` && (e.Run != found.Run || e.Counter != counterName || e.Before.Base != 7 || e.After.Base != 3 || e.After.Total != 3 ||
				e.Truth != 3 || e.Drift != 4 || e.Position.IsZero() || e.ExpiresAt.Before(time.Now())) {
				t.Errorf("%s: entry %+v", name, e)
			}
		}
		if again := f.run(r, Options{}); only(t, again).Drift.Keys != 0 || len(f.entries()) != 4 {
			t.Errorf("%s: %s", name, show(again))
		}
	}
}

func TestKeptSplitFieldsAreRebased(t *testing.T) {
	t.Parallel()
	f := kept(t, splitFields, func(c *config.Config) { c.Counters[0].Target.Upsert = true })
	f.comment(1, 4)
	f.comment("no document", 2)
	f.post(1, bson.E{Key: "base_count", Value: 5}, bson.E{Key: "live_delta", Value: 3})
	report := f.run(f.reconciler(equipment{}), Options{Wait: true})
	wantDrift(t, report, map[any]int64{1: 4, "no document": -2})
	f.wantField(1, "base_count", int32(4))
	f.wantField(1, "live_delta", int32(0))
	f.wantShown("no document", 2)
	if cause := only(t, report).Drifted[1].Cause; cause != CauseNoDocument {
		t.Errorf("cause %s", cause)
	}
}

// An increment that comes between the look and the repair survives: the document is not as it was read, and left alone.
func TestAnIncrementBetweenLookAndRepairOfAKeptCounterSurvives(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]string{"before the transaction": counter.RepairsCollection, "within the transaction": "posts"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, edit := range []func(*config.Config){func(*config.Config) {}, splitFields} {
				f := kept(t, edit)
				field := "comment_count"
				if f.config.Counters[0].Target.Count == "" {
					field = "live_delta"
				}
				f.comment("raced", 3)
				f.comment("other", 3)
				f.post("raced", bson.E{Key: field, Value: 7})
				f.post("other", bson.E{Key: field, Value: 7})
				r := f.reconciler(equipment{started: once(func(e *event.CommandStartedEvent) bool {
					return isOn(e, "insert", before) || isOn(e, "update", before)
				}, func() {
					f.comment("raced", 1)
					f.edit("raced", inc(field, 1))
				})})
				report := f.run(r, Options{Wait: true})
				if c := only(t, report); c.Drift.Keys != 2 || c.Repaired != 1 || c.Skipped[skipRaced] != 1 {
					t.Errorf("%s", show(report))
				}
				f.wantField("raced", field, int32(8))
				if n := len(f.entries()); n != 1 {
					t.Errorf("%d entries, want that of the repair that was made", n)
				}
				wantDrift(t, f.run(r, Options{Wait: true}), map[any]int64{"raced": 4})
				if shown := shown(f.document("raced"), "base_count", field); shown != 4 {
					t.Errorf("displays %d, want 4", shown)
				}
			}
		})
	}
}

// What overwriting risks, and why it is not the default: the increment that comes between is lost.
func TestOverwritingAKeptCounterLosesWhatComesMeanwhile(t *testing.T) {
	t.Parallel()
	f := kept(t, overwriting)
	f.comment("raced", 3)
	f.post("raced", count(7))
	r := f.reconciler(equipment{started: once(func(e *event.CommandStartedEvent) bool { return isOn(e, "insert", counter.RepairsCollection) }, func() {
		f.comment("raced", 1)
		f.edit("raced", inc("comment_count", 1))
	})})
	f.run(r, Options{Wait: true})
	f.wantField("raced", "comment_count", int32(3))
	wantDrift(t, f.run(r, Options{Wait: true}), map[any]int64{"raced": -1})
}

func TestARepairOfAKeptCounterIsMadeOnceWhateverBecomesOfItsCommit(t *testing.T) {
	t.Parallel()
	for name, failure := range map[string]realtest.Failure{
		"the answer is lost":      {Commands: []string{"commitTransaction"}, CloseConnection: true, Times: 1},
		"again and again":         {Commands: []string{"commitTransaction"}, CloseConnection: true, Times: 3},
		"the update is cut off":   {Commands: []string{"update"}, CloseConnection: true, Times: 2},
		"the primary steps aside": {Commands: []string{"update"}, Code: 189, Labels: []string{"TransientTransactionError"}, Times: 2},
	} {
		t.Run(name, func(t *testing.T) { // one at a time: a server has one fail point
			f := kept(t)
			f.comment(1, 3)
			f.post(1, count(7))
			failure.AppName = "mend " + name
			r := f.reconciler(equipment{app: failure.AppName})
			fail := realtest.FailCommand(t, f.client, failure)
			report := f.run(r, Options{Wait: true})
			if n := must(fail.TimesEntered(t.Context()))(t); n == 0 {
				t.Error("nothing failed: the test proves nothing")
			}
			fail.Off()
			if c := only(t, report); c.Repaired != 1 || len(f.entries()) != 1 {
				t.Errorf("%d entries: %s", len(f.entries()), show(report))
			}
			f.wantField(1, "comment_count", int32(3))
		})
	}
}

func TestTwoReconcilersRepairAKeptCounterOnce(t *testing.T) {
	t.Parallel()
	f := kept(t, unguarded)
	const posts = 120
	for i := range posts {
		f.comment(i, 1)
		f.post(i, count(4))
	}
	var both sync.WaitGroup
	for range 2 {
		r := f.reconciler(equipment{})
		both.Go(func() {
			if _, err := r.RunOnce(context.WithoutCancel(t.Context()), Options{Wait: true}); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if n := len(f.entries()); n != posts {
		t.Errorf("%d entries, want %d", n, posts)
	}
	for i := range posts {
		f.wantField(i, "comment_count", int32(1))
	}
}

func TestADocumentThatRefusesItsRepairIsSetApart(t *testing.T) {
	t.Parallel()
	f := kept(t)
	f.comment(1, 3)
	f.comment(2, 3)
	f.post(1, count(7))
	f.post(2, count(7), bson.E{Key: "locked", Value: true})
	f.check(f.targets.Database().RunCommand(t.Context(), bson.D{{Key: "collMod", Value: "posts"}, {Key: "validator", Value: bson.D{
		{Key: "$or", Value: bson.A{bson.D{{Key: "locked", Value: nil}}, bson.D{{Key: "comment_count", Value: 7}}}},
	}}}).Err())
	report := f.run(f.reconciler(equipment{}), Options{Wait: true})
	if c := only(t, report); c.Repaired != 1 || c.Skipped[skipRefused] != 1 || len(c.SetApart) != 1 || len(f.entries()) != 1 {
		t.Errorf("%s", show(report))
	}
	f.wantField(1, "comment_count", int32(3))
	f.wantField(2, "comment_count", int32(7))
}

// Repairs beside users at work take away exactly what was planted, and nothing that was only under way.
func TestRepairsOfKeptCountersUnderLoadTakeAwayWhatWasPlanted(t *testing.T) {
	t.Parallel()
	const posts = 60
	for name, edit := range map[string]func(*config.Config){"one field": func(*config.Config) {}, "split fields": splitFields} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := kept(t, edit, func(c *config.Config) { c.Reconciler.Settle = 2 * time.Second })
			field := "comment_count"
			if f.config.Counters[0].Target.Count == "" {
				field = "live_delta"
			}
			want := map[string]int64{}
			for i := range posts {
				n := int64(i%5 - 2)
				f.post(i, bson.E{Key: field, Value: n})
				if n != 0 {
					want[raw(i).String()] = n
				}
			}
			w := &writers{fixture: f, posts: posts, late: func() time.Duration { return time.Duration(rand.IntN(200)) * time.Millisecond },
				inc: func(ctx context.Context, post any, n int) error {
					_, err := f.targets.UpdateByID(ctx, post, inc(field, n))
					return err
				}}
			stop := w.start(6)
			defer stop()
			r := f.reconciler(equipment{})
			for range 3 {
				f.run(r, Options{Wait: true})
			}
			meanwhile := len(f.entries())
			stop()
			// What young rows could explain is found once they are no longer young.
			realtest.Eventually(t, patience, "every planted drift to be taken away", func() bool {
				f.run(r, Options{Wait: true})
				return len(f.entries()) >= len(want)
			})
			t.Logf("%d writes; %d repairs beside them, %d after", w.done.Load(), meanwhile, len(want)-meanwhile)
			for _, e := range f.entries() {
				if e.Drift != want[e.Key] { // also where a key is repaired again
					t.Errorf("a repair took %d from %s, where %d was planted and not taken yet", e.Drift, e.Key, want[e.Key])
				}
				delete(want, e.Key)
			}
			wantDrift(t, f.run(r, Options{Wait: true}), nil)
		})
	}
}

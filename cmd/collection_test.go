package cmd_test

import (
	"errors"
	"regexp"
	"strconv"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// both is a place at which the two programs are at work.
type both struct {
	*place
	incrementer, reconciler *service
}

// atWork sets up, starts both programs and makes every counter active.
func (p *place) atWork() both {
	p.t.Helper()
	s := p.following()
	return both{p, s, p.start("reconciler")}
}

// gap is one on record.
type gap struct {
	Lane, Reason string
	From, To     bson.Timestamp
}

func (p *place) gaps() []gap {
	p.t.Helper()
	cursor, err := p.client.Database(p.state).Collection("gaps").Find(p.t.Context(), bson.D{})
	if err != nil {
		p.t.Fatal(err)
	}
	var gaps []gap
	if err := cursor.All(p.t.Context(), &gaps); err != nil {
		p.t.Fatal(err)
	}
	return gaps
}

// active reports whether no counter waits for a recount.
func (p *place) active() bool {
	p.t.Helper()
	n, err := p.client.Database(p.state).Collection("counters").CountDocuments(p.t.Context(), bson.D{{Key: "state", Value: bson.D{{Key: "$ne", Value: "active"}}}})
	if err != nil {
		p.t.Fatal(err)
	}
	return n == 0
}

// wantRight waits until every count is right and both programs say so, by themselves and without a restart.
func (b both) wantRight() {
	b.t.Helper()
	realtest.Eventually(b.t, 2*patience, "the counts are right", func() bool {
		return b.active() && b.displayed("post_counters", 1) == b.counted(1) && b.displayed("post_counters", 2) == b.counted(2)
	})
	b.incrementer.becomes("/readyz", 200, `"ready": true`)
	b.reconciler.becomes("/readyz", 200, `"ready": true`)
	b.want(0, "reconciler", "verify", "--full", "--reconciler-judge-timeout", "15s")
	for _, s := range []*service{b.incrementer, b.reconciler} {
		select {
		case <-s.done:
			b.t.Errorf("%s has ended", s.cmd.Path)
		default:
		}
	}
	_, metrics := b.incrementer.get("/metrics")
	restarts := 0
	for _, m := range regexp.MustCompile(`(?m)^incrementer_stream_restarts_total\{.*\} (\d+)$`).FindAllStringSubmatch(metrics, -1) {
		n, _ := strconv.Atoi(m[1])
		restarts += n
	}
	if restarts > 4 {
		b.t.Errorf("the stream has restarted %d times", restarts)
	}
}

// wantGaps fails the test unless exactly n gaps are on record for the reason, each with both ends.
func (b both) wantGaps(n int, reason string) {
	b.t.Helper()
	gaps := b.gaps()
	if len(gaps) != n {
		b.t.Errorf("%d gaps are on record, want %d: %+v", len(gaps), n, gaps)
	}
	for _, g := range gaps {
		if g.Lane != "comments" || g.Reason != reason || g.From.IsZero() || !g.From.Before(g.To) {
			b.t.Errorf("on record is %+v, want %s", g, reason)
		}
	}
}

func (p *place) rows() *mongo.Collection { return p.client.Database(p.app).Collection("comments") }

func (p *place) rename(from, to string, dropTarget bool) {
	p.t.Helper()
	p.must("admin", bson.D{
		{Key: "renameCollection", Value: p.app + "." + from}, {Key: "to", Value: p.app + "." + to}, {Key: "dropTarget", Value: dropTarget},
	})
}

// other makes another collection with one row of post 1.
func (p *place) other(name string) {
	p.t.Helper()
	_, err := p.client.Database(p.app).Collection(name).InsertOne(p.t.Context(), bson.D{{Key: "post_id", Value: 1}, {Key: "user_id", Value: "a"}, {Key: "likes", Value: 1}})
	if err != nil {
		p.t.Fatal(err)
	}
}

// dump reads all documents of a collection.
func (p *place) dump(database, collection string) []bson.D {
	p.t.Helper()
	cursor, err := p.client.Database(database).Collection(collection).Find(p.t.Context(), bson.D{})
	if err != nil {
		p.t.Fatal(err)
	}
	var all []bson.D
	if err := cursor.All(p.t.Context(), &all); err != nil {
		p.t.Fatal(err)
	}
	return all
}

// restore writes documents as mongorestore does: what is there already is left alone.
func (p *place) restore(database, collection string, documents []bson.D) {
	p.t.Helper()
	if len(documents) == 0 {
		return
	}
	_, err := p.client.Database(database).Collection(collection).InsertMany(p.t.Context(), documents, options.InsertMany().SetOrdered(false))
	if fault, is := errors.AsType[mongo.BulkWriteException](err); err != nil && (!is || !mongo.IsDuplicateKeyError(fault)) {
		p.t.Fatal(err)
	}
}

func (p *place) images(on bool) {
	p.t.Helper()
	p.must(p.app, bson.D{{Key: "collMod", Value: "comments"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: on}}}})
}

// Whatever happens to the collection of the rows, both programs go on and the counts are right after the next run.
func TestACollectionThatChangesUnderUsIsRecordedAndRecounted(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	drop := bson.D{{Key: "drop", Value: "comments"}}
	for name, tt := range map[string]struct {
		change func(p both)
		gaps   int // in one go; more steps may be seen as more
		lost   string
	}{
		"drop": {func(p both) {
			p.must(p.app, drop)
		}, 1, "collection_changed"},
		"drop and recreate": {func(p both) {
			p.must(p.app, drop)
			p.comment()
		}, 1, "collection_changed"},
		"drop, and recreate once that is noticed": {func(p both) {
			p.must(p.app, drop)
			p.wantRight()
			p.comment() // a beginning like any other, and no gap
		}, 1, "collection_changed"},
		"rename away": {func(p both) {
			p.rename("comments", "elsewhere", false)
		}, 1, "collection_changed"},
		"rename away and back": {func(p both) {
			p.rename("comments", "elsewhere", false)
			p.wantRight()
			p.rename("elsewhere", "comments", false)
		}, 2, "collection_changed"},
		"rename another onto it": {func(p both) {
			p.other("another")
			p.rename("another", "comments", true)
		}, 1, "collection_changed"},
		"$out onto it": {func(p both) {
			p.other("another")
			p.must(p.app, bson.D{{Key: "aggregate", Value: "another"}, {Key: "cursor", Value: bson.D{}},
				{Key: "pipeline", Value: bson.A{bson.D{{Key: "$out", Value: "comments"}}}}})
		}, 1, "collection_changed"},
		"dropDatabase": {func(p both) {
			p.must(p.app, bson.D{{Key: "dropDatabase", Value: 1}})
			p.comment()
			p.want(0, "incrementer", "setup") // the counters' collections went as well
		}, 1, "collection_changed"},
		"restore with drop": {func(p both) {
			dumped := p.dump(p.app, "comments")
			p.comment()
			p.must(p.app, drop)
			p.must(p.app, bson.D{{Key: "create", Value: "comments"}})
			p.restore(p.app, "comments", dumped)
		}, 1, "collection_changed"},
		"restore without drop": {func(p both) {
			dumped := p.dump(p.app, "comments")
			if _, err := p.rows().DeleteMany(p.t.Context(), bson.D{{Key: "user_id", Value: "a"}}); err != nil {
				p.t.Fatal(err)
			}
			p.restore(p.app, "comments", dumped)
		}, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newPlace(t, m).atWork()
			tt.change(b)
			realtest.Eventually(t, patience, "the gaps are on record", func() bool { return len(b.gaps()) >= tt.gaps })
			b.wantRight()
			b.wantGaps(tt.gaps, tt.lost)
			b.comment() // and on it goes
			realtest.Eventually(t, patience, "later rows are counted", func() bool { return b.displayed("post_counters", 1) == b.counted(1) })
			b.wantRight()
		})
	}
}

func TestBothProgramsStartWithoutACollectionThatWasFollowed(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following().stop()
	p.must(p.app, bson.D{{Key: "drop", Value: "comments"}})
	b := both{p, p.start("incrementer"), p.start("reconciler")}
	b.wantRight()
	b.wantGaps(1, "collection_changed")
	b.incrementer.logs("the collection of the rows does not exist: every count is 0 until it is made")
	if n := b.displayed("post_counters", 1); n != 0 {
		t.Errorf("without rows post 1 displays %d", n)
	}
	// Once more: nothing has changed since.
	b.incrementer.stop()
	b.incrementer = p.start("incrementer")
	b.wantRight()
	b.wantGaps(1, "collection_changed")

	// Made again by the application, it has no images: that is told, and keeps nobody from starting either.
	b.comment()
	b.incrementer.logs("images are off: a change that needs one costs a recount")
	b.wantRight()
	b.incrementer.stop()
	b.incrementer = p.start("incrementer")
	b.incrementer.becomes("/metrics", 200, `incrementer_degraded{reason="images_off",source="comments"} 1`)
	b.images(true)
	b.incrementer.becomes("/metrics", 200, `incrementer_degraded{reason="images_off",source="comments"} 0`)
	b.wantRight()
	b.wantGaps(1, "collection_changed")
}

// stop stops a service in order.
func (s *service) stop() {
	s.t.Helper()
	s.terminate()
	if code := s.ended(); code != 0 {
		s.t.Fatalf("exit %d:\n%s", code, s.log)
	}
}

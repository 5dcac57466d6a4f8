package deployment

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
)

// check looks at the site and returns what it found, without the names of the databases.
func (s *site) check(use Use) []Finding {
	s.t.Helper()
	findings, err := Check(s.t.Context(), s.config, s.definitions, "test", use)
	if err != nil {
		s.t.Fatal(err)
	}
	plain := strings.NewReplacer(s.app, "app", s.state, "state")
	for i := range findings {
		f := &findings[i]
		f.Subject, f.Found, f.Fix = plain.Replace(f.Subject), plain.Replace(f.Found), plain.Replace(f.Fix)
		if (f.Level == OK) != (f.Fix == "") {
			s.t.Errorf("a fix is for what is not in order, and for all of that: %+v", f)
		}
	}
	if slices.ContainsFunc(findings, isMissing) && slices.ContainsFunc(findings, func(f Finding) bool { return f.Level == OK && f.Subject == subjectSetup }) {
		s.t.Errorf("something is missing, and everything is there: %+v", findings)
	}
	return findings
}

// isMissing reports what setup would create, or cannot.
func isMissing(f Finding) bool {
	kind, _, _ := strings.Cut(f.Subject, " ")
	return f.Level != OK && slices.Contains([]string{"source", "counter", "collection", "index"}, kind)
}

// wantOnly fails the test unless exactly these findings, in this order, are not OK. A text need only be contained.
func (s *site) wantOnly(use Use, want ...Finding) {
	s.t.Helper()
	got := slices.DeleteFunc(s.check(use), func(f Finding) bool { return f.Level == OK })
	same := slices.EqualFunc(got, want, func(got, want Finding) bool {
		return got.Level == want.Level && got.Subject == want.Subject && strings.Contains(got.Found, want.Found) && strings.Contains(got.Fix, want.Fix)
	})
	if !same {
		s.t.Errorf("use %d finds\n%+v\nwant\n%+v", use, got, want)
	}
}

// followed leaves the checkpoints of one division of a source as an incrementer of this moment would.
func (s *site) followed(lanes ...string) {
	s.t.Helper()
	store := checkpoint.NewStore(s.client, s.state)
	owner := checkpoint.NewLeases(s.client, s.state, "host/127.0.0.1:9464", time.Hour)
	if _, err := owner.Register(s.t.Context(), nil); err != nil {
		s.t.Fatal(err)
	}
	for _, lane := range lanes {
		if taken, err := owner.Acquire(s.t.Context(), lane); err != nil || !taken {
			s.t.Fatal(taken, err)
		}
		at, err := store.Now(s.t.Context(), lane)
		if err != nil {
			s.t.Fatal(err)
		}
		seen, err := store.Look(s.t.Context(), s.app, "comments")
		if err != nil {
			s.t.Fatal(err)
		}
		to := checkpoint.Checkpoint{Lane: lane, Seq: 1, Batch: bson.NewObjectID(), Position: at, Partitions: len(lanes), Identity: seen.Identity}
		if err := store.Advance(s.t.Context(), checkpoint.Checkpoint{Lane: lane}, to); err != nil {
			s.t.Fatal(err)
		}
	}
}

// divide gives the source of the site so many lanes, none of which was followed.
func (s *site) divide(partitions int) {
	s.t.Helper()
	s.forgetLanes()
	s.config.Sources[0].ChangeStream.Partitions = partitions
}

// orderly is a site where nothing is missing.
func orderly(t *testing.T, uri string) *site {
	t.Helper()
	s := newSiteOn(t, uri)
	s.setUp()
	s.followed("comments")
	return s
}

func both(want ...Finding) map[Use][]Finding { return map[Use][]Finding{Follow: want, Reconcile: want} }

func (s *site) put(document bson.D) {
	s.t.Helper()
	if _, err := s.client.Database(s.app).Collection("post_counters").InsertOne(s.t.Context(), document); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) forgetLanes() { s.forget("comments") }

func (s *site) forget(lane string) {
	s.t.Helper()
	if _, err := s.client.Database(s.state).Collection(checkpoint.Collection).DeleteOne(s.t.Context(), bson.D{{Key: "_id", Value: lane}}); err != nil {
		s.t.Fatal(err)
	}
}

// age moves a lane back to 1970; an oplog that holds everything since the set was made can be read from there.
func (s *site) age(lane string) { s.move(lane, bson.D{{Key: "position", Value: bson.Timestamp{T: 1}}}) }

// lose moves a lane to an event of 1970, which no oplog holds.
func (s *site) lose(lane string) {
	s.t.Helper()
	events, err := s.client.Database(s.app).Collection("comments").Watch(s.t.Context(), bson.A{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = events.Close(s.t.Context()) }()
	if _, err := s.client.Database(s.app).Collection("comments").InsertOne(s.t.Context(), bson.D{}); err != nil {
		s.t.Fatal(err)
	}
	if !events.Next(s.t.Context()) {
		s.t.Fatal(events.Err())
	}
	const head = len("82") + 16                                 // the type byte and the cluster time
	data := events.Current.Lookup("_id", "_data").StringValue() // ResumeToken may be that of a later moment
	s.age(lane)
	s.move(lane, bson.D{{Key: "token", Value: bson.D{{Key: "_data", Value: "820000000100000001" + data[head:]}}}})
}

func (s *site) move(lane string, set bson.D) {
	s.t.Helper()
	_, err := s.client.Database(s.state).Collection(checkpoint.Collection).UpdateByID(s.t.Context(), lane, bson.D{{Key: "$set", Value: set}})
	if err != nil {
		s.t.Fatal(err)
	}
}

// release has nobody follow a lane.
func (s *site) release(lane string) {
	s.t.Helper()
	if _, err := s.client.Database(s.state).Collection(checkpoint.LeasesCollection).DeleteOne(s.t.Context(), bson.D{{Key: "_id", Value: lane}}); err != nil {
		s.t.Fatal(err)
	}
}

func expression(t *testing.T, e bson.D) bson.RawValue {
	t.Helper()
	kind, raw, err := bson.MarshalValue(e)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: kind, Value: raw}
}

package deployment

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

func TestATinyOplogIsShortAndLosesALane(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{OplogMB: 1, SyncDelay: time.Second})
	s := orderly(t, server.URI())
	s.wantOnly(Follow) // it is young, not small
	body := string(make([]byte, 1<<20))
	k := &checker{client: s.client}
	realtest.Eventually(t, time.Minute, "the oplog has rolled over", func() bool {
		for range 4 {
			if _, err := s.client.Database(s.app).Collection("neighbour").InsertOne(t.Context(), bson.D{{Key: "body", Value: body}}); err != nil {
				t.Fatal(err)
			}
		}
		h, err := k.readOplog(t.Context())
		return err == nil && !h.whole
	})
	s.wantOnly(Follow,
		Finding{Warn, "oplog window", " s: a position that is older cannot be resumed", "db.adminCommand({replSetResizeOplog: 1, minRetentionHours: 24}) on every member"},
		Finding{Fail, "lane comments", "cannot be resumed: position lost", "incrementer run"})
	s.admin(fixOf(t, "db.adminCommand({replSetResizeOplog: 1, minRetentionHours: 24}) on every member")) // the server takes it
}

func TestSettingsOfTheClusterAreJudged(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{})
	s := orderly(t, server.URI())
	for _, tt := range []struct {
		name    string
		use     Use
		spoil   bson.D
		finding Finding
	}{
		{"default write concern", Follow, bson.D{{Key: "setDefaultRWConcern", Value: 1}, {Key: "defaultWriteConcern", Value: bson.D{{Key: "w", Value: 1}}}},
			Finding{Warn, "default write concern", "w: 1: an acknowledged write of the application can be rolled back; counters follow what a majority has",
				`db.adminCommand({setDefaultRWConcern: 1, defaultWriteConcern: {w: "majority"}})`}},
		{"expiry of images", Follow, bson.D{{Key: "setClusterParameter", Value: bson.D{{Key: "changeStreamOptions", Value: bson.D{
			{Key: "preAndPostImages", Value: bson.D{{Key: "expireAfterSeconds", Value: 100}}}}}}}},
			Finding{Warn, "images kept", "100 s: a change that is read later has no image",
				`db.adminCommand({setClusterParameter: {changeStreamOptions: {preAndPostImages: {expireAfterSeconds: "off"}}}})`}},
		{"snapshots", Reconcile, bson.D{{Key: "setParameter", Value: 1}, {Key: "minSnapshotHistoryWindowInSeconds", Value: 59}},
			Finding{Warn, "snapshot window", "59 s: a count of rows that takes longer",
				`db.adminCommand({setParameter: 1, minSnapshotHistoryWindowInSeconds: 300}) on every member`}},
	} {
		s.wantOnly(tt.use)
		s.admin(tt.spoil)
		s.wantOnly(tt.use, tt.finding)
		s.admin(fixOf(t, tt.finding.Fix))
		s.wantOnly(tt.use)
	}
	// A member that does not answer and has no vote: the majority is the other one alone.
	s.addMember("127.0.0.1:1")
	s.wantOnly(Follow, Finding{Warn, "replica set", "rs0: 2 members with data; down: 127.0.0.1:1. One more, and a majority may not acknowledge", "bring 127.0.0.1:1 back"})
}

func (s *site) admin(command bson.D) {
	s.t.Helper()
	if err := s.client.Database("admin").RunCommand(s.t.Context(), command).Err(); err != nil {
		s.t.Fatalf("%v: %v", command, err)
	}
}

// addMember adds one without a vote.
func (s *site) addMember(host string) {
	s.t.Helper()
	var answer struct{ Config bson.M }
	k := &checker{client: s.client}
	if err := k.ask(s.t.Context(), &answer, bson.E{Key: "replSetGetConfig", Value: 1}); err != nil {
		s.t.Fatal(err)
	}
	set := answer.Config
	set["version"] = set["version"].(int32) + 1
	set["members"] = append(set["members"].(bson.A), bson.D{{Key: "_id", Value: 1}, {Key: "host", Value: host}, {Key: "votes", Value: 0}, {Key: "priority", Value: 0}})
	s.admin(bson.D{{Key: "replSetReconfig", Value: set}})
}

// fixOf reads the command out of a fix, as the shell would.
func fixOf(t *testing.T, fix string) (command bson.D) {
	t.Helper()
	inside, found := strings.CutPrefix(fix, "db.adminCommand(")
	inside, _, _ = strings.Cut(inside, ")")
	if err := bson.UnmarshalExtJSON([]byte(bareKeys.ReplaceAllString(inside, `"$1":`)), false, &command); err != nil || !found {
		t.Fatalf("%s is no command: %v", fix, err)
	}
	return command
}

var bareKeys = regexp.MustCompile(`([a-zA-Z]+):`)

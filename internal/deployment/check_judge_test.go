package deployment

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/stream"
)

// wantFinding compares the level, and that the texts are contained.
func wantFinding(t *testing.T, name string, got Finding, level Level, found, fix string) {
	t.Helper()
	if got.Level != level || !strings.Contains(got.Found, found) || !strings.Contains(got.Fix, fix) || (got.Fix == "") != (level == OK) {
		t.Errorf("%s: %+v, want %s with %q, %q", name, got, level, found, fix)
	}
}

func seconds(t uint32) bson.Timestamp { return bson.Timestamp{T: t} }

func TestWhichMembersAreEnough(t *testing.T) {
	t.Parallel()
	up := func(name string, state int) setMember { return setMember{name, state} }
	down := func(name string) setMember { return setMember{name, 8} }
	for name, tt := range map[string]struct {
		members    []setMember
		arbiters   []string
		majority   int
		level      Level
		found, fix string
	}{
		"one":                     {[]setMember{up("a", 1)}, nil, 1, OK, "rs0: 1 member with data", ""},
		"three":                   {[]setMember{up("a", 1), up("b", 2), up("c", 2)}, nil, 2, OK, "rs0: 3 members with data", ""},
		"one of three down":       {[]setMember{up("a", 1), down("b"), up("c", 2)}, nil, 2, Warn, "down: b. One more,", "bring b back"},
		"one of three starts":     {[]setMember{up("a", 1), up("b", 5), up("c", 2)}, nil, 2, Warn, "down: b", "bring b back"},
		"two of three down":       {[]setMember{up("a", 1), down("b"), down("c")}, nil, 2, Warn, "only 1 up (down: b, c), and a majority takes 2: nothing commits", "bring b, c back"},
		"an arbiter":              {[]setMember{up("a", 1), up("b", 2), up("c", 7)}, nil, 2, Warn, "rs0: 2 members with data, 1 arbiter, which acknowledges nothing", "replace c by"},
		"an arbiter and one down": {[]setMember{up("a", 1), down("b"), up("c", 7)}, nil, 2, Warn, "only 1 up (down: b)", "bring b back"},
		"an arbiter that is down": {[]setMember{up("a", 1), up("b", 2), down("c")}, []string{"c"}, 2, Warn, "1 arbiter", "replace c by"},
	} {
		wantFinding(t, name, setByStatus(hello{SetName: "rs0", Arbiters: tt.arbiters}, setStatus{tt.majority, tt.members}), tt.level, tt.found, tt.fix)
	}
	wantFinding(t, "asked without privilege", setByHello(hello{SetName: "rs0", Hosts: []string{"a", "b"}, Passives: []string{"c"}}), OK, "rs0: 3 members with data", "")
	wantFinding(t, "an arbiter without privilege", setByHello(hello{SetName: "rs0", Hosts: []string{"a", "b"}, Arbiters: []string{"c"}}), Warn, "1 arbiter", "replace c by")
}

func TestAMajorityThatStandsStillFails(t *testing.T) {
	t.Parallel()
	var h hello
	h.LastWrite.Last.At, h.LastWrite.Majority.At = seconds(1015), seconds(1000)
	wantFinding(t, "a moment behind", majority(h), OK, "acknowledges", "")
	h.LastWrite.Last.At = seconds(1016)
	wantFinding(t, "behind", majority(h), Fail, "has not acknowledged the writes of the last 16 s", "bring the other members back")
}

func TestWhichDefaultWriteConcernWarns(t *testing.T) {
	t.Parallel()
	for w, level := range map[any]Level{"majority": OK, "dc": OK, int32(2): OK, int64(3): OK, int32(1): Warn, 1.0: Warn, int32(0): Warn, nil: Warn} {
		if got := writeConcern(w); got.Level != level {
			t.Errorf("w: %v: %+v", w, got)
		}
	}
}

func TestWhichOplogIsLongEnough(t *testing.T) {
	t.Parallel()
	day := uint32((24 * time.Hour).Seconds())
	wantFinding(t, "a day", oplogWindow(history{seconds(100), seconds(100 + day), false}), OK, "24.0 h", "")
	wantFinding(t, "less", oplogWindow(history{seconds(100), seconds(100 + day - 1), false}), Warn, "24.0 h: a position that is older", "minRetentionHours: 24")
	wantFinding(t, "young", oplogWindow(history{seconds(100), seconds(160), true}), OK, "60 s: everything since", "")
}

func TestWhichImagesAreKeptLongEnough(t *testing.T) {
	t.Parallel()
	h := &history{seconds(0), seconds(7200), false}
	wantFinding(t, "an hour", expiry(time.Hour, nil), OK, "60 min", "")
	wantFinding(t, "less", expiry(time.Hour-time.Second, nil), Warn, "59 min: a change that is read later", `"off"`)
	wantFinding(t, "as long as the oplog", expiry(2*time.Hour, h), OK, "2.0 h", "")
	wantFinding(t, "less than the oplog", expiry(time.Hour, h), Warn, "60 min, but the oplog 2.0 h", `"off"`)
}

func TestWhichSnapshotsReachBackFarEnough(t *testing.T) {
	t.Parallel()
	wantFinding(t, "a minute", snapshotWindow(time.Minute, 0, 10*time.Second), OK, "60 s", "")
	wantFinding(t, "less", snapshotWindow(59*time.Second, 0, 10*time.Second), Warn, "59 s", "minSnapshotHistoryWindowInSeconds: 300")
	wantFinding(t, "less than a run waits", snapshotWindow(5*time.Minute, 0, 10*time.Minute), Warn, "5 min", "minSnapshotHistoryWindowInSeconds: 600")
	wantFinding(t, "rows as of long ago", snapshotWindow(5*time.Minute, 5*time.Minute, 10*time.Second), Warn, "5 min", "minSnapshotHistoryWindowInSeconds: 360")
}

func TestWhichLanesAreInTime(t *testing.T) {
	t.Parallel()
	at := checkpoint.Checkpoint{Lane: "a/1", Position: seconds(1000)}
	source := config.Source{Name: "a"}
	old := &history{seconds(900), seconds(1050), false}
	for name, tt := range map[string]struct {
		behind     time.Duration
		h          *history
		err        error
		level      Level
		found, fix string
	}{
		"in time":                  {50 * time.Second, old, nil, OK, "50 s behind, 100 s before its history is gone", ""},
		"more than half way":       {101 * time.Second, old, nil, Warn, "101 s behind, 100 s before its history is gone", "incrementer run"},
		"nothing dropped yet":      {500 * time.Second, &history{seconds(900), seconds(1500), true}, nil, OK, "can be resumed", ""},
		"oplog not known":          {500 * time.Second, nil, nil, OK, "can be resumed", ""},
		"lost":                     {50 * time.Second, old, stream.ErrPositionLost, Fail, "cannot be resumed: position lost", "starts afresh"},
		"another collection":       {50 * time.Second, old, stream.ErrCollectionChanged, Fail, "cannot be resumed: collection dropped", "starts afresh"},
		"the server does not tell": {50 * time.Second, old, stream.ErrInterrupted, Warn, "whether it can be resumed is not known: interrupted", "check again"},
	} {
		wantFinding(t, name, lane(source, at, tt.behind, tt.h, tt.err), tt.level, tt.found, tt.fix)
	}
}

func TestFieldsOfOthersAreFoundAtAnyDepth(t *testing.T) {
	t.Parallel()
	ours := []string{"_id", "driftless", "base", "counts.comments"}
	for name, tt := range map[string]struct {
		document bson.D
		want     string
	}{
		"ours":             {keys("_id", 1, "base", 1, "counts", keys("comments", 1), "driftless", keys("any", 1)), "[]"},
		"beside":           {keys("_id", 1, "title", "a"), "[title]"},
		"inside":           {keys("counts", keys("comments", 1, "likes", 2)), "[counts.likes]"},
		"of another shape": {keys("counts", 7), "[counts]"},
		"of ours alone":    {keys("base", keys("x", 1)), "[]"},
	} {
		raw, err := bson.Marshal(tt.document)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(foreignFields([]bson.Raw{raw, raw}, ours)); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

func TestATimeIsToldInAUnitThatSuitsIt(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		0: "0 s", 119 * time.Second: "119 s", 2 * time.Minute: "2 min", 90 * time.Minute: "90 min", 36 * time.Hour: "36.0 h", 240 * time.Hour: "10 days",
	} {
		if got := span(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

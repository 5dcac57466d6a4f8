package cmd_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/realtest"
)

// lease is the places' incrementer.lease and reconciler.lease.
const lease = 2 * time.Second

// soak is the long form of a number when DRIFTLESS_SOAK is set.
func soak(short, long int) int {
	if os.Getenv("DRIFTLESS_SOAK") != "" {
		return long
	}
	return short
}

// applied waits until the lane has come to the present.
func (p *place) applied() {
	p.t.Helper()
	session, err := p.client.StartSession()
	if err != nil {
		p.t.Fatal(err)
	}
	defer session.EndSession(context.WithoutCancel(p.t.Context()))
	if _, err := p.client.Database(p.app).Collection("clock").InsertOne(mongo.NewSessionContext(p.t.Context(), session), bson.D{}); err != nil {
		p.t.Fatal(err)
	}
	realtest.Eventually(p.t, patience, "the lane comes to the present", func() bool {
		var at struct{ Position bson.Timestamp }
		err := p.client.Database(p.state).Collection("checkpoints").FindOne(p.t.Context(), bson.D{{Key: "_id", Value: "comments"}}).Decode(&at)
		if err != nil {
			p.t.Fatal(err)
		}
		return !at.Position.Before(*session.OperationTime())
	})
}

// wantExact holds both counters to the rows, once all changes are applied.
func (p *place) wantExact() {
	p.t.Helper()
	p.applied()
	one := bson.D{{Key: "$sum", Value: 1}}
	for counters, truth := range map[string]bson.A{
		"post_counters": {
			bson.D{{Key: "$match", Value: bson.D{{Key: "deleted_at", Value: nil}}}},
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$post_id"}, {Key: "n", Value: one}}}},
		},
		"user_counters": {
			bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$user_id"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$likes"}}}}}},
		},
	} {
		displayed := bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$add", Value: bson.A{
			bson.D{{Key: "$ifNull", Value: bson.A{"$base_count", 0}}}, bson.D{{Key: "$ifNull", Value: bson.A{"$live_delta", 0}}},
		}}}}}}}}
		got, want := p.numbers(counters, displayed), p.numbers("comments", truth)
		if len(want) == 0 || !maps.Equal(got, want) {
			p.t.Errorf("%s display\n%v, the rows say\n%v", counters, got, want)
		}
	}
}

// numbers are the n by _id that a pipeline gives, zeros left out.
func (p *place) numbers(collection string, pipeline bson.A) map[string]int64 {
	p.t.Helper()
	cursor, err := p.client.Database(p.app).Collection(collection).Aggregate(p.t.Context(), pipeline)
	if err != nil {
		p.t.Fatal(err)
	}
	var all []struct {
		ID any `bson:"_id"`
		N  int64
	}
	if err := cursor.All(p.t.Context(), &all); err != nil {
		p.t.Fatal(err)
	}
	numbers := map[string]int64{}
	for _, x := range all {
		if x.N != 0 {
			numbers[fmt.Sprint(x.ID)] = x.N
		}
	}
	return numbers
}

// name is what the instance is known by to the others.
func (s *service) name() string {
	s.t.Helper()
	host, err := os.Hostname()
	if err != nil {
		s.t.Fatal(err)
	}
	return host + "/" + strings.TrimPrefix(s.url, "http://")
}

func (s *service) signal(sig syscall.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatal(err)
	}
}

// pause stops the process from doing anything, until it is continued or the test ends.
func (s *service) pause() {
	s.t.Helper()
	s.signal(syscall.SIGSTOP)
	s.t.Cleanup(func() { _ = s.cmd.Process.Signal(syscall.SIGCONT) })
}

// metric is the value of the lane's series, as it is written.
func (s *service) metric(name string) string {
	s.t.Helper()
	_, body := s.get("/metrics")
	for line := range strings.Lines(body) {
		if strings.HasPrefix(line, name+"{") && strings.Contains(line, `source="comments"`) {
			return strings.Fields(line)[1]
		}
	}
	s.t.Fatalf("no %s in\n%s", name, body)
	return ""
}

// owns waits until the instance follows the lane, and says so wherever it says anything.
func (s *service) owns() {
	s.t.Helper()
	realtest.Eventually(s.t, patience, s.name()+" follows the lane", func() bool { return s.metric("incrementer_lane_owned") == "1" })
	if lag := s.metric("incrementer_lag_seconds"); lag == "NaN" {
		s.t.Errorf("the lag of the owner is %s", lag)
	}
	s.becomes("/readyz", 200, `"ready": true`)
	s.becomes("/status", 200, `"owner": "`+s.name()+`"`)
	if lane := s.lane(); !lane.Following {
		s.t.Errorf("/status of the owner says %+v", lane)
	}
}

// standsBy waits until the instance is on standby for another, ready, and says so wherever it says anything.
func (s *service) standsBy(owner *service) {
	s.t.Helper()
	realtest.Eventually(s.t, patience, s.name()+" is on standby", func() bool {
		// In this order: a lane that is about to be given back has a lag.
		return s.metric("incrementer_lag_seconds") == "NaN" && s.metric("incrementer_lane_owned") == "0" &&
			s.metric("incrementer_checkpoint_timestamp_seconds") == "NaN" && s.metric("incrementer_resume_headroom_seconds") == "NaN"
	})
	s.becomes("/status", 200, `"owner": "`+owner.name()+`"`)
	if lane := s.lane(); lane.Following || lane.LagSeconds != nil || lane.Error != "" {
		s.t.Errorf("/status on standby says %+v", lane)
	}
	s.becomes("/readyz", 200, `"ready": true`)
}

type statusLane struct {
	Lane, Owner, Error string
	Following          bool
	LagSeconds         *float64 `json:"lag_seconds"`
}

// lane is what /status says of the only one.
func (s *service) lane() statusLane {
	s.t.Helper()
	_, body := s.get("/status")
	var status struct{ Lanes []statusLane }
	if err := json.Unmarshal([]byte(body), &status); err != nil || len(status.Lanes) != 1 {
		s.t.Fatalf("/status says %s, %v", body, err)
	}
	return status.Lanes[0]
}

// count is how many log lines hold one of the texts.
func (s *service) count(texts ...string) (n int) {
	for line := range strings.Lines(s.log.String()) {
		for _, text := range texts {
			if strings.Contains(line, text) {
				n++
				break
			}
		}
	}
	return n
}

func TestAnOwnerThatIsPausedForLongerThanItsLeaseIsReplacedAndThenFenced(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	owner := p.following()
	standby := p.start("incrementer")
	standby.standsBy(owner)
	stop := p.load()
	for range soak(3, 20) {
		p.applied()
		told, stands := owner.count(toldOfTheOther...), owner.count(`"on standby"`)
		paused := time.Now()
		owner.pause()
		standby.owns()
		t.Logf("taken over after %v", time.Since(paused))
		p.applied()
		realtest.Eventually(t, patience, "twice the lease is over", func() bool { return time.Since(paused) > 2*lease })
		owner.signal(syscall.SIGCONT)
		owner.standsBy(standby)
		if owner.count(toldOfTheOther...) == told || owner.count(`"on standby"`) == stands {
			t.Errorf("the log does not say that another instance has the lane:\n%s", owner.log)
		}
		owner, standby = standby, owner
	}
	stop()
	p.wantExact()
	t.Logf("fenced %s and %s times", owner.metric("incrementer_fenced_total"), standby.metric("incrementer_fenced_total"))
}

// toldOfTheOther are the lines by which an owner says that it is none any more.
var toldOfTheOther = []string{"fenced by another owner", "another instance has taken it", "lane lost to another instance"}

func TestAStandbyTakesOverFromAnOwnerThatIsKilledOrStops(t *testing.T) {
	t.Parallel()
	const look, slack = time.Second, 5 * time.Second // the machine is shared
	for name, tt := range map[string]struct {
		lease  time.Duration
		end    func(*service)
		within time.Duration
	}{
		"killed":  {lease, func(s *service) { s.signal(syscall.SIGKILL) }, lease + look + slack},
		"stopped": {time.Minute, func(s *service) { s.terminate() }, look + slack},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, plain.start(t))
			p.env = []string{"DRIFTLESS_INCREMENTER_LEASE=" + tt.lease.String()}
			owner := p.following()
			stop := p.load()
			for range soak(1, 10) {
				standby := p.start("incrementer")
				standby.standsBy(owner)
				owner.owns()
				p.applied()
				began := time.Now()
				tt.end(owner)
				realtest.Eventually(t, 2*patience, "the standby follows the lane", func() bool { return standby.metric("incrementer_lane_owned") == "1" })
				took := time.Since(began)
				t.Logf("taken over after %v", took)
				if took > tt.within {
					t.Errorf("taken over after %v, want %v", took, tt.within)
				}
				standby.owns()
				<-owner.done
				owner = standby
			}
			stop()
			p.wantExact()
		})
	}
}

func TestStatusShowsWhoFollowsWhatAndWhoStandsBy(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	owner := p.following()
	if text := p.want(0, "incrementer", "status").stdout; strings.Contains(text, "INSTANCE") || !strings.Contains(text, owner.name()) {
		t.Errorf("one instance needs no table, and is the lane's owner:\n%s", text)
	}
	standby := p.start("incrementer")
	standby.standsBy(owner)
	text := p.want(0, "incrementer", "status").stdout
	lines := map[string]string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); len(fields) > 0 {
			lines[fields[0]] = line
		}
	}
	if !strings.Contains(lines["comments"], owner.name()) || !strings.HasSuffix(strings.TrimSpace(lines[owner.name()]), "comments") ||
		!strings.HasSuffix(strings.TrimSpace(lines[standby.name()]), "on standby") {
		t.Errorf("status says\n%s", text)
	}
	var got struct {
		Lanes     []statusLane
		Instances []struct {
			Instance  string
			StartedAt time.Time `json:"started_at"`
			Lanes     []string
		}
	}
	if err := json.Unmarshal([]byte(p.want(0, "incrementer", "status", "-o", "json").stdout), &got); err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for _, i := range got.Instances {
		has[i.Instance] = fmt.Sprint(i.Lanes)
		if time.Since(i.StartedAt).Abs() > time.Hour {
			t.Errorf("started at %v", i.StartedAt)
		}
	}
	if want := map[string]string{owner.name(): "[comments]", standby.name(): "[]"}; !maps.Equal(has, want) || got.Lanes[0].Owner != owner.name() {
		t.Errorf("status says %v and %+v", has, got.Lanes)
	}
}

func TestAnInstanceWithAnOlderFileStandsBackAndSaysWhy(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	older := p.following()
	text, err := os.ReadFile(p.file)
	if err != nil {
		t.Fatal(err)
	}
	p.write(strings.Replace(string(text), "sum: likes", "sum: stars", 1))
	newer := p.start("incrementer")
	newer.owns()
	older.becomes("/readyz", 503, "instance "+newer.name()+", which started later, has another configuration of source comments")
	realtest.Eventually(t, patience, "the older one does not follow", func() bool { return older.metric("incrementer_lane_owned") == "0" })
	newer.terminate()
	if code := newer.ended(); code != 0 {
		t.Errorf("the newer one ends with %d", code)
	}
	// Nobody counts by the older file again unless somebody says so.
	older.becomes("/readyz", 503, "restart this one, with the same file or with the one that is to count from now on")
	if older.metric("incrementer_lane_owned") != "0" {
		t.Error("the older one follows again")
	}
	older.terminate()
	if code := older.ended(); code != 0 {
		t.Errorf("the older one ends with %d", code)
	}
	if err := os.WriteFile(p.file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start("incrementer").owns()
}

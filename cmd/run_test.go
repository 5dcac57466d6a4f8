package cmd_test

import (
	"encoding/json"
	"net"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// following sets up, starts an incrementer and makes every counter active.
func (p *place) following() *service {
	p.t.Helper()
	p.want(0, "incrementer", "setup")
	s := p.start("incrementer")
	s.becomes("/readyz", 200, `"ready": true`)
	p.comment()
	realtest.Eventually(p.t, patience, "the comments are counted", func() bool {
		return p.displayed("post_counters", 1) == 2 && p.displayed("user_counters", "a") == 4
	})
	p.want(0, "reconciler", "run", "--once")
	return s
}

func TestStopsBySignal(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	incrementer, reconciler := p.following(), p.start("reconciler")
	for _, s := range []*service{incrementer, reconciler} {
		s.terminate()
		if code := s.ended(); code != 0 || s.logged("stopping: finishing what is in flight; a second signal ends at once") == nil || s.logged("stopped") == nil {
			t.Errorf("after SIGTERM: exit %d\n%s", code, s.log)
		}
		if strings.Contains(s.log.String(), `"ERROR"`) || strings.Contains(s.log.String(), "\nincrementer: ") {
			t.Errorf("a clean stop is told as an error:\n%s", s.log)
		}
	}
}

func TestASecondSignalEndsAtOnceAndTheFirstDrainsInAMoment(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{})
	var services []*service
	for range 2 {
		p := newPlace(t, m)
		// No transaction is to be under way when the server stops: that is finished first, however long it takes.
		p.edit(func(text string) string {
			return strings.Replace(text, "idle_checkpoint: 200ms", "idle_checkpoint: 1m", 1)
		})
		p.want(0, "incrementer", "setup")
		s := p.start("incrementer")
		s.logs("following")
		services = append(services, s)
	}
	patient, hurried := services[0], services[1]
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Resume)
	patient.becomes("/readyz", 503, `"mongodb": {`+"\n"+`      "ok": false`)
	if code, body := patient.get("/healthz"); code != 200 {
		t.Errorf("a server that is gone makes us unhealthy: %d %s", code, body)
	}
	for _, s := range services {
		s.terminate()
		s.logs("stopping: finishing what is in flight; a second signal ends at once")
	}
	hurried.terminate() // it would still say farewell to the server for some seconds
	if code := hurried.ended(); code != 1 || hurried.logged("ended at once by a second signal; what was in flight is replayed at the next start") == nil {
		t.Errorf("after two signals: exit %d\n%s", code, hurried.log)
	}
	if code := patient.ended(); code != 0 {
		t.Errorf("after one signal: exit %d\n%s", code, patient.log)
	}
}

func TestALostPositionStopsWithItsOwnCode(t *testing.T) {
	t.Parallel()
	m := plain.start(t)
	const line = "incrementer: lane comments cannot resume, and on_position_lost is stop: set it to recount"
	t.Run("the collection was dropped", func(t *testing.T) {
		p := newPlace(t, m)
		p.configure(m.URI(), "on_position_lost: stop")
		s := p.following()
		p.must(p.app, bson.D{{Key: "drop", Value: "comments"}})
		if code := s.ended(); code != 4 || strings.Count(s.log.String(), line) != 1 {
			t.Errorf("exit %d\n%s", code, s.log)
		}
	})
	t.Run("the history is gone", func(t *testing.T) {
		p := newPlace(t, m)
		s := p.following()
		s.terminate()
		s.ended()
		p.forget()
		p.configure(m.URI(), "on_position_lost: stop")
		if r := p.want(4, "incrementer", "run"); !strings.Contains(r.stderr, "\n"+line) {
			t.Errorf("stderr: %s", r.stderr)
		}
		p.configure(m.URI(), "on_position_lost: recount")
		p.start("incrementer").becomes("/readyz", 503, "events were lost")
	})
}

// forget moves the lane's checkpoint to an event of 1970, which no oplog holds.
func (p *place) forget() {
	p.t.Helper()
	rows := p.client.Database(p.app).Collection("comments")
	events, err := rows.Watch(p.t.Context(), bson.A{})
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = events.Close(p.t.Context()) }()
	p.comment()
	if !events.Next(p.t.Context()) {
		p.t.Fatal(events.Err())
	}
	data := events.ResumeToken().Lookup("_data").StringValue()
	const head = len("82") + 16 // the type byte and the cluster time
	_, err = p.client.Database(p.state).Collection("checkpoints").UpdateByID(p.t.Context(), "comments", bson.D{{Key: "$set", Value: bson.D{
		{Key: "token", Value: bson.D{{Key: "_data", Value: "820000000100000001" + data[head:]}}}, {Key: "position", Value: bson.Timestamp{T: 1}},
	}}})
	if err != nil {
		p.t.Fatal(err)
	}
}

func TestAGapIsNotReadyUntilRecounted(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	s := p.following()
	p.must(p.app, bson.D{{Key: "drop", Value: "comments"}})
	s.becomes("/readyz", 503, "events were lost, and comments_per_post, likes_per_user are not recounted since")
	s.becomes("/status", 200, `"reason": "gap"`)
	if r := p.want(0, "incrementer", "status"); !strings.Contains(r.stdout, "gap: events were lost") || !strings.Contains(r.stdout, "last gap ") {
		t.Errorf("status says\n%s", r.stdout)
	}
	p.must(p.app, bson.D{{Key: "create", Value: "comments"}})
	p.want(0, "incrementer", "setup") // the images went with the collection
	p.want(0, "reconciler", "run", "--once", "--reconciler-judge-timeout", "15s")
	s.becomes("/readyz", 200, `"ready": true`)
	if n := p.displayed("post_counters", 1); n != 0 {
		t.Errorf("post 1 has no rows left and displays %d", n)
	}
}

func TestATakenPortIsToldInOneLine(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	for program := range verbs {
		p.wantLine(1, []string{"listen on " + taken.Addr().String() + ": the address is taken, perhaps by another " + program +
			": set " + program + ".listen to a free one"}, program, "run", "--"+program+"-listen", taken.Addr().String())
	}
}

func TestFlagsGoBeforeVariablesAndVariablesBeforeTheFile(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	p.env = []string{"DRIFTLESS_RECONCILER_LISTEN=localhost:0", "DRIFTLESS_LOG_FORMAT=json"}
	byVariable := p.start("reconciler")
	byFlag := p.start("reconciler", "--reconciler-listen", "127.0.0.2:0")
	if !strings.HasPrefix(byFlag.url, "http://127.0.0.2:") || strings.HasPrefix(byVariable.url, "http://127.0.0.2:") {
		t.Errorf("listens on %s by flag, on %s by variable", byFlag.url, byVariable.url)
	}
	p.env = []string{"DRIFTLESS_MONGODB_URI=mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=100"}
	p.wantLine(1, []string{"127.0.0.1:1 does not answer"}, "incrementer", "status")
}

func TestStatusTellsLanesAndCounters(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	s := p.following()
	var got struct {
		Lanes []struct {
			Lane, Position, Error string
			Tail, Seq, Gaps       int
			Following             *bool
			LagSeconds            *float64 `json:"lag_seconds"`
			HeadroomSeconds       *float64 `json:"headroom_seconds"`
		}
		Counters []struct {
			Counter, State, Reason string
			VerifiedThrough        string `json:"verified_through"`
		}
		DeadLetters *int `json:"dead_letters"`
	}
	r := p.want(0, "incrementer", "status", "-o", "json")
	if err := json.Unmarshal([]byte(r.stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Lanes) != 1 || got.Lanes[0].Lane != "comments" || got.Lanes[0].Position == "" || got.Lanes[0].Seq == 0 || got.DeadLetters == nil {
		t.Errorf("lanes: %s", r.stdout)
	}
	if len(got.Counters) != 2 || got.Counters[1].Counter != "likes_per_user" || got.Counters[1].State != "active" || got.Counters[1].VerifiedThrough == "" {
		t.Errorf("counters: %s", r.stdout)
	}
	s.becomes("/status", 200, `"state": "active"`)
	_, body := s.get("/status")
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatal(err)
	}
	if l := got.Lanes[0]; l.Following == nil || !*l.Following || l.LagSeconds == nil || l.HeadroomSeconds == nil {
		t.Errorf("/status: %s", body)
	}
	text := p.want(0, "incrementer", "status").stdout
	for _, header := range []string{
		"LANE OWNER POSITION LAG HEADROOM TAIL SEQ MOVED GAPS NOTE\n",
		"COUNTER            STATE   REASON  VERIFIED THROUGH      AGE ALL KEYS\n",
	} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(header), " ")) {
			t.Errorf("no %q in\n%s", header, text)
		}
	}
	if strings.Contains(text, "is `incrementer run` running?") {
		t.Errorf("a running incrementer is not believed:\n%s", text)
	}
}

func TestHealthcheckAsksTheRunningOne(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	for program := range verbs {
		s := p.start(program)
		if r := p.want(0, program, "healthcheck", "--"+program+"-listen", strings.TrimPrefix(s.url, "http://")); r.stdout != "ok\n" || r.stderr != "" {
			t.Errorf("healthcheck of %s says %q, %q", program, r.stdout, r.stderr)
		}
	}
}

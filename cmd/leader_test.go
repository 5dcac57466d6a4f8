package cmd_test

import (
	"encoding/json"
	"net"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// leads waits until the reconciler leads, and says so wherever it says anything.
func (s *service) leads() {
	s.t.Helper()
	s.becomes("/metrics", 200, "\nreconciler_leader 1\n")
	s.becomes("/status", 200, `"role": "leader"`)
	s.becomes("/readyz", 200, `"ready": true`)
	if got := s.standing(); got.Leader != s.name() || got.Instance != s.name() {
		s.t.Errorf("/status of the leader says %+v", got)
	}
}

// standsByFor waits until the reconciler is on standby for another, ready, and says so wherever it says anything.
func (s *service) standsByFor(leader *service) {
	s.t.Helper()
	s.becomes("/metrics", 200, "\nreconciler_leader 0\n")
	s.becomes("/status", 200, `"leader": "`+leader.name()+`"`)
	s.becomes("/readyz", 200, `"ready": true`)
	s.becomes("/healthz", 200, "ok")
	if got := s.standing(); got.Role != "standby" || got.Instance != s.name() {
		s.t.Errorf("/status on standby says %+v", got)
	}
}

type standing struct {
	Instance, Role, Leader string
	Runs                   int64
}

func (s *service) standing() (got standing) {
	s.t.Helper()
	_, body := s.get("/status")
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		s.t.Fatalf("/status says %s, %v", body, err)
	}
	return got
}

// repairs is how many entries of a counter the journal has.
func (p *place) repairs(counter string) int64 {
	p.t.Helper()
	n, err := p.client.Database(p.state).Collection("repairs").CountDocuments(p.t.Context(),
		bson.D{{Key: "counter", Value: counter}, {Key: "rebased", Value: bson.D{{Key: "$ne", Value: true}}}})
	if err != nil {
		p.t.Fatal(err)
	}
	return n
}

// repaired makes post 1 wrong and waits until it is right, by one repair more than before.
func (p *place) repaired(before int64) {
	p.t.Helper()
	p.spoil(5)
	realtest.Eventually(p.t, patience, "post 1 is repaired", func() bool {
		return p.displayed("post_counters", 1) == 2 && p.repairs("comments_per_post") == before+1
	})
}

func TestOneOfTwoReconcilersLeadsAndAnotherTakesOver(t *testing.T) {
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
			p.following()
			p.env = []string{"DRIFTLESS_RECONCILER_LEASE=" + tt.lease.String()}
			leader := p.start("reconciler", "--full")
			leader.leads()
			for n := range int64(soak(2, 10)) {
				standby := p.start("reconciler", "--full")
				standby.standsByFor(leader)
				p.repaired(2 * n)
				if runs := standby.standing().Runs; runs != 0 {
					t.Errorf("%d runs on standby", runs)
				}
				began := time.Now()
				tt.end(leader)
				realtest.Eventually(t, 2*patience, "the standby leads", func() bool { return standby.standing().Role == "leader" })
				took := time.Since(began)
				t.Logf("taken over after %v", took)
				if took > tt.within {
					t.Errorf("taken over after %v, want %v", took, tt.within)
				}
				standby.leads()
				p.repaired(2*n + 1)
				<-leader.done
				leader = standby
			}
		})
	}
}

// A leader that is killed and started again where it was does not wait for its own lease.
func TestARestartedReconcilerLeadsAtOnce(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	p.env = []string{"DRIFTLESS_RECONCILER_LEASE=1h", "DRIFTLESS_RECONCILER_LISTEN=" + address}
	for range 2 {
		s := p.start("reconciler")
		s.leads()
		s.signal(syscall.SIGKILL)
		<-s.done
	}
}

func TestALeaderThatIsPausedForLongerThanItsLeaseStandsByAndNothingIsRepairedTwice(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	p.env = []string{"DRIFTLESS_RECONCILER_EVERY=20ms"} // so that it is paused within a run
	leader := p.start("reconciler", "--full")
	leader.leads()
	standby := p.start("reconciler", "--full")
	standby.standsByFor(leader)
	for n := range int64(soak(3, 20)) {
		stands := leader.count(`"on standby"`)
		paused := time.Now()
		p.spoil(5)
		leader.pause()
		standby.leads()
		t.Logf("taken over after %v", time.Since(paused))
		realtest.Eventually(t, patience, "post 1 is repaired", func() bool { return p.displayed("post_counters", 1) == 2 })
		realtest.Eventually(t, patience, "twice the lease is over", func() bool { return time.Since(paused) > 2*lease })
		leader.signal(syscall.SIGCONT)
		leader.standsByFor(standby)
		if leader.count(`"on standby"`) == stands {
			t.Errorf("the log does not say that another leads:\n%s", leader.log)
		}
		if got := p.repairs("comments_per_post"); got != n+1 || p.displayed("post_counters", 1) != 2 {
			t.Errorf("%d repairs of %d drifts, post 1 displays %d", got, n+1, p.displayed("post_counters", 1))
		}
		leader, standby = standby, leader
	}
}

// Looking disturbs nobody: it needs no lease, and takes none away.
func TestALoopThatOnlyLooksNeitherLeadsNorStandsBy(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.following()
	leader := p.start("reconciler")
	leader.leads()
	looks := p.start("reconciler", "--dry-run", "--full")
	looks.becomes("/status", 200, `"role": "dry run"`)
	looks.becomes("/readyz", 200, `"ready": true`)
	realtest.Eventually(t, patience, "it looks", func() bool { return looks.standing().Runs > 1 })
	looks.becomes("/metrics", 200, "\nreconciler_leader 0\n")
	leader.leads()
}

// A server that is away makes a reconciler unready, and restarting would not help it.
func TestAReconcilerWhoseServerIsAwayIsNotReadyAndHealthy(t *testing.T) {
	t.Parallel()
	m := realtest.Private(t, realtest.Options{})
	p := newPlace(t, m)
	p.following()
	leader := p.start("reconciler")
	leader.leads()
	standby := p.start("reconciler")
	standby.standsByFor(leader)
	if err := m.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Resume)
	for _, s := range []*service{leader, standby} {
		s.becomes("/readyz", 503, `"mongodb": {`+"\n"+`      "ok": false`)
		s.becomes("/healthz", 200, "ok")
	}
	m.Resume()
	for _, s := range []*service{leader, standby} {
		s.becomes("/readyz", 200, `"ready": true`)
	}
}

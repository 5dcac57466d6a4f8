package cmd_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// lane is a line of `checkpoint list -o json`.
type lane struct {
	Lane, Owner, Collection, Note string
	Position                      time.Time
	UpdatedAt                     time.Time `json:"updated_at"`
	Seq                           int64
	Tail, Partitions              int
}

func (p *place) lanes() []lane {
	p.t.Helper()
	var all []lane
	for line := range strings.Lines(p.want(0, "incrementer", "checkpoint", "list", "-o", "json").stdout) {
		var l lane
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			p.t.Fatalf("%v in %s", err, line)
		}
		all = append(all, l)
	}
	return all
}

// reasons are those of the gaps on record, in their order.
func (p *place) reasons() []string {
	p.t.Helper()
	cursor, err := p.client.Database(p.state).Collection("gaps").Find(p.t.Context(), bson.D{})
	if err != nil {
		p.t.Fatal(err)
	}
	var gaps []struct{ Reason string }
	if err := cursor.All(p.t.Context(), &gaps); err != nil {
		p.t.Fatal(err)
	}
	reasons := make([]string, len(gaps))
	for i, g := range gaps {
		reasons[i] = g.Reason
	}
	return reasons
}

func TestCheckpointListTellsWhatIsThereAndWhatBelongsToNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	if all := p.lanes(); len(all) != 1 || all[0].Lane != "comments" || all[0].Note != "never started: run `incrementer run`" || all[0].Seq != 0 {
		t.Errorf("before the first start: %+v", all)
	}
	p.following()
	checkpoints := p.client.Database(p.state).Collection("checkpoints")
	var at bson.M
	if err := checkpoints.FindOne(t.Context(), bson.D{{Key: "_id", Value: "comments"}}).Decode(&at); err != nil {
		t.Fatal(err)
	}
	for name, version := range map[string]int{"retired": 1, "comments/1": 99} {
		at["_id"], at["version"], at["partitions"] = name, version, 2
		if _, err := checkpoints.InsertOne(t.Context(), at); err != nil {
			t.Fatal(err)
		}
	}
	all := p.lanes()
	if len(all) != 3 {
		t.Fatalf("listed are %+v", all)
	}
	if l := all[0]; l.Lane != "comments" || l.Owner == "" || l.Note != "" || l.Seq == 0 || l.Partitions != 1 || len(l.Collection) != 32 ||
		time.Since(l.Position) > time.Minute || time.Since(l.UpdatedAt) > time.Minute {
		t.Errorf("the lane that is followed: %+v", l)
	}
	if l := all[1]; l.Lane != "comments/1" || !strings.Contains(l.Note, "checkpoint of a newer version of driftless") {
		t.Errorf("one of a newer version: %+v", l)
	}
	if l := all[2]; l.Lane != "retired" || l.Owner != "" || l.Note != "belongs to no source of the configuration" || l.Partitions != 2 {
		t.Errorf("one that is not in the configuration: %+v", l)
	}
	text := strings.Join(strings.Fields(p.want(0, "incrementer", "checkpoint", "list").stdout), " ")
	for _, want := range []string{"LANE OWNER POSITION SEQ TAIL PARTITIONS COLLECTION MOVED NOTE comments ", all[0].Collection, "belongs to no source"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %s", want, text)
		}
	}
}

func TestAResetIsMadeRightByTheNextRun(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	s := p.following()
	before := p.lanes()[0].Position
	p.comment() // before the reset, and read once more after it
	realtest.Eventually(t, patience, "the comments are counted", func() bool { return p.displayed("post_counters", 1) == 4 })
	r := p.want(0, "incrementer", "checkpoint", "reset", "comments", "--to", before.Format(time.RFC3339))
	if !strings.HasPrefix(r.stdout, "lane comments moved from ") || !strings.Contains(r.stdout, "marked for a full recount: comments_per_post, likes_per_user\n") ||
		!strings.Contains(r.stdout, "is counted a second time, and shown so, until the reconciler's next run, which makes it right") || r.stderr != "" {
		t.Errorf("reset says %q and %q", r.stdout, r.stderr)
	}
	realtest.Eventually(t, patience, "the running owner reads the comments once more", func() bool { return p.displayed("post_counters", 1) >= 6 })
	s.becomes("/readyz", 503, "not recounted since")
	got := p.report(0, "run", "--once", "--reconciler-judge-timeout", "15s")
	for _, c := range got.Counters {
		if len(c.Drifted) == 0 || c.Drifted[0].Cause != "reset" {
			t.Errorf("after the reset: %+v", c)
		}
	}
	if n := p.displayed("post_counters", 1); n != 4 {
		t.Errorf("recounted: post 1 displays %d", n)
	}
	s.becomes("/readyz", 200, `"ready": true`)

	// While nobody runs: what happens then is skipped, and made right as well.
	s.terminate()
	s.ended()
	p.comment()
	p.want(0, "incrementer", "checkpoint", "reset", "comments", "--to", "now")
	s = p.start("incrementer")
	s.becomes("/status", 200, `"following": true`)
	p.want(0, "reconciler", "run", "--once", "--reconciler-judge-timeout", "15s")
	if n := p.displayed("post_counters", 1); n != 6 {
		t.Errorf("after a reset beyond rows: post 1 displays %d", n)
	}

	// With both at work.
	p.start("reconciler")
	p.want(0, "incrementer", "checkpoint", "reset", "comments", "--to", "earliest")
	p.comment()
	realtest.Eventually(t, patience, "every comment counts once", func() bool { return p.active() && p.displayed("post_counters", 1) == 8 })
	s.becomes("/readyz", 200, `"ready": true`)
	p.want(0, "reconciler", "verify", "--full", "--reconciler-judge-timeout", "15s")
	if got := p.reasons(); !slices.Equal(got, []string{"reset", "reset", "reset"}) {
		t.Errorf("gaps are recorded for %v", got)
	}
	if strings.Contains(s.log.String(), "position lost") {
		t.Errorf("the owner lost its position:\n%s", s.log)
	}
}

func TestAResetThatCannotBeSaysWhy(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	p.want(0, "incrementer", "setup")
	p.wantLine(1, []string{"reset lane comments: never started: `incrementer run` starts it"}, "incrementer", "checkpoint", "reset", "comments", "--to", "now")
	p.following()
	p.wantLine(2, []string{`no lane "likes" in the configuration: it may be comments`}, "incrementer", "checkpoint", "reset", "likes", "--to", "now")
	p.wantLine(2, []string{"--to 2020-02-03T04:05:06Z is older than the oldest change that the oplog keeps, of ", "use --to earliest"},
		"incrementer", "checkpoint", "reset", "comments", "--to", "2020-02-03T04:05:06Z")
	p.wantLine(2, []string{"reset lane comments: 2100-02-03T04:05:06Z lies ahead of the server's time"},
		"incrementer", "checkpoint", "reset", "comments", "--to", "2100-02-03T05:05:06+01:00")
	p.as(m, "resetter", p.privileges(deployment.Follow))
	for _, to := range []string{"earliest", time.Now().Format(time.RFC3339)} {
		p.wantLine(1, []string{"how far the history reaches back is not known", "grant it find on local.oplog.rs, or use --to now"},
			"incrementer", "checkpoint", "reset", "comments", "--to", to)
	}
	p.want(0, "incrementer", "checkpoint", "reset", "comments", "--to", "now")
	p.as(m, "lister", without(p.privileges(deployment.Verify), "listIndexes"))
	p.want(0, "incrementer", "checkpoint", "list")
	p.wantLine(1, []string{"lacks privileges: grant it "}, "incrementer", "checkpoint", "reset", "comments", "--to", "now")
	if got := p.reasons(); !slices.Equal(got, []string{"reset"}) {
		t.Errorf("gaps are recorded for %v", got)
	}
}

func TestAResetOfATopicsLaneIsMadeRightByTheNextRun(t *testing.T) {
	t.Parallel()
	p, k, topic := reacting(t, 2)
	p.edit(func(text string) string { return strings.Replace(text, "settle: 3s", "settle: 1s", 1) })
	r := &reactions{place: p, kafka: k, topic: topic, partitions: 2}
	lane := "reactions/" + topic + "/0"
	reset := []string{"checkpoint", "reset", lane, "--to"}
	p.want(0, "incrementer", "setup")
	p.wantLine(1, []string{"reset lane " + lane + ": never started: `incrementer run` starts it"}, "incrementer", append(reset, "now")...)
	p.wantLine(2, []string{`no lane "reactions" in the configuration: it may be reactions/` + topic + "/PARTITION"},
		"incrementer", "checkpoint", "reset", "reactions", "--to", "now")
	p.wantLine(2, []string{"topic " + topic + " has 2 partitions, numbered from 0: there is no lane reactions/" + topic + "/2"},
		"incrementer", "checkpoint", "reset", "reactions/"+topic+"/2", "--to", "now")
	burst := func() {
		t.Helper()
		if err := r.burst(t.Context(), 100); err != nil {
			t.Fatal(err)
		}
	}
	s := p.start("incrementer")
	began := time.Now()
	burst()
	recounted := func() (got report) {
		t.Helper()
		realtest.Eventually(t, 3*patience, "the counters to be recounted", func() bool {
			run := p.run("reconciler", "run", "--once", "-o", "json")
			return run.code == 0 && p.active() && json.Unmarshal([]byte(run.stdout), &got) == nil
		})
		r.wantCounted()
		return got
	}
	recounted()
	p.wantLine(2, []string{"reset lane " + lane + ": 2100-02-03T04:05:0", " lies ahead of the server's time"}, "incrementer", append(reset, "2100-02-03T04:05:06Z")...)

	// Back, beside an owner at work: every event of the partition is counted once more, and told to be neither lost nor late.
	displayed := func() (sum int64) {
		for post := range stormyPosts {
			sum += p.displayed("post_counters", post)
		}
		return sum
	}
	for _, to := range []string{"earliest", began.UTC().Format(time.RFC3339)} {
		before := displayed()
		out := p.want(0, "incrementer", append(reset, to)...).stdout
		if !strings.HasPrefix(out, "lane "+lane+" moved from offset ") || !strings.Contains(out, " to offset 0\n") ||
			!strings.Contains(out, "marked for a full recount: reactions_per_post\nwhat happened in between is counted a second time, and shown so, until a run of "+
				"the reconciler when the lane has come to the present and reconciler.settle (1s) is over, which makes it right\n") {
			t.Errorf("reset to %s says\n%s", to, out)
		}
		realtest.Eventually(t, patience, "the owner reads the partition once more", func() bool { return displayed() > before })
		for _, c := range recounted().Counters {
			if c.Late != 0 || len(c.Drifted) == 0 || c.Drifted[0].Cause != "reset" {
				t.Errorf("after the reset to %s: %+v", to, c)
			}
		}
	}

	// While nobody runs: what happens then is skipped in one of the partitions, and made right as well.
	s.terminate()
	s.ended()
	burst()
	if out := p.want(0, "incrementer", append(reset, "now")...).stdout; !strings.Contains(out, "what happened in between is not counted until ") {
		t.Errorf("reset to now says\n%s", out)
	}
	p.start("incrementer")
	recounted()

	// Under load, between the transactions of the owner.
	stop := r.flow()
	p.want(0, "incrementer", append(reset, "earliest")...)
	realtest.Eventually(t, 3*patience, "a recount under load", func() bool { return p.run("reconciler", "run", "--once").code == 0 && p.active() })
	stop()
	realtest.Eventually(t, 3*patience, "all events to be applied", func() bool { return r.applied() == r.events.Load() })
	p.want(0, "reconciler", "run", "--once", "--reconciler-judge-timeout", "15s") // on a busy machine some may have been late
	r.wantCounted()
	p.want(0, "reconciler", "verify", "--full", "--reconciler-judge-timeout", "15s")
	if got := p.reasons(); !slices.Equal(got, []string{"reset", "reset", "reset", "reset"}) {
		t.Errorf("gaps are recorded for %v", got)
	}
}

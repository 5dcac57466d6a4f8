package cmd_test

import (
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/deployment"
)

// findings are what check prints as JSON.
type findings struct {
	Result   string
	Findings []struct{ Level, Subject, Found, Fix string }
}

// check runs the verb of a program and reads its document.
func (p *place) check(code int, program string, args ...string) findings {
	p.t.Helper()
	var f findings
	r := p.want(code, program, append([]string{"check", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(r.stdout), &f); err != nil {
		p.t.Fatalf("%v: %s", err, r.stdout)
	}
	if (r.stderr == "") != (code == 0) {
		p.t.Errorf("%s check ends with %d and says on stderr: %q", program, code, r.stderr)
	}
	return f
}

// notOK lists level, subject and text of what is not OK.
func (f findings) notOK() (told []string) {
	for _, f := range f.Findings {
		if f.Level != "OK" {
			told = append(told, f.Level+" "+f.Subject+": "+f.Found+" -> "+f.Fix)
		}
	}
	return told
}

func TestCheckOfARunningInstallationFindsNothing(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	s := p.following()
	address := strings.TrimPrefix(s.url, "http://")
	if f := p.check(0, "incrementer", "--incrementer-listen", address); f.Result != "OK" || len(f.Findings) < 12 || f.notOK() != nil {
		t.Errorf("incrementer check: %+v", f)
	}
	if f := p.check(0, "reconciler"); f.Result != "OK" || len(f.Findings) < 12 || f.notOK() != nil {
		t.Errorf("reconciler check: %+v", f)
	}
	text := p.want(0, "incrementer", "check", "--incrementer-listen", address)
	for _, line := range []string{
		"LEVEL  LOOKED AT ", "\nOK     server version ", "\nOK     images of " + p.app + ".comments ", "\nOK     lane comments ",
		"a running incrementer answers on " + address + "\n",
	} {
		if strings.Count(text.stdout, line) != 1 {
			t.Errorf("%q is not once in\n%s", line, text.stdout)
		}
	}
}

func TestCheckSaysWhatFailsWithItsFixBeside(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	p.must(p.app, bson.D{{Key: "collMod", Value: "comments"}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: false}}}})
	subject := "images of " + p.app + ".comments"
	told := "FAIL " + subject + ": changeStreamPreAndPostImages is off: the incrementer does not start -> incrementer setup"
	if f := p.check(1, "incrementer"); f.Result != "FAIL" || !slices.Equal(f.notOK(), []string{told}) {
		t.Errorf("incrementer check: %+v", f)
	}
	r := p.want(1, "incrementer", "check")
	if !strings.Contains(r.stdout, "\nFAIL   "+subject+" ") || !strings.Contains(r.stdout, "  incrementer setup\n") ||
		!strings.HasSuffix(r.stderr, " looks failed: "+subject+"\n") || strings.Count(r.stderr, "\n") != 1 {
		t.Errorf("stdout %s\nstderr %s", r.stdout, r.stderr)
	}
	if f := p.check(0, "reconciler"); f.Result != "WARN" || len(f.notOK()) != 2 { // and no incrementer has run
		t.Errorf("a warning fails the check: %+v", f)
	}
	p.want(0, "incrementer", "setup")
	p.check(0, "incrementer")
}

func TestCheckWithoutADeploymentThatServesIsOneFinding(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ uri, told string }{
		"standalone": {"mongodb://" + alone.start(t).Addr() + "/?directConnection=true", "FAIL connection: mongodb.uri leads to a standalone mongod, " +
			"which has neither change streams nor transactions -> restart it with --replSet rs0 and run rs.initiate() once"},
		"nobody there": {"mongodb://u:" + password + "@127.0.0.1:1/?replicaSet=rs0&serverSelectionTimeoutMS=300",
			"FAIL connection: no usable MongoDB at mongodb.uri (mongodb://***@127.0.0.1:1/?replicaSet=rs0&serverSelectionTimeoutMS=300): " +
				"127.0.0.1:1 does not answer (connection refused) -> check host, port, replicaSet and TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &place{t: t, app: "app", state: "state"}
			p.configure(tt.uri, "")
			for program := range verbs {
				if f := p.check(1, program); len(f.Findings) != 2 || !slices.Equal(f.notOK(), []string{tt.told}) { // and the address
					t.Errorf("%s check: %+v", program, f)
				}
			}
		})
	}
}

// What only check looks at may be refused: that is a warning, and what is needed is enough.
func TestCheckAsTheUserOfRun(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	p := newPlace(t, m)
	p.want(0, "incrementer", "setup")
	for program, use := range map[string]deployment.Use{"incrementer": deployment.Follow, "reconciler": deployment.Reconcile} {
		need, optional := p.privileges(use), p.optional(use)
		p.as(m, program, need)
		f := p.check(0, program)
		for _, told := range f.notOK() {
			if strings.HasPrefix(told, "WARN lane") {
				continue
			}
			if !strings.HasPrefix(told, "WARN ") || !strings.Contains(told, "not known: the user may not ask (") && !strings.Contains(told, "lacks createIndex on ") ||
				!strings.Contains(told, `db.getSiblingDB("admin").grantPrivilegesToRole("`+program+"_"+p.app+`", [{resource: {`) {
				t.Errorf("%s check: %s", program, told)
			}
		}
		if f.Result != "WARN" {
			t.Errorf("%s check: %s", program, f.Result)
		}
		p.as(m, program+"_curious", append(need, optional...))
		for _, told := range p.check(0, program).notOK() {
			if !strings.HasPrefix(told, "WARN lane") {
				t.Errorf("%s check, asked by one who may: %s", program, told)
			}
		}
		p.as(m, program+"_noupdate", without(need, "update"))
		if r := p.want(1, program, "check"); !strings.Contains(r.stdout, "lacks update on post_counters, user_counters") {
			t.Errorf("%s check without update:\n%s", program, r.stdout)
		}
	}
}

func TestCheckTellsAnAddressThatCannotBeHad(t *testing.T) {
	t.Parallel()
	p := newPlace(t, plain.start(t))
	p.want(0, "incrementer", "setup")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	s := p.start("reconciler") // another program of ours is none of the same
	for address, want := range map[string]string{
		taken.Addr().String():                "the address is taken, perhaps by another incrementer -> set incrementer.listen to a free one",
		strings.TrimPrefix(s.url, "http://"): "the address is taken, perhaps by another incrementer -> set incrementer.listen to a free one",
		"192.0.2.1:9464":                     "-> set incrementer.listen to host:port of this machine",
	} {
		f := p.check(0, "incrementer", "--incrementer-listen", address)
		if told := f.notOK(); f.Result != "WARN" || len(told) != 1 || !strings.Contains(told[0], "WARN listen address: listen on "+address) || !strings.Contains(told[0], want) {
			t.Errorf("%s: %+v", address, told)
		}
	}
}

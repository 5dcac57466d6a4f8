package cmd_test

import (
	"os"
	"strings"
	"testing"

	"driftless/internal/config"
)

// verbs that read settings, by program.
var verbs = map[string][]string{
	"incrementer": {"run", "validate", "check", "setup", "status", "checkpoint list", "checkpoint reset", "healthcheck"},
	"reconciler":  {"run", "verify", "explain", "report", "approve", "undo", "validate", "check", "healthcheck"},
}

func TestHelpOfEveryVerbShowsEverySettingWithDefaultAndUnit(t *testing.T) {
	t.Parallel()
	p := &place{t: t}
	for program, names := range verbs {
		for _, verb := range append(names, "") {
			r := p.want(0, program, strings.Fields(verb+" -h")...)
			if r.stderr != "" {
				t.Errorf("%s %s -h writes to stderr: %s", program, verb, r.stderr)
			}
			text := strings.Join(strings.Fields(r.stdout), " ")
			for _, s := range config.Settings {
				if section := s.Section(); section != "mongodb" && section != "log" && section != program {
					continue
				}
				after, found := strings.CutPrefix(text[max(0, strings.LastIndex(text, "--"+s.Flag()+" ")):], "--"+s.Flag()+" ")
				unit, _, _ := strings.Cut(after, " --")
				if !found || !strings.Contains(unit, s.Unit) || !strings.Contains(unit, "default "+s.Default) {
					t.Errorf("%s %s -h does not show --%s with its unit and default: %q", program, verb, s.Flag(), unit)
				}
			}
			for line := range strings.Lines(r.stdout) {
				if len(line) > 131 {
					t.Errorf("%s %s -h: long line %q", program, verb, line)
				}
			}
		}
	}
}

func TestCommandLineAndFileFaultsAreOneLineEach(t *testing.T) {
	t.Parallel()
	p := &place{t: t}
	p.app, p.state = "app", "state"
	p.configure("mongodb://root:"+password+"@127.0.0.1:1/?replicaSet=rs0", "")
	good := p.file
	p.write("mongodb: {uri: \"mongodb://x:" + password + "@h:1/\"}\ncounters: {a: {sorce: b}}\n")
	bad := p.file
	p.file = good
	for _, tt := range []struct {
		program, args string
		code          int
		line          string
	}{
		{"incrementer", "", 2, "no command given: it is one of check, checkpoint, completion, deadletters, healthcheck, run, setup, status, validate, version"},
		{"incrementer", "rum", 2, `unknown command "rum", did you mean run?`},
		{"incrementer", "run now", 2, `run takes no arguments, but got "now"`},
		{"incrementer", "run --once", 2, "unknown flag: --once"},
		{"incrementer", "status -o yaml", 2, "must be text or json"},
		{"incrementer", "check -o csv", 2, "must be text or json"},
		{"reconciler", "check now", 2, `check takes no arguments, but got "now"`},
		{"reconciler", "check --config /nowhere.yaml", 78, "/nowhere.yaml: is missing"},
		{"incrementer", "checkpoint", 2, "no command given: it is one of list, reset"},
		{"incrementer", "checkpoint reset --to now", 2, "reset takes one lane, but got 0 arguments: `incrementer checkpoint list` shows the lanes"},
		{"incrementer", "checkpoint reset comments", 2, "--to is missing: it may be now, earliest, or a time as in 2026-11-30T08:00:00Z"},
		{"incrementer", "checkpoint reset comments --to yesterday", 2, "--to yesterday is neither now, nor earliest, nor a time as in "},
		{"incrementer", "checkpoint reset likes --to now", 2, `no lane "likes" in the configuration: it may be comments`},
		{"incrementer", "setup --dry-run=maybe", 2, `invalid argument "maybe" for "--dry-run"`},
		{"incrementer", "validate --config /nowhere.yaml", 78, "/nowhere.yaml: is missing: create it, or name another with --config FILE or DRIFTLESS_CONFIG"},
		{"incrementer", "run --config /nowhere.yaml", 78, "/nowhere.yaml: is missing"},
		{"incrementer", "validate --incrementer-max-batch-events 0", 78, "--incrementer-max-batch-events: incrementer.max_batch_events: "},
		{"incrementer", "status --mongodb-uri mongodb://u:" + password + "@h/", 78, "everyone on the machine can see flags"},
		{"incrementer", "healthcheck --incrementer-listen 127.0.0.1:1", 1, "nothing listens there: is it running"},
		{"incrementer", "healthcheck", 1, "takes any free port: name one to ask"},
		{"reconciler", "verify --counter nope", 2, "--counter nope is not declared: it may be comments_per_post, likes_per_user"},
		{"reconciler", "verify --key {x", 2, "--key {x is not valid extended JSON"},
		{"reconciler", "verify --key 1 --full", 2, "--key and --full exclude each other: drop one"},
		{"reconciler", "verify --limit -1", 2, "--limit -1 is negative: 0 lists all"},
		{"reconciler", "explain --key 1", 2, "--counter is missing: it may be comments_per_post, likes_per_user"},
		{"reconciler", "explain --counter comments_per_post", 2, "--key is missing: explain looks at one key"},
		{"reconciler", "explain --counter nope --key 1", 2, "--counter nope is not declared: it may be comments_per_post, likes_per_user"},
		{"reconciler", "explain --counter comments_per_post --key {x", 2, "--key {x is not valid extended JSON"},
		{"reconciler", "explain --counter comments_per_post --key 1 --since -1s", 2, "--since -1s is negative: 0 looks for no events"},
		{"reconciler", "run --fail-on-drift", 2, "--fail-on-drift needs --once"},
		{"reconciler", "run --key 1", 2, "--key needs --once"},
		{"reconciler", "run -o json", 2, "--output needs --once"},
		{"reconciler", "verify --config " + bad + " --counter x", 78, "the configuration has faults"},
	} {
		args := strings.Fields(tt.args)
		if strings.Contains(tt.args, bad) {
			if r := p.want(tt.code, tt.program, args...); !strings.Contains(r.stderr, tt.line) || r.stdout != "" {
				t.Errorf("%s %s: stdout %q, stderr %q", tt.program, tt.args, r.stdout, r.stderr)
			}
			continue
		}
		p.wantLine(tt.code, []string{tt.line}, tt.program, args...)
	}
}

func TestVariablesAreReadAndCheckedLikeTheFile(t *testing.T) {
	t.Parallel()
	p := &place{t: t}
	p.app, p.state = "app", "state"
	p.configure("mongodb://127.0.0.1:1/", "")
	p.env = []string{"DRIFTLESS_LOG_LEVEL=loud"}
	p.wantLine(78, []string{"DRIFTLESS_LOG_LEVEL: log.level: "}, "reconciler", "verify")
	p.env = []string{"DRIFTLESS_LOG_LEVEL="} // as compose files pass unset ones
	p.want(0, "reconciler", "validate")
	if r := p.want(0, "incrementer", "validate"); r.stdout != p.file+" is valid; sources: 1, counters: 2\n" || r.stderr != "" {
		t.Errorf("validate says %q and %q", r.stdout, r.stderr)
	}
}

func TestVersionAndCompletion(t *testing.T) {
	t.Parallel()
	p := &place{t: t}
	p.app, p.state = "app", "state"
	p.configure("mongodb://127.0.0.1:1/", "")
	for program := range verbs {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			if r := p.want(0, program, "completion", shell); len(r.stdout) < 1000 || r.stderr != "" {
				t.Errorf("completion of %s for %s: %d bytes, %q", program, shell, len(r.stdout), r.stderr)
			}
		}
		if r := p.want(0, program, "version"); !strings.HasPrefix(r.stdout, program+" ") {
			t.Errorf("version says %q", r.stdout)
		}
	}
	if r := p.want(0, "reconciler", "__complete", "verify", "--counter", ""); !strings.HasPrefix(r.stdout, "comments_per_post\nlikes_per_user\n") {
		t.Errorf("--counter completes to %q", r.stdout)
	}
	if r := p.want(0, "incrementer", "__complete", "checkpoint", "reset", ""); !strings.HasPrefix(r.stdout, "comments\n") {
		t.Errorf("LANE completes to %q", r.stdout)
	}
}

// The example is what most installations begin with: it works as it is, and shows every setting with its default.
func TestExampleConfigurationIsValidAndComplete(t *testing.T) {
	t.Parallel()
	const example = "../deployments/driftless.yaml"
	p := &place{t: t}
	for program := range verbs {
		if r := p.want(0, program, "validate", "--config", example); r.stdout != example+" is valid; sources: 1, counters: 2\n" {
			t.Errorf("%s validate says %q", program, r.stdout)
		}
	}
	text, err := os.ReadFile(example)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range config.Settings {
		_, key, _ := strings.Cut(s.Path, ".")
		shown := "  # " + key + ": " + s.Default
		if s.Path == "mongodb.uri" {
			shown = "  uri: ${MONGODB_URI:-" + s.Default + "}"
		}
		if !strings.Contains(string(text), "\n"+shown) {
			t.Errorf("the example does not show %s with its default: %q", s.Path, shown)
		}
	}
}

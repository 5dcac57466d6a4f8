package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

// Level is how grave a Finding is.
type Level string

// The levels. With a Fail the use does not work, with a Warn it does and something is worth an operator's look.
const (
	OK   Level = "OK"
	Warn Level = "WARN"
	Fail Level = "FAIL"
)

// Finding is what one look at the deployment found.
type Finding struct {
	Level   Level  `json:"level"`
	Subject string `json:"subject"` // what was looked at
	Found   string `json:"found"`
	Fix     string `json:"fix,omitempty"` // the command or action that mends it; "" for OK alone
}

func ok(subject, format string, args ...any) Finding {
	return Finding{Level: OK, Subject: subject, Found: fmt.Sprintf(format, args...)}
}

// Check connects and looks whether a use will work, Follow or Reconcile, and changes nothing. What cannot be looked at is
// a finding too; the error is that of a ctx that ended meanwhile.
func Check(ctx context.Context, c *config.Config, definitions []*counter.Definition, program string, use Use) ([]Finding, error) {
	k := &checker{config: c, definitions: definitions, use: use}
	findings := k.check(ctx, program)
	return findings, ctx.Err()
}

func (k *checker) check(ctx context.Context, program string) []Finding {
	client, err := Connect(ctx, k.config.MongoDB, program)
	if err != nil {
		return []Finding{unconnected(err)}
	}
	defer Close(ctx, client)
	k.client = client
	if k.hello, err = greet(ctx, client, readpref.Primary()); err == nil {
		k.auth, err = authOf(ctx, client)
	}
	if err != nil {
		return []Finding{unconnected(err)}
	}
	var all []Finding
	for _, look := range k.looks() {
		all = append(all, look(ctx)...)
	}
	return all
}

// checker looks at one deployment for one use.
type checker struct {
	client      *mongo.Client
	config      *config.Config
	definitions []*counter.Definition
	use         Use
	hello       hello // the primary's
	auth        authInfo

	faults  error    // of Plan, once it is looked at
	history *history // once the oplog is looked at, nil where it may not be
}

// looks are in the order in which an operator would mend what they find.
func (k *checker) looks() []func(context.Context) []Finding {
	all := []func(context.Context) []Finding{
		k.server, k.members, k.defaultWriteConcern, k.privileges, k.setup, k.targets, k.expressions,
	}
	if k.use == Follow {
		return append(all, k.sources, k.topics, k.settling, k.oplog, k.imageExpiry, k.setIdentity, k.lanes)
	}
	return append(all, k.settling, k.snapshots)
}

// sources looks whether there is anything to follow.
func (k *checker) sources(context.Context) []Finding {
	if len(k.config.Sources) > 0 {
		return nil
	}
	return []Finding{{Fail, "sources", "none are declared: there is nothing to follow", "run the reconciler alone, or declare a source"}}
}

// unconnected is the only finding where there is no connection.
func unconnected(err error) Finding {
	const subject = "connection"
	if fault, is := errors.AsType[*Fault](err); is {
		return Finding{Fail, subject, fault.Found, fault.Fix}
	}
	return Finding{Fail, subject, err.Error(), againLater}
}

const againLater = "see whether the servers are well, then check again"

// unseen is the finding where a look failed. Without the privilege for it nothing is known and nothing is wrong.
func (k *checker) unseen(subject string, err error, takes Privilege) Finding {
	if stream.HasCode(err, codeUnauthorized) {
		return Finding{Warn, subject, fmt.Sprintf("not known: the user may not ask (%s)", inWords([]Privilege{takes})), k.auth.grant([]Privilege{takes})}
	}
	return Finding{Fail, subject, "cannot be looked at: " + err.Error(), againLater}
}

// ask runs a command of the admin database on the primary.
func (k *checker) ask(ctx context.Context, answer any, command ...bson.E) error {
	return k.client.Database("admin").RunCommand(ctx, bson.D(command), options.RunCmd().SetReadPreference(readpref.Primary())).Decode(answer)
}

// Optional lists what a use can do without, for what docs/privileges.md says.
func Optional(definitions []*counter.Definition, use Use) []Privilege {
	if use == Follow {
		cluster := []string{"getClusterParameter", "getDefaultRWConcern", "replSetGetConfig", "replSetGetStatus"}
		if slices.ContainsFunc(definitions, (*counter.Definition).ByTime) {
			cluster = slices.Insert(cluster, 2, "getParameter")
		}
		return []Privilege{onCluster(cluster...), readOplog}
	}
	return append(remake(definitions), onCluster("getDefaultRWConcern", "getParameter", "replSetGetStatus"))
}

// remake is what the reconciler takes to make the index of the touched keys again.
func remake(definitions []*counter.Definition) []Privilege {
	var all privileges
	for _, d := range definitions {
		if d.Target.Upsert && !d.ByApplication() {
			all.add(d.Target.Database, d.Target.Collection, "createIndex")
		}
	}
	return all
}

func onCluster(actions ...string) Privilege { return Privilege{Actions: actions} }

// list joins texts, at most a handful of them.
func list(texts []string) string {
	const most = 5
	if len(texts) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
	}
	return strings.Join(texts, ", ")
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

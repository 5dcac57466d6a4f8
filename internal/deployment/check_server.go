package deployment

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// server tells what was connected to: Connect has refused what cannot serve.
func (k *checker) server(ctx context.Context) []Finding {
	findings := []Finding{ok("connection", "%s, primary %s", address(k.config.MongoDB), k.hello.Primary)}
	var build struct{ Version string }
	if err := k.ask(ctx, &build, bson.E{Key: "buildInfo", Value: 1}); err != nil {
		return append(findings, k.unseen("server version", err, onCluster("buildInfo")))
	}
	return append(findings, ok("server version", "MongoDB %s", build.Version))
}

// setStatus is what the primary knows about the members of its set.
type setStatus struct {
	WriteMajority int `bson:"writeMajorityCount"` // how many have to acknowledge for a majority
	Members       []setMember
}

type setMember struct {
	Name  string
	State int // one that does not answer has another than those below
}

// States of a member in replSetGetStatus.
const (
	statePrimary   = 1
	stateSecondary = 2
	stateArbiter   = 7
)

// members looks whether a majority can acknowledge what we commit.
func (k *checker) members(ctx context.Context) []Finding {
	findings := []Finding{majority(k.hello)}
	var status setStatus
	if err := k.ask(ctx, &status, bson.E{Key: "replSetGetStatus", Value: 1}); err != nil {
		return append(findings, setByHello(k.hello), k.unseen("members up", err, onCluster("replSetGetStatus")))
	}
	return append(findings, setByStatus(k.hello, status))
}

// setIdentity looks whether the set can be told from another of the same name at the same address.
func (k *checker) setIdentity(ctx context.Context) []Finding {
	const subject = "replica set id"
	var answer struct {
		Config struct {
			Settings struct {
				ID bson.ObjectID `bson:"replicaSetId"`
			}
		}
	}
	if err := k.ask(ctx, &answer, bson.E{Key: "replSetGetConfig", Value: 1}); err != nil {
		return []Finding{k.unseen(subject, err, onCluster("replSetGetConfig"))}
	}
	return []Finding{ok(subject, "%s", answer.Config.Settings.ID.Hex())}
}

// majorityLag is how far what a majority has may be behind the primary: an idle one writes every ten seconds.
const majorityLag = 15 * time.Second

// majority judges by what a majority has acknowledged, which every member tells to anyone.
func majority(h hello) Finding {
	const subject = "majority"
	lag := time.Duration(int64(h.LastWrite.Last.At.T)-int64(h.LastWrite.Majority.At.T)) * time.Second
	if lag > majorityLag {
		return Finding{Fail, subject, fmt.Sprintf("has not acknowledged the writes of the last %s: no batch commits and nothing is repaired", span(lag)),
			"bring the other members back that bear data"}
	}
	return ok(subject, "acknowledges writes")
}

// setByHello judges the set by its declared members.
func setByHello(h hello) Finding {
	return setOf(h.SetName, len(h.Hosts)+len(h.Passives), nil, h.Arbiters, 0)
}

// setByStatus judges the set by its members as the primary sees them, hidden ones included.
func setByStatus(h hello, status setStatus) Finding {
	var down, arbiters []string
	for _, m := range status.Members {
		switch {
		case m.State == stateArbiter || slices.Contains(h.Arbiters, m.Name):
			arbiters = append(arbiters, m.Name)
		case m.State != statePrimary && m.State != stateSecondary:
			down = append(down, m.Name)
		}
	}
	return setOf(h.SetName, len(status.Members)-len(arbiters), down, arbiters, status.WriteMajority)
}

// setOf judges a set; a majority of 0 is not known.
func setOf(name string, data int, down, arbiters []string, majority int) Finding {
	f := ok("replica set", "%s: %s with data", name, plural(data, "member"))
	if len(arbiters) > 0 {
		f.Found += ", " + plural(len(arbiters), "arbiter")
	}
	switch up := data - len(down); {
	case up < majority:
		f.Level = Warn
		f.Found += fmt.Sprintf("; only %d up (down: %s), and a majority takes %d: nothing commits", up, list(down), majority)
		f.Fix = "bring " + list(down) + " back"
	case len(down) > 0:
		f.Level = Warn
		f.Found += fmt.Sprintf("; down: %s. One more, and a majority may not acknowledge", list(down))
		f.Fix = "bring " + list(down) + " back"
	case len(arbiters) > 0:
		f.Level = Warn
		f.Found += ", which acknowledges nothing: one member down, and a majority may not acknowledge"
		f.Fix = "replace " + list(arbiters) + " by a member that bears data"
	}
	return f
}

// defaultWriteConcern looks what an acknowledged write of the application is worth.
func (k *checker) defaultWriteConcern(ctx context.Context) []Finding {
	var answer struct {
		Concern struct {
			W any `bson:"w"`
		} `bson:"defaultWriteConcern"`
	}
	err := k.ask(ctx, &answer, bson.E{Key: "getDefaultRWConcern", Value: 1})
	if err != nil {
		return []Finding{k.unseen(subjectWriteConcern, err, onCluster("getDefaultRWConcern"))}
	}
	return []Finding{writeConcern(answer.Concern.W)}
}

const subjectWriteConcern = "default write concern"

// writeConcern judges the w of the cluster's default: a number, "majority", a tag, nil for none, which is 1.
func writeConcern(w any) Finding {
	if _, named := w.(string); named || number(w) > 1 {
		return ok(subjectWriteConcern, "w: %v", w)
	}
	return Finding{Warn, subjectWriteConcern,
		"w: 1: an acknowledged write of the application can be rolled back; counters follow what a majority has",
		`db.adminCommand({setDefaultRWConcern: 1, defaultWriteConcern: {w: "majority"}})`}
}

// span is a duration for people, with one unit that suits it.
func span(d time.Duration) string {
	switch {
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 100*time.Hour:
		return fmt.Sprintf("%.1f h", d.Hours())
	default:
		return fmt.Sprintf("%d days", d/(24*time.Hour))
	}
}

package reconciler

import (
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/config"
	"driftless/internal/realtest"
)

// recountsOnSecondaries makes the reconcilers of the fixture read rows where a user's connection string says.
func (f *fixture) recountsOnSecondaries() { f.uri += "&readPreference=secondary" }

// direct is a client for one member alone.
func direct(t *testing.T, m *realtest.Mongod) *mongo.Client {
	t.Helper()
	return realtest.Client(t, "mongodb://"+m.Addr()+"/?directConnection=true")
}

// work is a command that a member has worked on.
type work struct {
	On      string   `bson:"ns"`
	Op      string   `bson:"op"`
	Command bson.Raw `bson:"command"`
}

// name is that of the command.
func (w work) name() string {
	elements, err := w.Command.Elements()
	if err != nil || len(elements) == 0 {
		return w.Op
	}
	return elements[0].Key()
}

// profiled has members tell which commands of a program they work on while do runs.
func (f *fixture) profiled(members []*realtest.Mongod, app string, do func()) [][]work {
	f.t.Helper()
	t := f.t.(*testing.T)
	databases := []string{f.rows.Database().Name(), f.state.Name()}
	clients := make([]*mongo.Client, len(members))
	profile := func(level int) {
		for i, m := range members {
			if clients[i] == nil {
				clients[i] = direct(t, m)
			}
			for _, name := range databases {
				f.check(clients[i].Database(name).RunCommand(t.Context(), bson.D{{Key: "profile", Value: level}}).Err())
			}
		}
	}
	profile(2)
	do()
	profile(0)
	all := make([][]work, len(members))
	for i, client := range clients {
		for _, name := range databases {
			var found []work
			cursor := must(client.Database(name).Collection("system.profile").Find(t.Context(), bson.D{{Key: "appName", Value: app}}))(t)
			f.check(cursor.All(t.Context(), &found))
			all[i] = append(all[i], found...)
		}
	}
	return all
}

func TestRowsAreCountedOnASecondaryAndEverythingElseIsDoneOnThePrimary(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	f := setUpOn(t, set.URI(), func(c *config.Config) { c.Reconciler.JudgeTimeout = patience })
	f.comment("a", 3)
	f.comment("b", 3)
	f.start()
	f.recountsOnSecondaries()
	r := f.reconciler(equipment{app: "recounts"})
	f.activate(r)
	f.plant("a", 2)
	primary := must(set.Primary(t.Context()))(t)
	members := append(must(set.Secondaries(t.Context()))(t), primary)

	worked := f.profiled(members, "recounts", func() {
		f.comment("b", 1)
		f.catchUp()
		wantDrift(t, f.run(r, Options{}), nil)
		wantDrift(t, f.run(r, Options{Full: true}), map[any]int64{"a": 2})
	})
	rows, counted := f.rows.Database().Name()+"."+f.rows.Name(), 0
	for i, m := range members {
		for _, s := range worked[i] {
			counts := s.On == rows && strings.Contains(s.Command.String(), "$group")
			switch {
			case m == primary && (counts || s.Op == "getmore" && s.On == rows):
				t.Errorf("the primary counts: %v", s.Command)
			case m != primary && s.On != rows:
				t.Errorf("a secondary was asked for other than rows: %s on %s", s.name(), s.On)
			case counts:
				counted++
			}
		}
	}
	if counted < 2 {
		t.Errorf("%d counts on secondaries, want some of each run", counted)
	}
	for _, want := range []string{f.targets.Name(), "checkpoints", "counters", "repairs"} {
		if !slices.ContainsFunc(worked[len(members)-1], func(s work) bool { return strings.HasSuffix(s.On, "."+want) }) {
			t.Errorf("the primary knows nothing of %s", want)
		}
	}
	f.wantExact()
}

// laggard leaves clients one secondary to read from, and returns it: the other is hidden, and is a majority with the primary.
func laggard(t *testing.T, set *realtest.ReplicaSet) *realtest.Mongod {
	t.Helper()
	primary, secondaries := must(set.Primary(t.Context()))(t), must(set.Secondaries(t.Context()))(t)
	admin := direct(t, primary).Database("admin")
	var answer struct {
		Config struct {
			Version int32
			Members []bson.M
			Rest    bson.M `bson:",inline"`
		}
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	answer.Config.Version++
	for _, member := range answer.Config.Members {
		if member["host"] == secondaries[1].Addr() {
			member["hidden"], member["priority"] = true, 0
		}
	}
	if err := admin.RunCommand(t.Context(), bson.D{{Key: "replSetReconfig", Value: answer.Config}}).Err(); err != nil {
		t.Fatal(err)
	}
	return secondaries[0]
}

func TestASecondaryThatLagsIsWaitedForAndNeverAnswersWithTooLittle(t *testing.T) {
	t.Parallel()
	set := realtest.PrivateSet(t, 3, realtest.Options{CacheGB: 0.25})
	lagging := laggard(t, set)
	f := setUpOn(t, set.URI(), func(c *config.Config) { c.Reconciler.JudgeTimeout = 3 * time.Second })
	f.comment("a", 3)
	f.start()
	f.recountsOnSecondaries()
	f.activate(f.reconciler(equipment{}))
	release := realtest.HoldReplication(t, lagging)
	f.comment("a", 2)
	f.catchUp()

	began := time.Now()
	for _, o := range []Options{{Full: true}, {}, {Key: raw("a")}} {
		wantNotJudged(t, f.run(f.reconciler(equipment{}), o), skipLagging, "readPreference")
	}
	if took := time.Since(began); took > patience {
		t.Errorf("three runs that wait for at most 3s took %s", took)
	}
	f.wantShown("a", 5)

	f.config.Reconciler.JudgeTimeout = patience
	asked := make(chan struct{})
	reports := make(chan *Report, 1)
	r := f.reconciler(equipment{started: onCommand("aggregate", func() { closeOnce(asked) })})
	go func() {
		report, err := r.RunOnce(t.Context(), Options{})
		if err != nil {
			t.Error(err)
		}
		reports <- report
	}()
	<-asked
	release()
	wantDrift(t, <-reports, nil)
	wantDrift(t, f.run(r, Options{Full: true}), nil)
	f.wantExact()
}

package deployment

import (
	"testing"

	"driftless/internal/config"
	"driftless/internal/counter"
)

func define(t *testing.T, upsert bool) (*config.Config, []*counter.Definition) {
	t.Helper()
	c := config.Default()
	c.Sources = []config.Source{{Name: "comments", ChangeStream: &config.ChangeStream{Database: "app", Collection: "comments", Partitions: 1}}}
	c.Counters = []config.Counter{{
		Name: "comments_per_post", Source: "comments", Key: "post_id", SoftDelete: "deleted_at",
		Rows:   config.Rows{Database: "app", Collection: "comments"},
		Target: config.Target{Database: "app", Collection: "post_counters", Base: "base_count", Live: "live_delta", Upsert: upsert},
	}}
	definitions, err := counter.DefineAll(c.Counters)
	if err != nil {
		t.Fatal(err)
	}
	return c, definitions
}

// This is the list for the documentation: what a role needs for each use.
func TestPrivileges(t *testing.T) {
	const ours = "driftless.checkpoints, driftless.leases, driftless.counters, driftless.touched, driftless.dead_letters, driftless.gaps, driftless.sweeps, driftless.repairs, driftless.runs, driftless.dedupe"
	for use, want := range map[Use]string{
		Look:      "listCollections on database app, database driftless; listIndexes on app.comments, app.post_counters, " + ours,
		Setup:     "listCollections on database app, database driftless; collMod, createIndex, listIndexes on app.comments; createCollection, createIndex, listIndexes on app.post_counters, " + ours,
		Follow:    "listCollections on database app, database driftless; changeStream, find, listIndexes on app.comments; find, insert, listIndexes, update on app.post_counters; find, insert, listIndexes, remove, update on " + ours,
		Verify:    "listCollections on database app, database driftless; find, listIndexes on app.comments, app.post_counters, " + ours,
		Reconcile: "listCollections on database app, database driftless; find, listIndexes on app.comments; find, insert, listIndexes, update on app.post_counters; find, insert, listIndexes, remove, update on " + ours,
	} {
		c, definitions := define(t, true)
		if got := inWords(Privileges(c, definitions, use)); got != want {
			t.Errorf("use %d:\n got %s\nwant %s", use, got, want)
		}
	}
}

func TestATargetWithoutUpsertNeedsNoInsert(t *testing.T) {
	c, definitions := define(t, false)
	for use, want := range map[Use]string{
		Setup:  "listIndexes on app.post_counters",
		Follow: "find, listIndexes, update on app.post_counters",
	} {
		for _, p := range Privileges(c, definitions, use) {
			if got := inWords([]Privilege{p}); p.Collection == "post_counters" && got != want {
				t.Errorf("use %d: %s, want %s", use, got, want)
			}
		}
	}
}

func TestGrantsReachAsFarAsTheServersDo(t *testing.T) {
	on := func(database, collection string) grant {
		g := grant{Actions: []string{"find"}}
		g.Resource.Database, g.Resource.Collection = &database, collection
		return g
	}
	everything := grant{Actions: []string{"find"}}
	everything.Resource.AnyResource = true
	for name, tt := range map[string]struct {
		grant             grant
		collection, whole bool // app.comments, database app
	}{
		"the collection":               {on("app", "comments"), true, false},
		"another collection":           {on("app", "posts"), false, false},
		"the database":                 {on("app", ""), true, true},
		"another database":             {on("other", ""), false, false},
		"the collection in every one":  {on("", "comments"), true, false},
		"every database":               {on("", ""), true, true},
		"everything":                   {everything, true, true},
		"the cluster":                  {grant{Actions: []string{"find"}}, false, false},
		"another action on everything": {grant{Actions: []string{"insert"}, Resource: everything.Resource}, false, false},
	} {
		info := authInfo{Grants: []grant{tt.grant}}
		for collection, want := range map[string]bool{"comments": tt.collection, "": tt.whole} {
			missing := info.missing([]Privilege{{"app", collection, []string{"find"}}})
			if got := len(missing) == 0; got != want {
				t.Errorf("%s: reaches %q: %v, want %v", name, collection, got, want)
			}
		}
	}
}

// A change that comes from a topic without its image takes a look at its row; an event of its own says all there is.
func TestATopicTakesNoChangeStreamAndAtMostALookAtRows(t *testing.T) {
	for format, want := range map[string]string{"event": "listIndexes on app.comments", "debezium": "find, listIndexes on app.comments"} {
		c, _ := define(t, true)
		c.Sources[0].ChangeStream, c.Sources[0].Kafka = nil, &config.Kafka{Format: format}
		c.Counters[0].Format = format
		definitions, err := counter.DefineAll(c.Counters)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range Privileges(c, definitions, Follow) {
			if got := inWords([]Privilege{p}); p.Collection == "comments" && got != want {
				t.Errorf("format %s: %s, want %s", format, got, want)
			}
		}
	}
}

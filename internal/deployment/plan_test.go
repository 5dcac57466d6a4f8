package deployment

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// site is one configuration on a server, with its collection of rows made.
type site struct {
	t           *testing.T
	client      *mongo.Client
	config      *config.Config
	definitions []*counter.Definition
	app, state  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOn(t, realtest.Shared(t).URI())
}

func newSiteOn(t *testing.T, uri string) *site {
	t.Helper()
	client := realtest.Client(t, uri)
	s := &site{t: t, client: client, app: realtest.DatabaseOn(t, client), state: realtest.DatabaseOn(t, client)}
	s.config, _ = define(t, true)
	s.config.MongoDB.URI, s.config.MongoDB.StateDatabase = uri, s.state
	s.config.Sources[0].ChangeStream.Database = s.app
	s.config.Counters[0].Rows.Database, s.config.Counters[0].Target.Database = s.app, s.app
	s.define()
	s.command(bson.D{{Key: "create", Value: "comments"}})
	return s
}

// define follows a change of the configuration.
func (s *site) define() {
	s.t.Helper()
	definitions, err := counter.DefineAll(s.config.Counters)
	if err != nil {
		s.t.Fatal(err)
	}
	s.definitions = definitions
}

func (s *site) command(command bson.D) {
	s.t.Helper()
	if err := s.client.Database(s.app).RunCommand(s.t.Context(), command).Err(); err != nil {
		s.t.Fatal(err)
	}
}

// plan returns what the steps would do, without the names of the databases.
func (s *site) plan() []string {
	s.t.Helper()
	steps, err := Plan(s.t.Context(), s.client, s.config, s.definitions)
	if err != nil {
		s.t.Fatal(err)
	}
	what := make([]string, len(steps))
	for i, step := range steps {
		what[i] = strings.NewReplacer(s.app+".", "app.", s.state+".", "state.").Replace(step.What)
	}
	return what
}

// setUp does all steps.
func (s *site) setUp() {
	s.t.Helper()
	steps, err := Plan(s.t.Context(), s.client, s.config, s.definitions)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, step := range steps {
		if err := step.Do(s.t.Context()); err != nil {
			s.t.Fatalf("%s: %v", step.What, err)
		}
	}
}

func (s *site) ready(use Use) error {
	return Ready(s.t.Context(), s.client, s.config, s.definitions, use)
}

func (s *site) wantPlan(want ...string) {
	s.t.Helper()
	if got := s.plan(); !slices.Equal(got, want) {
		s.t.Errorf("plan:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

const (
	rowsIndex    = "create index driftless_comments_per_post on app.comments"
	touchedIndex = "create index driftless_comments_per_post_touched on app.post_counters"
)

func TestEverythingIsMissing(t *testing.T) {
	s := newSite(t)
	s.wantPlan("turn on changeStreamPreAndPostImages for app.comments", "create collection app.post_counters", touchedIndex, rowsIndex,
		"create collection state.checkpoints", "create collection state.leases", "create collection state.counters", "create collection state.touched",
		"create collection state.dead_letters", "create collection state.gaps", "create collection state.sweeps", "create collection state.repairs", "create collection state.runs", "create collection state.dedupe",
		"create index counter on state.touched", "create index expiry on state.dead_letters", "create index expiry on state.repairs", "create index run on state.repairs",
		"create index key on state.repairs", "create index kept on state.repairs", "create index expiry on state.runs", "create index expiry on state.dedupe")
	err := s.ready(Follow)
	if !errors.Is(err, ErrNotSetUp) || !strings.HasSuffix(err.Error(), "for "+s.app+".comments (and 12 more)") {
		t.Errorf("Ready = %v", err)
	}
	if err := s.ready(Reconcile); !errors.Is(err, ErrNotSetUp) || !strings.HasSuffix(err.Error(), "post_counters (and 11 more)") {
		t.Errorf("Ready = %v", err)
	}
}

func TestEverythingIsThere(t *testing.T) {
	s := newSite(t)
	s.setUp()
	s.wantPlan()
	for _, use := range []Use{Look, Follow, Verify, Reconcile} {
		if err := s.ready(use); err != nil {
			t.Errorf("Ready for use %d: %v", use, err)
		}
	}
}

func TestSomethingIsMissing(t *testing.T) {
	s := newSite(t)
	s.setUp()
	s.command(bson.D{{Key: "dropIndexes", Value: "comments"}, {Key: "index", Value: "*"}})
	s.wantPlan(rowsIndex)
	if err := s.ready(Follow); err != nil {
		t.Errorf("dear recounts keep it from starting: %v", err)
	}
	s.command(bson.D{{Key: "drop", Value: "comments"}})
	s.command(bson.D{{Key: "create", Value: "comments"}})
	s.wantPlan("turn on changeStreamPreAndPostImages for app.comments", rowsIndex)
	if err := s.ready(Follow); !errors.Is(err, ErrNotSetUp) {
		t.Errorf("Ready to follow without images: %v", err)
	}
	if err := s.ready(Reconcile); err != nil {
		t.Errorf("a reconcile needs no images: %v", err)
	}
	s.command(bson.D{{Key: "drop", Value: "post_counters"}})
	s.setUp()
	s.wantPlan()
}

func TestAnIndexOfTheUsersThatServesIsEnough(t *testing.T) {
	s := newSite(t)
	rows := s.client.Database(s.app).Collection("comments")
	for name, tt := range map[string]struct {
		model  mongo.IndexModel
		serves bool
	}{
		"serves":          {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1, "at", 1)}, true},
		"sparse":          {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1), Options: options.Index().SetSparse(true)}, false},
		"partial":         {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1), Options: options.Index().SetPartialFilterExpression(keys("a", 1))}, false},
		"hashed":          {mongo.IndexModel{Keys: keys("post_id", "hashed", "deleted_at", 1)}, false},
		"other collation": {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1), Options: options.Index().SetCollation(&options.Collation{Locale: "fr"})}, false},
		"wrong order":     {mongo.IndexModel{Keys: keys("deleted_at", 1, "post_id", 1)}, false},
		"hidden":          {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1, "b", 1), Options: options.Index().SetHidden(true)}, false},
		"text":            {mongo.IndexModel{Keys: keys("post_id", 1, "deleted_at", 1, "body", "text")}, false},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.model.Options == nil {
				tt.model.Options = options.Index()
			}
			tt.model.Options.SetName("theirs")
			if _, err := rows.Indexes().CreateOne(t.Context(), tt.model); err != nil {
				t.Fatal(err)
			}
			if got := !slices.Contains(s.plan(), rowsIndex); got != tt.serves {
				t.Errorf("serves: %v", got)
			}
			s.setUp() // ours stands beside one that does not serve
			s.wantPlan()
			s.command(bson.D{{Key: "dropIndexes", Value: "comments"}, {Key: "index", Value: "*"}})
		})
	}
}

// Reads name their index by a hint, and a counter whose definition changed keeps its name.
func TestAnIndexOfOurNameWithOtherKeysIsReplaced(t *testing.T) {
	s := newSite(t)
	s.setUp()
	s.config.Counters[0].SoftDelete = "removed_at"
	s.define()
	s.wantPlan("replace index driftless_comments_per_post on app.comments, which is not the one that is needed")
	if err := s.ready(Follow); err != nil {
		t.Errorf("dear recounts keep it from starting: %v", err)
	}
	s.setUp()
	s.wantPlan()

	targets := s.client.Database(s.app).Collection("post_counters").Indexes()
	name := s.definitions[0].TouchedIndex().Name
	if err := targets.DropOne(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	if _, err := targets.CreateOne(t.Context(), mongo.IndexModel{Keys: keys("a", 1), Options: options.Index().SetName(name)}); err != nil {
		t.Fatal(err)
	}
	s.wantPlan("replace index driftless_comments_per_post_touched on app.post_counters, which is not the one that is needed")
	if err := s.ready(Follow); !errors.Is(err, ErrNotSetUp) {
		t.Errorf("Ready = %v", err)
	}
	s.setUp()
	s.wantPlan()
}

func TestCountersShareWhatTheyCan(t *testing.T) {
	s := newSite(t)
	second := s.config.Counters[0]
	second.Name, second.Target.Base, second.Target.Live = "all_comments_per_post", "all_base", "all_live"
	s.config.Counters = append(s.config.Counters, second)
	s.define()
	created := slices.DeleteFunc(s.plan(), func(what string) bool { return !strings.HasPrefix(what, "create collection app.") })
	if !slices.Equal(created, []string{"create collection app.post_counters"}) {
		t.Errorf("plan: %v", created)
	}
	s.setUp() // the second's index of rows has the keys of the first's, which serves both
	s.wantPlan()
}

func TestATargetWithoutUpsertHasNoIndexOfOurs(t *testing.T) {
	s := newSite(t)
	s.config.Counters[0].Target.Upsert = false
	s.define()
	_, err := Plan(t.Context(), s.client, s.config, s.definitions)
	if err == nil || !strings.Contains(err.Error(), "target collection "+s.app+".post_counters does not exist: create it, or set upsert: true") {
		t.Errorf("Plan = %v", err)
	}
	s.command(bson.D{{Key: "create", Value: "post_counters"}})
	if slices.Contains(s.plan(), touchedIndex) {
		t.Error("marks stand in the state database")
	}
}

// Nothing that is missing by a slip of the pen comes into being by an index.
func TestRowsThatAreMissingGetNoIndex(t *testing.T) {
	s := newSite(t)
	s.command(bson.D{{Key: "drop", Value: "comments"}})
	steps, err := Plan(t.Context(), s.client, s.config, s.definitions)
	if err == nil || strings.Count(err.Error(), "\n") != 0 {
		t.Errorf("Plan = %v", err)
	}
	for _, step := range steps {
		if strings.Contains(step.What, ".comments") {
			t.Errorf("plans to %s", step.What)
		}
	}
	s.config.Counters[0].Source = config.Application
	s.define()
	if _, err := Plan(t.Context(), s.client, s.config, s.definitions); err == nil ||
		!strings.Contains(err.Error(), "counter comments_per_post: collection of rows "+s.app+".comments does not exist") {
		t.Errorf("Plan = %v", err)
	}
}

// What was counted once is made again by the programs: a target that was dropped while they were stopped must not keep
// them from starting, whatever restarts them.
func TestATargetThatIsGoneKeepsNoProgramFromStarting(t *testing.T) {
	t.Parallel()
	for name, upsert := range map[string]bool{"ours": true, "the application's": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			s.config.Counters[0].Target.Upsert = upsert
			s.define()
			s.command(bson.D{{Key: "create", Value: "post_counters"}})
			s.setUp()
			s.command(bson.D{{Key: "drop", Value: "post_counters"}})
			uses := []Use{Follow, Verify, Reconcile}
			for _, use := range uses {
				if err := s.ready(use); err == nil {
					t.Errorf("Ready for use %d, and nothing was ever counted there: the name may be misspelt", use)
				}
			}
			states := counter.NewStates(s.client, s.state)
			if err := states.Mark(t.Context(), s.definitions[0], counter.ReasonNew); err != nil {
				t.Fatal(err)
			}
			for _, use := range uses {
				if err := s.ready(use); err != nil {
					t.Errorf("Ready for use %d: %v", use, err)
				}
			}
			if upsert {
				s.wantPlan("create collection app.post_counters", touchedIndex)
			}
			s.command(bson.D{{Key: "create", Value: "post_counters"}}) // as the application does
			for _, use := range uses {
				if err := s.ready(use); err != nil {
					t.Errorf("Ready for use %d without the index: %v", use, err)
				}
			}
			second := s.config.Counters[0]
			second.Name, second.Target.Collection = "more_comments_per_post", "more_counters"
			s.config.Counters = append(s.config.Counters, second)
			s.define()
			for _, use := range uses {
				if err := s.ready(use); err == nil {
					t.Errorf("Ready for use %d with a counter that was never set up", use)
				}
			}
		})
	}
}

package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/config"
	"driftless/internal/counter"
)

// Use is what a verb does with the database.
type Use int

// The uses, each with privileges of its own.
const (
	Look      Use = iota // see what is there: setup --dry-run
	Setup                // create what is missing
	Follow               // apply what happens to the rows: incrementer run
	Verify               // compare: reconciler verify
	Reconcile            // compare and repair: reconciler run
)

// Privilege is what a user may do with one collection, with a whole database where the collection is "", or with the
// cluster where the database is "" as well.
type Privilege struct {
	Database, Collection string
	Actions              []string // sorted
}

func (p Privilege) resource() string {
	switch {
	case p.Database == "":
		return "the cluster"
	case p.Collection == "":
		return "database " + p.Database
	default:
		return p.Database + "." + p.Collection
	}
}

// needs are the actions of a use, by what a collection is to us.
type needs struct {
	source, rows, target, state []string
}

var needsOf = map[Use]needs{
	Look: {},
	Setup: {
		source: []string{"collMod"},
		rows:   []string{"createIndex"},
		target: []string{"createCollection", "createIndex"},
		state:  []string{"createCollection", "createIndex"},
	},
	Follow: {
		source: []string{"changeStream", "find"},
		target: []string{"find", "insert", "update"},
		state:  []string{"find", "insert", "remove", "update"},
	},
	Verify: {
		rows:   []string{"find"},
		target: []string{"find"},
		state:  []string{"find"},
	},
	Reconcile: {
		rows:   []string{"find"},
		target: []string{"find", "insert", "update"},
		state:  []string{"find", "insert", "remove", "update"},
	},
}

// Privileges lists the least that a user needs for a use, in a stable order. Every use begins with a look at what is
// there, which takes listCollections and listIndexes.
func Privileges(c *config.Config, definitions []*counter.Definition, use Use) []Privilege {
	var all privileges
	need := needsOf[use]
	for _, s := range c.Sources {
		if stream := s.ChangeStream; stream != nil {
			all.add(stream.Database, "", "listCollections")
			all.add(stream.Database, stream.Collection, need.source...)
		}
	}
	for _, d := range definitions {
		if use == Follow && d.ByApplication() {
			continue
		}
		all.add(d.Rows.Database, "", "listCollections")
		all.add(d.Rows.Database, d.Rows.Collection, need.rowsOf(d, use)...)
		all.add(d.Rows.Database, d.Rows.Collection, "listIndexes")
		all.add(d.Target.Database, "", "listCollections")
		all.add(d.Target.Database, d.Target.Collection, need.of(d)...)
		all.add(d.Target.Database, d.Target.Collection, "listIndexes")
	}
	if !needsState(definitions, use) {
		return all
	}
	all.add(c.MongoDB.StateDatabase, "", "listCollections")
	for _, name := range own {
		all.add(c.MongoDB.StateDatabase, name, need.state...)
		all.add(c.MongoDB.StateDatabase, name, "listIndexes")
	}
	return all
}

// DiscardPrivileges are what it takes to discard dead letters.
func DiscardPrivileges(stateDatabase string) []Privilege {
	return []Privilege{{stateDatabase, counter.DeadLettersCollection, []string{"find", "insert", "remove"}}}
}

// rowsOf adds what takes a change that comes without its image from a topic, of which the row tells the key.
func (n needs) rowsOf(d *counter.Definition, use Use) []string {
	if use == Follow && d.ByEvents() && !d.ByTime() {
		return []string{"find"}
	}
	return n.rows
}

// of leaves out what a target never sees in which no documents are made, or no marks of touched keys.
func (n needs) of(d *counter.Definition) []string {
	return slices.DeleteFunc(slices.Clone(n.target), func(action string) bool {
		makes := action == "insert" || action == "createCollection" || action == "createIndex"
		return makes && !d.Target.Upsert || action == "createIndex" && d.ByApplication()
	})
}

// privileges are collected one resource an entry.
type privileges []Privilege

func (all *privileges) add(database, collection string, actions ...string) {
	if len(actions) == 0 {
		return
	}
	i := slices.IndexFunc(*all, func(p Privilege) bool { return p.Database == database && p.Collection == collection })
	if i < 0 {
		i = len(*all)
		*all = append(*all, Privilege{Database: database, Collection: collection})
	}
	p := &(*all)[i]
	for _, action := range actions {
		if at, found := slices.BinarySearch(p.Actions, action); !found {
			p.Actions = slices.Insert(p.Actions, at, action)
		}
	}
}

// Permitted returns one error that names everything in want that the user of the connection may not do.
func Permitted(ctx context.Context, client *mongo.Client, want []Privilege) error {
	info, err := authOf(ctx, client)
	if err != nil {
		return err
	}
	if len(info.Users) == 0 {
		return nil // a server that asks for no user
	}
	missing := info.missing(want)
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("the user %q of mongodb.uri lacks privileges: grant it %s", info.Users[0].User, inWords(missing))
}

// authOf asks who the user of the connection is and what that one may do.
func authOf(ctx context.Context, client *mongo.Client) (authInfo, error) {
	var status struct {
		AuthInfo authInfo `bson:"authInfo"`
	}
	err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}},
		options.RunCmd().SetReadPreference(readpref.Primary())).Decode(&status)
	if err != nil {
		return authInfo{}, fmt.Errorf("ask which privileges the user has: %w", err)
	}
	return status.AuthInfo, nil
}

// authInfo is what the server knows about the user of a connection; no users where it asks for none.
type authInfo struct {
	Users  []struct{ User string } `bson:"authenticatedUsers"`
	Roles  []role                  `bson:"authenticatedUserRoles"`
	Grants []grant                 `bson:"authenticatedUserPrivileges"`
}

type role struct {
	Name     string `bson:"role"`
	Database string `bson:"db"`
}

// grant is a privilege as the server lists it. A resource without a database is the cluster or the like.
type grant struct {
	Resource struct {
		Database    *string `bson:"db"`
		Collection  string  `bson:"collection"`
		AnyResource bool    `bson:"anyResource"`
	} `bson:"resource"`
	Actions []string `bson:"actions"`
}

// covers reports whether the grant reaches the collection, or the whole database for "".
func (g grant) covers(database, collection string) bool {
	r := g.Resource
	if r.AnyResource {
		return true
	}
	return r.Database != nil && (*r.Database == "" || *r.Database == database) &&
		(r.Collection == "" || r.Collection == collection)
}

// missing lists what is wanted and not granted.
func (a authInfo) missing(want []Privilege) []Privilege {
	var missing privileges
	for _, p := range want {
		for _, action := range p.Actions {
			if !slices.ContainsFunc(a.Grants, func(g grant) bool {
				return g.covers(p.Database, p.Collection) && slices.Contains(g.Actions, action)
			}) {
				missing.add(p.Database, p.Collection, action)
			}
		}
	}
	return missing
}

// inWords lists privileges for people, those with the same actions together.
func inWords(all []Privilege) string { return words(all, Privilege.resource) }

// words lists privileges with the resources named as given.
func words(all []Privilege, resource func(Privilege) string) string {
	var actions []string // in the order of their first resource
	resources := map[string][]string{}
	for _, p := range all {
		key := strings.Join(p.Actions, ", ")
		if resources[key] == nil {
			actions = append(actions, key)
		}
		resources[key] = append(resources[key], resource(p))
	}
	for i, key := range actions {
		actions[i] = key + " on " + strings.Join(resources[key], ", ")
	}
	return strings.Join(actions, "; ")
}

// ConnectToRead opens a client for a verb that only reads our own collections, when the user may.
func ConnectToRead(ctx context.Context, c *config.Config, program string) (*mongo.Client, error) {
	client, err := Connect(ctx, c.MongoDB, program)
	if err != nil {
		return nil, err
	}
	if err := Permitted(ctx, client, statePrivileges(c)); err != nil {
		Close(ctx, client)
		return nil, err
	}
	return client, nil
}

// statePrivileges are what it takes to read our own collections: incrementer status.
func statePrivileges(c *config.Config) []Privilege {
	var all privileges
	for _, name := range own {
		all.add(c.MongoDB.StateDatabase, name, "find")
	}
	return all
}

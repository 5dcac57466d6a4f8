package deployment

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/realtest"
)

// role makes a user of a role of the same name with exactly these privileges, and lets the site use it.
func (s *site) role(server *realtest.Mongod, name string, privileges []Privilege) {
	s.t.Helper()
	list := make(bson.A, len(privileges))
	for i, p := range privileges {
		list[i] = bson.D{{Key: "resource", Value: resourceOf(p)}, {Key: "actions", Value: p.Actions}}
	}
	s.admin(bson.D{{Key: "createRole", Value: name}, {Key: "privileges", Value: list}, {Key: "roles", Value: bson.A{}}})
	s.user(server, name, name)
}

func (s *site) user(server *realtest.Mongod, name, role string) {
	s.t.Helper()
	s.admin(bson.D{{Key: "createUser", Value: name}, {Key: "pwd", Value: "pw"}, {Key: "roles", Value: bson.A{role}}})
	s.config.MongoDB.URI = "mongodb://" + name + ":pw@" + server.Addr() + "/?replicaSet=rs0"
}

func resourceOf(p Privilege) bson.D {
	if p.Database == "" {
		return bson.D{{Key: "cluster", Value: true}}
	}
	return bson.D{{Key: "db", Value: p.Database}, {Key: "collection", Value: p.Collection}}
}

// units are what is taken away at a time: one action on all the collections of a line.
func units(all []Privilege) (units [][]Privilege) {
	for _, group := range grouped(all) {
		for _, action := range group[0].Actions {
			var unit []Privilege
			for _, p := range group {
				unit = append(unit, Privilege{p.Database, p.Collection, []string{action}})
			}
			units = append(units, unit)
		}
	}
	return units
}

// grantOf reads a statement as the shell would, and does what it says as the one who may.
func (s *site) grantOf(fix, name string) {
	s.t.Helper()
	for actual, plain := range map[string]string{s.app: `"app"`, s.state: `"state"`} {
		fix = strings.ReplaceAll(fix, plain, `"`+actual+`"`)
	}
	list, found := strings.CutPrefix(fix, fmt.Sprintf(`db.getSiblingDB("admin").grantPrivilegesToRole(%q, `, name))
	list, closed := strings.CutSuffix(list, ")")
	var command bson.D
	err := bson.UnmarshalExtJSON([]byte(fmt.Sprintf(`{"grantPrivilegesToRole": %q, "privileges": %s}`, name, bareKeys.ReplaceAllString(list, `"$1":`))), false, &command)
	if err != nil || !found || !closed {
		s.t.Fatalf("%s is no statement: %v", fix, err)
	}
	s.admin(command)
}

func TestEachPrivilegeThatIsMissingHasItsLineAndTheGrantMendsIt(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{Auth: true})
	root := newSiteOn(t, server.URI())
	root.setUp()
	for kind, use := range map[string]Use{"follow": Follow, "reconcile": Reconcile} {
		if use == Follow {
			root.forgetLanes() // whether one can be resumed takes a second each time, and no privilege of its own
		} else {
			root.followed("comments")
		}
		need := units(Privileges(root.config, root.definitions, use))
		plain := strings.NewReplacer(root.app, "app", root.state, "state").Replace
		all := slices.Concat(need, units(Optional(root.definitions, use)))
		root.role(server, kind, slices.Concat(all...))
		root.wantOnly(use)
		for i, without := range all {
			name := fmt.Sprintf("%s%d", kind, i)
			root.role(server, name, slices.Concat(slices.Delete(slices.Clone(all), i, i+1)...))
			level, lacks := Fail, "lacks "+within(without)
			if i >= len(need) {
				level, lacks = Warn, inWords(without)
			}
			told := slices.DeleteFunc(root.check(use), func(f Finding) bool { return f.Level == OK })
			if len(told) == 0 || told[0].Level != level || !strings.Contains(told[0].Found, plain(lacks)) {
				t.Errorf("without %s: %+v", inWords(without), told)
				continue
			}
			root.grantOf(told[0].Fix, name)
			root.wantOnly(use)
		}
	}
}

// Where the user has no role that can be changed, words say what is missing.
func TestAUserOfBuiltInRolesIsToldInWords(t *testing.T) {
	t.Parallel()
	server := realtest.Private(t, realtest.Options{Auth: true})
	s := orderly(t, server.URI())
	s.user(server, "reader", "readAnyDatabase")
	found := s.check(Follow)
	i := slices.IndexFunc(found, func(f Finding) bool { return f.Level == Fail })
	if i < 0 || found[i].Subject != "privileges on app" || found[i].Found != "lacks insert, update on post_counters" ||
		found[i].Fix != `grant insert, update on app.post_counters to a role of the user "reader"; docs/privileges.md has a role` {
		t.Errorf("%+v", found)
	}
}

func TestTheDocumentListsEveryOptionalPrivilege(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/privileges.md")
	if err != nil {
		t.Fatal(err)
	}
	_, definitions := define(t, true)
	for _, use := range []Use{Follow, Reconcile} {
		for _, p := range Optional(definitions, use) {
			for _, action := range p.Actions {
				row := fmt.Sprintf("| `%s` on %s | ", action, strings.Replace(p.resource(), "app.post_counters", "a target", 1))
				if !strings.Contains(string(text), "\n"+row) {
					t.Errorf("no row %q", row)
				}
			}
		}
	}
}

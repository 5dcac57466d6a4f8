package deployment

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// privileges looks at each privilege that the use takes, those with the same actions in one database together.
func (k *checker) privileges(context.Context) []Finding {
	if len(k.auth.Users) == 0 {
		return []Finding{ok("privileges", "the server asks for no user")}
	}
	var findings []Finding
	for _, group := range grouped(Privileges(k.config, k.definitions, k.use)) {
		subject := "privileges on " + group[0].Database
		if missing := k.auth.missing(group); len(missing) > 0 {
			findings = append(findings, Finding{Fail, subject, "lacks " + within(missing), k.auth.grant(missing)})
			continue
		}
		findings = append(findings, ok(subject, "%s", within(group)))
	}
	return append(findings, k.remaking()...)
}

// remaking warns where an index of marks that is dropped would stay away.
func (k *checker) remaking() []Finding {
	missing := k.auth.missing(remake(k.definitions))
	if k.use != Reconcile || len(missing) == 0 {
		return nil
	}
	return []Finding{{Warn, "privileges on targets", "lacks " + inWords(missing) + ": an index of ours that is dropped is not made again before setup runs",
		k.auth.grant(missing)}}
}

// within lists privileges in one database for people, without its name.
func within(all []Privilege) string {
	return words(all, func(p Privilege) string {
		if p.Collection == "" {
			return "the database"
		}
		return p.Collection
	})
}

// grouped keeps the order of the first of each group.
func grouped(all []Privilege) [][]Privilege {
	var groups [][]Privilege
	for _, p := range all {
		i := slices.IndexFunc(groups, func(group []Privilege) bool {
			return group[0].Database == p.Database && slices.Equal(group[0].Actions, p.Actions)
		})
		if i < 0 {
			groups = append(groups, []Privilege{p})
			continue
		}
		groups[i] = append(groups[i], p)
	}
	return groups
}

// grant says how to give the user privileges: by a statement where a role of the installation's own can take them.
func (a authInfo) grant(all []Privilege) string {
	own := slices.IndexFunc(a.Roles, func(r role) bool { return r.Database == "admin" && !slices.Contains(builtIn, r.Name) })
	if own < 0 {
		user := ""
		if len(a.Users) > 0 {
			user = fmt.Sprintf(" to a role of the user %q", a.Users[0].User)
		}
		return fmt.Sprintf("grant %s%s; docs/privileges.md has a role", inWords(all), user)
	}
	privileges := make([]string, len(all))
	for i, p := range all {
		privileges[i] = p.document()
	}
	return fmt.Sprintf(`db.getSiblingDB("admin").grantPrivilegesToRole(%q, [%s])`, a.Roles[own].Name, strings.Join(privileges, ", "))
}

// document is the privilege as the shell takes it.
func (p Privilege) document() string {
	resource := fmt.Sprintf("{db: %q, collection: %q}", p.Database, p.Collection)
	if p.Database == "" {
		resource = "{cluster: true}"
	}
	return fmt.Sprintf(`{resource: %s, actions: ["%s"]}`, resource, strings.Join(p.Actions, `", "`))
}

// builtIn are the server's roles of the admin database, to which nothing can be granted.
var builtIn = []string{
	"__queryableBackup", "__system", "backup", "clusterAdmin", "clusterManager", "clusterMonitor", "dbAdmin", "dbAdminAnyDatabase",
	"dbOwner", "directShardOperations", "enableSharding", "hostManager", "read", "readAnyDatabase", "readWrite",
	"readWriteAnyDatabase", "restore", "root", "searchCoordinator", "userAdmin", "userAdminAnyDatabase",
}

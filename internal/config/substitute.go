package config

import (
	"fmt"
	"regexp"
	"strings"
)

// The three forms of the contract; the operators work as in a shell, where an empty variable counts as unset.
var reference = regexp.MustCompile(`(?s)^([A-Za-z_][A-Za-z0-9_]*)(?::([-?])(.*))?$`)

// substitute replaces ${VAR}, ${VAR:-default} and ${VAR:?message} in s, and turns $${ into a literal ${. What it puts
// in is not looked at again. changed tells whether anything came from a reference; wrong says what is the matter with
// each one that could not be replaced.
func substitute(s string, env func(string) (string, bool)) (out string, changed bool, wrong []string) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		switch {
		case i < 0:
			b.WriteString(s)
			return b.String(), changed, wrong
		case i > 0 && s[i-1] == '$':
			b.WriteString(s[:i-1] + "${")
			s = s[i+len("${"):]
			continue
		}
		b.WriteString(s[:i])
		body, rest, closed := strings.Cut(s[i+len("${"):], "}")
		if !closed {
			return "", true, append(wrong, "has a ${ without its }: close it, in quotes if it holds a #, or write $${ for a plain ${")
		}
		value, fault := resolve(body, env)
		if fault != "" {
			wrong = append(wrong, fault)
		}
		b.WriteString(value)
		s, changed = rest, true
	}
}

// resolve returns the value of one reference, or what is wrong with it. It never quotes a default, which may be secret.
func resolve(body string, env func(string) (string, bool)) (value, fault string) {
	m := reference.FindStringSubmatch(body)
	if m == nil || strings.Contains(body, "${") {
		return "", "has a reference that is none of ${VAR}, ${VAR:-default}, ${VAR:?message}: mend it, or write $${ for a plain ${"
	}
	name, operator, argument := m[1], m[2], m[3]
	value, set := env(name)
	if set && (value != "" || operator == "") {
		return value, ""
	}
	switch operator {
	case "-":
		return argument, ""
	case "?":
		return "", fmt.Sprintf("variable %s is not set: %s", name, argument)
	default:
		return "", fmt.Sprintf("variable %s is not set: set it, or write ${%s:-default}", name, name)
	}
}

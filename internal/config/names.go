package config

import (
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Each check comes with the sentence that completes "must be …" for those that fail it.
const (
	wantName       = "a name of small letters, digits and _ that starts with a letter"
	wantDatabase   = `a database name: up to 63 bytes without spaces or any of /\."$*<>:|?, not admin, local or config, which are the server's own`
	wantCollection = `a collection name: without $, not starting or ending with a dot, not starting with system.`
	wantRowPath    = "a dotted path in the row such as author.id: no part empty or starting with $"
	wantFieldPath  = "a dotted path such as stats.likes: no part empty or starting with $, not _id, and not driftless, where our own fields stand"
	wantListen     = "host:port such as 127.0.0.1:9464"
	wantBroker     = "host:port such as 127.0.0.1:9092"
	wantStart      = "earliest, latest or an RFC 3339 time such as 2026-01-31T00:00:00Z"
	wantText       = "a text that is not empty"
)

var name = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

func isDatabase(s string) bool {
	return s != "" && len(s) < 64 && !strings.ContainsAny(s, "/\\. \"$*<>:|?\x00") &&
		!slices.Contains([]string{"admin", "local", "config"}, strings.ToLower(s))
}

func isCollection(s string) bool {
	return s != "" && len(s) < 200 && !strings.ContainsAny(s, "$\x00") && !strings.HasPrefix(s, "system.") &&
		!strings.HasPrefix(s, ".") && !strings.HasSuffix(s, ".")
}

func isRowPath(s string) bool {
	return !strings.Contains(s, "\x00") && !slices.ContainsFunc(strings.Split(s, "."), func(part string) bool {
		return part == "" || part[0] == '$'
	})
}

func isFieldPath(s string) bool {
	return isRowPath(s) && !overlap(s, "_id") && !overlap(s, "driftless")
}

// overlap tells whether two paths are the same or one lies inside the other: the server refuses to update both.
func overlap(a, b string) bool {
	return strings.HasPrefix(a+".", b+".") || strings.HasPrefix(b+".", a+".")
}

func isListen(s string) bool {
	_, port, err := net.SplitHostPort(s)
	return err == nil && isPort(port)
}

func isBroker(s string) bool {
	host, port, err := net.SplitHostPort(s)
	return err == nil && host != "" && port != "0" && isPort(port)
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

func isStart(s string) bool {
	_, err := time.Parse(time.RFC3339, s)
	return err == nil || s == "earliest" || s == "latest"
}

func isText(s string) bool { return s != "" }

// advise names what s is probably a slip of, or everything that it may be.
func advise(s string, candidates []string) string {
	if near := nearest(s, candidates); near != "" {
		return "did you mean " + near + "?"
	}
	return "it may be " + strings.Join(candidates, ", ")
}

// nearest returns the candidate that s is probably a slip of; "" when none is near.
func nearest(s string, candidates []string) string {
	best, at := "", min(3, len(s)/2+1)
	for _, c := range candidates {
		if d := distance(s, c); d < at {
			best, at = c, d
		}
	}
	return best
}

// distance is Levenshtein's: how many letters to insert, remove or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

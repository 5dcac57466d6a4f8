package config

import (
	"log/slog"
	"net/url"
	"os"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const srv = "mongodb+srv://"

// chooseURI keeps one of uri and uri_file: a layer that gives either replaces what the layers below gave of both.
func (r *reader) chooseURI(layer map[string]*node) {
	uri, file := layer["mongodb.uri"], layer["mongodb.uri_file"]
	switch {
	case uri != nil && file != nil:
		r.breaks(file, "stands beside mongodb.uri: keep one of the two")
		r.uriFrom = file
	case uri != nil:
		r.config.MongoDB.URIFile, r.uriFrom = "", uri
	case file != nil:
		r.config.MongoDB.URI, r.uriFrom = "", file
	}
}

// readURI reads uri_file where it is the one that counts, and checks the URI without connecting or resolving names.
func (r *reader) readURI() {
	m := &r.config.MongoDB
	if r.uriFrom == nil || r.uriFrom.broken {
		return
	}
	if m.URIFile != "" {
		data, err := os.ReadFile(m.URIFile)
		if err != nil {
			r.fault(r.uriFrom, "names a file that cannot be read (%v): create it with the connection string in it", err)
			return
		}
		m.URI = strings.TrimRight(string(data), "\r\n")
	}
	if reason := uriFault(m.URI); reason != "" {
		r.fault(r.uriFrom, "%s", reason)
	}
}

// uriFault says what is wrong with a connection string, without a part of it that may be secret.
func uriFault(uri string) string {
	switch {
	case !strings.HasPrefix(uri, "mongodb://") && !strings.HasPrefix(uri, srv):
		return "is not a connection string: it must start with mongodb:// or mongodb+srv://"
	case strings.ContainsAny(uri, " \t\r\n"):
		return "is not a valid connection string: it holds a space or more than one line"
	case strings.HasPrefix(uri, srv):
		// The driver would resolve the name now.
		if u, err := url.Parse(uri); err == nil && u.Hostname() != "" && u.Port() == "" {
			return ""
		}
		return "is not a valid mongodb+srv connection string: it needs one host name without a port" + escapeAdvice
	}
	if options.Client().ApplyURI(uri).Validate() == nil {
		return ""
	}
	// The driver's reason quotes what it stumbles over, so it is asked again about a string without secrets.
	if err := options.Client().ApplyURI(harmless(uri)).Validate(); err != nil {
		return "is not a valid connection string: " + strings.TrimPrefix(err.Error(), "error parsing uri: ")
	}
	return "is not a valid connection string: mend the user, password, host or port" + escapeAdvice
}

const escapeAdvice = `; in user and password write % : / ? # [ ] @ as %25 %3A %2F %3F %23 %5B %5D %40`

// harmless keeps the options of a connection string, with stand-ins for everything else and for what is secret in them.
func harmless(uri string) string {
	authority, rest := "host", uri
	if user := userinfo.FindString(uri); user != "" {
		authority, rest = "user:password@host", uri[len(user):]
	}
	_, opts, _ := strings.Cut(rest, "?")
	return "mongodb://" + authority + "/?" + secretOption.ReplaceAllString(opts, "$1=x:x")
}

var (
	userinfo     = regexp.MustCompile(`(?s)^(mongodb(?:\+srv)?://).*@`)
	secretOption = regexp.MustCompile(`(?i)(password|authMechanismProperties)=[^&]*`)
)

// holdsSecret tells whether a connection string may hold more than a user name, also when it is not a valid one.
func holdsSecret(uri string) bool {
	_, user, _ := strings.Cut(userinfo.FindString(uri), "://")
	return strings.Contains(user, ":") || secretOption.MatchString(uri)
}

// redact keeps what helps to recognise a connection string. What does not look like one is hidden altogether.
func redact(uri string) string {
	if uri != "" && !strings.HasPrefix(uri, "mongodb://") && !strings.HasPrefix(uri, srv) {
		return "***"
	}
	return secretOption.ReplaceAllString(userinfo.ReplaceAllString(uri, "$1***@"), "$1=***")
}

// String names the deployment without the password. The methods below keep it out of %#v, logs and JSON as well.
func (m MongoDB) String() string {
	s := redact(m.URI)
	if m.URIFile != "" {
		s += " from " + m.URIFile
	}
	return s + ", state in " + m.StateDatabase
}

// GoString is String.
func (m MongoDB) GoString() string { return m.String() }

// LogValue is String.
func (m MongoDB) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MarshalText is String.
func (m MongoDB) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every place where a secret may be written by right or by mistake; no fault shows it.
func TestSecretsAreNeverPrinted(t *testing.T) {
	const secret = "hunter2"
	dir := t.TempDir()
	write := func(name, text string) string {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	broken := write("broken", "mongodb://u:"+secret+"@h:port/\n")
	bare := write("bare", secret+"\n")
	none := map[string]string{}
	for _, test := range []struct {
		name, file string
		env, flags map[string]string
	}{
		{"bad port", "mongodb: {uri: \"mongodb://u:hunter2@h:port/\"}\n", none, nil},
		{"unescaped slash", "mongodb: {uri: \"mongodb://u:hunter2/x@h/\"}\n", none, nil},
		{"unescaped @", "mongodb: {uri: \"mongodb://u:hunter2@x@h/\"}\n", none, nil},
		{"unescaped %", "mongodb: {uri: \"mongodb://u:hunter2%zz@h/\"}\n", none, nil},
		{"bad option beside it", "mongodb: {uri: \"mongodb://u:hunter2@h/?maxPoolSize=x\"}\n", none, nil},
		{"secret option", "mongodb: {uri: \"mongodb://h/?tlsCertificateKeyFilePassword=hunter2&maxPoolSize=x\"}\n", none, nil},
		{"srv", "mongodb: {uri: \"mongodb+srv://u:hunter2@h:1/\"}\n", none, nil},
		{"no host", "mongodb: {uri: \"mongodb://u:hunter2\"}\n", none, nil},
		{"no scheme", "mongodb: {uri: hunter2}\n", none, nil},
		{"another scheme", "mongodb: {uri: \"http://u:hunter2@h\"}\n", none, nil},
		{"two lines", "mongodb: {uri: \"mongodb://u:hunter2@h\\nx\"}\n", none, nil},
		{"a list", "mongodb: {uri: [\"mongodb://u:hunter2@h\"]}\n", none, nil},
		{"misspelled key", "mongodb: {urii: \"mongodb://u:hunter2@h\"}\n", none, nil},
		{"beside a misspelled key", "mongodb: {uri: \"mongodb://u:hunter2@h\", foo: 1} # hunter2\n", none, nil},
		{"plain beside a misspelled key", "mongodb:\n  uri: mongodb://u:hunter2@h\n  password: hunter2\n", none, nil},
		{"in another setting", "log: {level: \"mongodb://u:hunter2@h\"}\n", none, nil},
		{"as a source's password", "sources: {likes: {kafka: {sasl: {password: hunter2}}}}\n", none, nil},
		{"substituted", "log: {level: \"${SECRET}\"}\nincrementer: {lease: \"${SECRET}\", max_batch_events: \"${SECRET}\"}\n", map[string]string{"SECRET": secret}, nil},
		{"substituted name", strings.Replace(valid, "source: comments", "source: ${SECRET}", 1), map[string]string{"SECRET": secret}, nil},
		{"substituted variable name", valid + "    count_if: \"${SECRET}\"\n", map[string]string{"SECRET": "$$" + secret}, nil},
		{"substituted extended JSON", valid + "    count_if: {$oid: \"${SECRET}\"}\n", map[string]string{"SECRET": secret}, nil},
		{"a default that is no reference", "mongodb: {uri: \"${URI-hunter2}\"}\n", none, nil},
		{"not YAML", "mongodb:\n  uri: mongodb://u:hunter2@h: x\n", none, nil},
		{"not YAML either", "mongodb: {uri: mongodb://u:hunter2@h\n", none, nil},
		{"key without a value", "mongodb:\n  mongodb://u:hunter2@h\n", none, nil},
		{"key", "mongodb:\n  mongodb://u:hunter2@h:\n", none, nil},
		{"environment", "", map[string]string{"DRIFTLESS_MONGODB_URI": "mongodb://u:hunter2@h:port"}, nil},
		{"wrong variable", "", map[string]string{"DRIFTLESS_LOG_LEVEL": secret, "DRIFTLESS_RECONCILER_EVERY": secret}, nil},
		{"flag", "", none, map[string]string{"mongodb.uri": "mongodb://u:hunter2@h"}},
		{"srv flag", "", none, map[string]string{"mongodb.uri": "mongodb+srv://u:hunter2@h"}},
		{"broken flag", "", none, map[string]string{"mongodb.uri": "u:hunter2@h"}},
		{"flag's option", "", none, map[string]string{"mongodb.uri": "mongodb://h/?tlsCertificateKeyFilePassword=hunter2"}},
		{"file", "", map[string]string{"DRIFTLESS_MONGODB_URI_FILE": broken}, nil},
		{"file that holds the password only", "", map[string]string{"DRIFTLESS_MONGODB_URI_FILE": bare}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.file+valid, test.env, test.flags)
			if got := faultLines(t, err); got == "" || strings.Contains(got, secret) {
				t.Errorf("got %s", got)
			}
		})
	}
}

func TestAPasswordIsRefusedAsAFlag(t *testing.T) {
	_, err := load(t, valid, nil, map[string]string{"mongodb.uri": "mongodb://u:p@h"})
	want := "--mongodb-uri: mongodb.uri: holds a password, and everyone on the machine can see flags: use mongodb.uri_file or DRIFTLESS_MONGODB_URI"
	if got := faultLines(t, err); got != want {
		t.Errorf("got %s", got)
	}
	if !holdsSecret("mongodb://:p@h") || holdsSecret("mongodb://h:1") {
		t.Error("a password without a user counts, a port does not")
	}
	for _, harmless := range []string{"mongodb://h1:27017,h2:27018/?replicaSet=rs0", "mongodb://user@h/?authMechanism=MONGODB-X509&tls=true", "mongodb+srv://h.example.org"} {
		if _, err := load(t, valid, nil, map[string]string{"mongodb.uri": harmless}); err != nil {
			t.Errorf("%s: %v", harmless, err)
		}
	}
}

func TestAConnectionStringPrintsWithoutItsSecrets(t *testing.T) {
	for uri, want := range map[string]string{
		"mongodb://h:1,i:2/?replicaSet=rs0":             "mongodb://h:1,i:2/?replicaSet=rs0",
		"mongodb://u:p%40@h:1/db":                       "mongodb://***@h:1/db",
		"mongodb+srv://u:p@ss/w@h":                      "mongodb+srv://***@h",
		"mongodb://h/?tlsCertificateKeyFilePassword=p":  "mongodb://h/?tlsCertificateKeyFilePassword=***",
		"mongodb://h/?authMechanismProperties=A:p&tls=": "mongodb://h/?authMechanismProperties=***&tls=",
		"u:p@h": "***",
		"":      "",
	} {
		if got := redact(uri); got != want {
			t.Errorf("%s: got %s, want %s", uri, got, want)
		}
	}
}

func TestAConfigurationCanBePrintedSafely(t *testing.T) {
	c := mustLoad(t, "mongodb: {uri: \"mongodb://u:hunter2@h\"}\n"+valid, nil, nil)
	if c.MongoDB.URI != "mongodb://u:hunter2@h" {
		t.Fatal("the URI itself must stay whole")
	}
	var logged bytes.Buffer
	slog.New(slog.NewJSONHandler(&logged, nil)).Info("x", "mongodb", c.MongoDB, "config", c)
	slog.New(slog.NewTextHandler(&logged, nil)).Info("x", "mongodb", c.MongoDB, "config", *c)
	encoded, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []string{fmt.Sprintf("%v %+v %#v %s", c.MongoDB, *c, *c, &c.MongoDB), logged.String(), string(encoded)} {
		if strings.Contains(s, "hunter2") || !strings.Contains(s, "mongodb://***@h") {
			t.Errorf("got %s", s)
		}
	}
}

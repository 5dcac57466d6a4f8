package kafka

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"driftless/internal/config"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

func passwordFile(t *testing.T, password string) string {
	path := filepath.Join(t.TempDir(), "password")
	writePassword(t, path, password)
	return path
}

func writePassword(t *testing.T, path, password string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
}

func user(mechanism, file string) config.SASL {
	return config.SASL{Mechanism: mechanism, Username: realtest.KafkaUser, PasswordFile: file}
}

// One test for all, since the broker has one password for SCRAM.
func TestReadsThroughEveryKindOfListener(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 5)...)
	if err := k.SetScramPassword(limited(t), "scram"); err != nil {
		t.Fatal(err)
	}
	certs := k.Certificates()
	ca := config.TLS{CAFile: certs.CAFile}
	mutual := config.TLS{CAFile: certs.CAFile, CertFile: certs.CertFile, KeyFile: certs.KeyFile}
	plain, scram := passwordFile(t, realtest.KafkaPassword), passwordFile(t, "scram")
	wrong := passwordFile(t, "wrong")
	foreign, err := realtest.NewCertificates(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, addr string
		tls        config.TLS
		sasl       config.SASL
		refused    string // what the error says, empty for none
	}{
		{"TLS", k.TLSAddr(), ca, config.SASL{}, ""},
		{"TLS of another authority", k.TLSAddr(), config.TLS{CAFile: foreign.CAFile}, config.SASL{}, "certificate"},
		{"mutual TLS", k.MutualTLSAddr(), mutual, config.SASL{}, ""},
		{"mutual TLS without a certificate", k.MutualTLSAddr(), ca, config.SASL{}, "certificate"},
		{"mutual TLS with a foreign certificate", k.MutualTLSAddr(),
			config.TLS{CAFile: certs.CAFile, CertFile: foreign.CertFile, KeyFile: foreign.KeyFile}, config.SASL{}, "tls"},
		{"PLAIN", k.SASLAddr(), config.TLS{}, user("PLAIN", plain), ""},
		{"PLAIN over TLS", k.SASLTLSAddr(), ca, user("PLAIN", plain), ""},
		{"PLAIN, wrong password", k.SASLAddr(), config.TLS{}, user("PLAIN", wrong), "SASL Authentication Failed"},
		{"SCRAM-SHA-256", k.SASLAddr(), config.TLS{}, user("SCRAM-SHA-256", scram), ""},
		{"SCRAM-SHA-512 over TLS", k.SASLTLSAddr(), ca, user("SCRAM-SHA-512", scram), ""},
		{"SCRAM-SHA-256, wrong password", k.SASLAddr(), config.TLS{}, user("SCRAM-SHA-256", wrong), "SASL Authentication Failed"},
		{"SCRAM-SHA-512, wrong password", k.SASLTLSAddr(), ca, user("SCRAM-SHA-512", wrong), "SASL Authentication Failed"},
		{"SASL where there is none", k.Addr(), config.TLS{}, user("PLAIN", plain), "SASL"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := client(t, k, topic, func(o *Options) { o.Brokers, o.TLS, o.SASL = []string{test.addr}, test.tls, test.sasl })
			if test.refused == "" {
				wantNumbers(t, all(t, c, 5), 0, 5)
				wantMember(t, c, topic)
				return
			}
			wantEnd(t, running(t, c).Open(0, Position{}), stream.ErrUnauthorized, test.refused)
			g, err := c.Join(GroupOptions{Name: topic + " refused"})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if _, err := g.Next(limited(t)); !errors.Is(err, stream.ErrUnauthorized) {
				t.Errorf("join: %v, want %v", err, stream.ErrUnauthorized)
			}
		})
	}
	t.Run("TLS without files believes the system's authorities", func(t *testing.T) {
		c := client(t, k, topic, func(o *Options) { o.Brokers, o.RequireTLS = []string{k.TLSAddr()}, true })
		wantEnd(t, running(t, c).Open(0, Position{}), stream.ErrUnauthorized, "unknown authority")
	})
	t.Run("the next connection has the new password", func(t *testing.T) { testNewPassword(t, k, topic, scram) })
}

// wantMember checks that a client is let into a group and given the topic's one partition.
func wantMember(t *testing.T, c *Client, topic string) {
	t.Helper()
	g, err := c.Join(GroupOptions{Name: topic})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	generation, err := g.Next(limited(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(generation.Partitions) != 1 {
		t.Errorf("assigned %v", generation.Partitions)
	}
}

func testNewPassword(t *testing.T, k *realtest.Kafka, topic, file string) {
	proxy := realtest.NewProxy(t, k.SASLAddr())
	c := client(t, k, topic, func(o *Options) {
		o.Brokers, o.SASL, o.Dial = []string{k.SASLAddr()}, user("SCRAM-SHA-256", file), through(proxy)
	})
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	toEnd(t, l, from, 5)
	if err := k.SetScramPassword(limited(t), "new"); err != nil {
		t.Fatal(err)
	}
	writePassword(t, file, "new")
	proxy.Cut()
	proxy.Heal()
	produce(t, k, topic, 0, numbered(5, 5)...)
	from.Offset = 5
	records, _ := toEnd(t, l, from, 10)
	wantNumbers(t, records, 5, 10)

	writePassword(t, file, "old")
	proxy.Cut()
	proxy.Heal()
	wantEnd(t, l, stream.ErrUnauthorized, "SASL Authentication Failed")
}

// The next connection has the new certificate: that of an authority that the broker does not believe in.
func TestCertificatesAreReadAgain(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	dir := t.TempDir()
	mine, err := realtest.NewCertificates(dir)
	if err != nil {
		t.Fatal(err)
	}
	good := k.Certificates()
	keep := map[string][]byte{mine.CAFile: read(t, good.CAFile), mine.CertFile: read(t, good.CertFile), mine.KeyFile: read(t, good.KeyFile)}
	for path, content := range keep {
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	proxy := realtest.NewProxy(t, k.MutualTLSAddr())
	c := client(t, k, topic, func(o *Options) {
		o.Brokers, o.Dial = []string{k.MutualTLSAddr()}, through(proxy)
		o.TLS = config.TLS{CAFile: mine.CAFile, CertFile: mine.CertFile, KeyFile: mine.KeyFile}
	})
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	toEnd(t, l, from, 0)
	if _, err := realtest.NewCertificates(dir); err != nil {
		t.Fatal(err)
	}
	proxy.Cut()
	proxy.Heal()
	wantEnd(t, l, stream.ErrUnauthorized, "certificate")
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestATopicThatIsForbiddenIsUnauthorized(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	allow := func(operation kafka.ACLOperationType, permission kafka.ACLPermissionType) {
		response, err := k.Client().CreateACLs(limited(t), &kafka.CreateACLsRequest{ACLs: []kafka.ACLEntry{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic, ResourcePatternType: kafka.PatternTypeLiteral,
			Principal: "User:" + realtest.KafkaUser, Host: "*", Operation: operation, PermissionType: permission,
		}}})
		if err != nil || response.Errors[0] != nil {
			t.Fatal(err, response)
		}
	}
	allow(kafka.ACLOperationTypeDescribe, kafka.ACLPermissionTypeAllow)
	c := client(t, k, topic, func(o *Options) {
		o.Brokers, o.SASL = []string{k.SASLAddr()}, user("PLAIN", passwordFile(t, realtest.KafkaPassword))
	})
	wantEnd(t, running(t, c).Open(0, Position{}), stream.ErrUnauthorized, "Topic Authorization Failed")
	allow(kafka.ACLOperationTypeDescribe, kafka.ACLPermissionTypeDeny)
	realtest.Eventually(t, patience, "the topic is forbidden to look up", func() bool {
		_, err := c.Topic(limited(t))
		return errors.Is(err, stream.ErrUnauthorized)
	})
}

func TestFilesThatAreNotThereAreFoundAtOnce(t *testing.T) {
	t.Parallel()
	missing := filepath.Join(t.TempDir(), "missing")
	text := passwordFile(t, "no certificate")
	for _, test := range []struct {
		name string
		o    Options
		want string
	}{
		{"no ca_file", Options{TLS: config.TLS{CAFile: missing}}, "ca_file"},
		{"no certificate in it", Options{TLS: config.TLS{CAFile: text}}, "holds no certificate in PEM"},
		{"no cert_file", Options{TLS: config.TLS{CertFile: missing, KeyFile: missing}}, "cert_file and key_file"},
		{"no password_file", Options{SASL: user("PLAIN", missing)}, "sasl.password_file"},
		{"a mechanism of another time", Options{SASL: user("GSSAPI", text)}, "GSSAPI is not known: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512"},
	} {
		test.o.Brokers, test.o.Topic = []string{"127.0.0.1:1"}, "t"
		if _, err := New(test.o); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", test.name, err, test.want)
		}
	}
}

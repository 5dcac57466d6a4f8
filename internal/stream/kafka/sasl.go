package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/segmentio/kafka-go/sasl"
	"github.com/segmentio/kafka-go/sasl/plain"
	"github.com/segmentio/kafka-go/sasl/scram"

	"driftless/internal/config"
)

// errCredentials means: a file with credentials is not what it should be.
var errCredentials = errors.New("bad credentials file")

// mechanism is a SASL mechanism that reads its password anew for each connection.
type mechanism struct {
	config.SASL
	start func(username, password string) (sasl.Mechanism, error)
}

// newMechanism returns nil for no authentication. It reads the password once, to find a file that is not there.
func newMechanism(s config.SASL) (sasl.Mechanism, error) {
	m := &mechanism{SASL: s}
	switch s.Mechanism {
	case "":
		return nil, nil
	case "PLAIN":
		m.start = func(username, password string) (sasl.Mechanism, error) {
			return plain.Mechanism{Username: username, Password: password}, nil
		}
	case scram.SHA256.Name():
		m.start = scramWith(scram.SHA256)
	case scram.SHA512.Name():
		m.start = scramWith(scram.SHA512)
	default:
		return nil, fmt.Errorf("sasl.mechanism %s is not known: use PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512", s.Mechanism)
	}
	_, err := m.password()
	return m, err
}

func scramWith(algorithm scram.Algorithm) func(username, password string) (sasl.Mechanism, error) {
	return func(username, password string) (sasl.Mechanism, error) {
		return scram.Mechanism(algorithm, username, password)
	}
}

func (m *mechanism) Name() string { return m.Mechanism }

// Start begins to authenticate one connection.
func (m *mechanism) Start(ctx context.Context) (sasl.StateMachine, []byte, error) {
	password, err := m.password()
	if err != nil {
		return nil, nil, err
	}
	inner, err := m.start(m.Username, password)
	if err != nil {
		// The cause may repeat a part of the password.
		return nil, nil, fmt.Errorf("%w: %s holds what %s does not allow in a password", errCredentials, m.PasswordFile, m.Mechanism)
	}
	return inner.Start(ctx)
}

// password is the file's content without the end of its line.
func (m *mechanism) password() (string, error) {
	content, err := os.ReadFile(m.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("sasl.password_file: %w", err)
	}
	return strings.TrimRight(string(content), "\r\n"), nil
}

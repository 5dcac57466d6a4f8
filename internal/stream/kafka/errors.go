package kafka

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/segmentio/kafka-go"

	"driftless/internal/stream"
)

// What can stop a reader of Kafka beside [stream.ErrPositionLost], [stream.ErrUnauthorized] and [stream.ErrInterrupted].
var (
	// ErrUnknownTopic means: there is no such topic or partition. Nothing is lost by waiting for it, as long as it never was.
	ErrUnknownTopic = errors.New("unknown topic or partition")
	// ErrTooOld means: the brokers are older than Kafka 3.1.
	ErrTooOld = errors.New("broker too old")
	// ErrCorrupt means: a batch does not match its checksum or cannot be decoded. Asking again seldom helps.
	ErrCorrupt = errors.New("corrupt batch")
)

// Classify wraps an error of a broker or the network with the sentinel of its cause. A wrong verdict costs: lost read as
// interrupted retries for ever; interrupted read as lost recounts for nothing; unauthorized read as interrupted hides from the
// operator what to do. An offset out of range is no verdict yet: see Reader.outOfRange.
func Classify(err error) error {
	if err == nil || errors.Is(err, context.Canceled) || isClassified(err) {
		return err
	}
	return fmt.Errorf("%w: %w", cause(err), err)
}

func isClassified(err error) bool {
	for _, sentinel := range []error{stream.ErrPositionLost, stream.ErrUnauthorized, stream.ErrInterrupted, ErrUnknownTopic, ErrTooOld, ErrCorrupt} {
		if errors.Is(err, sentinel) {
			return true
		}
	}
	return false
}

func cause(err error) error {
	var code kafka.Error
	if errors.As(err, &code) {
		return codeCause(code)
	}
	var (
		certificate *tls.CertificateVerificationError
		invalid     x509.CertificateInvalidError
		file        *fs.PathError
	)
	switch {
	case errors.As(err, &certificate), errors.As(err, &invalid), errors.As(err, &file),
		errors.Is(err, errCredentials):
		// One side does not believe the other, and both stay as they are.
		return stream.ErrUnauthorized
	case strings.Contains(err.Error(), "remote error: tls:"):
		// crypto/tls does not export what it makes of an alert that it received.
		return stream.ErrUnauthorized
	case errors.Is(err, errProtocol):
		return ErrCorrupt
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return fmt.Errorf("%w (the broker closed the connection; a listener with TLS or SASL does so with a client that has none)", stream.ErrInterrupted)
	default:
		return stream.ErrInterrupted
	}
}

// codeCause is the cause of an answer that a broker gave, https://kafka.apache.org/protocol.html#protocol_error_codes
func codeCause(code kafka.Error) error {
	switch code {
	case kafka.SASLAuthenticationFailed, kafka.UnsupportedSASLMechanism, kafka.IllegalSASLState, kafka.TopicAuthorizationFailed,
		kafka.GroupAuthorizationFailed, kafka.ClusterAuthorizationFailed, kafka.SecurityDisabled:
		return stream.ErrUnauthorized
	case kafka.UnknownTopicOrPartition, kafka.InvalidTopic, kafka.UnknownTopicID, kafka.InconsistentTopicID:
		return ErrUnknownTopic
	case kafka.UnsupportedVersion:
		return ErrTooOld
	case kafka.InvalidMessage:
		return ErrCorrupt
	default:
		// A leader that moved, a broker that starts, stops or is out of something: the topic is where it was.
		return stream.ErrInterrupted
	}
}

package realtest

import (
	"context"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"fmt"
	"hash"

	"github.com/segmentio/kafka-go"
)

// SetScramPassword gives [KafkaUser] a password for SCRAM-SHA-256 and SCRAM-SHA-512, which new connections need from then on.
func (k *Kafka) SetScramPassword(ctx context.Context, password string) error {
	for _, m := range []kafka.ScramMechanism{kafka.ScramMechanismSha256, kafka.ScramMechanismSha512} {
		// One at a time: a request may change a user once.
		response, err := k.client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{
			Upsertions: []kafka.UserScramCredentialsUpsertion{scramUpsertion(m, password)},
		})
		if err == nil {
			err = response.Results[0].Error
		}
		if err != nil {
			return fmt.Errorf("set password: %w", err)
		}
	}
	return nil
}

// scramIterations is the least that the broker takes.
const scramIterations = 4096

func scramUpsertion(mechanism kafka.ScramMechanism, password string) kafka.UserScramCredentialsUpsertion {
	salt := []byte(rand.Text())
	salted := func(h func() hash.Hash, size int) []byte {
		key, err := pbkdf2.Key(h, password, salt, scramIterations, size)
		if err != nil {
			panic(err) // only for sizes that no one asks for
		}
		return key
	}
	u := kafka.UserScramCredentialsUpsertion{Name: KafkaUser, Mechanism: mechanism, Iterations: scramIterations, Salt: salt}
	if mechanism == kafka.ScramMechanismSha256 {
		u.SaltedPassword = salted(sha256.New, sha256.Size)
	} else {
		u.SaltedPassword = salted(sha512.New, sha512.Size)
	}
	return u
}

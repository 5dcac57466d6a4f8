package realtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoKafka means that there is no Kafka to run on this machine, and says how to get one.
var ErrNoKafka = errors.New("no Kafka found: run scripts/get-kafka, or set DRIFTLESS_KAFKA to the directory of one")

// javaCommand runs a class of the Kafka in $DRIFTLESS_KAFKA, else of the one in .cache/kafka beside the go.mod above the working
// directory. Without any, or without Java, the error is [ErrNoKafka].
func javaCommand(arguments ...string) (*exec.Cmd, error) {
	dir := os.Getenv("DRIFTLESS_KAFKA")
	if dir == "" {
		root, err := moduleRoot()
		if err != nil {
			return nil, ErrNoKafka
		}
		dir = filepath.Join(root, ".cache", "kafka")
	}
	if found, err := filepath.Glob(filepath.Join(dir, "libs", "kafka_*.jar")); err != nil || len(found) == 0 {
		return nil, ErrNoKafka
	}
	java := "java"
	if home := os.Getenv("JAVA_HOME"); home != "" {
		java = filepath.Join(home, "bin", "java")
	}
	if _, err := exec.LookPath(java); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoKafka, err)
	}
	return exec.Command(java, append([]string{"-cp", filepath.Join(dir, "libs", "*")}, arguments...)...), nil
}

package realtest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"driftless/internal/realtest"
)

// holdVariable makes this binary start the server that it names, print its address, and hold it until its input ends or it is
// killed.
const holdVariable = "REALTEST_HOLD"

func TestMain(m *testing.M) {
	if server := os.Getenv(holdVariable); server != "" {
		hold(server)
		return
	}
	realtest.Main(m)
}

func hold(server string) {
	var held interface{ Addr() string }
	var err error
	if server == "kafka" {
		held, err = realtest.StartKafka(context.Background(), realtest.KafkaOptions{})
	} else {
		held, err = realtest.StartMongod(context.Background(), realtest.Options{Standalone: true})
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(held.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

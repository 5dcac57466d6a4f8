package realtest_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"testing"

	"driftless/internal/realtest"
)

// holdVariable makes this binary start a server, print its address, and hold it until its input ends or it is killed.
const holdVariable = "REALTEST_HOLD"

func TestMain(m *testing.M) {
	if os.Getenv(holdVariable) != "" {
		hold()
		return
	}
	realtest.Main(m)
}

func hold() {
	m, err := realtest.StartMongod(context.Background(), realtest.Options{Standalone: true})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(m.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
}

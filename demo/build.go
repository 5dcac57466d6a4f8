package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"driftless/internal/realtest"
)

// build compiles the two binaries into dir.
func build(ctx context.Context, dir string) error {
	command := exec.CommandContext(ctx, "go", "build", "-o", dir+string(os.PathSeparator),
		"driftless/cmd/"+incrementer, "driftless/cmd/"+reconciler)
	if printed, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("build the binaries (the demo runs inside a checkout, with Go): %w\n%s", err, printed)
	}
	return nil
}

// removeBinaries leaves the logs.
func removeBinaries(dir string) error {
	return errors.Join(os.RemoveAll(filepath.Join(dir, incrementer)), os.RemoveAll(filepath.Join(dir, reconciler)))
}

// getMongod makes sure that there is a mongod to run. Where none can be had, scripts/get-mongod prints the lines that
// help on this platform.
func getMongod(ctx context.Context, progress io.Writer) error {
	_, err := realtest.Binary()
	if !errors.Is(err, realtest.ErrNoMongod) {
		return err
	}
	module, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return fmt.Errorf("find the checkout: %w", err)
	}
	script := filepath.Join(filepath.Dir(strings.TrimSpace(string(module))), "scripts", "get-mongod")
	command := exec.CommandContext(ctx, script)
	command.Stderr = progress
	if err := command.Run(); err != nil {
		return errors.New("no mongod to run: the lines above say how to get one, or how to use a server with MONGODB_URI")
	}
	_, err = realtest.Binary()
	return err
}

// ownNames are databases that nobody else has.
func ownNames() names {
	app := "driftless_demo_" + strings.ToLower(rand.Text()[:8])
	return names{app: app, state: app + "_state"}
}

// configuration is the file that both binaries read, with free ports. Its times are short: this is a demo.
func configuration(n names) (string, error) {
	first, err := realtest.FreePort()
	if err != nil {
		return "", err
	}
	second, err := realtest.FreePort()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf(`mongodb:
  uri: ${MONGODB_URI}
  state_database: %[2]s
sources:
  %[3]s:
    change_stream: {database: %[1]s, collection: comments}
counters:
  %[4]s:
    source: %[3]s
    key: post_id
    soft_delete: deleted_at
    target: {database: %[1]s, collection: post_counters, total: comment_count}
log: {format: json}
incrementer: {listen: "127.0.0.1:%[5]d", idle_checkpoint: 500ms, lease: 3s}
reconciler: {listen: "127.0.0.1:%[6]d", every: 2s}
`, n.app, n.state, source, counterName, first, second), nil
}

package realtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// ErrNoMongod means that there is no mongod to run on this machine, and says how to get one.
var ErrNoMongod = errors.New("no mongod found: run scripts/get-mongod, put one on PATH, or set DRIFTLESS_MONGOD")

// Binary returns the path of the mongod to run: $DRIFTLESS_MONGOD, else the one on PATH, else .cache/mongod beside the go.mod
// above the working directory. Without any it returns [ErrNoMongod].
func Binary() (string, error) {
	if named := os.Getenv("DRIFTLESS_MONGOD"); named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("DRIFTLESS_MONGOD: %w", err)
		}
		return path, nil
	}
	if path, err := exec.LookPath("mongod"); err == nil {
		return path, nil
	}
	root, err := moduleRoot()
	if err != nil {
		return "", err
	}
	path, err := exec.LookPath(filepath.Join(root, ".cache", "mongod"))
	if err != nil {
		return "", ErrNoMongod
	}
	return path, nil
}

// moduleRoot returns the nearest directory above the working directory that holds a go.mod, or [ErrNoMongod].
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", ErrNoMongod
		}
		dir = parent
	}
}

package realtest

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

const (
	dirPrefix = "driftless-"
	lockName  = "owner.lock"
)

// dataDir is a temporary directory that is locked while its owner lives. A process that is killed cannot remove its own, some
// 100 MB each, so whoever comes next does.
type dataDir struct {
	path string
	lock *os.File
}

// newDataDir makes one that is named after the server that it is for.
func newDataDir(server string) (*dataDir, error) {
	sweepDataDirs()
	path, err := os.MkdirTemp("", dirPrefix+server+"-")
	if err != nil {
		return nil, fmt.Errorf("create data directory: %w", err)
	}
	lock, err := createLocked(path)
	if err != nil {
		_ = os.RemoveAll(path)
		return nil, fmt.Errorf("lock data directory: %w", err)
	}
	return &dataDir{path: path, lock: lock}, nil
}

// createLocked takes the lock before the file has the name that the sweep looks for: there is no moment at which a directory in
// use looks abandoned.
func createLocked(dir string) (*os.File, error) {
	file, err := os.CreateTemp(dir, lockName)
	if err != nil {
		return nil, err
	}
	err = syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(dir, lockName))
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

func (d *dataDir) file(name string) string { return filepath.Join(d.path, name) }

func (d *dataDir) remove() error {
	defer func() { _ = d.lock.Close() }()
	return os.RemoveAll(d.path)
}

// sweepDataDirs removes the directories whose owner is gone. It reports nothing: what it cannot remove is not ours to mind.
func sweepDataDirs() {
	locks, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*", lockName))
	for _, path := range locks {
		lock, err := os.Open(path)
		if err != nil {
			continue
		}
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.RemoveAll(filepath.Dir(path))
		}
		_ = lock.Close()
	}
}

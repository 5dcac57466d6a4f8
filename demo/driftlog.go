package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
)

// The reconciler's lines: one for each drifted key, at most some twenty a run, and a sum for the run.
const (
	keyDrifted  = "counter drifted"
	keysDrifted = "counters drifted"
)

// driftLog reads what the reconciler reports while it is written.
type driftLog struct {
	path   string
	ledger *ledger
	news   *news

	mutex  sync.Mutex
	offset int64
	listed map[string]int64 // keys listed one by one, by run
}

// logLine is what we look at in a line of the log.
type logLine struct {
	Message string `json:"msg"`
	Key     string `json:"key"`
	Drift   int64  `json:"drift"`
	Cause   string `json:"cause"`
	Run     string `json:"run"`
	Keys    int64  `json:"keys"`
}

func newDriftLog(path string, ledger *ledger, news *news) *driftLog {
	return &driftLog{path: path, ledger: ledger, news: news, listed: map[string]int64{}}
}

// read books the whole lines that have been added since the last time.
func (l *driftLog) read() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	file, err := os.Open(l.path)
	if err != nil {
		return fmt.Errorf("read the reconciler's log: %w", err)
	}
	defer func() { _ = file.Close() }()
	added, err := io.ReadAll(io.NewSectionReader(file, l.offset, 1<<40))
	if err != nil {
		return fmt.Errorf("read the reconciler's log: %w", err)
	}
	added = added[:bytes.LastIndexByte(added, '\n')+1]
	l.offset += int64(len(added))
	for line := range bytes.Lines(added) {
		if err := l.book(line); err != nil {
			return err
		}
	}
	return nil
}

func (l *driftLog) book(text []byte) error {
	var line logLine
	if err := json.Unmarshal(text, &line); err != nil {
		return fmt.Errorf("read the reconciler's log: %w: %s", err, text)
	}
	switch line.Message {
	case keyDrifted:
		l.listed[line.Run]++
		l.ledger.find(line.Key, line.Drift)
		l.news.add("reconciler finds post %s %s (%s) and repairs it", line.Key, tooMuch(line.Drift), line.Cause)
	case keysDrifted:
		if listed := l.listed[line.Run]; listed != line.Keys {
			return fmt.Errorf("the reconciler's run %s found %d drifted keys and listed %d: more than anybody edited", line.Run, line.Keys, listed)
		}
		delete(l.listed, line.Run)
	}
	return nil
}

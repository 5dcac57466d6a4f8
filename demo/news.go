package main

import (
	"fmt"
	"slices"
	"sync"
	"time"
)

const newsKept = 6

// news are the last things that happened, for the lines below the table.
type news struct {
	mutex sync.Mutex
	lines []string
}

func (n *news) add(format string, args ...any) {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	n.lines = append(n.lines, time.Now().Format("15:04:05")+"  "+fmt.Sprintf(format, args...))
	n.lines = n.lines[max(0, len(n.lines)-newsKept):]
}

func (n *news) last() []string {
	n.mutex.Lock()
	defer n.mutex.Unlock()
	return slices.Clone(n.lines)
}

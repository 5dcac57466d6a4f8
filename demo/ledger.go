package main

import (
	"cmp"
	"maps"
	"slices"
	"sync"
)

// ledger holds what the operator did to counters against what the reconciler says it found, key by key. Two edits of one
// key between two reconciles are found as their sum, so sums are what is compared.
type ledger struct {
	mutex           sync.Mutex
	injected, found map[string]int64 // by key, as extended JSON
	totals          totals
}

// totals are sums of absolute sizes.
type totals struct {
	edits, edited   int64 // by hand: how many, how much
	finds, repaired int64 // by the reconciler
}

func newLedger() *ledger {
	return &ledger{injected: map[string]int64{}, found: map[string]int64{}}
}

// inject records that an edit made a counter n too high, or -n too low.
func (l *ledger) inject(key string, n int64) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.injected[key] += n
	l.totals.edits++
	l.totals.edited += abs(n)
}

// find records that the reconciler found a counter drift too high.
func (l *ledger) find(key string, drift int64) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.found[key] += drift
	l.totals.finds++
	l.totals.repaired += abs(drift)
}

// entry is one key of which injected and found differ.
type entry struct {
	key             string
	injected, found int64
}

// open lists the keys whose books do not balance: edits not found yet, or drift that nobody made; the largest first.
func (l *ledger) open() []entry {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	keys := maps.Clone(l.injected)
	maps.Copy(keys, l.found)
	var entries []entry
	for key := range keys {
		if l.injected[key] != l.found[key] {
			entries = append(entries, entry{key, l.injected[key], l.found[key]})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(abs(b.injected-b.found), abs(a.injected-a.found)), cmp.Compare(a.key, b.key))
	})
	return entries
}

// sums are the totals so far.
func (l *ledger) sums() totals {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return l.totals
}

func abs(n int64) int64 { return max(n, -n) }

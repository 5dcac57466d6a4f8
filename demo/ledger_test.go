package main

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

type booking struct {
	key string
	n   int64
}

func TestLedger(t *testing.T) {
	tests := []struct {
		name            string
		injected, found []booking
		open            []entry
		totals          totals
	}{
		{name: "nothing happened"},
		{
			name: "found as edited", injected: []booking{{"7", 5}, {"8", -3}}, found: []booking{{"8", -3}, {"7", 5}},
			totals: totals{2, 8, 2, 8},
		},
		{
			name: "two edits of one key are found as their sum", injected: []booking{{"7", 5}, {"7", -2}}, found: []booking{{"7", 3}},
			totals: totals{2, 7, 1, 3},
		},
		{
			name: "two edits that cancel out are never found", injected: []booking{{"7", 5}, {"7", -5}},
			totals: totals{2, 10, 0, 0},
		},
		{
			name: "found in two parts", injected: []booking{{"7", 5}, {"7", 4}}, found: []booking{{"7", 5}, {"7", 4}},
			totals: totals{2, 9, 2, 9},
		},
		{
			name: "not found yet", injected: []booking{{"7", 5}}, open: []entry{{"7", 5, 0}},
			totals: totals{1, 5, 0, 0},
		},
		{
			name: "drift that nobody made", found: []booking{{"7", -1}}, open: []entry{{"7", 0, -1}},
			totals: totals{0, 0, 1, 1},
		},
		{
			name: "right in sum and wrong by key", injected: []booking{{"7", 5}}, found: []booking{{"8", 5}},
			open: []entry{{"7", 5, 0}, {"8", 0, 5}}, totals: totals{1, 5, 1, 5},
		},
		{
			name: "largest first", injected: []booking{{"1", 1}, {"2", -30}}, found: []booking{{"3", 4}},
			open: []entry{{"2", -30, 0}, {"3", 0, 4}, {"1", 1, 0}}, totals: totals{2, 31, 1, 4},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := newLedger()
			for _, b := range test.injected {
				l.inject(b.key, b.n)
			}
			for _, b := range test.found {
				l.find(b.key, b.n)
			}
			if got := l.open(); !reflect.DeepEqual(got, test.open) {
				t.Errorf("open %+v, want %+v", got, test.open)
			}
			if got := l.sums(); got != test.totals {
				t.Errorf("totals %+v, want %+v", got, test.totals)
			}
		})
	}
}

func TestDriftLog(t *testing.T) {
	const (
		seven = `{"level":"WARN","msg":"counter drifted","counter":"c","key":"7","displayed":9,"truth":4,"drift":5,"cause":"edited","run":"a"}` + "\n"
		eight = `{"level":"WARN","msg":"counter drifted","counter":"c","key":"8","displayed":1,"truth":2,"drift":-1,"cause":"unknown","run":"a"}` + "\n"
		other = `{"level":"INFO","msg":"listening","address":"127.0.0.1:1"}` + "\n"
		both  = `{"level":"WARN","msg":"counters drifted","counter":"c","keys":2,"over":5,"under":1,"run":"a"}` + "\n"
		more  = `{"level":"WARN","msg":"counters drifted","counter":"c","keys":21,"over":5,"under":0,"run":"a"}` + "\n"
	)
	tests := []struct {
		name   string
		parts  []string // written one after the other, the log is read after each
		found  map[string]int64
		faulty string
	}{
		{name: "empty", parts: []string{""}, found: map[string]int64{}},
		{name: "each line once", parts: []string{other + seven, eight, both, ""}, found: map[string]int64{"7": 5, "8": -1}},
		{name: "half a line waits", parts: []string{seven[:40], seven[40:] + eight[:9], eight[9:] + both}, found: map[string]int64{"7": 5, "8": -1}},
		{name: "not all listed", parts: []string{seven + more}, faulty: "found 21 drifted keys and listed 1"},
		{name: "no JSON", parts: []string{"panic: x\n"}, faulty: "panic: x"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			path, l := filepath.Join(t.TempDir(), "log"), newLedger()
			log := newDriftLog(path, l, &news{})
			written, err := "", error(nil)
			for _, part := range test.parts {
				written += part
				if err := os.WriteFile(path, []byte(written), 0o600); err != nil {
					t.Fatal(err)
				}
				if err = log.read(); err != nil {
					break
				}
			}
			switch {
			case test.faulty != "":
				if err == nil || !strings.Contains(err.Error(), test.faulty) {
					t.Errorf("error %v, want one with %q", err, test.faulty)
				}
			case err != nil || !reflect.DeepEqual(l.found, test.found):
				t.Errorf("found %v, %v, want %v", l.found, err, test.found)
			}
		})
	}
}

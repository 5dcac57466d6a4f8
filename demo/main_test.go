package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// demoVariable makes this binary be the demo.
const demoVariable = "DEMO_RUN"

func TestMain(m *testing.M) {
	if os.Getenv(demoVariable) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestSettings(t *testing.T) {
	tests := []struct {
		name  string
		args  []string
		env   map[string]string
		want  settings
		fault string
	}{
		{name: "defaults", want: settings{rate: 500}},
		{name: "variables", env: map[string]string{"SECONDS": "8", "RATE": "20", "MONGODB_URI": "mongodb://x"}, want: settings{8, 20, "mongodb://x"}},
		{name: "flags win", args: []string{"-seconds", "9"}, env: map[string]string{"SECONDS": "8"}, want: settings{seconds: 9, rate: 500}},
		{name: "no number", env: map[string]string{"RATE": "fast"}, fault: `variable RATE is "fast"`},
		{name: "no time", args: []string{"-seconds", "-1"}, fault: "must not be negative"},
		{name: "no rate", args: []string{"-rate", "0"}, fault: "from 1 to"},
		{name: "argument", args: []string{"now"}, fault: `unexpected argument "now"`},
		{name: "flag", args: []string{"-fast"}, fault: "not defined: -fast"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := readSettings(test.args, func(name string) string { return test.env[name] }, &bytes.Buffer{})
			switch {
			case test.fault != "":
				if err == nil || !strings.Contains(err.Error(), test.fault) {
					t.Errorf("error %v, want one with %q", err, test.fault)
				}
			case err != nil || got != test.want:
				t.Errorf("%+v, %v, want %+v", got, err, test.want)
			}
		})
	}
}

func TestThousands(t *testing.T) {
	for n, want := range map[int64]string{0: "0", 999: "999", 1000: "1,000", 61204: "61,204", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := thousands(n); got != want {
			t.Errorf("thousands(%d) is %q, want %q", n, got, want)
		}
	}
}

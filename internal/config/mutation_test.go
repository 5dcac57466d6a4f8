package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Whatever the file, Load returns a configuration or faults that each stand on a line of it.
func TestLoadNeverPanicsAndAlwaysSaysWhere(t *testing.T) {
	var seeds []string
	for _, name := range []string{"testdata/contract.yaml", "testdata/faults.yaml"} {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, string(data))
	}
	seeds = append(seeds, valid, "")
	file := filepath.Join(t.TempDir(), "driftless.yaml")
	rapid.Check(t, func(t *rapid.T) {
		text := mutate(t, rapid.SampledFrom(seeds).Draw(t, "seed"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(Options{File: file})
		if (c == nil) == (err == nil) {
			t.Fatalf("got %v and %v", c, err)
		}
		var faults *Faults
		if err != nil && !errors.As(err, &faults) {
			t.Fatalf("error is not *Faults: %v", err)
		}
		if faults == nil {
			return
		}
		for _, f := range faults.List {
			if f.Pos.Line < 1 || f.Pos.Line > strings.Count(text, "\n")+1 || strings.Contains(f.Message, "\n") || f.Message == "" {
				t.Fatalf("fault %+v", f)
			}
		}
	})
}

// mutate cuts, doubles and sprinkles what has a meaning in YAML or in our own references.
func mutate(t *rapid.T, text string) string {
	pieces := []string{
		"", " ", "\n", "  ", "\t", ":", ": ", "- ", "{", "}", "[", "]", "\"", "'", "#", "&a ", "*a", "!!str ", "<<: ", "| ", "> ", "? ", "---\n", "...\n",
		"${", "${A}", "$${", "$$NOW", "null", "~", ".inf", "0x1", "1e400", "99999999999999999999", "\x00", "\xff", "é", "%", "@", "`", ",", "{$oid: 1}", "mongodb://u:p@h",
	}
	for range rapid.IntRange(0, 6).Draw(t, "edits") {
		at := rapid.IntRange(0, len(text)).Draw(t, "at")
		end := min(len(text), at+rapid.IntRange(0, 12).Draw(t, "cut"))
		text = text[:at] + rapid.SampledFrom(pieces).Draw(t, "piece") + text[end:]
	}
	return text
}

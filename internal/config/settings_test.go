package config

import (
	"os"
	"reflect"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/pflag"

	"github.com/goccy/go-yaml"
)

// snake is how a field's name stands in the file: MaxBatchEvents is max_batch_events, URIFile is uri_file.
func snake(name string) string {
	var b strings.Builder
	letters := []rune(name)
	for i, c := range letters {
		starts := i > 0 && unicode.IsUpper(c) && (unicode.IsLower(letters[i-1]) || i+1 < len(letters) && unicode.IsLower(letters[i+1]))
		if starts {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(c))
	}
	return b.String()
}

func TestTheTableCoversEveryFieldOfItsSections(t *testing.T) {
	other := map[string]string{
		"mongodb.uri": "mongodb://other", "mongodb.uri_file": "other", "mongodb.state_database": "other",
		"log.level": "warn", "log.format": "json", "incrementer.listen": "other:1", "reconciler.listen": "other:1",
		"reconciler.hold_when_drifted_share": "0.9", "reconciler.costly_key_share": "0.9",
	}
	table := map[string]Setting{}
	for _, s := range Settings {
		table[s.Path] = s
	}
	fields := 0
	whole := reflect.TypeFor[Config]()
	for _, section := range []string{"MongoDB", "Log", "Incrementer", "Reconciler"} {
		part, _ := whole.FieldByName(section)
		for i := range part.Type.NumField() {
			fields++
			path := strings.ToLower(section) + "." + snake(part.Type.Field(i).Name)
			s, ok := table[path]
			if !ok {
				t.Errorf("no setting %s", path)
				continue
			}
			value := other[path]
			if value == "" && strings.Contains(part.Type.Field(i).Type.String(), "Duration") {
				value = "77s"
			} else if value == "" {
				value = "77"
			}
			c, r := Default(), newReader(Options{})
			before := reflect.ValueOf(*c).FieldByName(section).Field(i).Interface()
			s.bind(c)(r, &node{kind: kindText, text: value, loose: true})
			if reflect.DeepEqual(before, reflect.ValueOf(*c).FieldByName(section).Field(i).Interface()) {
				t.Errorf("setting %s = %s does not reach its field: %v", path, value, r.faults.List)
			}
		}
	}
	if fields != len(Settings) {
		t.Errorf("%d settings for %d fields", len(Settings), fields)
	}
}

func TestTheDefaultsAreThoseOfTheContract(t *testing.T) {
	data, err := os.ReadFile("testdata/contract.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var example map[string]map[string]any
	if err := yaml.Unmarshal(data, &example); err != nil {
		t.Fatal(err)
	}
	documented := 0
	for _, s := range Settings {
		_, key, _ := strings.Cut(s.Path, ".")
		value, ok := example[s.Section()][key]
		if !ok {
			if s.Path != "mongodb.uri_file" { // stands in a comment there
				t.Errorf("%s is not in the contract", s.Path)
			}
			continue
		}
		documented++
		want, _ := yaml.Marshal(value)
		if got := strings.TrimSpace(string(want)); got != s.Default && got != "${MONGODB_URI:-"+s.Default+"}" {
			t.Errorf("%s: default %s, the contract says %s", s.Path, s.Default, got)
		}
	}
	for _, section := range sections {
		documented -= len(example[section])
	}
	if documented != 0 {
		t.Errorf("%d settings of the contract have no setting here", -documented)
	}
}

func TestEveryDefaultIsAcceptedByItsOwnCheck(t *testing.T) {
	for _, s := range Settings {
		r := newReader(Options{})
		if s.Default != "" {
			s.bind(&Config{})(r, &node{kind: kindText, text: s.Default, loose: true})
		}
		if len(r.faults.List) > 0 {
			t.Errorf("%s: %v", s.Path, r.faults.List)
		}
	}
}

func TestHelpShowsEverySettingOfTheSectionsWithDefaultAndUnit(t *testing.T) {
	fs := pflag.NewFlagSet("incrementer", pflag.ContinueOnError)
	RegisterFlags(fs, "mongodb", "log", "incrementer")
	help := fs.FlagUsages()
	for _, s := range Settings {
		_, line, found := strings.Cut(help, "--"+s.Flag()+" ")
		line, _, _ = strings.Cut(line, "\n")
		if wanted := s.Section() != "reconciler"; found != wanted {
			t.Errorf("%s in help: %v, want %v", s.Flag(), found, wanted)
		}
		if found && (!strings.Contains(line, s.Unit) || !strings.Contains(line, "default "+s.Default)) {
			t.Errorf("%s: no unit or default in %q", s.Flag(), line)
		}
	}
}

func TestNamesOfFlagsAndVariables(t *testing.T) {
	s := Setting{Path: "incrementer.max_batch_events"}
	if s.Flag() != "incrementer-max-batch-events" || s.Env() != "DRIFTLESS_INCREMENTER_MAX_BATCH_EVENTS" {
		t.Errorf("%s, %s", s.Flag(), s.Env())
	}
}

func TestFromFlagsTakesTheGivenFlagsOnly(t *testing.T) {
	fs := pflag.NewFlagSet("incrementer", pflag.ContinueOnError)
	RegisterFlags(fs, "incrementer", "log")
	if err := fs.Parse([]string{"--incrementer-lease", "9s", "--log-level="}); err != nil {
		t.Fatal(err)
	}
	got := FromFlags(fs, lookup(nil)).Flags
	if want := map[string]string{"incrementer.lease": "9s", "log.level": ""}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTheFileIsNamedByFlagThenVariableThenDefault(t *testing.T) {
	for _, test := range []struct {
		args []string
		env  map[string]string
		want string
	}{
		{nil, nil, "driftless.yaml"},
		{nil, map[string]string{"DRIFTLESS_CONFIG": "env.yaml"}, "env.yaml"},
		{nil, map[string]string{"DRIFTLESS_CONFIG": ""}, "driftless.yaml"},
		{[]string{"--config", "flag.yaml"}, map[string]string{"DRIFTLESS_CONFIG": "env.yaml"}, "flag.yaml"},
	} {
		fs := pflag.NewFlagSet("x", pflag.ContinueOnError)
		RegisterFlags(fs)
		if err := fs.Parse(test.args); err != nil {
			t.Fatal(err)
		}
		if got := FromFlags(fs, lookup(test.env)).File; got != test.want {
			t.Errorf("%v %v: got %s, want %s", test.args, test.env, got, test.want)
		}
	}
}

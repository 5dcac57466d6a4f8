package counter_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

func value(t *testing.T, v any) bson.RawValue {
	t.Helper()
	kind, data, err := bson.MarshalValue(v)
	if err != nil {
		t.Fatal(err)
	}
	return bson.RawValue{Type: kind, Value: data}
}

func TestKeysThatAreWrittenTheSameAreFoundFromEachOther(t *testing.T) {
	t.Parallel()
	id, at := bson.NewObjectID(), time.Date(2026, 1, 31, 8, 0, 0, 5e6, time.UTC)
	uuid := "00112233-4455-6677-8899-aabbccddeeff"
	data := []byte{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}
	for _, pair := range [][2]any{
		{"42", int32(42)}, {"42", int64(42)}, {"-7", int32(-7)}, {"1.5", 1.5}, {id.Hex(), id}, {"true", true},
		{at.Format(time.RFC3339Nano), bson.NewDateTimeFromTime(at)}, {uuid, bson.Binary{Subtype: 4, Data: data}}, {uuid, bson.Binary{Subtype: 3, Data: data}},
	} {
		for _, one := range [][2]any{pair, {pair[1], pair[0]}} {
			want := counter.Canonical(value(t, one[1]))
			if !slices.ContainsFunc(counter.OtherForms(value(t, one[0])), func(v bson.RawValue) bool { return counter.Canonical(v) == want }) {
				t.Errorf("%v (%T) does not lead to %v (%T)", one[0], one[0], one[1], one[1])
			}
		}
	}
	for _, none := range []any{"a name", "", bson.D{{Key: "a", Value: 1}}, "1"} {
		if forms := counter.OtherForms(value(t, none)); len(forms) > 1 || none != "1" && len(forms) != 0 {
			t.Errorf("%v leads to %v", none, forms)
		}
	}
}

// A key that a command names must reach the program as the same key, through a shell.
func TestKeyArgumentsAreReadAgainThroughAShell(t *testing.T) {
	t.Parallel()
	for _, key := range []any{
		42, int64(1) << 60, -5, 1.5, "name", "42", "true", "null", "two words", "it's", `"quoted"`, "", "$HOME", "-x", "ü", bson.NewObjectID(), "6b0e014554849a0878ce723b",
		true, bson.D{{Key: "a", Value: "it's"}}, bson.NewDateTimeFromTime(time.Unix(1700000000, 0)), bson.Binary{Subtype: 4, Data: make([]byte, 16)},
	} {
		want := value(t, key)
		out, err := exec.Command("sh", "-c", "printf %s "+counter.KeyArgument(want)).Output()
		if err != nil {
			t.Fatalf("%v: %v", key, err)
		}
		got, err := counter.ParseKey(string(out))
		if err != nil || counter.Canonical(got) != counter.Canonical(want) || got.Type != want.Type && !got.IsNumber() {
			t.Errorf("%v becomes %s, read as %v: %v", key, out, got, err)
		}
	}
	if key, err := counter.ParseKey(`{"$uuid": "00112233-4455-6677-8899-aabbccddeeff"}`); err != nil || key.Type != bson.TypeBinary {
		t.Errorf("a UUID as hints write it: %v, %v", key, err)
	}
	if arg := counter.KeyArgument(value(t, "name")); strings.ContainsAny(arg, `'"`) {
		t.Errorf("a name needs no quotes: %s", arg)
	}
}

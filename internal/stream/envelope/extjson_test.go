package envelope_test

import (
	"math"
	"strconv"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"

	"driftless/internal/stream/envelope"
)

// decode reads a row out of an insert that a connector published.
func decode(row []byte) (bson.Raw, error) {
	event := `{"_id": 1, "operationType": "insert", "clusterTime": {"$timestamp": {"t": 1, "i": 1}}, "documentKey": {"_id": 1}, "fullDocument": `
	c, err := envelope.New(sources["change_stream"]).Decode(nil, []byte(event+string(row)+"}"))
	return c.After, err
}

// TestRowsComeOutOfExtendedJSONAsTheyWentIn, of both forms, in an object and in a string.
func TestRowsComeOutOfExtendedJSONAsTheyWentIn(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		row := must[[]byte](t)(bson.Marshal(drawDocument(t, 3)))
		for _, canonical := range []bool{true, false} {
			text := must[[]byte](t)(bson.MarshalExtJSON(bson.Raw(row), canonical, false))
			var want bson.Raw
			check(t, bson.UnmarshalExtJSON(text, canonical, &want))
			if canonical && string(want) != string(row) {
				t.Fatalf("the driver changes %s to %s", bson.Raw(row), want)
			}
			for _, published := range [][]byte{text, []byte(strconv.Quote(string(text)))} {
				got, err := decode(published)
				if err != nil || string(got) != string(want) {
					t.Fatalf("%s:\ngot  %v, %v\nwant %v", published, got, err, want)
				}
			}
		}
	})
}

func drawDocument(t *rapid.T, depth int) bson.D {
	names := []string{"a", "b", "post_id", "é", "with space", "quote\"", "a.b", "0", ""}
	d := bson.D{}
	seen := map[string]bool{}
	for range rapid.IntRange(0, 4).Draw(t, "fields") {
		name := rapid.SampledFrom(names).Draw(t, "name")
		if !seen[name] {
			seen[name] = true
			d = append(d, bson.E{Key: name, Value: drawValue(t, depth)})
		}
	}
	return d
}

func drawValue(t *rapid.T, depth int) any {
	switch n := rapid.IntRange(0, 10).Draw(t, "kind"); {
	case n == 0 && depth > 0:
		return drawDocument(t, depth-1)
	case n == 1 && depth > 0:
		items := bson.A{}
		for range rapid.IntRange(0, 3).Draw(t, "items") {
			items = append(items, drawValue(t, depth-1))
		}
		return items
	case n == 2:
		return rapid.Int32().Draw(t, "int")
	case n == 3:
		return rapid.Int64().Draw(t, "long")
	case n == 4:
		return rapid.Float64().Draw(t, "double")
	case n == 5:
		return rapid.StringMatching(`[a-zé😀"\\/ {}\[\],:\n\t$]{0,12}`).Draw(t, "text")
	case n == 6:
		return bson.DateTime(rapid.Int64Range(-62135596800000, 253402300799999).Draw(t, "date"))
	default:
		return rapid.SampledFrom(singles).Draw(t, "single")
	}
}

var singles = []any{
	nil, true, false, "", "$a", bson.ObjectID{1, 2, 3}, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1e300, 1.0,
	bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.Binary{}, bson.Regex{Pattern: "a/\"", Options: "i"}, bson.Timestamp{T: 1, I: 2},
	bson.MinKey{}, bson.MaxKey{}, bson.Undefined{}, bson.JavaScript("f()"), bson.CodeWithScope{Code: "f()", Scope: bson.D{{Key: "x", Value: 1}}},
	bson.Symbol("s"), bson.DBPointer{DB: "a.b", Pointer: bson.ObjectID{1}}, bson.NewDecimal128(3476778912330022912, 15),
	bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: int32(1)}}, bson.D{{Key: "$ne", Value: nil}}, bson.D{{Key: "$", Value: "x"}},
}

// TestWhatTheDriverRefusesIsRefused, and what it would read as something else than was meant.
func TestWhatTheDriverRefusesIsRefused(t *testing.T) {
	t.Parallel()
	for _, value := range []string{
		`{"$oid": "5f"}`, `{"$oid": 5}`, `{"$oid": "5f5f5f5f5f5f5f5f5f5f5f5f", "x": 1}`, `{"$numberLong": 5}`, `{"$numberLong": "9223372036854775808"}`,
		`{"$numberInt": "2147483648"}`, `{"$numberDouble": "x"}`, `{"$numberDecimal": "x"}`, `{"$date": "2026-01-02"}`, `{"$date": null}`, `{"$date": 1.5}`,
		`{"$timestamp": {"t": -1, "i": 0}}`, `{"$timestamp": 5}`, `{"$binary": {"base64": "?", "subType": "00"}}`, `{"$minKey": 2}`, `{"$undefined": false}`,
		`{"$uuid": "x"}`, `9223372036854775808`, `1e400`, `{"a\u0000": 1}`, `{"$regex": "a\u0000", "$options": ""}`,
	} {
		if got, err := decode([]byte(`{"v": ` + value + `}`)); err == nil {
			t.Errorf("%s: got %v, want an error", value, got)
		}
	}
	deep := ""
	for range 300 {
		deep += `{"a": [`
	}
	for range 300 {
		deep += `]}`
	}
	if _, err := decode([]byte(deep)); err == nil {
		t.Error("600 levels are read")
	}
}

// checker is what *testing.T and *rapid.T have in common.
type checker interface {
	Helper()
	Fatalf(format string, args ...any)
}

func check(t checker, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

func must[T any](t checker) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		check(t, err)
		return v
	}
}

func BenchmarkDecode(b *testing.B) {
	for format, want := range map[string]int{"event": 0, "debezium": 0, "change_stream": 0} {
		r := readGolden(b, format)[want]
		decoder := envelope.New(sources[format])
		b.Run(format, func(b *testing.B) {
			b.SetBytes(int64(len(r.value)))
			b.ReportAllocs()
			start := time.Now()
			for b.Loop() {
				if _, err := decoder.Decode([]byte(r.key), []byte(r.value)); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds(), "records/s")
		})
	}
}

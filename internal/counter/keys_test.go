package counter_test

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
)

// usableKeys are keys in groups: the values of one group are one counter, whatever their types.
func usableKeys(t checker) [][]any {
	t.Helper()
	uuid := bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}
	return [][]any{
		{int32(1), int64(1), 1.0, decimal(t, "1"), decimal(t, "1.0"), decimal(t, "10E-1")},
		{0, 0.0, math.Copysign(0, -1), decimal(t, "0"), decimal(t, "-0"), decimal(t, "0E+10")},
		{math.NaN(), decimal(t, "NaN")},
		{math.Inf(1), decimal(t, "Infinity")},
		{math.Inf(-1), decimal(t, "-Infinity")},
		{1.5, decimal(t, "1.5")},
		{0.1}, // no decimal of one digit is this double
		{decimal(t, "0.1")},
		{int64(1<<53 + 1), decimal(t, "9007199254740993")},
		{int64(1 << 53), float64(1 << 53)},
		{int64(math.MaxInt64)},
		{float64(1 << 63), decimal(t, "9223372036854775808")},
		{int64(math.MinInt64), float64(-1 << 63)},
		{"1"},
		{"", bson.Symbol("")},
		{"a", bson.Symbol("a")},
		{"A"},
		{"á"}, {"a\u0301"},
		{"$a"}, {"$$ROOT"}, {"$"},
		{"a.b"}, {"null"}, {strings.Repeat("long", 2500)}, {strings.Repeat("long", 2500) + "er"},
		{bson.ObjectID{1}}, {bson.ObjectID{2}},
		{uuid}, {bson.Binary{Subtype: 0, Data: uuid.Data}}, {bson.Binary{Subtype: 0x80, Data: uuid.Data}}, {bson.Binary{}},
		{deletedAt}, {bson.DateTime(-1)}, {bson.Timestamp{T: 1, I: 2}}, {bson.Timestamp{T: 2, I: 1}},
		{true}, {false},
		{bson.MinKey{}}, {bson.MaxKey{}},
		{bson.JavaScript("a")},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{}}},
		{bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}}, bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1.0}}}},
		{bson.DBPointer{DB: "a", Pointer: bson.ObjectID{1}}},
		{bson.D{}},
		{bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}, bson.D{{Key: "a", Value: 1.0}, {Key: "b", Value: decimal(t, "2")}}},
		{bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}}},
		{bson.D{{Key: "a", Value: 1}}},
		{bson.D{{Key: "", Value: 1}}}, {bson.D{{Key: "é", Value: 1}}}, {bson.D{{Key: "a.b", Value: 1}}}, {bson.D{{Key: "a$", Value: 1}}},
		{bson.D{{Key: "a", Value: nil}}}, {bson.D{{Key: "a", Value: bson.Undefined{}}}},
		{bson.D{{Key: "a", Value: "x"}}, bson.D{{Key: "a", Value: bson.Symbol("x")}}},
		{bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "b", Value: 0.0}}}}}, bson.D{{Key: "a", Value: bson.A{1.0, bson.D{{Key: "b", Value: decimal(t, "-0")}}}}}},
		{bson.D{{Key: "a", Value: bson.A{}}}}, {bson.D{{Key: "a", Value: bson.D{}}}},
		{bson.D{{Key: "a", Value: bson.Regex{Pattern: "x"}}}},
		{bson.D{{Key: "a", Value: "$b"}}},
		{nested(5, "a")},
	}
}

// unusableKeys are what a row may hold where its key should be, and no document can have for its _id.
var unusableKeys = []any{
	nil, bson.Undefined{}, bson.A{}, bson.A{1}, bson.A{"a", "b"}, bson.A{bson.D{{Key: "a", Value: 1}}}, bson.A{nil}, bson.A{bson.A{1}},
	bson.Regex{Pattern: "^a"}, bson.Regex{Pattern: ".*", Options: "i"},
	bson.D{{Key: "$ne", Value: nil}}, bson.D{{Key: "$gt", Value: ""}}, bson.D{{Key: "a", Value: 1}, {Key: "$b", Value: 1}}, bson.D{{Key: "$", Value: 1}},
	bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: 1}},
	bson.D{{Key: "a", Value: bson.D{{Key: "$b", Value: 1}}}},
	bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "$b", Value: 1}}}}},
	bson.D{{Key: "a", Value: bson.A{bson.A{bson.D{{Key: "b", Value: bson.D{{Key: "$c", Value: 1}}}}}}}},
	bson.D{{Key: "a", Value: bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "$b", Value: 1}}}}},
	nested(4, "$a"), nested(5, "$a"), nested(100, "$a"), nested(6, "a"),
}

// nested is a document of that many levels whose innermost field has the given name.
func nested(levels int, name string) bson.D {
	document := bson.D{{Key: name, Value: 1}}
	for range levels - 1 {
		document = bson.D{{Key: "a", Value: document}}
	}
	return document
}

func TestEveryUsableKeyHasOneCounter(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key"}, config.Counter{Name: "dotted", Key: "doc.sub.key"})
	groups := usableKeys(t)
	want := map[string]int64{}
	var writes []mongo.WriteModel
	// Backwards as well, so that every value of a group is once the first that its counter meets.
	for i, group := range groups {
		for j := range group {
			first, second := group[j], group[len(group)-1-j]
			writes = append(writes,
				insert(bson.D{{Key: "key", Value: first}, {Key: "doc", Value: bson.D{{Key: "sub", Value: bson.D{{Key: "key", Value: second}}}}}}),
				insert(bson.D{{Key: "key", Value: second}, {Key: "doc", Value: bson.D{{Key: "sub", Value: bson.D{{Key: "key", Value: first}}}}}}))
			want[canonical(t, group[j])] += 2
		}
		if n := want[canonical(t, group[0])]; n != int64(2*len(group)) {
			t.Fatalf("group %d, %v: %d of its %d values have the canonical form of the first, or others have it too", i, group, n/2, len(group))
		}
	}
	d.write(t, writes...)
	if events := d.catchUp(t); events != len(writes) {
		t.Errorf("events: got %d, want %d", events, len(writes))
	}
	for _, name := range []string{"plain", "dotted"} {
		diffCounts(t, name+" displayed", d.displayed(t, name), want)
		diffCounts(t, name+" recounted", d.recounted(t, name), want)
		if n := must[int64](t)(d.definition(t, name).RowsWithoutKey(t.Context(), d.client)); n != 1 { // the marker's
			t.Errorf("%s: rows without a key: got %d, want 1", name, n)
		}
	}
	d.wantApart(t, 0)
	// As many documents as groups: no two keys of one group made two.
	if n := must[int64](t)(d.targets(d.definitions[0]).CountDocuments(t.Context(), bson.D{{Key: "plain_live", Value: bson.D{{Key: "$exists", Value: true}}}})); n != int64(len(groups)) {
		t.Errorf("counter documents: got %d, want %d", n, len(groups))
	}
}

// wantApart holds the number of deltas that no document could take.
func (d *deployment) wantApart(t testing.TB, want int64) {
	t.Helper()
	if n := must[int64](t)(d.database.Collection(counter.DeadLettersCollection).CountDocuments(t.Context(), bson.D{})); n != want {
		t.Errorf("increments set apart: got %d, want %d", n, want)
	}
}

// TestRowsWithAnUnusableKeyCountForNothing, in events and recounts alike, and are counted apart. A text in a row must
// not become a condition on counters either: {$ne: null} would be all of them.
func TestRowsWithAnUnusableKeyCountForNothing(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "plain", Key: "key"})
	d.write(t, insert(bson.D{{Key: "_id", Value: "good"}, {Key: "key", Value: "a"}}))
	d.catchUp(t)
	without := int64(1) // the marker's row
	for i, key := range unusableKeys {
		without++
		d.write(t, insert(bson.D{{Key: "_id", Value: i}, {Key: "key", Value: key}}))
	}
	d.write(t, insert(bson.D{{Key: "_id", Value: "none"}}))
	without++
	if events := d.catchUp(t); events != 0 {
		t.Errorf("events of rows without a key: got %d, want none", events)
	}
	d.wantCounts(t, "plain", map[any]int64{"a": 1})
	if n := must[int64](t)(d.definition(t, "plain").RowsWithoutKey(t.Context(), d.client)); n != without {
		t.Errorf("rows without a key: got %d, want %d", n, without)
	}

	// A good row whose key goes bad leaves its counter, and one whose key becomes good enters it.
	d.write(t, set("good", bson.D{{Key: "key", Value: bson.D{{Key: "$ne", Value: nil}}}}), set(0, bson.D{{Key: "key", Value: "b"}}))
	if events := d.catchUp(t); events != 2 {
		t.Errorf("events: got %d, want 2", events)
	}
	d.wantCounts(t, "plain", map[any]int64{"a": 0, "b": 1})
	d.wantApart(t, 0)
}

// TestRowsWithoutAKeyAreFoundWithoutReadingEveryRow, as long as no key is an array: a full pass counts them.
func TestRowsWithoutAKeyAreFoundWithoutReadingEveryRow(t *testing.T) {
	t.Parallel()
	d := prepare(t, config.Counter{Name: "dotted", Key: "doc.key", SoftDelete: "gone"})
	definition := d.definitions[0]
	_, err := d.rows().Indexes().CreateOne(t.Context(), definition.RowsIndex().Model())
	check(t, err)
	const usable = 500
	rows := []any{bson.D{}, bson.D{{Key: "doc", Value: 1}}, bson.D{{Key: "doc", Value: nil}}, bson.D{{Key: "doc", Value: bson.D{{Key: "key", Value: bson.D{}}}}}}
	want := len(rows) - 1 // an empty document is a key
	for _, key := range unusableKeys {
		if raw(t, key).Type != bson.TypeArray {
			rows = append(rows, bson.D{{Key: "doc", Value: bson.D{{Key: "key", Value: key}}}})
			want++
		}
	}
	suspects := len(rows)
	for i := range usable {
		rows = append(rows, bson.D{{Key: "doc", Value: bson.D{{Key: "key", Value: numbers(i, i+1)[0]}}}})
	}
	must[*mongo.InsertManyResult](t)(d.rows().InsertMany(t.Context(), rows))
	seen := d.examined(t, func() { d.wantWithoutKey(t, definition, want) })
	if len(seen) != 1 || max(seen[0].KeysExamined, seen[0].DocsExamined) > 2*suspects {
		t.Errorf("%+v read for %d rows that may have none", seen, suspects)
	}
	must[*mongo.InsertManyResult](t)(d.rows().InsertMany(t.Context(), []any{
		bson.D{{Key: "doc", Value: bson.A{bson.D{{Key: "key", Value: 1}}}}}, bson.D{{Key: "doc", Value: bson.D{{Key: "key", Value: bson.A{1}}}}},
	}))
	d.wantWithoutKey(t, definition, want+2)
}

func (d *deployment) wantWithoutKey(t testing.TB, definition *counter.Definition, want int) {
	t.Helper()
	if n := must[int64](t)(definition.RowsWithoutKey(t.Context(), d.client)); n != int64(want) {
		t.Errorf("rows without a key: got %d, want %d", n, want)
	}
}

func TestADottedKeyDoesNotLeadThroughAnArray(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "dotted", Key: "a.b.c"})
	key := func(v any) bson.D { return bson.D{{Key: "c", Value: v}} }
	good := []any{bson.D{{Key: "b", Value: key(1)}}, bson.D{{Key: "b", Value: key("x")}}, bson.D{{Key: "b", Value: key(bson.D{{Key: "d", Value: 1}})}}}
	bad := []any{
		nil, 1, "x", bson.D{}, bson.A{}, bson.A{1, 2}, bson.D{{Key: "b", Value: nil}}, bson.D{{Key: "b", Value: 1}}, bson.D{{Key: "b.c", Value: 1}},
		bson.D{{Key: "b", Value: key(nil)}}, bson.D{{Key: "b", Value: key(bson.A{1})}}, bson.D{{Key: "b", Value: key(bson.A{})}},
		bson.D{{Key: "b", Value: bson.A{}}}, bson.D{{Key: "b", Value: bson.A{1}}}, bson.D{{Key: "b", Value: bson.A{key(1)}}},
		bson.D{{Key: "b", Value: bson.A{key(1), key(2)}}}, bson.D{{Key: "b", Value: bson.A{bson.A{key(1)}}}},
		bson.A{bson.D{{Key: "b", Value: key(1)}}}, bson.A{bson.D{{Key: "b", Value: key(1)}}, bson.D{{Key: "b", Value: key(2)}}},
		bson.A{bson.D{{Key: "b", Value: bson.A{key(1)}}}}, bson.A{bson.A{bson.D{{Key: "b", Value: key(1)}}}}, bson.A{bson.D{{Key: "x", Value: 1}}},
	}
	for _, index := range []bool{false, true} {
		t.Run(fmt.Sprintf("index %t", index), func(t *testing.T) {
			_, err := d.rows().DeleteMany(t.Context(), bson.D{})
			check(t, err)
			if index {
				_, err := d.rows().Indexes().CreateOne(t.Context(), d.definition(t, "dotted").RowsIndex().Model())
				check(t, err)
			}
			for _, a := range append(good, bad...) {
				d.write(t, insert(bson.D{{Key: "a", Value: a}}))
			}
			d.catchUp(t)
			want := map[string]int64{canonical(t, 1): 1, canonical(t, "x"): 1, canonical(t, bson.D{{Key: "d", Value: 1}}): 1}
			diffCounts(t, "displayed", d.displayed(t, "dotted"), want)
			diffCounts(t, "recounted", d.recounted(t, "dotted"), want)
			if n := must[int64](t)(d.definition(t, "dotted").RowsWithoutKey(t.Context(), d.client)); n != int64(len(bad)+1) {
				t.Errorf("rows without a key: got %d, want %d", n, len(bad)+1)
			}
		})
	}
}

// TestCanonicalFormsAreEqualExactlyWhenTheServerHoldsOneDocument asks the server in both ways that matter: as the _id
// of documents, which counters live by, and as the groups of a recount.
func TestCanonicalFormsAreEqualExactlyWhenTheServerHoldsOneDocument(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	collection := client.Database(realtest.Database(t)).Collection("keys")
	rapid.Check(t, func(t *rapid.T) {
		_, err := collection.DeleteMany(t.Context(), bson.D{})
		check(t, err)
		drawn := rapid.SliceOfN(rapid.Custom(drawKey), 2, 60).Draw(t, "keys")
		askServer(t, collection, drawn)
	})
}

// TestCanonicalFormsOfAllKeysInOneRound is the same for the keys of all other tests.
func TestCanonicalFormsOfAllKeysInOneRound(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	collection := client.Database(realtest.Database(t)).Collection("keys")
	var all []any
	for _, group := range usableKeys(t) {
		all = append(all, group...)
	}
	for _, v := range append(values, all...) {
		all = append(all, bson.D{{Key: "v", Value: v}})
	}
	askServer(t, collection, all)
}

// askServer inserts documents with the given keys, in their order, and groups rows by them. What is no key is left out.
func askServer(t checker, collection *mongo.Collection, keys []any) {
	t.Helper()
	documents := make([]any, len(keys))
	for i, key := range keys {
		documents[i] = bson.D{{Key: "_id", Value: key}, {Key: "n", Value: i}}
	}
	_, err := collection.InsertMany(t.Context(), documents, options.InsertMany().SetOrdered(false))
	refused := map[int]int{}
	var bulk mongo.BulkWriteException
	if errors.As(err, &bulk) && bulk.WriteConcernError == nil {
		for _, fault := range bulk.WriteErrors {
			refused[fault.Index] = fault.Code
		}
	} else {
		check(t, err)
	}
	const duplicateKey = 11000
	first := map[string]int{}
	var literals bson.A
	for i, key := range keys {
		code, wasRefused := refused[i]
		if wasRefused && code != duplicateKey {
			continue
		}
		form := canonical(t, key)
		of, known := first[form]
		switch {
		case known && !wasRefused:
			t.Fatalf("%v and %v have one canonical form, and are two documents", describe(t, keys[of]), describe(t, key))
		case !known && wasRefused:
			t.Fatalf("%v is a document's _id already, and its canonical form is new: keys %v", describe(t, key), describeAll(t, keys[:i]))
		case !known:
			first[form] = i
		}
		literals = append(literals, bson.D{{Key: "k", Value: bson.D{{Key: "$literal", Value: key}}}})
	}
	if len(literals) == 0 {
		return
	}
	cursor, err := collection.Database().Aggregate(t.Context(), bson.A{
		bson.D{{Key: "$documents", Value: literals}},
		bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$k"}}}},
	}, options.Aggregate().SetCollation(&options.Collation{Locale: "simple"}))
	check(t, err)
	var groups []struct {
		ID bson.RawValue `bson:"_id"`
	}
	check(t, cursor.All(t.Context(), &groups))
	grouped := map[string]bool{}
	for _, group := range groups {
		form := counter.Canonical(group.ID)
		if _, known := first[form]; !known || grouped[form] {
			t.Fatalf("group %v: not among the documents, or twice", describe(t, group.ID))
		}
		grouped[form] = true
	}
	if len(grouped) != len(first) {
		t.Fatalf("%d groups of %d documents", len(grouped), len(first))
	}
}

func describe(t checker, v any) string {
	value := raw(t, v)
	return fmt.Sprintf("%s %s", value.Type, value)
}

func describeAll(t checker, keys []any) []string {
	all := make([]string, len(keys))
	for i, key := range keys {
		all[i] = describe(t, key)
	}
	return all
}

// drawKey draws keys that are often nearly equal: numbers around the edges at which types stop holding each other's
// values, in every type, and documents of them.
func drawKey(t *rapid.T) any {
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return anyValue(t)
	case 1:
		name := rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "name")
		return bson.D{{Key: name, Value: drawKey(t)}}
	default:
		return drawNumber(t)
	}
}

func drawNumber(t *rapid.T) any {
	edge := rapid.SampledFrom([]float64{0, 1, 10, 0.1, 1.1, 1 << 31, 1 << 53, 1 << 62, 1 << 63, 1 << 64, 1e15, 1e18, 1e19, 1e22, 1e34, 1e300, 5e-324, math.MaxFloat64, math.Pi}).Draw(t, "edge")
	f := edge
	for range rapid.IntRange(0, 3).Draw(t, "steps") {
		f = math.Nextafter(f, math.Inf(1))
	}
	if rapid.Bool().Draw(t, "negative") {
		f = -f
	}
	step := int64(rapid.IntRange(-2, 2).Draw(t, "step"))
	switch rapid.IntRange(0, 5).Draw(t, "type") {
	case 0:
		return f
	case 1:
		if math.Abs(f) < 1<<31 {
			return int32(f)
		}
		return f
	case 2:
		if f >= -1<<63 && f < 1<<63 {
			return int64(f) + step // wraps at the edges, which are keys as well
		}
		return int64(math.MaxInt64) + min(step, 0)
	case 3: // the decimal that the server takes for this double
		return parseDecimal(t, strconv.FormatFloat(f, 'e', 33, 64))
	case 4: // the decimal that people take for it
		return parseDecimal(t, strconv.FormatFloat(f, 'g', -1, 64))
	default: // a decimal beside it, with trailing zeros or without
		digits := strconv.FormatFloat(f, 'e', rapid.SampledFrom([]int{0, 15, 16, 17, 32}).Draw(t, "digits"), 64)
		return parseDecimal(t, digits)
	}
}

// parseDecimal is the decimal of a number, 1 for one that no decimal holds.
func parseDecimal(t *rapid.T, digits string) any {
	d, err := bson.ParseDecimal128(digits)
	if err != nil {
		return decimal(t, "1")
	}
	return d
}

// TestUsableIsTheServersOwnAnswer: what keeps a key out of a counter in Go is what does in an expression, and so no
// usable key is refused as an _id.
func TestUsableIsTheServersOwnAnswer(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	collection := client.Database(realtest.Database(t)).Collection("keys")
	d := deploy(t, config.Counter{Name: "plain", Key: "key"})
	rapid.Check(t, func(t *rapid.T) {
		_, err := d.rows().DeleteMany(t.Context(), bson.D{})
		check(t, err)
		_, err = collection.DeleteMany(t.Context(), bson.D{})
		check(t, err)
		var rows []mongo.WriteModel
		var ids []any
		unusable, seen := 0, map[string]bool{}
		for _, key := range rapid.SliceOfN(rapid.Custom(drawNested), 1, 40).Draw(t, "keys") {
			rows = append(rows, insert(bson.D{{Key: "key", Value: key}}))
			if !counter.Usable(raw(t, key)) {
				unusable++
			} else if form := canonical(t, key); !seen[form] {
				seen[form] = true
				ids = append(ids, bson.D{{Key: "_id", Value: key}})
			}
		}
		d.write(t, rows...)
		if len(ids) > 0 {
			if _, err := collection.InsertMany(t.Context(), ids); err != nil {
				t.Fatalf("a usable key is refused as an _id: %v", err)
			}
		}
		counted := 0
		for key, n := range d.recounted(t, "plain") {
			if n > 0 {
				counted++
				if !seen[key] {
					t.Fatalf("%q is counted by the server and not usable", key)
				}
			}
		}
		if counted != len(seen) {
			t.Fatalf("%d keys counted, %d usable", counted, len(seen))
		}
		if n := must[int64](t)(d.definition(t, "plain").RowsWithoutKey(t.Context(), d.client)); n != int64(unusable) {
			t.Fatalf("%d rows without a key, %d keys not usable", n, unusable)
		}
	})
}

// drawNested draws values that are nested about as deep as keys are looked into, some with a field that no _id has.
func drawNested(t *rapid.T) any {
	value := anyValue(t)
	for range rapid.IntRange(0, 6).Draw(t, "levels") {
		switch rapid.IntRange(0, 7).Draw(t, "level") {
		case 0, 1:
			value = bson.A{value, 1}
		case 2:
			value = bson.D{{Key: "a", Value: 1}, {Key: "b", Value: value}}
		case 3:
			value = bson.D{{Key: rapid.SampledFrom([]string{"$a", "$", "é", "a$"}).Draw(t, "name"), Value: value}}
		default:
			value = bson.D{{Key: "a", Value: value}}
		}
	}
	return value
}

// TestDecimalsThatNobodyWritesAreCanonicalToo: 34 digits hold less than the bits for them, and what is beyond counts
// as zero.
func TestDecimalsThatNobodyWritesAreCanonicalToo(t *testing.T) {
	t.Parallel()
	client := realtest.Client(t, realtest.Shared(t).URI())
	collection := client.Database(realtest.Database(t)).Collection("keys")
	const exponentZero = uint64(6176) << 49
	askServer(t, collection, []any{
		0, bson.NewDecimal128(exponentZero|0x1ed09bead87c0, 0x378d8e63ffffffff), // 10^34 - 1, the largest
		bson.NewDecimal128(exponentZero|0x1ed09bead87c0, 0x378d8e6400000000), // 10^34
		bson.NewDecimal128(exponentZero|(1<<49-1), math.MaxUint64),           // all bits of the digits
		bson.NewDecimal128(3<<61|uint64(6176)<<47, 1),                        // the form for larger digits
		bson.NewDecimal128(1<<63|exponentZero|(1<<49-1), math.MaxUint64),
		decimal(t, "1E+6111"), decimal(t, "10E+6110"), decimal(t, "1E-6176"),
		bson.NewDecimal128(0x7c<<56, 1), bson.NewDecimal128(0xfc<<56, 0), bson.NewDecimal128(0x7e<<56, 0), math.NaN(), // quiet, negative, signalling
		bson.NewDecimal128(0x78<<56, 1), math.Inf(1), bson.NewDecimal128(0xf8<<56, 1), math.Inf(-1),
	})
}

func TestParseKeyReadsWhatAnOperatorWrites(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want any
	}{
		{"5", int32(5)}, {"5000000000", int64(5000000000)}, {"-1.5", -1.5}, {`"5"`, "5"}, {"true", true}, {"abc", "abc"}, {"", ""}, {"a b", "a b"},
		{"0123456789abcdef01234567", bson.ObjectID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67}},
		{`{"$oid": "0123456789abcdef01234567"}`, bson.ObjectID{0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67}},
		{`{"$numberLong": "1"}`, int64(1)}, {`{"$numberDouble": "NaN"}`, math.NaN()}, {`{"a": 1, "b": "x"}`, bson.D{{Key: "a", Value: int32(1)}, {Key: "b", Value: "x"}}},
		{`"0123456789abcdef01234567"`, "0123456789abcdef01234567"}, {"$a", "$a"}, {"null-ish", "null-ish"},
		{`1, "k": 2`, `1, "k": 2`}, {`1} trailing`, `1} trailing`}, {"5 apples", "5 apples"}, {"007", "007"}, {" 5 ", int32(5)},
	} {
		got, err := counter.ParseKey(c.text)
		if err != nil {
			t.Errorf("%q: %v", c.text, err)
			continue
		}
		if want := raw(t, c.want); got.Type != want.Type || string(got.Value) != string(want.Value) {
			t.Errorf("%q: got %v, want %v", c.text, describe(t, got), describe(t, want))
		}
	}
	for _, text := range []string{
		`{"a": `, `{a: 1}`, `{"$oid": "x"}`, ` {`, "null", "[1]", `{"$undefined": true}`, `{"$regularExpression": {"pattern": "a", "options": ""}}`,
		`{"$ne": null}`, `{"a": {"$b": 1}}`,
	} {
		if got, err := counter.ParseKey(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, describe(t, got))
		}
	}
}

package deployment

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/counter"
)

func keys(pairs ...any) bson.D {
	var d bson.D
	for i := 0; i < len(pairs); i += 2 {
		d = append(d, bson.E{Key: pairs[i].(string), Value: pairs[i+1]})
	}
	return d
}

func TestWhichIndexServesARecount(t *testing.T) {
	wanted := keys("post_id", 1, "deleted_at", 1)
	french := struct{ Locale string }{"fr"}
	for name, tt := range map[string]struct {
		index existingIndex
		want  bool
	}{
		"the very one":             {existingIndex{Key: keys("post_id", int32(1), "deleted_at", int32(1))}, true},
		"descending":               {existingIndex{Key: keys("post_id", -1.0, "deleted_at", 1.0)}, true},
		"with more behind":         {existingIndex{Key: keys("post_id", 1, "deleted_at", 1, "at", 1)}, true},
		"with more between":        {existingIndex{Key: keys("post_id", 1, "at", 1, "deleted_at", 1)}, true},
		"simple collation":         {existingIndex{Key: wanted, Collation: struct{ Locale string }{"simple"}}, true},
		"one field short":          {existingIndex{Key: keys("post_id", 1)}, false},
		"wrong order":              {existingIndex{Key: keys("deleted_at", 1, "post_id", 1)}, false},
		"other field first":        {existingIndex{Key: keys("at", 1, "post_id", 1, "deleted_at", 1)}, false},
		"hashed key":               {existingIndex{Key: keys("post_id", "hashed", "deleted_at", 1)}, false},
		"hashed beside":            {existingIndex{Key: keys("post_id", 1, "deleted_at", "hashed")}, false},
		"text behind":              {existingIndex{Key: keys("post_id", 1, "deleted_at", 1, "_fts", "text", "_ftsx", 1)}, false},
		"sphere behind, so sparse": {existingIndex{Key: keys("post_id", 1, "deleted_at", 1, "where", "2dsphere")}, false},
		"wildcard":                 {existingIndex{Key: keys("$**", 1)}, false},
		"sparse":                   {existingIndex{Key: wanted, Sparse: true}, false},
		"hidden":                   {existingIndex{Key: wanted, Hidden: true}, false},
		"partial":                  {existingIndex{Key: wanted, Partial: bson.Raw{5, 0, 0, 0, 0}}, false},
		"other collation":          {existingIndex{Key: wanted, Collation: french}, false},
	} {
		if got := tt.index.serves(wanted); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestWhichIndexIsOurs(t *testing.T) {
	partial, err := bson.Marshal(keys("driftless.a.touched", true))
	if err != nil {
		t.Fatal(err)
	}
	other, err := bson.Marshal(keys("driftless.b.touched", true))
	if err != nil {
		t.Fatal(err)
	}
	touched := counter.Index{Keys: keys("driftless.a.touched", 1, "_id", 1), Partial: keys("driftless.a.touched", true)}
	plain := counter.Index{Keys: keys("post_id", 1)}
	for name, tt := range map[string]struct {
		index  existingIndex
		wanted counter.Index
		want   bool
	}{
		"the very one":         {existingIndex{Key: keys("driftless.a.touched", int32(1), "_id", 1.0), Partial: partial}, touched, true},
		"not partial":          {existingIndex{Key: touched.Keys}, touched, false},
		"partial by another":   {existingIndex{Key: touched.Keys, Partial: other}, touched, false},
		"plain":                {existingIndex{Key: keys("post_id", int64(1))}, plain, true},
		"partial for nothing":  {existingIndex{Key: plain.Keys, Partial: partial}, plain, false},
		"descending":           {existingIndex{Key: keys("post_id", -1)}, plain, false},
		"hashed":               {existingIndex{Key: keys("post_id", "hashed")}, plain, false},
		"longer":               {existingIndex{Key: keys("post_id", 1, "at", 1)}, plain, false},
		"another field":        {existingIndex{Key: keys("user_id", 1)}, plain, false},
		"sparse":               {existingIndex{Key: plain.Keys, Sparse: true}, plain, false},
		"hidden, so no hint":   {existingIndex{Key: plain.Keys, Hidden: true}, plain, false},
		"with other collation": {existingIndex{Key: plain.Keys, Collation: struct{ Locale string }{"fr"}}, plain, false},
	} {
		if got := tt.index.is(tt.wanted); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

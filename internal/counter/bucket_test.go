package counter

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func TestBucketsHoldTheirTimesAndNeverOverlapInPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (Bucket, int64) {
			at := rapid.Int64Range(-1e6, 2e9).Draw(t, name)
			since := time.Duration(rapid.Int64Range(0, 1e7).Draw(t, name+" since")) * time.Second
			return BucketOf(time.Unix(at, 0), 10*time.Second, since), at
		}
		a, at := draw("a")
		b, _ := draw("b")
		if at < a.Start || at >= a.End() {
			t.Fatalf("%d is not in %+v", at, a)
		}
		overlap := a.Start < b.End() && b.Start < a.End()
		inside := a.Start <= b.Start && b.End() <= a.End() || b.Start <= a.Start && a.End() <= b.End()
		if overlap && !inside {
			t.Fatalf("%+v and %+v", a, b)
		}
		if back, err := parseBucket(a.Name()); err != nil || back != a {
			t.Fatalf("%s is read as %+v: %v", a.Name(), back, err)
		}
	})
}

// However long no reconcile comes, a key that is written to all the time has few buckets.
func TestBucketsAreBoundedInNumber(t *testing.T) {
	seen := map[Bucket]bool{}
	for at := time.Duration(0); at < 365*24*time.Hour; at += 7 * time.Second {
		seen[BucketOf(time.Unix(1.8e9, 0).Add(at), 10*time.Second, at)] = true
	}
	if len(seen) > 15*bucketsKept {
		t.Errorf("%d buckets after a year", len(seen))
	}
}

func TestBucketsAreSplitAtACut(t *testing.T) {
	recent := Recent{{0, 10}: 1, {10, 10}: 2, {20, 20}: 4, {40, 10}: -8}
	for _, c := range []struct {
		cut, beyond, before, late int64
		ok                        bool
	}{
		{0, -1, 0, 0, true}, {5, 0, 0, 0, false}, {10, -2, 1, 1, true}, {20, -4, 3, 3, true}, {30, 0, 0, 3, false},
		{40, -8, 7, 7, true}, {50, 0, -1, -1, true}, {90, 0, -1, -1, true},
	} {
		beyond, before, ok := recent.Split(c.cut)
		var sum int64
		for _, n := range before {
			sum += n
		}
		if ok != c.ok || beyond != c.beyond || sum != c.before || recent.Late(c.cut) != c.late {
			t.Errorf("at %d: beyond %d, before %d, late %d, %v", c.cut, beyond, sum, recent.Late(c.cut), ok)
		}
	}
}

func TestBucketsOfADocumentAreRead(t *testing.T) {
	value := func(v any) bson.RawValue {
		raw, err := bson.Marshal(bson.D{{Key: "v", Value: v}})
		if err != nil {
			t.Fatal(err)
		}
		return bson.Raw(raw).Lookup("v")
	}
	recent, err := recentOf(value(bson.D{{Key: "100_10", Value: int64(3)}, {Key: "-20_20", Value: int32(-1)}}))
	if err != nil || len(recent) != 2 || recent[Bucket{100, 10}] != 3 || recent[Bucket{-20, 20}] != -1 {
		t.Errorf("%v, %v", recent, err)
	}
	if recent, err := recentOf(bson.RawValue{}); err != nil || recent != nil {
		t.Errorf("none: %v, %v", recent, err)
	}
	for _, bad := range []any{"text", bson.D{{Key: "100", Value: int64(1)}}, bson.D{{Key: "1_x", Value: int64(1)}}, bson.D{{Key: "1_0", Value: int64(1)}}, bson.D{{Key: "1_1", Value: 1.5}}} {
		if recent, err := recentOf(value(bad)); err == nil {
			t.Errorf("%v is read as %v", bad, recent)
		}
	}
}

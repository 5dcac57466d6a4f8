package config

import (
	"strings"
	"testing"
)

func TestACounterFromFlags(t *testing.T) {
	t.Parallel()
	c, err := UndeclaredCounter(map[string]string{
		"rows": "app.likes.all", "key": "post.id", "count": "app.posts.stats.likes", "soft-delete": "deleted_at",
		"count-if": `{"$ne": ["$status", "spam"]}`, "created-at": "at",
	})
	if err != nil {
		t.Fatal(err)
	}
	if c.Rows != (Rows{Database: "app", Collection: "likes.all", CreatedAt: "at"}) || c.Key != "post.id" || c.SoftDelete != "deleted_at" ||
		c.CountIf.String() != `{"$ne": ["$status","spam"]}` || c.Source != Application || c.Name != "app.posts.stats.likes" {
		t.Errorf("%+v", c)
	}
	if want := (Target{Database: "app", Collection: "posts", Count: "stats.likes"}); c.Target != want {
		t.Errorf("target %+v", c.Target)
	}
	if other := c.Target.Elsewhere(); len(other) != 1 || other[0] != (Target{Database: "app", Collection: "posts.stats", Count: "likes"}) {
		t.Errorf("other readings: %+v", other)
	}
}

func TestFaultsOfACounterFromFlagsNameTheFlag(t *testing.T) {
	t.Parallel()
	right := map[string]string{"rows": "app.likes", "key": "post_id", "count": "app.posts.like_count"}
	const missing = ": is missing: to compare without a configuration file takes --rows, --key and --count"
	for _, tt := range []struct{ flag, value, want string }{
		{"count", "", "--count" + missing}, {"rows", "", "--rows" + missing}, {"key", "", "--key" + missing},
		{"count", "like_count", `--count: is "like_count": must be DATABASE.COLLECTION.FIELD, such as app.posts.like_count`},
		{"count", "posts.like_count", `--count: is "posts.like_count": must be DATABASE.COLLECTION.FIELD, such as app.posts.like_count`},
		{"count", "app.posts.$n", `--count: is "app.posts.$n": "$n" must be ` + wantFieldPath},
		{"count", "app.posts._id", `--count: is "app.posts._id": "_id" must be ` + wantFieldPath},
		{"count", "admin.posts.n", `--count: is "admin.posts": "admin" must be ` + wantDatabase},
		{"rows", "likes", `--rows: is "likes": must be DATABASE.COLLECTION, such as app.likes`},
		{"rows", "app.system.users", `--rows: is "app.system.users": "system.users" must be ` + wantCollection},
		{"key", "$post_id", `--key: is "$post_id": must be ` + wantRowPath},
		{"count-if", "status", "--count-if: is the same text for every row: write \"$status\" for the field"},
		{"count-if", `{"status": "ok"}`, `--count-if: is a plain document, which is true of every row: an aggregation expression begins with an operator, such as {$eq: ["$status", "ok"]}`},
		{"count-if", `{"$eq": [`, "--count-if: is not valid YAML"},
		{"count-if", `{"$gt": ["$at", "$$NOW"]}`, "--count-if: $gt[1]: uses $$NOW"},
	} {
		given := map[string]string{tt.flag: tt.value}
		for flag, value := range right {
			if _, is := given[flag]; !is {
				given[flag] = value
			}
		}
		if tt.value == "" {
			delete(given, tt.flag)
		}
		_, err := UndeclaredCounter(given)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("--%s %s: %v\nwant %s", tt.flag, tt.value, err, tt.want)
		}
	}
}

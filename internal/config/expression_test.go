package config

import (
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// withCountIf is a valid file whose line 8 is count_if.
func withCountIf(expression string) string {
	return counter("    target:", "    count_if: "+expression+"\n    target:")
}

func TestCountIfBecomesBSONWithItsKeysInOrder(t *testing.T) {
	for yaml, want := range map[string]string{
		`$visible`:         `{"v": "$visible"}`,
		`"$$ROOT.visible"`: `{"v": "$$ROOT.visible"}`,
		`{$and: [{$ne: ["$z", 1]}, {$ne: ["$a", null]}]}`:                                `{"v": {"$and": [{"$ne": ["$z",{"$numberInt":"1"}]},{"$ne": ["$a",null]}]}}`,
		`{$eq: ["$n", 5000000000]}`:                                                      `{"v": {"$eq": ["$n",{"$numberLong":"5000000000"}]}}`,
		`{$eq: ["$n", {$numberLong: "5"}]}`:                                              `{"v": {"$eq": ["$n",{"$numberLong":"5"}]}}`,
		`{$eq: ["$n", 1.0]}`:                                                             `{"v": {"$eq": ["$n",{"$numberDouble":"1.0"}]}}`,
		`{$eq: ["$n", 0.5]}`:                                                             `{"v": {"$eq": ["$n",{"$numberDouble":"0.5"}]}}`,
		`{$eq: ["$n", -.inf]}`:                                                           `{"v": {"$eq": ["$n",{"$numberDouble":"-Infinity"}]}}`,
		`{$eq: ["$n", .nan]}`:                                                            `{"v": {"$eq": ["$n",{"$numberDouble":"NaN"}]}}`,
		`{$eq: ["$o", {$oid: 5f5f5f5f5f5f5f5f5f5f5f5f}]}`:                                `{"v": {"$eq": ["$o",{"$oid":"5f5f5f5f5f5f5f5f5f5f5f5f"}]}}`,
		`{$lt: ["$at", {$date: "2024-01-01T00:00:00Z"}]}`:                                `{"v": {"$lt": ["$at",{"$date":{"$numberLong":"1704067200000"}}]}}`,
		`{$eq: [{$type: "$x"}, "int"]}`:                                                  `{"v": {"$eq": [{"$type": "$x"},"int"]}}`,
		`{$regexMatch: {input: "$s", regex: "^a<b", options: i}}`:                        `{"v": {"$regexMatch": {"input": "$s","regex": "^a\u003cb","options": "i"}}}`,
		`{$switch: {branches: [{case: "$b", then: true}, {case: "$a", then: false}]}}`:   `{"v": {"$switch": {"branches": [{"case": "$b","then": true},{"case": "$a","then": false}]}}}`,
		"{$or:\n      [{z: 1, a: 2}, \"é\"]}":                                            `{"v": {"$or": [{"z": {"$numberInt":"1"},"a": {"$numberInt":"2"}},"é"]}}`,
		"\n      $ne:\n        - $status\n        - >-\n          a\n          b":        `{"v": {"$ne": ["$status","a b"]}}`,
		`{$eq: ["$when", {$literal: "$$NOW"}]}`:                                          `{"v": {"$eq": ["$when",{"$literal": "$$NOW"}]}}`,
		`{$eq: ["$x", {$literal: {$rand: {}}}]}`:                                         `{"v": {"$eq": ["$x",{"$literal": {"$rand": {}}}]}}`,
		`{$let: {in: "$$a.b", vars: {a: "$x"}}}`:                                         `{"v": {"$let": {"in": "$$a.b","vars": {"a": "$x"}}}}`,
		`{$anyElementTrue: {$map: {input: "$l", in: {$gt: ["$$this", "$$CURRENT.n"]}}}}`: `{"v": {"$anyElementTrue": {"$map": {"input": "$l","in": {"$gt": ["$$this","$$CURRENT.n"]}}}}}`,
		`{$filter: {input: "$l", as: item, cond: "$$item.ok"}}`:                          `{"v": {"$filter": {"input": "$l","as": "item","cond": "$$item.ok"}}}`,
		`{$reduce: {input: "$l", initialValue: 0, in: {$add: ["$$value", "$$this"]}}}`:   `{"v": {"$reduce": {"input": "$l","initialValue": {"$numberInt":"0"},"in": {"$add": ["$$value","$$this"]}}}}`,
		`{$cond: ["$a", "$$REMOVE", "$b"]}`:                                              `{"v": {"$cond": ["$a","$$REMOVE","$b"]}}`,
	} {
		c, err := load(t, withCountIf(yaml), nil, nil)
		if err != nil {
			t.Errorf("%s: %v", yaml, err)
			continue
		}
		doc, err := bson.Marshal(bson.D{{Key: "v", Value: c.Counters[0].CountIf}})
		if err != nil {
			t.Fatal(err)
		}
		if got := bson.Raw(doc).String(); got != want {
			t.Errorf("%s:\n got %s\nwant %s", yaml, got, want)
		}
	}
}

func TestACountIfThatDoesNotLookAtTheRowIsAFault(t *testing.T) {
	for yaml, want := range map[string]string{
		`status`:                           `write "$status" for the field`,
		`{status: ham}`:                    "an aggregation expression begins with an operator",
		`{}`:                               "an aggregation expression begins with an operator",
		`true`:                             "the same for every row",
		`["$a", "$b"]`:                     "the same for every row",
		`{$oid: 5f5f5f5f5f5f5f5f5f5f5f5f}`: "the same for every row",
	} {
		_, err := load(t, withCountIf(yaml), nil, nil)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), ":8: ") {
			t.Errorf("count_if: %s: %v, want %q at line 8", yaml, err, want)
		}
	}
}

func TestCountIfMustHaveOneAnswerForOneRow(t *testing.T) {
	const (
		one  = "an expression must have one answer for one row, at any time"
		time = ", which is another moment for the event and for the recount: " + one
		free = ", which nothing binds here: known are "
		row  = "CURRENT, REMOVE, ROOT"
	)
	for _, test := range []struct{ expression, at, want string }{
		{`{$lt: ["$at", "$$NOW"]}`, "8: $lt[1]", "uses $$NOW" + time},
		{`$$CLUSTER_TIME`, "8", "uses $$CLUSTER_TIME" + time},
		{`{$in: ["admin", "$$USER_ROLES.role"]}`, "8: $in[1]", "uses $$USER_ROLES, which depends on who asks: " + one},
		{"\n      $and:\n        - $visible\n        - {$lt: [$at, $$NOW]}", "11: $and[1].$lt[1]", "uses $$NOW" + time},
		{`{$let: {vars: {a: "$$NOW"}, in: "$$a"}}`, "8: $let.vars.a", "uses $$NOW" + time},
		{`{$let: {vars: {a: 1, b: "$$a"}, in: true}}`, "8: $let.vars.b", "uses $$a" + free + row},
		{`{$and: [{$let: {vars: {a: 1}, in: "$$a"}}, "$$a"]}`, "8: $and[1]", "uses $$a" + free + row},
		{`{$map: {input: "$$this", in: 1}}`, "8: $map.input", "uses $$this" + free + row},
		{`{$map: {input: "$l", as: item, in: "$$this"}}`, "8: $map.in", "uses $$this" + free + "CURRENT, REMOVE, ROOT, item"},
		{`{$filter: {input: "$l", cond: "$$this", limit: "$$this"}}`, "8: $filter.limit", "uses $$this" + free + row},
		{`{$reduce: {input: "$l", initialValue: "$$value", in: 1}}`, "8: $reduce.initialValue", "uses $$value" + free + row},
		{`$$PRUNE`, "8", "uses $$PRUNE" + free + row},
		{`{$lt: [{$rand: {}}, 0.5]}`, "8: $lt[0].$rand", "$rand gives another answer each time: " + one},
		{`{$function: {body: "x", args: [], lang: js}}`, "8: $function", "$function runs code whose answers nobody can foresee: " + one},
		{`{$accumulator: {}}`, "8: $accumulator", "$accumulator runs code whose answers nobody can foresee: " + one},
		{`{$where: "x"}`, "8: $where", "$where runs code whose answers nobody can foresee: " + one},
		{`{$sampleRate: 0.5}`, "8: $sampleRate", "$sampleRate gives another answer each time: " + one},
		{`{$gt: [{$meta: textScore}, 1]}`, "8: $gt[0].$meta", "$meta reads what belongs to a query and not to the row: " + one},
		{"\n      $or:\n        - $visible\n        - $eq: [$o, {$oid: nonsense}]", "11: $or[1].$eq[1]", "is not a valid extended JSON value such as {$oid: …} or {$date: …}: mend it, or put plain data under $literal"},
		{``, "8", "is empty: must be an aggregation expression over the row"},
	} {
		line, path, found := strings.Cut(test.at, ": ")
		want := "driftless.yaml:" + line + ": counters.per_post.count_if"
		if found {
			want += "." + path
		}
		want += ": " + test.want
		_, err := load(t, withCountIf(test.expression), nil, nil)
		if got := faultLines(t, err); got != want {
			t.Errorf("%s:\n got %s\nwant %s", test.expression, got, want)
		}
	}
}

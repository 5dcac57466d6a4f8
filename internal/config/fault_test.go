package config

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

func TestEveryFaultAtOnceInTheOrderOfTheFile(t *testing.T) {
	_, err := Load(Options{
		File:  "testdata/faults.yaml",
		Env:   lookup(map[string]string{"DRIFTLESS_LOG_FORMAT": "xml", "DRIFTLESS_RECONCILER_SWEEP": "1d"}),
		Flags: map[string]string{"incrementer.listen": "9464"},
	})
	got := faultLines(t, err) + "\n"
	const golden = "testdata/faults.golden"
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, readErr := os.ReadFile(golden)
	if readErr != nil {
		t.Fatal(readErr)
	}
	if got != string(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// counter is a valid file with one counter whose lines are changed: 5 is its name, 6 source, 7 key, 8 target.
func counter(edit ...string) string { return strings.NewReplacer(edit...).Replace(valid) }

func TestFaults(t *testing.T) {
	const at = "driftless.yaml:"
	for _, test := range []struct{ name, file, want string }{
		{"empty file", "", at + "1: counters: declares no counters: add at least one"},
		{"no counters", "counters:\n", at + "1: counters: declares no counters: add at least one"},
		{"not YAML", "log: {level: info\nsources:\n", at + "2: is not valid YAML (',' or '}' must be specified): mend the YAML here"},
		{"unquoted reference", "log: {level: ${L:-info}}\n", at + "1: is not valid YAML (',' or '}' must be specified): put the value with ${…} in quotes"},
		{"a list", "- a\n", at + "1: is a list: must be a mapping of keys"},
		{"two documents", valid + "---\nlog: {}\n", at + "9: starts a second YAML document: keep one document a file"},
		{"anchor", counter("key: post_id", "key: &k post_id"), at + "7: counters.per_post.key: uses a YAML anchor, alias or tag: write the value out"},
		{"merge", counter("key: post_id", "key: post_id\n    <<: {sum: n}"), at + "8: counters.per_post[\"<<\"]: is not a plain key: write the keys out, without merges, anchors or tags"},
		{"latin-1", "log: {level: \xe9}\n", at + "1: is not UTF-8 text: save it as UTF-8"},
		{"key twice", valid + "log: {level: info}\nlog: {level: warn}\n", at + "10: log: is here twice, first on line 9: keep one"},
		{"unknown key with a near one", valid + "log:\n  levl: info\n", at + "10: log.levl: unknown key: did you mean level?\n      levl: …\n      ^"},
		{"unknown key", valid + "log: {level: info, colour: red}\n", at + "9: log.colour: unknown key: it may be level, format\n    log: {level: …, colour: …}\n                    ^"},
		{"unknown section", valid + "metrics:\n  a: 1\n", at + "9: metrics: unknown key: it may be sources, counters, mongodb, log, incrementer, reconciler\n    metrics:\n    ^"},
		{"section is text", valid + "log: info\n", at + `9: log: is "info": must be a mapping of keys`},

		{"text for a number", valid + "incrementer: {max_batch_events: many}\n", at + `9: incrementer.max_batch_events: is "many": must be a whole number from 1 to 1000000`},
		{"number in quotes", valid + "incrementer: {max_batch_events: \"5\"}\n", at + `9: incrementer.max_batch_events: is "5": must be a whole number from 1 to 1000000`},
		{"float for a number", valid + "incrementer: {max_batch_events: 5.5}\n", at + `9: incrementer.max_batch_events: is 5.5: must be a whole number from 1 to 1000000`},
		{"out of range", valid + "reconciler: {batch_keys: 0}\n", at + `9: reconciler.batch_keys: is 0: must be a whole number from 1 to 100000`},
		{"negative limit", valid + "reconciler: {max_keys_per_second: -1}\n", at + `9: reconciler.max_keys_per_second: is -1: must be a whole number, at least 0`},
		{"share", valid + "reconciler: {hold_when_drifted_share: 1.5}\n", at + `9: reconciler.hold_when_drifted_share: is 1.5: must be a number from 0 to 1`},
		{"bare duration", valid + "reconciler: {every: 30}\n", at + `9: reconciler.every: must be a duration with its unit: write 30s`},
		{"days", valid + "reconciler: {sweep: 1d}\n", at + `9: reconciler.sweep: is "1d": must be a duration such as 30s, 5m or 24h, above 0`},
		{"zero duration", valid + "reconciler: {sweep: 0s}\n", at + `9: reconciler.sweep: is "0s": must be a duration such as 30s, 5m or 24h, above 0`},
		{"negative duration", valid + "reconciler: {settle: -1s}\n", at + `9: reconciler.settle: is "-1s": must be a duration such as 30s, 5m or 24h, not negative`},
		{"nothing", valid + "reconciler: {settle: }\n", at + `9: reconciler.settle: is empty: must be a duration such as 30s, 5m or 24h, not negative`},
		{"enum", valid + "log: {level: loud}\n", at + `9: log.level: is "loud": must be one of debug, info, warn, error`},
		{"listen", valid + "incrementer: {listen: 9464}\n", at + `9: incrementer.listen: is 9464: must be host:port such as 127.0.0.1:9464`},
		{"substituted number", valid + "incrementer: {max_batch_events: \"${N:-x}\"}\n", at + `9: incrementer.max_batch_events: must be a whole number from 1 to 1000000`},
		{"unset variable", valid + "log: {level: \"${LEVEL}\"}\n", at + `9: log.level: variable LEVEL is not set: set it, or write ${LEVEL:-default}`},
		{"unset variable with a message", valid + "log: {level: \"${LEVEL:?say how much}\"}\n", at + `9: log.level: variable LEVEL is not set: say how much`},
		{"uri and uri_file", valid + "mongodb: {uri: mongodb://h, uri_file: f}\n", at + `9: mongodb.uri_file: stands beside mongodb.uri: keep one of the two`},
		{"uri", valid + "mongodb: {uri: localhost}\n", at + `9: mongodb.uri: is not a connection string: it must start with mongodb:// or mongodb+srv://`},
		{"uri option", valid + "mongodb: {uri: \"mongodb://h/?maxPoolSize=x\"}\n", at + `9: mongodb.uri: is not a valid connection string: invalid value for "maxPoolSize": "x"`},
		{"uri option beside a password", valid + "mongodb: {uri: \"mongodb://u:p@h/?tls=maybe\"}\n", at + `9: mongodb.uri: is not a valid connection string: invalid value for "tls": "maybe"`},
		{"uri port", valid + "mongodb: {uri: \"mongodb://h:x\"}\n", at + `9: mongodb.uri: is not a valid connection string: mend the user, password, host or port` + escapeAdvice},
		{"srv with a port", valid + "mongodb: {uri: \"mongodb+srv://h:1\"}\n", at + `9: mongodb.uri: is not a valid mongodb+srv connection string: it needs one host name without a port` + escapeAdvice},
		{"uri_file", valid + "mongodb: {uri_file: /does/not/exist}\n", at + `9: mongodb.uri_file: names a file that cannot be read (open /does/not/exist: no such file or directory): create it with the connection string in it`},
		{"state database", valid + "mongodb: {state_database: admin}\n", at + `9: mongodb.state_database: is "admin": must be ` + wantDatabase},

		{"source's name", strings.ReplaceAll(valid, "comments:", "Comments:"), at + `2: sources.Comments: is not a name of small letters, digits and _ that starts with a letter: rename it` + "\n" +
			at + `6: counters.per_post.source: names no source under sources: did you mean Comments?`},
		{"counter's name", counter("per_post", "per-post"), at + `5: counters.per-post: is not a name of small letters, digits and _ that starts with a letter: rename it`},
		{"reserved source", counter("  comments:", "  application:", "source: comments", "source: gone"),
			at + `2: sources.application: is a reserved name, for counters that the application keeps itself: rename it` + "\n" +
				at + `6: counters.per_post.source: names no source under sources: it may be application`},
		{"no kind of source", counter("    change_stream: {database: app, collection: comments}", "    on_position_lost: recount"),
			at + `2: sources.comments: says not where its events come from: add change_stream or kafka`},
		{"both kinds", counter("collection: comments}", "collection: comments}\n    kafka: {brokers: [\"h:1\"], topic: t, format: debezium}"),
			at + `4: sources.comments.kafka: stands beside change_stream: keep one of the two`},
		{"policy", counter("collection: comments}", "collection: comments}\n    on_position_lost: ignore"),
			at + `4: sources.comments.on_position_lost: is "ignore": must be one of recount, stop`},
		{"system collection", counter("collection: comments", "collection: system.users"), at + `3: sources.comments.change_stream.collection: is "system.users": must be ` + wantCollection},
		{"server's database", counter("{database: app, collection: comments}", "{database: local, collection: oplog.rs}"), at + `3: sources.comments.change_stream.database: is "local": must be ` + wantDatabase},
		{"our database", counter("{database: app, collection: comments}", "{database: Driftless, collection: c}"), at + `3: sources.comments.change_stream.database: is Driftless, which is mongodb.state_database: our own collections need a database of their own`},
		{"partitions", counter("collection: comments}", "collection: comments, partitions: 0}"), at + `3: sources.comments.change_stream.partitions: is 0: must be a whole number from 1 to 1024`},

		{"missing source", counter("source: comments", "source: coments"), at + `6: counters.per_post.source: names no source under sources: did you mean comments?`},
		{"missing fields", oneSource + "counters:\n  per_post: {}\n", at + "5: counters.per_post.source: is missing: add it\n" +
			at + "5: counters.per_post.key: is missing: add it\n" + at + "5: counters.per_post.target: is missing: add it"},
		{"missing target fields", counter("{database: app, collection: post_counters}", "{}"), at + "8: counters.per_post.target.database: is missing: add it\n" +
			at + "8: counters.per_post.target.collection: is missing: add it"},
		{"empty part of a path", counter("post_id", "a..b"), at + `7: counters.per_post.key: is "a..b": must be ` + wantRowPath},
		{"field path", counter("post_id", "$post_id"), at + `7: counters.per_post.key: is "$post_id": must be ` + wantRowPath},
		{"number as a path", counter("post_id", "7"), at + `7: counters.per_post.key: is 7: must be ` + wantRowPath},
		{"target _id", counter("post_counters}", "post_counters, total: _id.n}"), at + `8: counters.per_post.target.total: is "_id.n": must be ` + wantFieldPath + `, or "" for none`},
		{"target driftless", counter("post_counters}", "post_counters, base: driftless}"), at + `8: counters.per_post.target.base: is "driftless": must be ` + wantFieldPath},
		{"empty target field", counter("post_counters}", "post_counters, reconciled_at: \"\"}"), at + `8: counters.per_post.target.reconciled_at: is "": must be ` + wantFieldPath},
		{"target is the rows", counter("collection: post_counters", "collection: comments"),
			at + `8: counters.per_post.target.collection: is the collection of the rows, and new counter documents would become rows: choose another, or set upsert: false`},
		{"target is ours", counter("{database: app, collection: post_counters}", "{database: driftless, collection: c}"),
			at + `8: counters.per_post.target.database: is driftless, which is mongodb.state_database: our own collections need a database of their own`},
		{"other rows", counter("    key:", "    rows: {database: app, collection: likes}\n    key:"),
			at + `7: counters.per_post.rows.collection: is likes, but source comments follows comments: remove it`},
		{"repair", counter("    key:", "    repair: overwrite\n    key:"), at + `7: counters.per_post.repair: is for source: application only: remove it`},
		{"count", counter("post_counters}", "post_counters, count: n}"),
			at + `8: counters.per_post.target.count: is for source: application only: use base and live, and total for their sum as one field`},
		{"alert", counter("    key:", "    alert_above: -1\n    key:"), at + `7: counters.per_post.alert_above: is -1: must be a whole number, at least 0`},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, test.file, nil, nil)
			if got := faultLines(t, err); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestSharedTargets(t *testing.T) {
	second := func(fields string) string {
		return valid + "  second:\n    source: comments\n    key: author_id\n    target: {database: app, collection: post_counters" + fields + "}\n"
	}
	const (
		at    = "driftless.yaml:12: counters.second.target."
		first = "counters.per_post.target."
	)
	for _, test := range []struct{ name, fields, want string }{
		{"fields of its own", ", base: b, live: l, reconciled_at: r", ""},
		{"defaults", "", at + "base: is base_count by default, which " + first + "base writes already: set base to another field\n" +
			at + "live: is live_delta by default, which " + first + "live writes already: set live to another field\n" +
			at + "reconciled_at: is reconciled_at by default, which " + first + "reconciled_at writes already: set reconciled_at to another field"},
		{"same time", ", base: b, live: l", at + "reconciled_at: is reconciled_at by default, which " + first + "reconciled_at writes already: set reconciled_at to another field"},
		{"another's field", ", base: live_delta, live: l, reconciled_at: r", at + "base: is live_delta, which " + first + "live writes already: name another field"},
		{"inside another's field", ", base: base_count.x, live: l, reconciled_at: r",
			at + "base: is base_count.x, and one of it and base_count of " + first + "base lies inside the other: name another field"},
		{"same start of a name", ", base: base_count2, live: l, reconciled_at: r", ""},
		{"its own field", ", base: b, live: b, reconciled_at: r", at + "live: is b, which counters.second.target.base writes already: name another field"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, second(test.fields), nil, nil)
			if got := faultLines(t, err); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestKafkaIsJudgedBeforeItIsRefusedAndApplicationAsItStands(t *testing.T) {
	kafka := "sources:\n  likes:\n    kafka: {brokers: [\"h:9092\"], topic: t, event: {type: t, key: k, time: at, deltas: {a: 1}}}\n"
	counter := "counters:\n  likes_per_post:\n    source: likes\n    key: post_id\n    rows: {database: app, collection: likes, created_at: at}\n    target: {database: app, collection: c}\n"
	own := "counters:\n  likes_per_post:\n    source: application\n    key: post_id\n    rows: {database: app, collection: likes}\n    target: {database: app, collection: posts, count: n}\n"
	images := strings.Replace(kafka, "event: {type: t, key: k, time: at, deltas: {a: 1}}", "format: debezium", 1)
	const (
		at       = "driftless.yaml:3: sources.likes.kafka"
		noSource = "driftless.yaml:6: counters.likes_per_post."
	)
	for _, test := range []struct{ name, file, old, new, want string }{
		{"right", kafka + counter, "", "", ""},
		{"no broker", kafka + counter, `["h:9092"]`, "[]", at + ".brokers: is an empty list: add at least one"},
		{"broker without port", kafka + counter, `["h:9092"]`, `["h:9092", h]`, at + `.brokers[1]: is "h": must be ` + wantBroker},
		{"broker without quotes inside braces", kafka + counter, `["h:9092"]`, "[h:9092]", at + `.brokers[0]: has a colon without a space after it: add one, or put the text in quotes`},
		{"no topic", kafka + counter, "topic: t, ", "", at + ".topic: is missing: add it"},
		{"format", kafka + counter, "topic: t,", "topic: t, format: avro,", at + `.format: is "avro": must be one of event, debezium, change_stream`},
		{"event of another format", kafka + counter, "topic: t,", "topic: t, format: debezium,", at + `.event: is for format event only: remove it, or set format: event`},
		{"event missing", kafka + counter, ", event: {type: t, key: k, time: at, deltas: {a: 1}}", "",
			at + `.event: is missing: say which fields of an event hold its type, key and time, and map its types to deltas`},
		{"deltas", kafka + counter, "{a: 1}", "{a: one}", at + `.event.deltas.a: is "one": must be a whole number`},
		{"no deltas", kafka + counter, "{a: 1}", "{}", at + `.event.deltas: maps no event type: add at least one, such as reaction.added: 1`},
		{"start", kafka + counter, "topic: t,", "topic: t, start: yesterday,", at + `.start: is "yesterday": must be ` + wantStart},
		{"start at a time", kafka + counter, "topic: t,", "topic: t, start: 2026-01-31T00:00:00Z,", ""},
		{"half a certificate", kafka + counter, "topic: t,", "topic: t, tls: {cert_file: c},", at + `.tls.key_file: is missing: cert_file, key_file go together`},
		{"a password as such", kafka + counter, "topic: t,", "topic: t, sasl: {mechanism: PLAIN, username: u, password: p},",
			at + `.sasl.password_file: is missing: mechanism, username, password_file go together` + "\n" +
				at + `.sasl.password: unknown key: it may be mechanism, username, password_file` + "\n" +
				`        kafka: {brokers: […], topic: …, sasl: {mechanism: …, username: …, password: …}, event: {type: …, key: …, time: …, deltas: {a: …}}}` + "\n" +
				`                                                                          ^`},
		{"window", kafka + counter, "topic: t,", "topic: t, dedupe: {window: 10},", at + `.dedupe.field: is missing: add it` + "\n" + at + `.dedupe.window: must be a duration with its unit: write 10s`},
		{"no rows", kafka + counter, "    rows: {database: app, collection: likes, created_at: at}\n", "",
			"driftless.yaml:5: counters.likes_per_post.rows.database: is missing: name where the rows are, which are the truth\n" +
				"driftless.yaml:5: counters.likes_per_post.rows.collection: is missing: name where the rows are, which are the truth"},
		{"no time of creation", kafka + counter, ", created_at: at", "",
			"driftless.yaml:8: counters.likes_per_post.rows.created_at: is missing: with format event, rows are told from events under way by the time of their creation"},

		{"a sum of events", kafka + counter, "    key:", "    sum: n\n    key:", "driftless.yaml:7: counters.likes_per_post.sum: does not go with format event, whose table of deltas gives one number to all events of a type: remove it, or publish the rows in format debezium or change_stream"},
		{"any condition beside events", kafka + counter, "    key:", "    count_if: {$gt: [{$strLenCP: $text}, 5]}\n    sum: \"\"\n    key:", ""},
		{"no time of creation beside images", images + counter, ", created_at: at", "", ""},
		{"a sum of images", images + counter, "    key:", "    sum: n\n    key:", ""},
		{"a condition on images", images + counter, "    key:", "    count_if: {$and: [$visible, {$ne: [$status, spam]}, {$in: [{$type: $x}, [missing, \"null\"]]}]}\n    key:", ""},
		{"a condition on images that only the server knows", images + counter, "    key:", "    count_if:\n      $and:\n        - $visible\n        - {$gt: [{$strLenCP: $text}, 5]}\n    key:", "driftless.yaml:10: counters.likes_per_post.count_if.$and[1].$gt[0].$strLenCP: cannot be evaluated outside of the server: possible are $and, $cond, $eq, $gt, $gte, $ifNull, $in, $literal, $lt, $lte, $ne, $not, $or, $type (with format debezium, the incrementer itself judges the rows)"},
		{"a variable in a condition on images", images + counter, "    key:", "    count_if: $$ROOT.visible\n    key:", "driftless.yaml:7: counters.likes_per_post.count_if: reads a variable: only paths of fields can be read, such as $status (with format debezium, the incrementer itself judges the rows)"},
		{"a field to look into on images", strings.Replace(images, "debezium", "change_stream", 1) + counter, "    key:", "    count_if: {$in: [$user, $followers]}\n    key:", "driftless.yaml:7: counters.likes_per_post.count_if.$in[1]: is not a list that is written out: a field may hold no list in some row, which the server has no answer for (with format change_stream, the incrementer itself judges the rows)"},
		{"a condition on images that is none at all", images + counter, "    key:", "    count_if: {$gt: [{$rand: {}}, 5]}\n    key:", "driftless.yaml:7: counters.likes_per_post.count_if.$gt[0].$rand: $rand gives another answer each time: an expression must have one answer for one row, at any time"},

		{"own count", own, "", "", ""},
		{"own split count", own, ", count: n", "", ""},
		{"own split count with a total", own, ", count: n", ", total: n", noSource + "target.total: is kept by the incrementer, which does not follow source: application: remove it"},
		{"own split count, overwritten", strings.Replace(own, "key:", "repair: overwrite\n    key:", 1), ", count: n", "",
			"driftless.yaml:4: counters.likes_per_post.repair: is overwrite, which is for target.count alone, and base and live are never overwritten: set it to difference, or remove it"},
		{"own count, overwritten", own, "key:", "repair: overwrite\n    key:", ""},
		{"own repair", own, "key:", "repair: guess\n    key:", "driftless.yaml:4: counters.likes_per_post.repair: is \"guess\": must be one of difference, overwrite"},
		{"own count and base", own, "count: n", "count: n, base: b", noSource + "target.base: stands beside count, which is the whole count: keep count, or base and live"},
		{"own count in the rows", own, "collection: posts, count: n", "collection: likes, count: n, upsert: true",
			noSource + "target.collection: is the collection of the rows, and new counter documents would become rows: choose another, or set upsert: false"},
		{"own rows", own, "collection: likes", "collection: $x", "driftless.yaml:5: counters.likes_per_post.rows.collection: is \"$x\": must be " + wantCollection},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := load(t, strings.Replace(test.file, test.old, test.new, 1), nil, nil)
			got := ""
			if err != nil {
				got = faultLines(t, err)
			}
			if got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

func TestAFileThatCannotBeReadSaysHowToMendIt(t *testing.T) {
	_, err := Load(Options{File: "testdata/absent.yaml"})
	if got, want := faultLines(t, err), "absent.yaml: is missing: create it, or name another with --config FILE or DRIFTLESS_CONFIG"; got != want {
		t.Errorf("got %s", got)
	}
	_, err = Load(Options{File: "testdata"})
	if got, want := faultLines(t, err), "testdata: cannot be read (is a directory): make it a readable file, or name another with --config FILE or DRIFTLESS_CONFIG"; got != want {
		t.Errorf("got %s", got)
	}
}

func TestFaultsOfVariablesAndFlagsNameThem(t *testing.T) {
	_, err := load(t, valid, map[string]string{"DRIFTLESS_RECONCILER_EVERY": "60"}, map[string]string{"log.level": "loud"})
	want := `DRIFTLESS_RECONCILER_EVERY: reconciler.every: must be a duration with its unit: write 30s
--log-level: log.level: is "loud": must be one of debug, info, warn, error`
	if got := faultLines(t, err); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestNearest(t *testing.T) {
	known := []string{"database", "collection", "partitions"}
	for in, want := range map[string]string{"databse": "database", "colection": "collection", "partition": "partitions", "topic": "", "db": "", "": ""} {
		if got := nearest(in, known); got != want {
			t.Errorf("%s: got %q, want %q", in, got, want)
		}
	}
	if !slices.Equal([]int{distance("", "abc"), distance("kitten", "sitting"), distance("a", "a")}, []int{3, 3, 0}) {
		t.Error("distance is not Levenshtein's")
	}
}

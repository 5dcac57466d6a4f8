package deployment

import (
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/stream"
)

// expressions has the server evaluate what each counter makes of a row, which no file tells, and lists those that a lane
// has set apart because it failed on some row.
func (k *checker) expressions(ctx context.Context) []Finding {
	var findings []Finding
	broken := k.broken(ctx)
	for _, d := range k.definitions {
		subject := "expression of " + d.Name
		rows := k.client.Database(d.Rows.Database, options.Database().SetReadPreference(readpref.Primary())).Collection(d.Rows.Collection)
		err := d.Try(ctx, rows)
		switch {
		case stream.HasCode(err, codeUnauthorized): // the privileges say so
		case err != nil:
			findings = append(findings, Finding{Fail, subject, "the server refuses it: " + err.Error(), fmt.Sprintf("mend counters.%s.count_if", d.Name)})
		case broken[d.Name] != "":
			findings = append(findings, Finding{Warn, subject, "set apart, it failed on a row: " + broken[d.Name],
				fmt.Sprintf("mend counters.%s.count_if, or the rows that it fails on", d.Name)})
		}
	}
	if len(findings) == 0 && len(k.definitions) > 0 {
		return []Finding{ok("expressions", "the server takes them")}
	}
	return findings
}

// broken is the server's message by counter. What cannot be read is told where the lanes are.
func (k *checker) broken(ctx context.Context) map[string]string {
	messages := map[string]string{}
	all, _ := checkpoint.NewStore(k.client, k.config.MongoDB.StateDatabase).All(ctx)
	for _, at := range all {
		for name, counting := range at.Counters {
			if counting.Broken != "" && slices.ContainsFunc(k.config.Sources, func(s config.Source) bool { return s.Name == checkpoint.SourceOf(at.Lane) }) {
				messages[name] = counting.Broken
			}
		}
	}
	return messages
}

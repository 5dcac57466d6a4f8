package deployment

import (
	"context"
	"fmt"
	"time"

	"driftless/internal/config"
	"driftless/internal/stream/kafka"
)

// transactionLimit is how long a transaction of the server's may last by default: a row may become visible so much later than it
// says that it was created.
const transactionLimit = time.Minute

// topics looks at the topics of the sources.
func (k *checker) topics(ctx context.Context) (findings []Finding) {
	for _, s := range k.config.Sources {
		if s.Kafka == nil {
			continue
		}
		findings = append(findings, topicFinding(ctx, s))
		if settle := k.config.Reconciler.Settle; s.Kafka.Format == config.FormatEvent && settle < transactionLimit {
			findings = append(findings, Finding{Warn, "settle of " + s.Name,
				fmt.Sprintf("reconciler.settle is %s, and a row written in a transaction may become visible up to %s late: it may be taken for drift", settle, transactionLimit),
				fmt.Sprintf("set reconciler.settle to %s where rows are written in long transactions", transactionLimit)})
		}
	}
	return findings
}

func topicFinding(ctx context.Context, s config.Source) Finding {
	subject := "topic " + s.Kafka.Topic
	client, err := kafka.New(kafka.OptionsOf(s.Kafka))
	if err != nil {
		return Finding{Fail, subject, err.Error(), fmt.Sprintf("mend sources.%s.kafka", s.Name)}
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, resumeLimit)
	defer cancel()
	topic, err := client.Topic(ctx)
	if err != nil {
		return Finding{Fail, subject, err.Error(), fmt.Sprintf("create it, or mend brokers, topic, tls or sasl of sources.%s.kafka", s.Name)}
	}
	return ok(subject, "%d partitions", len(topic.Partitions))
}

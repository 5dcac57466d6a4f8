package deployment

import (
	"context"
	"fmt"

	"driftless/internal/config"
	"driftless/internal/stream/kafka"
)

// topics looks at the topics of the sources.
func (k *checker) topics(ctx context.Context) (findings []Finding) {
	for _, s := range k.config.Sources {
		if s.Kafka != nil {
			findings = append(findings, topicFinding(ctx, s))
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

package realtest_test

import (
	"net"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"

	"driftless/internal/realtest"
)

// countRecords is how many offsets a partition has.
func countRecords(t *testing.T, k *realtest.Kafka, topic string) int64 {
	t.Helper()
	response, err := k.Client().ListOffsets(limited(t), &kafka.ListOffsetsRequest{
		Topics: map[string][]kafka.OffsetRequest{topic: {kafka.LastOffsetOf(0)}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return response.Topics[topic][0].LastOffset
}

func TestKilledKafkaKeepsItsDataOverARestart(t *testing.T) {
	t.Parallel()
	k := realtest.PrivateKafka(t, realtest.KafkaOptions{})
	topic := k.Topic(t, 1, nil)
	write := func() {
		t.Helper()
		if err := k.Produce(limited(t), topic, 0, realtest.Record{Value: []byte("kept")}); err != nil {
			t.Fatal(err)
		}
	}
	write()
	k.Kill()
	if conn, err := net.Dial("tcp", k.Addr()); err == nil {
		_ = conn.Close()
		t.Error("a killed broker still takes connections")
	}
	for range 2 { // after the kill, and in order
		if err := k.Restart(limited(t)); err != nil {
			t.Fatal(err)
		}
		write()
	}
	if n := countRecords(t, k, topic); n != 3 {
		t.Errorf("records: got %d, want 3", n)
	}
	if !strings.Contains(k.LogTail(), "INFO") {
		t.Errorf("log tail holds no log line: %q", k.LogTail())
	}
}

func TestKafkaTransactionsCommitAndAbort(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	for n, end := range []func(*realtest.Transaction) error{
		func(x *realtest.Transaction) error { return x.Commit(limited(t)) },
		func(x *realtest.Transaction) error { return x.Abort(limited(t)) },
	} {
		x, err := k.Begin(limited(t), topic)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := x.Produce(limited(t), topic, 0, realtest.Record{Value: []byte("a")}, realtest.Record{Value: []byte("b")}); err != nil {
				t.Fatal(err)
			}
		}
		if err := end(x); err != nil {
			t.Fatal(err)
		}
		want := int64(5 * (n + 1)) // four records and a marker, which is written a little later
		realtest.Eventually(t, patience, "the transaction has its marker", func() bool { return countRecords(t, k, topic) == want })
	}
}

func TestKafkaNamesWhatIsMissing(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	t.Setenv("DRIFTLESS_KAFKA", temp)
	_, err := realtest.StartKafka(limited(t), realtest.KafkaOptions{})
	if err == nil || !strings.Contains(err.Error(), "run scripts/get-kafka") {
		t.Errorf("without Kafka: %v", err)
	}
	wantNoFiles(t, temp)
}

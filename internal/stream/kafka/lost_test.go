package kafka

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"driftless/internal/realtest"
	"driftless/internal/stream"
)

// wantEnd reads until the lane ends, with an error of that cause whose text holds what an operator needs.
func wantEnd(t *testing.T, l *Lane, cause error, words ...string) {
	t.Helper()
	ctx := limited(t)
	for {
		_, err := l.Next(ctx)
		if err == nil {
			continue
		}
		if !errors.Is(err, cause) {
			t.Fatalf("got %v, want %v", err, cause)
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q does not say %q", err, word)
			}
		}
		if _, again := l.Next(ctx); again == nil || again.Error() != err.Error() {
			t.Errorf("a lane that has ended says %v, want %v again", again, err)
		}
		t.Log(err)
		return
	}
}

func TestAnOffsetOutOfRangeIsALostPosition(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 10)...)
	produce(t, k, topic, 0, numbered(10, 10)...)
	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	if err := k.DeleteRecords(limited(t), topic, 0, 10); err != nil {
		t.Fatal(err)
	}
	r := running(t, c)
	from.Offset = 3
	wantEnd(t, r.Open(0, from), stream.ErrPositionLost, "retention", "7 offsets", "begins at 10", topic+"/0", "offset 3")
	from.Offset = 21
	wantEnd(t, r.Open(0, from), stream.ErrPositionLost, "ends at offset 20")

	for _, good := range []int64{10, 20} {
		from.Offset = good
		if _, err := r.Open(0, from).Next(limited(t)); err != nil {
			t.Errorf("offset %d is there: %v", good, err)
		}
	}
}

// The new topic has grown beyond the position, so that its offset is there and nothing but the topic's id tells.
func TestATopicThatWasCreatedAnewIsALostPosition(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 10)...)
	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	_, last := toEnd(t, l, from, 10)

	if err := k.DeleteTopic(limited(t), topic); err != nil {
		t.Fatal(err)
	}
	if err := k.CreateTopic(limited(t), topic, 1, nil); err != nil {
		t.Fatal(err)
	}
	produce(t, k, topic, 0, numbered(100, 50)...)
	wantEnd(t, l, stream.ErrPositionLost, "deleted and created again", from.Topic.String())

	// The same from a checkpoint, for a process that was not there.
	wantEnd(t, running(t, client(t, k, topic)).Open(0, last.To), stream.ErrPositionLost, "deleted and created again")
	wantNumbers(t, all(t, c, 50), 100, 150)
}

func TestATopicThatIsGoneIsUnknown(t *testing.T) {
	t.Parallel()
	k := realtest.SharedKafka(t)
	topic := k.Topic(t, 1, nil)
	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	l := running(t, c).Open(0, from)
	toEnd(t, l, from, 0)
	wantEnd(t, running(t, c).Open(7, from), ErrUnknownTopic, "no partition 7")
	if err := k.DeleteTopic(limited(t), topic); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, l, ErrUnknownTopic)
	if _, err := c.Topic(limited(t)); !errors.Is(err, ErrUnknownTopic) {
		t.Errorf("looked up: %v", err)
	}
}

// The broker loses the end of its log, and then writes more than it had: the offset is there again, with other records before it.
func TestALogThatLostItsEndIsALostPosition(t *testing.T) {
	t.Parallel()
	k := realtest.PrivateKafka(t, realtest.KafkaOptions{})
	topic := k.Topic(t, 1, nil)
	produce(t, k, topic, 0, numbered(0, 10)...)
	produce(t, k, topic, 0, numbered(10, 10)...)
	c := client(t, k, topic)
	from := places(t, c, Earliest)[0]
	_, last := toEnd(t, running(t, c).Open(0, from), from, 20)

	k.Kill()
	cutLog(t, filepath.Join(k.DataDir(), topic+"-0", "00000000000000000000.log"))
	if err := k.Restart(limited(t)); err != nil {
		t.Fatal(err)
	}
	wantEnd(t, running(t, c).Open(0, last.To), stream.ErrPositionLost)

	produce(t, k, topic, 0, numbered(100, 30)...)
	wantEnd(t, running(t, c).Open(0, last.To), stream.ErrPositionLost, "lost what was at offset 10 and later")
	kept := last.To
	kept.Offset = 10
	records, _ := toEnd(t, running(t, c).Open(0, kept), kept, 40)
	wantNumbers(t, records, 100, 130)
}

// cutLog removes the last of two batches of equal length.
func cutLog(t *testing.T, path string) {
	t.Helper()
	log, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	first, _, err := cutBatch(log)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(first))); err != nil {
		t.Fatal(err)
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
)

// streamsApp is the compiled application of Kafka Streams in bench/streams.
type streamsApp struct {
	libs, dir   string // dir is for classes and state
	uri, broker string
}

// streamsSettings are the fastest of those that were tried: one, two and six threads, commits every 0.5, 1, 3 and 5 s, state in RocksDB and
// in memory. On 340,000 events, where most is start, they can hardly be told apart; on two million a commit every 5 s saves a tenth. The
// cache holds every key, so that there is one update of a key and commit.
func streamsSettings(events int) []string {
	commit := time.Second
	if events > 1_000_000 {
		commit = 5 * time.Second
	}
	return []string{
		"processing.guarantee=exactly_once_v2", "auto.offset.reset=earliest", "num.stream.threads=2",
		fmt.Sprintf("commit.interval.ms=%d", commit.Milliseconds()), "statestore.cache.max.bytes=268435456",
		"max.poll.records=10000", "buffered.records.per.partition=20000", "producer.linger.ms=20", "producer.batch.size=131072",
	}
}

// newStreamsApp compiles the application; scripts/get-streams has fetched what it needs.
func newStreamsApp(ctx context.Context, uri, broker string) (*streamsApp, error) {
	libs := filepath.Join(".cache", "streams", "libs", "*")
	if found, err := filepath.Glob(filepath.Join(".cache", "streams", "libs", "kafka-streams-*.jar")); err != nil || len(found) == 0 {
		return nil, errors.New("there is no Kafka Streams in .cache/streams: run scripts/get-streams, and the benchmark in the same directory")
	}
	dir, err := os.MkdirTemp("", "driftless-bench")
	if err != nil {
		return nil, err
	}
	out, err := exec.CommandContext(ctx, "javac", "-cp", libs, "-d", dir, filepath.Join("bench", "streams", "Counts.java")).CombinedOutput()
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, fmt.Errorf("compile bench/streams: %w\n%s", err, out)
	}
	return &streamsApp{libs: libs, dir: dir, uri: uri, broker: broker}, nil
}

func (s *streamsApp) remove() { _ = os.RemoveAll(s.dir) }

// catchUp runs the application until all counts are written, and checks them. Its time begins with the start of Java.
func (s *streamsApp) catchUp(ctx context.Context, client *mongo.Client, topic published, name string) (spent spell, err error) {
	target := client.Database("streams_" + name).Collection("post_counters")
	command := exec.CommandContext(ctx, "java", append([]string{
		"-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", s.libs + string(os.PathListSeparator) + s.dir, "Counts",
		topic.topic, s.uri, target.Database().Name(), target.Name(), fmt.Sprint(topic.events), fmt.Sprint(topic.sum),
		"bootstrap.servers=" + s.broker, "application.id=streams_" + name, "state.dir=" + filepath.Join(s.dir, "state_"+name),
	}, streamsSettings(topic.events)...)...)
	whole, err := timed(ctx, client, func() (err error) {
		spent, err = runStreams(command)
		return err
	})
	if err != nil {
		return spent, err
	}
	spent.processor = whole.server + command.ProcessState.UserTime() + command.ProcessState.SystemTime()
	return spent, errors.Join(sameCounts(ctx, target, 1, topic.counts), target.Database().Drop(ctx))
}

// runStreams runs the application until it says that it is done.
func runStreams(command *exec.Cmd) (spent spell, err error) {
	var problems bytes.Buffer
	command.Stderr = &problems
	input, err := command.StdinPipe() // closed, by us or with us, it ends the application
	if err != nil {
		return spent, err
	}
	output, err := command.StdoutPipe()
	if err != nil {
		return spent, err
	}
	began := time.Now()
	if err := command.Start(); err != nil {
		return spent, err
	}
	spent, done := follow(bufio.NewScanner(output), began)
	_ = input.Close()
	err = command.Wait()
	if err == nil && !done {
		err = errors.New("it said nothing")
	}
	if err != nil {
		return spent, fmt.Errorf("the application of Kafka Streams ended early: %w\n%s", err, strings.TrimSpace(problems.String()))
	}
	return spent, nil
}

// follow reads what the application says of itself.
func follow(lines *bufio.Scanner, began time.Time) (spent spell, done bool) {
	running := began
	for lines.Scan() {
		switch lines.Text() {
		case "running":
			running = time.Now()
		case "done":
			return spell{took: time.Since(began), assigned: time.Since(running)}, true
		}
	}
	return spell{}, false
}

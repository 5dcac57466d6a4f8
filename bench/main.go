// Command bench measures driftless beside the limits of the server, in one run on a private mongod: how long it takes to
// catch up with a backlog, against reading the same stream and doing nothing; a full pass of the reconciler, against one
// plain $group over the same rows; a run over touched keys in a small and in a large collection; a catch-up with a topic of a
// private broker beside Kafka Streams, and what bad records and `dedupe` take off it; with LANES, how long it takes several lanes to
// catch up instead of one, and what they cost.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// rounds of each measurement, one after the other; the medians are compared.
const rounds = 3

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	scale, err := scaleOf(os.Getenv("SCALE"))
	if err != nil {
		return err
	}
	most, err := lanesOf(os.Getenv("LANES"))
	if err != nil {
		return err
	}
	parts, err := partsOf(os.Getenv("PART"))
	if err != nil {
		return err
	}
	// The positions of the first round are judged in the last.
	window := map[string]string{"minSnapshotHistoryWindowInSeconds": "3600"}
	server, err := realtest.StartMongod(ctx, realtest.Options{OplogMB: 2048, CacheGB: 4, Params: window})
	if err != nil {
		return err
	}
	defer func() { _ = server.Stop() }()
	client, err := mongo.Connect(options.Client().ApplyURI(server.URI()))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	if most > 1 {
		return divide(ctx, client, scale, most)
	}
	for _, p := range parts {
		if err := p.measure(ctx, bench{client, server.URI()}, scale); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// bench is the server that all is measured on.
type bench struct {
	client *mongo.Client
	uri    string
}

// part is one measurement.
type part struct {
	name    string
	measure func(ctx context.Context, on bench, scale float64) error
}

var allParts = []part{{"catchup", catchUp}, {"recount", recount}, {"touched", touched}, {"latency", latency}, {"kafka", topics}}

// partsOf reads PART: one of them, or all.
func partsOf(text string) ([]part, error) {
	if text == "" {
		return allParts, nil
	}
	for _, p := range allParts {
		if p.name == text {
			return []part{p}, nil
		}
	}
	return nil, fmt.Errorf("PART=%s: write catchup, recount, touched, latency or kafka; all are measured without it", text)
}

// scaleOf reads SCALE: 1 is the backlog of 340,000 changes, and 1,000,000 rows to recount.
func scaleOf(text string) (float64, error) {
	if text == "" {
		return 1, nil
	}
	scale, err := strconv.ParseFloat(text, 64)
	if err != nil || scale <= 0 || scale > 100 {
		return 0, fmt.Errorf("SCALE=%s: write a number above 0, up to 100; 1 is a backlog of 340,000 changes, and 1,000,000 rows to recount", text)
	}
	return scale, nil
}

// lanesOf reads LANES: into how many lanes the source is divided at most.
func lanesOf(text string) (int, error) {
	if text == "" {
		return 1, nil
	}
	lanes, err := strconv.Atoi(text)
	if err != nil || lanes < 1 || lanes > 16 {
		return 0, fmt.Errorf("LANES=%s: write a number from 1 to 16; 1, 2, 4 and so on up to it are measured", text)
	}
	return lanes, nil
}

// catchUp measures reading alone and catching up in turn, on the same backlog.
func catchUp(ctx context.Context, on bench, scale float64) error {
	client := on.client
	var lanes []*subject
	for round := range rounds {
		s, err := newSubject(ctx, rowsOf(client), fmt.Sprint(round), 1)
		if err != nil {
			return err
		}
		lanes = append(lanes, s)
	}
	if err := backlogOf(scale).write(ctx, rowsOf(client)); err != nil {
		return err
	}
	var raw, ours []time.Duration
	for _, s := range lanes {
		events, took, err := s.readOnly(ctx, s.ids[0])
		if err != nil {
			return err
		}
		raw = append(raw, took)
		caught, err := s.catchUp(ctx, events)
		if err != nil {
			return err
		}
		ours = append(ours, caught.took)
		fmt.Printf("round: %d events  read only %s (%s)  catch up %s (%s)  ratio %.2f  %d transactions, heap at most %d MiB\n",
			events, round(took), rate(events, took), round(caught.took), rate(events, caught.took),
			took.Seconds()/caught.took.Seconds(), caught.transactions, caught.peakHeap>>20)
		if err := errors.Join(s.check(ctx), s.clear(ctx)); err != nil {
			return err
		}
	}
	fmt.Printf("catch-up: %.2f of the speed of reading the stream and doing nothing (medians of %d rounds: %s and %s)\n",
		median(raw).Seconds()/median(ours).Seconds(), rounds, round(median(raw)), round(median(ours)))
	return nil
}

func median(ds []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(ds))
	return sorted[len(sorted)/2]
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

func rate(events int, d time.Duration) string {
	return fmt.Sprintf("%.0f events/s", float64(events)/d.Seconds())
}

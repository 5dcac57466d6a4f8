package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/daemon"
	"driftless/internal/stream/envelope"
)

// letterState is a line of `deadletters list -o json`.
type letterState struct {
	ID      string    `json:"id"`
	Kind    string    `json:"kind"` // record or increment
	Lane    string    `json:"lane"`
	Reason  string    `json:"reason"`
	FirstAt time.Time `json:"first_at,omitzero"`
	LastAt  time.Time `json:"last_at"`

	Counter string `json:"counter,omitempty"` // of increments
	Key     string `json:"key,omitempty"`     // as extended JSON
	Delta   int64  `json:"delta,omitempty"`   // what all of them come to
	Times   int64  `json:"times,omitempty"`   // how many they are

	Topic     string  `json:"topic,omitempty"` // of a record
	Partition *int    `json:"partition,omitempty"`
	Offset    *int64  `json:"offset,omitempty"`
	Fault     string  `json:"fault,omitempty"` // one of few, as the metric's reason
	RecordKey *string `json:"record_key,omitempty"`
	Record    *string `json:"record,omitempty"` // as far as it is kept
	Bytes     int64   `json:"bytes,omitempty"`  // that key and record had

	RecordKeyBase64 *string `json:"record_key_base64,omitempty"` // where they are no text
	RecordBase64    *string `json:"record_base64,omitempty"`

	DiscardedAt time.Time `json:"discarded_at,omitzero"`
}

func letterOf(l counter.Letter) letterState {
	s := letterState{
		ID: l.ID, Kind: l.Kind, Lane: l.Lane, Reason: l.Reason, FirstAt: l.FirstAt.UTC(), LastAt: l.LastAt.UTC(), Times: l.Times,
		Counter: l.Counter, Key: l.Key, Delta: l.Delta, DiscardedAt: l.DiscardedAt.UTC(),
	}
	if l.Kind != counter.LetterRecord {
		return s
	}
	s.Offset, s.Fault, s.Bytes = &l.Offset, l.Fault, l.Size
	s.Topic, s.Partition = l.Topic, partitionOf(l.Lane)
	s.RecordKey, s.RecordKeyBase64 = textOrBase64(l.RecordKey)
	s.Record, s.RecordBase64 = textOrBase64(l.Record)
	return s
}

// textOrBase64 is nil twice for none.
func textOrBase64(b *bson.Binary) (text, encoded *string) {
	if b == nil {
		return nil, nil
	}
	if utf8.Valid(b.Data) {
		t := string(b.Data)
		return &t, nil
	}
	e := base64.StdEncoding.EncodeToString(b.Data)
	return nil, &e
}

// partitionOf is the last part of the name of a topic's lane.
func partitionOf(lane string) *int {
	n, err := strconv.Atoi(lane[strings.LastIndexByte(lane, '/')+1:])
	if err != nil {
		return nil
	}
	return &n
}

// deadLetters prints a table, and below it how many more there are.
func (p printer) deadLetters(ctx context.Context, states *counter.States, discarded bool, limit int64) error {
	all, err := states.LetterCount(ctx)
	if err != nil {
		return err
	}
	var letters []counter.Letter
	err = states.Letters(ctx, discarded, limit, func(l counter.Letter) error {
		if l.Record != nil { // of which no more is shown
			l.Record.Data = append([]byte(nil), l.Record.Data[:min(len(l.Record.Data), maxShown)]...)
		}
		letters = append(letters, l)
		return nil
	})
	if err != nil {
		return err
	}
	if len(letters) == 0 {
		_, err := fmt.Fprintln(p.w, "there are none")
		return err
	}
	if err := p.letterTable(letters, discarded, lineWidth()); err != nil {
		return err
	}
	more := all - int64(len(letters))
	if discarded || more <= 0 {
		return nil
	}
	_, err = fmt.Fprintf(p.w, "and %d more: --limit 0 shows all\n", more)
	return err
}

// maxShown is how much of a reason or a record a line shows at most, in bytes.
const maxShown = 200

func (p printer) letterTable(letters []counter.Letter, discarded bool, width int) error {
	at := "SINCE"
	if discarded {
		at = "DISCARDED"
	}
	widest := 0
	for _, l := range letters {
		widest = max(widest, utf8.RuneCountInString(l.ID))
	}
	room := max(24, width-widest-2-len(at)-2)
	table := daemon.NewTable(p.w, "ID", at, "WHAT")
	for _, l := range letters {
		since := l.FirstAt
		if discarded {
			since = l.DiscardedAt
		}
		table.Row(l.ID, p.ago(since), shortened(whatOf(l), room))
	}
	return table.Flush()
}

// whatOf is the reason, and what it is about.
func whatOf(l counter.Letter) string {
	switch {
	case l.Kind != counter.LetterRecord:
		return fmt.Sprintf("%+d for %s: %s", l.Delta, l.Key, l.Reason)
	case l.Record == nil:
		return l.Reason
	default:
		return l.Reason + ": " + string(l.Record.Data)
	}
}

// shortened is a printable text of at most n characters.
func shortened(text string, n int) string {
	runes := []rune(daemon.Printable(text))
	if n = min(n, maxShown); len(runes) <= n {
		return string(runes)
	}
	return string(runes[:n-1]) + "…"
}

// lineWidth is that of the terminal; elsewhere a line may be as long as it likes.
func lineWidth() int {
	width, is := daemon.TerminalWidth()
	if !is {
		return 1000
	}
	return width
}

// maxKept is how many letters that stay are named.
const maxKept = 20

// retryReport tells what became of letters.
type retryReport struct {
	w       io.Writer
	json    bool
	counts  map[string]int
	refused int
	kept    []retriedLetter // the first
}

func (r *retryReport) add(id string, retried counter.Retried) error {
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[retried.Outcome]++
	r.refused += len(retried.Apart)
	line := retriedLetter{ID: id, Outcome: retried.Outcome, Why: retried.Why, Refused: len(retried.Apart)}
	if retried.Outcome == counter.RetryKept && len(r.kept) < maxKept {
		r.kept = append(r.kept, line)
	}
	if r.json {
		return daemon.WriteJSONLine(r.w, line)
	}
	return nil
}

// outcomes in words, in the order in which they are told.
var outcomes = []struct{ outcome, words string }{
	{counter.RetryApplied, "applied"}, {counter.RetryCounted, "counted already"}, {counter.RetryMarked, "marked for the reconciler's next run"},
	{counter.RetryNothing, "nothing to count in it"}, {counter.RetryGone, "gone meanwhile"}, {counter.RetryKept, "kept"},
}

func (r *retryReport) summary() string {
	var parts []string
	for _, o := range outcomes {
		if n := r.counts[o.outcome]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %d", o.words, n))
		}
	}
	if r.refused > 0 {
		parts = append(parts, fmt.Sprintf("increments that their documents could not take, now dead letters of their own: %d", r.refused))
	}
	if len(parts) == 0 {
		return "none was retried"
	}
	return strings.Join(parts, "; ")
}

// end prints the summary of n letters. Some that stay are a failure.
func (r *retryReport) end(n int) error {
	if !r.json {
		if err := r.print(n); err != nil {
			return err
		}
	}
	if kept := r.counts[counter.RetryKept]; kept > 0 {
		return fmt.Errorf("%d of %d dead letters cannot be counted still and stay: mend producer or configuration and retry, or discard them", kept, n)
	}
	return nil
}

func (r *retryReport) print(n int) error {
	text := noLetters
	if n > 0 {
		text = r.summary()
	}
	if _, err := fmt.Fprintln(r.w, text); err != nil || len(r.kept) == 0 {
		return err
	}
	table := daemon.NewTable(r.w, "KEPT", "WHY")
	for _, k := range r.kept {
		table.Row(k.ID, shortened(k.Why, maxShown))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if more := r.counts[counter.RetryKept] - len(r.kept); more > 0 {
		_, err := fmt.Fprintf(r.w, "and %d more\n", more)
		return err
	}
	return nil
}

// topicSources are the topics of the configuration, by source.
func topicSources(c *config.Config, definitions []*counter.Definition) (map[string]counter.TopicSource, error) {
	never := func() time.Duration { return 0 } // an event's age alone decides the width of its bucket
	topics := map[string]counter.TopicSource{}
	for _, s := range c.Sources {
		if s.Kafka == nil {
			continue
		}
		projector, err := counter.NewProjector(envelope.New(s.Kafka), counter.OfSource(definitions, s.Name), c.Reconciler.Settle, never)
		if err != nil {
			return nil, fmt.Errorf("source %s: %w", s.Name, err)
		}
		topics[s.Name] = counter.TopicSource{Topic: s.Kafka.Topic, Projector: projector, Window: dedupeWindow(s)}
	}
	return topics, nil
}

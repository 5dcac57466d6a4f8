// Package config reads the one configuration file that both binaries share: the file, the environment and the
// flags on top of it, and every fault in it at once. It connects to nothing.
package config

import (
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// FormatEvent is the format of events that say what happened by their type and time.
const FormatEvent = "event"

// Application names the reserved source of counters that the application increments itself.
const Application = "application"

// Config is a whole, validated configuration.
type Config struct {
	MongoDB     MongoDB
	Sources     []Source  // in the order of the file
	Counters    []Counter // in the order of the file
	Log         Log
	Incrementer Incrementer
	Reconciler  Reconciler
}

// Source returns the declared source of that name.
func (c *Config) Source(name string) (*Source, bool) {
	i := slices.IndexFunc(c.Sources, func(s Source) bool { return s.Name == name })
	if i < 0 {
		return nil, false
	}
	return &c.Sources[i], true
}

// Counter returns the declared counter of that name.
func (c *Config) Counter(name string) (*Counter, bool) {
	i := slices.IndexFunc(c.Counters, func(c Counter) bool { return c.Name == name })
	if i < 0 {
		return nil, false
	}
	return &c.Counters[i], true
}

// MongoDB says where the deployment is and which database holds our own collections.
type MongoDB struct {
	URI           string // a connection string, secret: never printed
	URIFile       string // a file that holds it instead
	StateDatabase string
}

// Source is what happened to rows: exactly one of ChangeStream and Kafka is set.
type Source struct {
	Name           string
	ChangeStream   *ChangeStream
	Kafka          *Kafka
	OnPositionLost string // recount or stop
	Pos            Pos
}

// ChangeStream is a source that tails one collection.
type ChangeStream struct {
	Database, Collection string
	Partitions           int
}

// Kafka is a source that consumes one topic.
type Kafka struct {
	Brokers      []string
	Topic, Group string
	Format       string // event, debezium or change_stream
	Event        Event
	Start        string // earliest, latest or an RFC 3339 time
	TLS          TLS
	SASL         SASL
	OnError      string // dead_letter or stop
	Dedupe       Dedupe
}

// Event maps the fields of a JSON event to a key, a time and a weight.
type Event struct {
	Type, Key, Time string
	Deltas          map[string]int64
}

// TLS names PEM files. It is on with any of them, or when Enabled, with the system's authorities.
type TLS struct {
	Enabled                   bool
	CAFile, CertFile, KeyFile string
}

// SASL authenticates with a broker.
type SASL struct{ Mechanism, Username, PasswordFile string }

// Dedupe drops events whose id was seen within the window.
type Dedupe struct {
	Field  string
	Window time.Duration
}

// Counter is one declared count.
type Counter struct {
	Name, Source string
	Rows         Rows          // the rows that are the truth; for a change-stream source, its own collection
	Key          string        // dotted path in the row; its value is the counter document's _id
	SoftDelete   string        // dotted path; a row counts while it is missing or null; "" for none
	CountIf      bson.RawValue // aggregation expression over the row, as BSON; zero for none
	Sum          string        // dotted path of an integer to add up; "" to count rows
	Target       Target
	Repair       string // difference or overwrite, for application counters
	Format       string // of the events of its source, "" when that is not a topic
	AlertAbove   int64
	Pos          Pos
}

// Rows names a collection and the dotted paths of its times; "" where not declared.
type Rows struct {
	Database, Collection            string
	CreatedAt, DeletedAt, UpdatedAt string
	Skew                            time.Duration // how far an event's time may be from its row's
}

// Target names the counter documents' collection and their fields.
type Target struct {
	Database, Collection string
	Base, Live           string // the two parts of the displayed count
	Count                string // the single field of an application counter, instead of Base and Live
	Total                string // base + live as one field; "" keeps it inside driftless.<counter>
	ReconciledAt         string
	Upsert               bool
}

// Log is how the process logs.
type Log struct{ Level, Format string }

// Incrementer holds the settings of cmd/incrementer.
type Incrementer struct {
	Listen         string
	MaxBatchEvents int
	IdleCheckpoint time.Duration
	Lease          time.Duration
}

// Reconciler holds the settings of cmd/reconciler.
type Reconciler struct {
	Listen               string
	Every, Settle, Sweep time.Duration
	Lease                time.Duration
	BatchKeys            int
	MaxKeysPerSecond     int
	MaxRowsPerSecond     int
	CostlyKeyShare       float64
	PauseWhenLagging     time.Duration
	JudgeTimeout         time.Duration
	HoldWhenDriftedShare float64
	HoldMinKeys          int
}

// Pos is a place in the configuration file.
type Pos struct {
	File string
	Line int
}

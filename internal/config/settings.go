package config

import (
	"math"
	"strings"
	"time"
)

const envPrefix = "DRIFTLESS_"

// Setting is one setting that the file, a variable and a flag can give.
type Setting struct {
	Path    string // section.key, as in the file
	Default string // as in the file
	Unit    string
	Help    string
	secret  bool // never quoted in a fault
	bind    func(*Config) decoder
}

// Flag is the setting's flag without the dashes in front: incrementer-max-batch-events.
func (s Setting) Flag() string { return strings.NewReplacer(".", "-", "_", "-").Replace(s.Path) }

// Env is the setting's variable: DRIFTLESS_INCREMENTER_MAX_BATCH_EVENTS.
func (s Setting) Env() string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(s.Path, ".", "_"))
}

// Section is the first part of the path.
func (s Setting) Section() string { return s.Path[:strings.Index(s.Path, ".")] }

// sections are the parts of the file whose settings have variables and flags.
var sections = []string{"mongodb", "log", "incrementer", "reconciler"}

// smallest is the least duration that is not nothing.
const smallest = time.Nanosecond

// Settings is the one table of all settings outside sources and counters; file, variables, flags, defaults and help
// follow from it.
var Settings = []Setting{
	{
		Path: "mongodb.uri", Default: "mongodb://127.0.0.1:27017/?replicaSet=rs0", Unit: "URI", secret: true,
		Help: "connection string of the replica set; one with a password never as a flag",
		bind: func(c *Config) decoder { return text(&c.MongoDB.URI, wantText, isText) },
	},
	{
		Path: "mongodb.uri_file", Unit: "path",
		Help: "file that holds the connection string, instead of it",
		bind: func(c *Config) decoder { return text(&c.MongoDB.URIFile, wantText, isText) },
	},
	{
		Path: "mongodb.state_database", Default: "driftless", Unit: "name",
		Help: "database of our own collections",
		bind: func(c *Config) decoder { return text(&c.MongoDB.StateDatabase, wantDatabase, isDatabase) },
	},
	{
		Path: "log.level", Default: "info", Unit: "debug, info, warn or error",
		Help: "least severe records to log",
		bind: func(c *Config) decoder { return enum(&c.Log.Level, "debug", "info", "warn", "error") },
	},
	{
		Path: "log.format", Default: "auto", Unit: "auto, text or json",
		Help: "form of the log; auto is text on a terminal and JSON elsewhere",
		bind: func(c *Config) decoder { return enum(&c.Log.Format, "auto", "text", "json") },
	},
	{
		Path: "incrementer.listen", Default: "127.0.0.1:9464", Unit: "host:port",
		Help: "address of the incrementer's status, health and metrics",
		bind: func(c *Config) decoder { return text(&c.Incrementer.Listen, wantListen, isListen) },
	},
	{
		Path: "incrementer.max_batch_events", Default: "20000", Unit: "events",
		Help: "most events to apply in one transaction",
		bind: func(c *Config) decoder { return whole(&c.Incrementer.MaxBatchEvents, 1, 1_000_000) },
	},
	{
		Path: "incrementer.idle_checkpoint", Default: "2s", Unit: "duration",
		Help: "how often a source without events moves its checkpoint",
		bind: func(c *Config) decoder { return duration(&c.Incrementer.IdleCheckpoint, smallest) },
	},
	{
		Path: "incrementer.lease", Default: "15s", Unit: "duration",
		Help: "how long an instance that went silent keeps its lanes before a standby takes them",
		bind: func(c *Config) decoder { return duration(&c.Incrementer.Lease, time.Second) },
	},
	{
		Path: "reconciler.listen", Default: "127.0.0.1:9465", Unit: "host:port",
		Help: "address of the reconciler's status, health and metrics",
		bind: func(c *Config) decoder { return text(&c.Reconciler.Listen, wantListen, isListen) },
	},
	{
		Path: "reconciler.every", Default: "1m", Unit: "duration",
		Help: "pause between two runs",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.Every, smallest) },
	},
	{
		Path: "reconciler.lease", Default: "15s", Unit: "duration",
		Help: "how long a reconciler that went silent leads before a standby takes over",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.Lease, time.Second) },
	},
	{
		Path: "reconciler.settle", Default: "30s", Unit: "duration",
		Help: "how long a change of a counter that the application keeps, or that a topic tells of, may be under way between row and counter",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.Settle, 0) },
	},
	{
		Path: "reconciler.sweep", Default: "24h", Unit: "duration",
		Help: "time within which every key is verified at least once, touched or not",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.Sweep, smallest) },
	},
	{
		Path: "reconciler.batch_keys", Default: "500", Unit: "keys",
		Help: "keys to recount with one query",
		bind: func(c *Config) decoder { return whole(&c.Reconciler.BatchKeys, 1, 100_000) },
	},
	{
		Path: "reconciler.max_keys_per_second", Default: "0", Unit: "keys per second, 0 = no limit",
		Help: "most keys to recount",
		bind: func(c *Config) decoder { return whole(&c.Reconciler.MaxKeysPerSecond, 0, math.MaxInt32) },
	},
	{
		Path: "reconciler.max_rows_per_second", Default: "0", Unit: "rows per second, 0 = no limit",
		Help: "most rows to count",
		bind: func(c *Config) decoder { return whole(&c.Reconciler.MaxRowsPerSecond, 0, math.MaxInt32) },
	},
	{
		Path: "reconciler.costly_key_share", Default: "0.05", Unit: "share of the time, 0 to 1",
		Help: "a key whose recount takes more of the loop's time than this is recounted less often, at least once in a sweep",
		bind: func(c *Config) decoder { return share(&c.Reconciler.CostlyKeyShare) },
	},
	{
		Path: "reconciler.pause_when_lagging", Default: "30s", Unit: "duration",
		Help: "a run pauses between batches while the incrementer, or a majority of the members, is further behind than this",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.PauseWhenLagging, time.Second) },
	},
	{
		Path: "reconciler.judge_timeout", Default: "10s", Unit: "duration",
		Help: "how long a run waits for a position that can be judged",
		bind: func(c *Config) decoder { return duration(&c.Reconciler.JudgeTimeout, smallest) },
	},
	{
		Path: "reconciler.hold_when_drifted_share", Default: "0.2", Unit: "share of the checked keys, 0 to 1",
		Help: "a run that finds more of a counter's keys drifted than this holds its repair until approved; 1 never does",
		bind: func(c *Config) decoder { return share(&c.Reconciler.HoldWhenDriftedShare) },
	},
	{
		Path: "reconciler.hold_min_keys", Default: "100", Unit: "keys",
		Help: "a run that checked fewer keys of a counter never holds its repair",
		bind: func(c *Config) decoder { return whole(&c.Reconciler.HoldMinKeys, 0, 100_000) },
	},
}

// Default returns the configuration of an empty file: every setting at its default, no sources, no counters.
func Default() *Config {
	c := &Config{}
	r := newReader(Options{})
	for _, s := range Settings {
		if s.Default != "" {
			s.bind(c)(r, &node{kind: kindText, text: s.Default, loose: true, path: s.Path})
		}
	}
	return c
}

// Package logkey names the attributes of log lines, so that one thing has one name in every package and a search over
// the logs finds all of it. It imports nothing: every package may use it.
package logkey

// The configured names.
const (
	Source     = "source"     // of the source
	Lane       = "lane"       // of the lane: source, source/N or source/topic/N
	Owner      = "owner"      // of a lane: host and listen address of an instance
	Counter    = "counter"    // of the counter
	Database   = "database"   // of a MongoDB database
	Collection = "collection" // of a MongoDB collection
	URL        = "url"        // where to look or what was asked; never a connection string
)

// What was counted and where.
const (
	Key       = "key"       // of a counter document, as relaxed extended JSON
	Run       = "run"       // id of a reconciler run
	Position  = "position"  // in the stream, in words
	Seq       = "seq"       // of a checkpoint
	Events    = "events"    // how many
	Displayed = "displayed" // base + live, what users see
	Truth     = "truth"     // what a recount found
	Drift     = "drift"     // displayed - truth, signed
	Direction = "direction" // over or under
	Duration  = "duration"  // how long it took, as 1.5s
)

// Why, and what to do about it.
const (
	Error  = "error"  // the error's text
	Cause  = "cause"  // what most likely made a count drift
	Reason = "reason" // why something was skipped, retried or given up, from a short fixed list
	Action = "action" // what an operator should do now
	Signal = "signal" // that the process received
)

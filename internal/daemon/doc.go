// Package daemon is what both binaries share around their work: logging, exit codes, signals, the one HTTP port, and
// the verbs and flags that every command-line program has. It knows nothing of streams or counters.
//
// Nothing here writes colours or cursor movements, so NO_COLOR holds whether it is set or not.
package daemon

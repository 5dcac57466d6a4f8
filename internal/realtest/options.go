package realtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
)

// The user that [Options].Auth creates: every privilege, on the admin database.
const (
	RootUser     = "root"
	RootPassword = "password"
)

const replicaSetName = "rs0"

// Options describe a server to start. The zero value is a replica set with one member, without authentication.
type Options struct {
	// OplogMB is the size of the oplog in MB; 0 is 512. With 1, and a SyncDelay of a second, 60 MB of writes roll it over.
	OplogMB int
	// SyncDelay is the time between checkpoints of the storage engine, in whole seconds; 0 is the server's default of a minute.
	SyncDelay time.Duration
	// CacheGB is the size of the storage engine's cache in GB; 0 is 1. The server takes no less than 0.25.
	CacheGB float64
	// Standalone leaves out the replica set: no oplog, no change streams, no transactions.
	Standalone bool
	// Auth makes the server demand credentials and creates [RootUser], which the URI then names.
	Auth bool
	// TestCommands allows fail points. [Shared] and [Private] turn it on.
	TestCommands bool
	// Params are further server parameters (--setParameter).
	Params map[string]string
	// LogTo is the path of the log file, which then stays; empty is a file in the data directory, which goes with it.
	LogTo string

	// key is the content of the key file that the members of one set share.
	key string
	// inSet says that someone else initiates the set that this server belongs to.
	inSet bool
}

// arguments are those that do not depend on the place where the server runs.
func (o Options) arguments() []string {
	args := []string{"--bind_ip", "127.0.0.1", "--nounixsocket"}
	args = append(args, "--wiredTigerCacheSizeGB", strconv.FormatFloat(orDefault(o.CacheGB, 1), 'f', -1, 64))
	if !o.Standalone {
		args = append(args, "--replSet", replicaSetName, "--oplogSize", strconv.Itoa(orDefault(o.OplogMB, 512)))
	}
	if o.SyncDelay > 0 {
		args = append(args, "--syncdelay", strconv.Itoa(int(o.SyncDelay.Seconds())))
	}
	params := o.parameters()
	for _, name := range slices.Sorted(maps.Keys(params)) {
		args = append(args, "--setParameter", fmt.Sprintf("%s=%s", name, params[name]))
	}
	return args
}

func (o Options) parameters() map[string]string {
	params := map[string]string{
		"diagnosticDataCollectionEnabled": "false", // a file a second that nobody reads
		// On SIGTERM a primary would wait 15 s for its clients to leave.
		"shutdownTimeoutMillisForSignaledShutdown": "100",
	}
	if o.TestCommands {
		params["enableTestCommands"] = "1"
	}
	maps.Copy(params, o.Params)
	return params
}

func orDefault[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}

package deployment

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// oldestWireVersion is MongoDB 6.0's: the first with both images of a change.
const oldestWireVersion = 17

// servingError says what a server is that cannot serve driftless, and what to do; it completes "mongodb.uri leads to ".
type servingError struct{ what, fix string }

func (e servingError) Error() string { return e.what + ": " + e.fix }

var (
	errStandalone = servingError{"a standalone mongod, which has neither change streams nor transactions",
		"restart it with --replSet rs0 and run rs.initiate() once"}
	errUninitiated = servingError{"a mongod whose replica set is not initiated yet", "run rs.initiate() once"}
	errMongos      = servingError{"a mongos: a sharded cluster shows the rows of a transaction at another time " +
		"than its change events, so counts from change streams cannot be exact there", "use a replica set"}
)

// tooOld names the version that was found.
func tooOld(wireVersion int) servingError {
	return servingError{fmt.Sprintf("MongoDB %s, which is older than 6.0, the first to keep the image of a row before a change",
		release(wireVersion)), "upgrade it"}
}

// release is the oldest release that speaks a wire version below 6.0's: every one of 5.x has its own.
func release(wireVersion int) string {
	switch {
	case wireVersion >= 13:
		return fmt.Sprintf("5.%d", wireVersion-13)
	case wireVersion >= 9:
		return "4.4"
	case wireVersion == 8:
		return "4.2"
	default:
		return "4.0 or older"
	}
}

// hello is what a server says of itself, and its set to anyone who asks.
type hello struct {
	SetName        string `bson:"setName"`
	IsReplicaSet   bool   `bson:"isreplicaset"` // started as a member, but of no set yet
	Msg            string `bson:"msg"`
	MaxWireVersion int    `bson:"maxWireVersion"`
	Primary        string `bson:"primary"`

	Hosts, Passives, Arbiters []string // host:port; hidden members are in none of them

	LastWrite struct {
		Last     opTime `bson:"opTime"`
		Majority opTime `bson:"majorityOpTime"` // what a majority has
	} `bson:"lastWrite"`
}

type opTime struct {
	At bson.Timestamp `bson:"ts"`
}

// fault says why the server cannot serve driftless, nil when it can.
func (h hello) fault() error {
	switch {
	case h.Msg == "isdbgrid":
		return errMongos
	case h.IsReplicaSet:
		return errUninitiated
	case h.SetName == "":
		return errStandalone
	case h.MaxWireVersion < oldestWireVersion:
		return tooOld(h.MaxWireVersion)
	default:
		return nil
	}
}

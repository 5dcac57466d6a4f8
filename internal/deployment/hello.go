package deployment

// oldestWireVersion is MongoDB 6.0's: the first with both images of a change.
const oldestWireVersion = 17

// servingError says what a server is that cannot serve driftless, and what to do; it completes "mongodb.uri leads to ".
type servingError string

func (e servingError) Error() string { return string(e) }

const (
	errStandalone servingError = "a standalone mongod, which has neither change streams nor transactions: " +
		"restart it with --replSet rs0 and run rs.initiate() once"
	errUninitiated servingError = "a mongod whose replica set is not initiated yet: run rs.initiate() once"
	errMongos      servingError = "a mongos: a sharded cluster shows the rows of a transaction at another time " +
		"than its change events, so counts from change streams cannot be exact there: use a replica set"
	errTooOld servingError = "a server older than MongoDB 6.0, which is the first to keep the image of a row before a change: upgrade it"
)

// hello is what a server says of itself.
type hello struct {
	SetName        string `bson:"setName"`
	IsReplicaSet   bool   `bson:"isreplicaset"` // started as a member, but of no set yet
	Msg            string `bson:"msg"`
	MaxWireVersion int    `bson:"maxWireVersion"`
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
		return errTooOld
	default:
		return nil
	}
}

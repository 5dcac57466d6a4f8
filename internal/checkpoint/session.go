package checkpoint

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// LeasesCollection is the state database's collection of who follows which lane, and of the instances that may.
const LeasesCollection = "leases"

// Session is the session of all transactions of this process that move the lane's checkpoint. The server takes a later
// transaction of a session only after the earlier one has ended, so an earlier commit can never come true behind a
// later attempt's back. It is not for use by two goroutines at a time, as nothing of a lane is.
func (s *Store) Session(lane string) (*mongo.Session, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if session := s.sessions[lane]; session != nil {
		return session, nil
	}
	session, err := s.client.StartSession(options.Session().SetCausalConsistency(false))
	if err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}
	s.sessions[lane] = session
	return session, nil
}

// keptSessions is how many of a lane's latest owners are remembered. Two may be at it at once, and each may have
// restarted a few times since the other looked.
const keptSessions = 16

// Take records this process's session as the lane's, and ends the transactions that those before it may have left open.
// The server itself gives up the transaction of a process that died, or that is paused, only after a minute, and until
// then nobody else can move the checkpoint. It is no lock: one of those before may go on, and is fenced by the
// compare-and-set.
func (s *Store) Take(ctx context.Context, lane string) error {
	session, err := s.Session(lane)
	if err != nil {
		return err
	}
	mine := session.ID()
	others := bson.D{{Key: "$filter", Value: bson.D{
		{Key: "input", Value: bson.D{{Key: "$ifNull", Value: bson.A{"$sessions", bson.A{}}}}},
		{Key: "cond", Value: bson.D{{Key: "$ne", Value: bson.A{"$$this", bson.D{{Key: "$literal", Value: mine}}}}}},
	}}}
	latest := bson.D{{Key: "$slice", Value: bson.A{bson.D{{Key: "$concatArrays", Value: bson.A{
		bson.A{bson.D{{Key: "$literal", Value: mine}}}, others,
	}}}, keptSessions}}}
	var lease struct{ Sessions []bson.Raw }
	err = s.leases.FindOneAndUpdate(ctx, bson.D{{Key: "_id", Value: lane}},
		bson.A{bson.D{{Key: "$set", Value: bson.D{{Key: "sessions", Value: latest}}}}},
		options.FindOneAndUpdate().SetUpsert(true).SetReturnDocument(options.After)).Decode(&lease)
	if err != nil {
		return fmt.Errorf("take lane %s: %w", lane, err)
	}
	if len(lease.Sessions) < 2 {
		return nil
	}
	// Best effort: where it is refused, the lane waits for that minute.
	_ = s.client.Database("admin").RunCommand(ctx, bson.D{{Key: "killSessions", Value: lease.Sessions[1:]}}).Err()
	return nil
}

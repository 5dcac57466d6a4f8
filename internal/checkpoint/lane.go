package checkpoint

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// LaneID names one ordered stream of a source: the whole of it, one of several partitions by the hash of the key, or one
// partition of its topic.
type LaneID struct {
	Source     string
	Topic      string // "" for a change stream
	Partition  int    // from 0
	Partitions int    // 0 and 1 are the whole
}

// Lanes lists the lanes of a source.
func Lanes(source string, partitions int) []LaneID {
	lanes := make([]LaneID, max(1, partitions))
	for i := range lanes {
		lanes[i] = LaneID{Source: source, Partition: i, Partitions: len(lanes)}
	}
	return lanes
}

// TopicLanes lists the lanes of a source that is a topic.
func TopicLanes(source, topic string, partitions int) []LaneID {
	lanes := make([]LaneID, partitions)
	for i := range lanes {
		lanes[i] = LaneID{Source: source, Topic: topic, Partition: i, Partitions: partitions}
	}
	return lanes
}

// Whole reports whether no key belongs to another lane of a change stream.
func (l LaneID) Whole() bool { return l.Partitions <= 1 || l.Topic != "" }

// Count is how many lanes the source has.
func (l LaneID) Count() int { return max(1, l.Partitions) }

// String is the _id of the lane's checkpoint and lease: the source's name, source/N, or source/topic/N.
func (l LaneID) String() string {
	if l.Topic != "" {
		return l.Source + "/" + l.Topic + "/" + strconv.Itoa(l.Partition)
	}
	if l.Whole() {
		return l.Source
	}
	return l.Source + "/" + strconv.Itoa(l.Partition)
}

// SourceOf is the source that a lane of the given name belongs to.
func SourceOf(lane string) string {
	source, _, _ := strings.Cut(lane, "/")
	return source
}

// ofSource selects the documents of a source's lanes, whatever their number.
func ofSource(source string) bson.D {
	return bson.D{{Key: "$or", Value: bson.A{
		bson.D{{Key: "_id", Value: source}},
		bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: source + "/"}, {Key: "$lt", Value: source + "0"}}}}, // 0 follows /
	}}}
}

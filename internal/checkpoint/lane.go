package checkpoint

import (
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// LaneID names one ordered stream of a source: the whole of it, or one of several partitions by the hash of the key.
type LaneID struct {
	Source     string
	Partition  int // from 0
	Partitions int // 0 and 1 are the whole
}

// Lanes lists the lanes of a source.
func Lanes(source string, partitions int) []LaneID {
	lanes := make([]LaneID, max(1, partitions))
	for i := range lanes {
		lanes[i] = LaneID{Source: source, Partition: i, Partitions: len(lanes)}
	}
	return lanes
}

// Whole reports whether the lane is all of its source.
func (l LaneID) Whole() bool { return l.Partitions <= 1 }

// Count is how many lanes the source has.
func (l LaneID) Count() int { return max(1, l.Partitions) }

// String is the _id of the lane's checkpoint and lease: the source's name, or source/N.
func (l LaneID) String() string {
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

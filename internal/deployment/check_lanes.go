package deployment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/stream"
)

// resumeLimit bounds the try to resume a lane. The server tells at once that the history is gone; what takes longer is a
// scan over the changes of others.
const resumeLimit = 3 * time.Second

// lanes looks how far each lane is behind, and whether it can go on from there.
func (k *checker) lanes(ctx context.Context) []Finding {
	resumable := "" // the source whose oldest lane can be resumed: then the younger ones can as well
	return k.eachLane(ctx, func(s config.Source, at checkpoint.Checkpoint) Finding {
		err := k.belongs(ctx, s, at)
		if err == nil && resumable != s.Name {
			err = k.resume(ctx, s, at)
		}
		if err == nil {
			resumable = s.Name
		}
		return lane(s, at, k.behind(at), k.history, err)
	})
}

// judged looks whether the positions of the lanes are young enough for a recount.
func (k *checker) judged(ctx context.Context, window time.Duration) []Finding {
	return k.eachLane(ctx, func(_ config.Source, at checkpoint.Checkpoint) Finding {
		if behind := k.behind(at); behind >= window {
			return Finding{Warn, "lane " + at.Lane, fmt.Sprintf("%s behind, and snapshots reach back %s: its counters cannot be judged", span(behind), span(window)),
				"incrementer run"}
		}
		return ok("lane "+at.Lane, "%s behind", span(k.behind(at)))
	})
}

// eachLane looks at every checkpoint of every source.
func (k *checker) eachLane(ctx context.Context, look func(config.Source, checkpoint.Checkpoint) Finding) []Finding {
	all, err := checkpoint.NewStore(k.client, k.config.MongoDB.StateDatabase).All(ctx)
	switch {
	case stream.HasCode(err, codeUnauthorized):
		return nil // the privileges say so
	case errors.Is(err, checkpoint.ErrNewer):
		return []Finding{{Fail, "lanes", err.Error(), "upgrade this program"}}
	case err != nil:
		return []Finding{k.unseen("lanes", err, Privilege{})}
	}
	roster, err := checkpoint.NewLeases(k.client, k.config.MongoDB.StateDatabase, "", 0).Roster(ctx)
	if err != nil {
		return []Finding{k.unseen("lanes", err, Privilege{})}
	}
	var findings []Finding
	for _, s := range k.config.Sources {
		if s.ChangeStream == nil {
			continue // see topics
		}
		mine := lanesOf(all, s.Name)
		findings = append(findings, k.absent(s, mine)...)
		for _, at := range mine {
			findings = append(findings, unfollowed(look(s, at), roster.Leases[at.Lane]))
		}
	}
	return findings
}

// unfollowed adds to a finding about a lane that nobody follows it, which explains whatever else is wrong with it.
func unfollowed(f Finding, lease checkpoint.Lease) Finding {
	if lease.Held {
		return f
	}
	f.Found += "; no instance follows it"
	if f.Level == OK {
		f.Level, f.Fix = Warn, "incrementer run"
	}
	return f
}

// lanesOf picks the checkpoints of one source, which has one lane of its name or several below it: the oldest first.
func lanesOf(all []checkpoint.Checkpoint, source string) []checkpoint.Checkpoint {
	mine := slices.DeleteFunc(slices.Clone(all), func(at checkpoint.Checkpoint) bool {
		return at.Lane != source && !strings.HasPrefix(at.Lane, source+"/")
	})
	slices.SortStableFunc(mine, func(a, b checkpoint.Checkpoint) int { return a.Position.Compare(b.Position) })
	return mine
}

// absent finds what is to be said of a source as a whole: that it was never followed, is divided into other lanes by now,
// or lacks some of them.
func (k *checker) absent(s config.Source, mine []checkpoint.Checkpoint) []Finding {
	if len(mine) == 0 {
		return []Finding{k.neverFollowed(s)}
	}
	n := s.ChangeStream.Partitions
	if was := mine[0].Partitions; was != n {
		return []Finding{{Warn, "lanes of " + s.Name, fmt.Sprintf("%d, and the file says %d: a start begins afresh with those, and everything is recounted", was, n),
			fmt.Sprintf("set sources.%s.change_stream.partitions to %d, or let it be so", s.Name, was)}}
	}
	var findings []Finding
	for _, id := range checkpoint.Lanes(s.Name, n) {
		if !slices.ContainsFunc(mine, func(at checkpoint.Checkpoint) bool { return at.Lane == id.String() }) {
			findings = append(findings, Finding{Fail, "lane " + id.String(), checkpoint.ErrMissing.Error(), afresh(s)})
		}
	}
	return findings
}

func (k *checker) neverFollowed(s config.Source) Finding {
	if k.use == Follow {
		return ok("lane "+s.Name, "never started: `incrementer run` begins now")
	}
	return Finding{Warn, "lane " + s.Name, "no incrementer has followed it yet: its counters cannot be judged", "incrementer run"}
}

func (k *checker) behind(at checkpoint.Checkpoint) time.Duration {
	return max(0, between(at.Position, k.hello.LastWrite.Last.At))
}

// lane judges one lane. h is nil where the oplog may not be read; err is what trying to resume ended with.
func lane(s config.Source, at checkpoint.Checkpoint, behind time.Duration, h *history, err error) Finding {
	f := ok("lane "+at.Lane, "%s behind", span(behind))
	switch {
	case isLost(err):
		f.Level, f.Fix = Fail, afresh(s)
		f.Found += fmt.Sprintf(", and cannot be resumed: %v", err)
	case err != nil:
		f.Level, f.Fix = Warn, againLater
		f.Found += fmt.Sprintf("; whether it can be resumed is not known: %v", err)
	case h == nil || h.whole:
		f.Found += ", can be resumed"
	default:
		headroom := between(h.oldest, at.Position)
		f.Found += fmt.Sprintf(", %s before its history is gone", span(headroom))
		if headroom < behind {
			f.Level, f.Fix = Warn, "incrementer run"
		}
	}
	return f
}

func isLost(err error) bool {
	return errors.Is(err, stream.ErrPositionLost) || errors.Is(err, stream.ErrCollectionChanged) || errors.Is(err, stream.ErrForeignToken)
}

// afresh says how a lane that lost its position goes on.
func afresh(s config.Source) string {
	if s.OnPositionLost == "stop" {
		return fmt.Sprintf("set sources.%s.on_position_lost to recount, start incrementer run, then reconciler run --once", s.Name)
	}
	return "incrementer run, which starts afresh, then reconciler run --once"
}

// belongs returns why a checkpoint does not stand for the rows that are there.
func (k *checker) belongs(ctx context.Context, s config.Source, at checkpoint.Checkpoint) error {
	seen, err := checkpoint.NewStore(k.client, k.config.MongoDB.StateDatabase).Look(ctx, s.ChangeStream.Database, s.ChangeStream.Collection)
	if err != nil {
		return err
	}
	return at.Identity.Against(seen.Identity)
}

// resume opens the lane's stream where the incrementer would, and reads once.
func (k *checker) resume(ctx context.Context, s config.Source, at checkpoint.Checkpoint) error {
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	// Not a deadline: the driver would send it along as a second maxTimeMS.
	defer time.AfterFunc(resumeLimit, cancel).Stop()
	onlyTokens := bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "_id", Value: 1}}}}}
	reader, err := stream.NewChangeStream(k.client, s.ChangeStream.Database, s.ChangeStream.Collection, onlyTokens, 1).Open(reading, at.Start())
	if err == nil {
		defer reader.Close(ctx)
		_, err = reader.Next(reading)
	}
	if reading.Err() != nil {
		return ctx.Err()
	}
	return err
}

package deployment

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/event"
)

// sightings keep the last word of every server that the driver has looked at, to say why none of them would do: its own
// error names the servers that it kept, not those that it left.
type sightings struct {
	mutex sync.Mutex
	words map[string]word // by host and port
}

// word is the last reply, and why there was none since; nil when there was.
type word struct {
	kind, setName string
	failure       error
}

func newSightings() *sightings { return &sightings{words: map[string]word{}} }

// monitor feeds the sightings from the driver's heartbeats.
func (s *sightings) monitor() *event.ServerMonitor {
	return &event.ServerMonitor{
		ServerHeartbeatFailed: func(e *event.ServerHeartbeatFailedEvent) {
			s.heard(e.ConnectionID, func(before word) word {
				before.failure = e.Failure
				return before
			})
		},
		ServerHeartbeatSucceeded: func(e *event.ServerHeartbeatSucceededEvent) {
			s.heard(e.ConnectionID, func(word) word { return word{kind: e.Reply.Kind, setName: e.Reply.SetName} })
		},
	}
}

func (s *sightings) heard(connection string, next func(word) word) {
	address, _, _ := strings.Cut(connection, "[")
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.words[address] = next(s.words[address])
}

// why says of each server why it would not do as a member of the set, or as a primary of any when set is "".
func (s *sightings) why(set string) string {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	reasons := make([]string, 0, len(s.words))
	for _, address := range slices.Sorted(maps.Keys(s.words)) {
		reasons = append(reasons, address+" "+s.words[address].why(set))
	}
	return strings.Join(reasons, "; ")
}

// leaderless reports whether members of the set answered, and none of them as its primary.
func (s *sightings) leaderless(set string) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	members := 0
	for _, w := range s.words {
		if w.failure == nil && (set == "" || w.setName == set) && w.setName != "" {
			members++
		}
		if w.failure == nil && w.kind == "RSPrimary" {
			return false
		}
	}
	return members > 0
}

func (w word) why(set string) string {
	switch {
	// What is no member of the set is first, since the driver then hangs up, which looks like a failure.
	case w.kind == "Standalone":
		return "is " + errStandalone.Error()
	case set != "" && w.setName != "" && w.setName != set:
		return fmt.Sprintf("belongs to replica set %q, not to %q", w.setName, set)
	case errors.Is(w.failure, io.EOF):
		return "closes the connection, as one does that wants TLS, or does not know it"
	case w.failure != nil:
		return "does not answer (" + innermost(w.failure).Error() + ")"
	case w.kind == "RSGhost":
		return "is " + errUninitiated.Error()
	case w.kind == "RSPrimary":
		return "is the primary, but slow to answer"
	default:
		return "is not the primary"
	}
}

// innermost is the cause without the driver's and the dialer's words around it.
func innermost(err error) error {
	for {
		inside := errors.Unwrap(err)
		if inside == nil {
			return err
		}
		err = inside
	}
}

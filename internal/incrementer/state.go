package incrementer

import (
	"errors"
	"sync"
	"time"

	"driftless/internal/checkpoint"
)

// Heart tells whoever watches over the process that a lane is alive.
type Heart interface {
	Beat()    // at work
	Waiting() // for somebody else, however long that takes
}

// State is what a lane publishes about itself. Readers never wait for the database.
type State struct {
	mutex   sync.Mutex
	heart   Heart
	at      checkpoint.Checkpoint
	owned   bool
	broken  map[string]string
	current time.Time // everything that happened before is applied
	lastErr error
}

// NewState is a lane that has not begun. heart may be nil.
func NewState(heart Heart) *State { return &State{heart: heart, lastErr: errors.New("not started")} }

func (s *State) following(at checkpoint.Checkpoint, broken map[string]string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.at, s.owned, s.lastErr, s.broken = at, true, nil, broken
	if s.current.IsZero() {
		s.current = time.Unix(int64(at.Position.T), 0)
	}
}

func (s *State) left() {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.owned = false
}

func (s *State) failed(err error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.lastErr = err
}

func (s *State) caughtUp(at time.Time) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.current = at
}

func (s *State) applied(at checkpoint.Checkpoint, events int) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.at = at
	s.at.UpdatedAt = time.Now() // the server's clock is in the document only
	if position := time.Unix(int64(at.Position.T), 0); events > 0 && position.After(s.current) {
		s.current = position
	}
}

func (s *State) working() {
	if s.heart != nil {
		s.heart.Beat()
	}
}

func (s *State) waiting() {
	if s.heart != nil {
		s.heart.Waiting()
	}
}

// View is a lane's published state at one moment.
type View struct {
	At      checkpoint.Checkpoint
	Owned   bool
	Broken  map[string]string
	Lag     time.Duration // how old the newest moment is before which everything is applied
	LastErr error         // why it is not followed, nil when it is
}

// View returns the lane's state.
func (s *State) View() View {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	v := View{At: s.at, Owned: s.owned, Broken: s.broken, LastErr: s.lastErr}
	if !s.current.IsZero() {
		v.Lag = max(0, time.Since(s.current))
	}
	return v
}

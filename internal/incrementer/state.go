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
	mutex     sync.Mutex
	heart     Heart
	at        checkpoint.Checkpoint
	owned     bool
	standby   string // the instance that follows instead
	imagesOff bool
	broken    map[string]string
	records   int64     // of a topic, that are still to be read
	current   time.Time // everything that happened before is applied
	lastErr   error
}

// NewState is a lane that has not begun. heart may be nil.
func NewState(heart Heart) *State { return &State{heart: heart, lastErr: errors.New("not started")} }

func (s *State) following(at checkpoint.Checkpoint, broken map[string]string) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if position := time.Unix(int64(at.Position.T), 0); s.current.IsZero() || s.standby != "" {
		s.current = position
	}
	s.at, s.owned, s.standby, s.lastErr, s.broken = at, true, "", nil, broken
}

// standingBy notes that another instance follows the lane, or with a problem that none does for this one.
func (s *State) standingBy(owner string, problem error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.owned, s.standby, s.lastErr = false, owner, problem
}

// images notes whether images are on and returns whether they were.
func (s *State) images(on bool) (were bool) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	were, s.imagesOff = !s.imagesOff, !on
	return were
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

func (s *State) behind(records int64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.records = records
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
	At        checkpoint.Checkpoint
	Owned     bool
	Standby   string // the instance that follows it instead of this one, "" when none is known to
	ImagesOff bool
	Broken    map[string]string
	Lag       time.Duration // how old the newest moment is before which everything is applied
	Behind    int64         // records of a topic that were still to be read with the last batch
	LastErr   error         // why it is not followed, nil when it is or need not be
}

// View returns the lane's state.
func (s *State) View() View {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	v := View{At: s.at, Owned: s.owned, Standby: s.standby, ImagesOff: s.imagesOff, Broken: s.broken, Behind: s.records, LastErr: s.lastErr}
	if !s.current.IsZero() {
		v.Lag = max(0, time.Since(s.current))
	}
	return v
}

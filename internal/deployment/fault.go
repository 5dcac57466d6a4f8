package deployment

import (
	"fmt"

	"driftless/internal/config"
)

// Fault is something wrong that no setup can mend, with what does. As an error it is one line.
type Fault struct { //nolint:errname // it is a fault, and reads as one
	Pos     config.Pos // of the declaration it is about, zero for none
	Subject string     // what it is about, "" for the connection
	Found   string
	Fix     string
}

func (f *Fault) Error() string {
	text := f.Found + ": " + f.Fix
	if f.Subject != "" {
		text = f.Subject + ": " + text
	}
	if f.Pos.File != "" {
		text = fmt.Sprintf("%s: %s", f.Pos, text)
	}
	return text
}

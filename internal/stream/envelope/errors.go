package envelope

import "fmt"

// Reasons of an Error: few, so that they can label a metric.
const (
	ReasonNotJSON     = "not_json"        // the bytes are no JSON, or no object
	ReasonMissing     = "missing_field"   // a field that must be there is not
	ReasonMalformed   = "malformed_field" // a field holds something else than it must
	ReasonUnsupported = "unsupported"     // what the record holds has lost what it takes to count it
)

// Error is why a record cannot be counted. It goes with the record to the dead letters.
type Error struct {
	Reason string
	Field  string // the path at fault, "" for the record as a whole
	detail string
}

// Error is one sentence that names the field.
func (e *Error) Error() string {
	if e.Field == "" {
		return e.detail
	}
	return e.Field + " " + e.detail
}

func missing(field, detail string) error {
	return &Error{Reason: ReasonMissing, Field: field, detail: detail}
}

func malformed(field, format string, args ...any) error {
	return &Error{Reason: ReasonMalformed, Field: field, detail: fmt.Sprintf(format, args...)}
}

func unsupported(field, format string, args ...any) error {
	return &Error{Reason: ReasonUnsupported, Field: field, detail: fmt.Sprintf(format, args...)}
}

func notJSON(format string, args ...any) error {
	return &Error{Reason: ReasonNotJSON, detail: fmt.Sprintf(format, args...)}
}

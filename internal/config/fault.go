package config

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Fault is one thing that is wrong with the configuration, and what to do about it.
type Fault struct {
	Pos     Pos    // the file and line; for a variable or a flag its name, and line 0
	Column  int    // of the key or the list item, from 1; 0 when unknown
	Path    string // such as sources.comments.change_stream.database; "" for the file as a whole
	Message string // one line, without the value of anything that may be secret
	Excerpt string // the line with a caret below it, for unknown keys; its values are left out
}

// String is "file:line: path: message", and the excerpt indented below.
func (f Fault) String() string {
	line := f.Pos.String() + ": "
	if f.Path != "" {
		line += f.Path + ": "
	}
	line += f.Message
	if f.Excerpt != "" {
		line += "\n    " + strings.ReplaceAll(f.Excerpt, "\n", "\n    ")
	}
	return line
}

// String is "file:line", or what is known of it.
func (p Pos) String() string {
	if p.Line == 0 {
		return p.File
	}
	return fmt.Sprintf("%s:%d", p.File, p.Line)
}

// Faults is everything that is wrong with a configuration; never empty as an error. A main ends with code 78 on it.
type Faults struct { //nolint:errname // it is a list of faults, and reads as one
	List []Fault // the file by line, then variables, then flags
}

// Error lists every fault, one a line.
func (f *Faults) Error() string {
	lines := make([]string, len(f.List))
	for i, fault := range f.List {
		lines[i] = fault.String()
	}
	return strings.Join(lines, "\n")
}

// ExitCode is EX_CONFIG of sysexits.h.
func (f *Faults) ExitCode() int { return 78 }

// add is the only way in, so that no fault can carry the credentials of a URI, wherever it was written by mistake.
func (f *Faults) add(fault Fault) {
	fault.Path = withoutCredentials(fault.Path)
	fault.Message = withoutCredentials(fault.Message)
	fault.Excerpt = withoutCredentials(fault.Excerpt)
	f.List = append(f.List, fault)
}

// within tells whether anything at or below path is at fault.
func (f *Faults) within(path string) bool {
	return slices.ContainsFunc(f.List, func(fault Fault) bool {
		below, found := strings.CutPrefix(fault.Path, path)
		return found && (below == "" || below[0] == '.' || below[0] == '[')
	})
}

// err sorts the faults and returns them as an error, nil when there are none.
func (f *Faults) err() error {
	if len(f.List) == 0 {
		return nil
	}
	slices.SortStableFunc(f.List, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.layer(), b.layer()), cmp.Compare(a.Pos.Line, b.Pos.Line), cmp.Compare(a.Column, b.Column))
	})
	return f
}

// layer orders faults as the layers lie on each other: file, environment, flags.
func (f Fault) layer() int {
	switch {
	case strings.HasPrefix(f.Pos.File, "--"):
		return 2
	case strings.HasPrefix(f.Pos.File, envPrefix):
		return 1
	default:
		return 0
	}
}

var credentials = regexp.MustCompile(`://[^\n]*@`)

func withoutCredentials(s string) string { return credentials.ReplaceAllString(s, "://***@") }

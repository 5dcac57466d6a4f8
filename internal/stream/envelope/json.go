package envelope

import (
	"bytes"
	"encoding/json"
	"iter"
	"unicode/utf8"
)

// value is one JSON value that is known to be valid and has no space around it; nil where there is none. It is walked in
// place: records are many, and little of each is looked at.
type value []byte

// parse takes data for JSON.
func parse(data []byte) (value, error) {
	switch {
	case !utf8.Valid(data):
		return nil, notJSON("the record's value is not UTF-8 text")
	case !json.Valid(data):
		return nil, notJSON("the record's value is not JSON")
	}
	return bytes.TrimSpace(data), nil
}

// What a value is, by its first byte; a number by number, a missing value by absent.
const (
	absent = 0
	object = '{'
	array  = '['
	text   = '"'
	null   = 'n'
	number = '0'
)

func (v value) kind() byte {
	switch {
	case len(v) == 0:
		return absent
	case v[0] == '-' || v[0] >= '0' && v[0] <= '9':
		return number
	default:
		return v[0] // of true and false it is t and f
	}
}

// none reports whether there is no value, or null.
func (v value) none() bool { return v.kind() == absent || v.kind() == null }

// members are the names and values of an object, in order; of anything else there are none.
func (v value) members() iter.Seq2[[]byte, value] {
	return func(yield func([]byte, value) bool) {
		if v.kind() != object {
			return
		}
		for i := space(v, 1); v[i] != '}'; {
			nameEnd := end(v, i)
			name := v[i:nameEnd]
			i = space(v, space(v, nameEnd)+1) // over the colon
			valueEnd := end(v, i)
			if !yield(name.bytes(), v[i:valueEnd]) {
				return
			}
			i = over(v, valueEnd)
		}
	}
}

// items are the values of an array, in order; of anything else there are none.
func (v value) items() iter.Seq[value] {
	return func(yield func(value) bool) {
		if v.kind() != array {
			return
		}
		for i := space(v, 1); v[i] != ']'; {
			itemEnd := end(v, i)
			if !yield(v[i:itemEnd]) {
				return
			}
			i = over(v, itemEnd)
		}
	}
}

// over steps from behind a member or an item to the next one, or to the closing bracket.
func over(v value, i int) int {
	if i = space(v, i); v[i] == ',' {
		i = space(v, i+1)
	}
	return i
}

func space(v value, i int) int {
	for v[i] == ' ' || v[i] == '\n' || v[i] == '\t' || v[i] == '\r' {
		i++
	}
	return i
}

// end is the index behind the value that begins at i.
func end(v value, i int) int {
	switch v[i] {
	case '"':
		return quoted(v, i)
	case '{', '[':
		return nested(v, i)
	}
	for i < len(v) && v[i] != ',' && v[i] != ']' && v[i] != '}' && v[i] > ' ' {
		i++
	}
	return i
}

func quoted(v value, i int) int {
	for i++; v[i] != '"'; i++ {
		if v[i] == '\\' {
			i++
		}
	}
	return i + 1
}

func nested(v value, i int) int {
	for depth := 0; ; i++ {
		switch v[i] {
		case '"':
			i = quoted(v, i) - 1
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
}

// bytes is the text of a string.
func (v value) bytes() []byte {
	inner := v[1 : len(v)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	var s string
	_ = json.Unmarshal(v, &s) // it is valid
	return []byte(s)
}

// member is what an object holds under one name; nil where there is none. A name that stands twice is nobody's: what other readers
// take differs.
type member struct {
	value value
	twice bool
}

// maxPaths is how many paths can be looked up in one walk.
const maxPaths = 4

// first looks up the first parts of some paths, in one walk. A path may be nil.
func (v value) first(paths ...path) (found [maxPaths]member) {
	for name, m := range v.members() {
		for i, p := range paths {
			if len(p) == 0 || string(name) != p[0] {
				continue
			}
			found[i] = member{m, found[i].value != nil}
		}
	}
	return found
}

// at finds the value at the rest of a path, of which n parts lead to the member; nil where there is none.
func (m member) at(p path, n int) (value, error) {
	switch {
	case m.twice:
		return nil, malformed(p[:n].String(), "stands twice in the record")
	case n == len(p):
		return m.value, nil
	default:
		return m.value.first(p[n:])[0].at(p, n+1)
	}
}

// opened is what a string holds as JSON, and v itself when it is no string. ok is false when the string is no JSON.
func (v value) opened() (inner value, ok bool) {
	if v.kind() != text {
		return v, true
	}
	content := v.bytes()
	if !json.Valid(content) {
		return nil, false
	}
	return bytes.TrimSpace(content), true
}

// payload is v, out of the string and the {schema, payload} that Kafka Connect's converters may have put around it.
func (v value) payload() value {
	if inner, ok := v.opened(); ok {
		v = inner
	}
	var schema, payload value
	for name, member := range v.members() {
		switch string(name) {
		case "schema":
			schema = member
		case "payload":
			payload = member
		}
	}
	if schema == nil || payload == nil {
		return v
	}
	if inner, ok := payload.opened(); ok {
		return inner
	}
	return payload
}

// excerpt is the start of a value for a sentence about it.
func (v value) excerpt() string {
	const most = 60
	if len(v) <= most {
		return string(v)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(v[cut]) {
		cut--
	}
	return string(v[:cut]) + "…"
}

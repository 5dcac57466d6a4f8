package envelope

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// edit is one change that an update made: it set a field or an item, removed a field, or cut an array short.
type edit struct {
	path  path          // below the document or array at hand
	value bson.RawValue // what it set; zero for nothing
	size  int           // what it cut an array to; below 0 for nothing
}

func (e edit) sets() bool    { return !e.value.IsZero() }
func (e edit) removes() bool { return e.value.IsZero() && e.size < 0 }

// readDescription reads what an update changed, and makes After from that and Before. Without a description it is a
// replace, whose image is none that was looked up.
func (c *Change) readDescription(v value) error {
	inner, ok := v.opened()
	switch {
	case !ok || !inner.none() && inner.kind() != object:
		return malformed("updateDescription", "is %s, not a document", v.excerpt())
	case inner.none():
		return nil
	}
	edits, err := readEdits(inner)
	if err != nil {
		return err
	}
	for _, e := range edits {
		c.Paths = append(c.Paths, e.path.String())
	}
	if c.Before == nil {
		return nil
	}
	made, ok := apply(c.Before, false, edits)
	switch c.AfterUnknown = !ok; {
	case !ok:
		c.After = nil
	case !sameFields(made, c.After): // it was looked up later
		c.After = made
	}
	return nil
}

// sameFields reports whether two documents, or arrays, hold the same in whatever order. The order of fields is none of
// what an update describes: a pipeline may change it, and the published image knows it better.
func sameFields(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	x, errX := bsoncore.Document(a).Elements()
	y, errY := bsoncore.Document(b).Elements()
	if errX != nil || errY != nil || len(x) != len(y) {
		return false
	}
	for _, e := range x {
		i := slices.IndexFunc(y, func(other bsoncore.Element) bool { return bytes.Equal(e.KeyBytes(), other.KeyBytes()) })
		if i < 0 || !sameValue(e.Value(), y[i].Value()) {
			return false
		}
	}
	return true
}

func sameValue(a, b bsoncore.Value) bool {
	if a.Type == b.Type && (a.Type == bsoncore.TypeEmbeddedDocument || a.Type == bsoncore.TypeArray) {
		return sameFields(a.Data, b.Data)
	}
	return a.Equal(b)
}

func readEdits(description value) (edits []edit, err error) {
	var updated, removed, truncated, disambiguated value
	for name, v := range description.members() {
		switch string(name) {
		case "updatedFields":
			updated = v
		case "removedFields":
			removed = v
		case "truncatedArrays":
			truncated = v
		case "disambiguatedPaths":
			disambiguated = v
		}
	}
	if edits, err = readTruncated(truncated); err != nil {
		return nil, err
	}
	for v := range removed.items() {
		edits = append(edits, edit{path: split(string(v.content())), size: -1})
	}
	fields, err := image{"updateDescription.updatedFields", updated}.read()
	if err != nil {
		return nil, err
	}
	elements, _ := fields.Elements()
	for _, e := range elements {
		edits = append(edits, edit{path: strings.Split(e.Key(), "."), value: e.Value(), size: -1})
	}
	return disambiguate(edits, disambiguated), nil
}

// readTruncated reads {field, newSize}, which Debezium calls {field, size}.
func readTruncated(v value) (edits []edit, err error) {
	for item := range v.items() {
		e := edit{size: -1}
		for name, v := range item.members() {
			switch string(name) {
			case "field":
				e.path = split(string(v.content()))
			case "newSize", "size":
				n, err := raw(v)
				size, ok := n.AsInt64OK()
				if err != nil || !ok || size < 0 || size > 1<<24 {
					return nil, malformed("updateDescription.truncatedArrays", "is %s: it must name fields and their sizes", item.excerpt())
				}
				e.size = int(size)
			}
		}
		if e.path == nil || e.size < 0 {
			return nil, malformed("updateDescription.truncatedArrays", "is %s: it must name fields and their sizes", item.excerpt())
		}
		edits = append(edits, e)
	}
	return edits, nil
}

// disambiguate takes the parts of those paths that the server lists because they could be read in two ways.
func disambiguate(edits []edit, listed value) []edit {
	inner, _ := listed.opened()
	for name, v := range inner.members() {
		for i, e := range edits {
			if e.path.String() != string(name) {
				continue
			}
			edits[i].path = nil
			for part := range v.items() {
				edits[i].path = append(edits[i].path, string(part.content()))
			}
		}
	}
	return edits
}

// apply makes the edits in a copy of a document or an array. ok is false when they could mean several things, or do not
// fit: the image they were made in is another.
func apply(content []byte, isArray bool, edits []edit) (_ []byte, ok bool) {
	limit := -1
	edits = slices.DeleteFunc(slices.Clone(edits), func(e edit) bool {
		if len(e.path) == 0 {
			limit = e.size
		}
		return len(e.path) == 0
	})
	if !isArray && ambiguous(content, edits) {
		return nil, false
	}
	start, dst := bsoncore.ReserveLength(make([]byte, 0, len(content)+64))
	_, rest, _ := bsoncore.ReadLength(content)
	n := 0
	for ; len(rest) > 1 && (limit < 0 || n < limit); n++ {
		element, remaining, read := bsoncore.ReadElement(rest)
		if !read {
			return nil, false
		}
		rest = remaining
		var mine []edit
		mine, edits = take(edits, element.Key())
		if dst, ok = appendEdited(dst, element, isArray, mine); !ok {
			return nil, false
		}
	}
	if dst, ok = appendNew(dst, isArray, n, edits); !ok {
		return nil, false
	}
	return bsoncore.UpdateLength(append(dst, 0), start, int32(len(dst)+1)), true //nolint:gosec // a record is smaller
}

// maxPadding is how many items an update may skip when it sets one beyond the end of an array.
const maxPadding = 1000

// appendNew appends what edits set behind the n fields or items that are there. The server pads an array with nulls.
func appendNew(dst []byte, isArray bool, n int, edits []edit) (_ []byte, ok bool) {
	for _, e := range edits {
		if len(e.path) != 1 || !e.sets() {
			return nil, false
		}
		if isArray {
			index, err := strconv.Atoi(e.path[0])
			if err != nil || index < n || index > n+maxPadding {
				return nil, false
			}
			for ; n < index; n++ {
				dst = bsoncore.AppendNullElement(dst, strconv.Itoa(n))
			}
			n++
		}
		dst = append(bsoncore.AppendHeader(dst, bsoncore.Type(e.value.Type), e.path[0]), e.value.Value...)
	}
	return dst, true
}

// ambiguous reports whether the name of a field has a dot, and an edit may mean it or what is below the first part of it.
func ambiguous(document []byte, edits []edit) bool {
	_, rest, _ := bsoncore.ReadLength(document)
	for len(rest) > 1 {
		element, remaining, ok := bsoncore.ReadElement(rest)
		if !ok {
			return true
		}
		rest = remaining
		if bytes.IndexByte(element.KeyBytes(), '.') < 0 {
			continue
		}
		name := element.Key() + "."
		if slices.ContainsFunc(edits, func(e edit) bool { return len(e.path) > 1 && strings.HasPrefix(e.path.String()+".", name) }) {
			return true
		}
	}
	return false
}

// take parts the edits of one field, as they are below it, from the others.
func take(edits []edit, name string) (mine, others []edit) {
	for _, e := range edits {
		if e.path[0] != name {
			others = append(others, e)
			continue
		}
		e.path = e.path[1:]
		mine = append(mine, e)
	}
	return mine, others
}

// appendEdited appends an element with the edits of it and of what is below it.
func appendEdited(dst []byte, element bsoncore.Element, inArray bool, edits []edit) (_ []byte, ok bool) {
	if len(edits) == 0 {
		return append(dst, element...), true
	}
	if e := edits[0]; len(e.path) == 0 && e.size < 0 { // it is set or removed as a whole
		switch {
		case len(edits) > 1, e.removes() && inArray:
			return nil, false
		case e.removes():
			return dst, true
		}
		return append(bsoncore.AppendHeader(dst, bsoncore.Type(e.value.Type), element.Key()), e.value.Value...), true
	}
	v := element.Value()
	if v.Type != bsoncore.TypeEmbeddedDocument && v.Type != bsoncore.TypeArray {
		return nil, false
	}
	for _, e := range edits {
		if len(e.path) == 0 && (e.size < 0 || v.Type != bsoncore.TypeArray) {
			return nil, false
		}
	}
	edited, ok := apply(v.Data, v.Type == bsoncore.TypeArray, edits)
	return append(bsoncore.AppendHeader(dst, v.Type, element.Key()), edited...), ok
}

package envelope

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

// unwrap is the envelope in a record's value; skip says why there is none where there need be none.
func unwrap(data []byte) (payload value, skip string, err error) {
	if len(data) == 0 {
		return nil, SkipTombstone, nil
	}
	record, err := parse(data)
	if err != nil {
		return nil, "", err
	}
	switch payload = record.payload(); payload.kind() {
	case object:
		return payload, "", nil
	case null:
		return nil, SkipTombstone, nil
	default:
		return nil, "", notJSON("the record's value is %s, not a JSON object", payload.excerpt())
	}
}

// content is the text of a string, and the JSON of anything else.
func (v value) content() []byte {
	if v.kind() == text {
		return v.bytes()
	}
	return v
}

// name is the text of a string, "" for anything else.
func (v value) name() string {
	if v.kind() != text {
		return ""
	}
	return string(v.bytes())
}

// image is the field of an envelope that holds a row.
type image struct {
	field string
	value value
}

func (i image) read() (bson.Raw, error) {
	row, err := document(i.value)
	if err != nil {
		return nil, malformed(i.field, "%v", err)
	}
	return row, nil
}

// readImages reads the row before and after, as far as the operation has them and the envelope holds them.
func (c *Change) readImages(before, after image, description value) (err error) {
	if c.Op == Update || c.Op == Replace || c.Op == Delete {
		if c.Before, err = before.read(); err != nil {
			return err
		}
		c.BeforeUnknown = c.Before == nil
	}
	if c.Op != Delete {
		if c.After, err = after.read(); err != nil {
			return err
		}
		c.AfterUnknown = c.After == nil
	}
	if c.AfterUnknown && (c.Op == Insert || c.Op == Snapshot || c.Op == Replace) {
		return missing(after.field, "is missing: it holds the row")
	}
	for _, row := range []bson.Raw{c.After, c.Before} {
		if id, err := row.LookupErr("_id"); err == nil {
			c.Row = id
		}
	}
	if c.Op == Update {
		return c.readDescription(description)
	}
	return nil
}

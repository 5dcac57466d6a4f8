package envelope_test

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/stream/envelope"
)

// FuzzDecode: whatever the bytes, a decoder gives valid rows, or one *Error, and never both a row and its absence.
func FuzzDecode(f *testing.F) {
	for format := range sources {
		for _, r := range readGolden(f, format) {
			f.Add([]byte(r.key), []byte(r.value))
		}
	}
	f.Add([]byte(nil), []byte("{\"type\":\"\xff\"}"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		for format, source := range sources {
			c, err := envelope.New(source).Decode(key, value)
			var wrong *envelope.Error
			if err != nil && !errors.As(err, &wrong) {
				t.Fatalf("%s: %v is no *Error", format, err)
			}
			if err == nil {
				checkChange(t, format, c)
			}
		}
	})
}

func checkChange(t *testing.T, format string, c envelope.Change) {
	t.Helper()
	for _, row := range []bson.Raw{c.Before, c.After} {
		if row != nil && row.Validate() != nil {
			t.Fatalf("%s: the row %v is not valid", format, []byte(row))
		}
	}
	for _, v := range []bson.RawValue{c.Row, c.Key} {
		if !v.IsZero() && v.Validate() != nil {
			t.Fatalf("%s: the value %v is not valid", format, v.Value)
		}
	}
	switch {
	case c.BeforeUnknown && c.Before != nil, c.AfterUnknown && c.After != nil:
		t.Fatalf("%s: a row is both known and not: %+v", format, c)
	case (c.Op == envelope.Irrelevant) != (c.Skip != ""):
		t.Fatalf("%s: irrelevant for no reason: %+v", format, c)
	case c.Op == envelope.Event && (c.Key.IsZero() || c.Time.IsZero()):
		t.Fatalf("%s: an event without its key or time: %+v", format, c)
	case c.Op == envelope.Insert && (c.After == nil || c.Before != nil), c.Op == envelope.Delete && c.After != nil:
		t.Fatalf("%s: rows that do not go with %s: %+v", format, c.Op, c)
	}
}

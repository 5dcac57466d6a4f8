package stream

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"pgregory.net/rapid"
)

func rawOf(v any) bson.Raw {
	raw, err := bson.Marshal(v)
	if err != nil {
		panic(err)
	}
	return raw
}

func dataToken(data any) bson.Raw { return rawOf(bson.D{{Key: "_data", Value: data}}) }

// tokenOf is the n-th event's token of a cluster time; 0 is the high-water mark.
func tokenOf(at bson.Timestamp, n int) bson.Raw {
	return dataToken(fmt.Sprintf("82%08X%08X%04X", at.T, at.I, n))
}

func TestATokenSaysItsClusterTime(t *testing.T) {
	for data, want := range map[string]bson.Timestamp{
		// Taken from MongoDB 6.0: an event, a high-water mark, an invalidate.
		"8263D2C7B9000000012B022C0100296E5A100409E3A1B4B0D84C3A9D9B5F0D9D0F0B0D46645F6964006463D2C7B9F1B5C8F3E1E5D1A30004": {T: 0x63D2C7B9, I: 1},
		"8263D2C7B9000000052B0229296E04":                {T: 0x63D2C7B9, I: 5},
		"82FFFFFFFFFFFFFFFF2B04":                        {T: math.MaxUint32, I: math.MaxUint32},
		"820000000000000000":                            {},
		strings.ToLower("8263D2C7B90000000A2B0229296E"): {T: 0x63D2C7B9, I: 10},
	} {
		got, err := TokenTime(dataToken(data))
		if err != nil || got != want {
			t.Errorf("%s is of %v, %v, want %v", data, got, err, want)
		}
	}
}

func TestATokenOfAnotherProductIsRefused(t *testing.T) {
	for what, token := range map[string]bson.Raw{
		"another first byte":     dataToken("0163D2C7B900000001"),
		"binary, as of 4.0.6":    dataToken(bson.Binary{Data: []byte{0x82, 1, 2, 3, 4, 5, 6, 7, 8}}),
		"without _data":          rawOf(bson.D{{Key: "lsn", Value: "8263D2C7B900000001"}}),
		"an opaque continuation": dataToken("eyJWIjoyLCJSaWQiOiJ4In0="),
		"a number":               dataToken(82),
		"null":                   dataToken(nil),
		"empty":                  rawOf(bson.D{}),
		"short":                  dataToken("01"),
	} {
		if got, err := TokenTime(token); !errors.Is(err, ErrForeignToken) || errors.Is(err, ErrPositionLost) || !got.IsZero() {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
}

func TestATokenThatIsDamagedBeforeItsTimeEndsIsALostPosition(t *testing.T) {
	whole := "8263D2C7B9000000012B0229296E04"
	damaged := []string{"82zzzzzzzz00000001", "8263D2C7B9000000 12B0229296E04", "82eyJWIjoyLCJSaWQ"}
	for n := range len("8263D2C7B900000001") {
		damaged = append(damaged, whole[:n])
	}
	for _, data := range damaged {
		if got, err := TokenTime(dataToken(data)); !errors.Is(err, ErrPositionLost) || errors.Is(err, ErrForeignToken) || !got.IsZero() {
			t.Errorf("%q: %v, %v", data, got, err)
		}
	}
}

func TestAStartWhoseTokenDisagreesWithItsPositionIsALostPosition(t *testing.T) {
	at := bson.Timestamp{T: 100, I: 7}
	for _, c := range []struct {
		what string
		from Start
		want error
	}{
		{"nothing", Start{}, nil},
		{"no token", Start{Position: at}, nil},
		{"no position", Start{Token: tokenOf(at, 1)}, nil},
		{"both", Start{Token: tokenOf(at, 1), Position: Before(at)}, nil},
		{"the instant of the token itself", Start{Token: tokenOf(at, 1), Position: at}, ErrPositionLost},
		{"another second", Start{Token: tokenOf(bson.Timestamp{T: 101, I: 7}, 1), Position: Before(at)}, ErrPositionLost},
		{"another product's", Start{Token: dataToken("01"), Position: at}, ErrForeignToken},
		{"garbled behind its time", Start{Token: dataToken("8263D2C7B9000000012B02zz")}, ErrPositionLost},
		{"half a byte less", Start{Token: dataToken("8263D2C7B9000000012B0")}, ErrPositionLost},
	} {
		if err := c.from.check(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
}

func TestTokenTimeReadsWhatAServerWrites(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawTime(t, "time")
		token := tokenOf(want, rapid.IntRange(0, 1<<16-1).Draw(t, "event"))
		if got, err := TokenTime(token); err != nil || got != want {
			t.Fatalf("%v, %v", got, err)
		}
	})
}

func drawTime(t *rapid.T, name string) bson.Timestamp {
	edge := rapid.SampledFrom([]uint32{0, 1, math.MaxUint32 - 1, math.MaxUint32})
	part := rapid.OneOf(edge, rapid.Uint32())
	return bson.Timestamp{T: part.Draw(t, name+" seconds"), I: part.Draw(t, name+" increment")}
}

func TestBeforeAndNextAreOneInstantApart(t *testing.T) {
	last := bson.Timestamp{T: math.MaxUint32, I: math.MaxUint32}
	rapid.Check(t, func(t *rapid.T) {
		at := drawTime(t, "at")
		if !at.IsZero() {
			if before := Before(at); !before.Before(at) || next(before) != at {
				t.Fatalf("before %v is %v", at, before)
			}
		}
		if at != last {
			if after := next(at); !at.Before(after) || Before(after) != at {
				t.Fatalf("after %v is %v", at, after)
			}
		}
		// Nothing lies between: whatever is before at is at most Before(at).
		if other := drawTime(t, "other"); other.Before(at) && Before(at).Before(other) {
			t.Fatalf("%v lies between %v and %v", other, Before(at), at)
		}
	})
}

func TestTheLastGroupAreTheEventsThatShareTheTokensTime(t *testing.T) {
	one, two, three := bson.Timestamp{T: 1, I: 1}, bson.Timestamp{T: 1, I: 2}, bson.Timestamp{T: 2, I: 1}
	events := func(times ...bson.Timestamp) []Event {
		all := make([]Event, len(times))
		for i, at := range times {
			all[i].Token = tokenOf(at, i+1)
		}
		return all
	}
	for _, c := range []struct {
		events []Event
		token  bson.Raw
		want   int
	}{
		{nil, tokenOf(one, 0), 0},
		{events(one), tokenOf(one, 1), 0},
		{events(one, one, one), tokenOf(one, 9), 0},
		{events(one, two), tokenOf(two, 2), 1},
		{events(one, two, two), tokenOf(two, 2), 1},
		{events(one, one, two), tokenOf(two, 2), 2},
		{events(one, two), tokenOf(three, 0), 2}, // a high-water mark beyond them
		{events(one, two), dataToken("x"), 2},
	} {
		if got := LastGroup(c.events, c.token); got != c.want {
			t.Errorf("of %d events with a token of %v the last group begins at %d, want %d", len(c.events), c.token, got, c.want)
		}
	}
}

func TestTheLastGroupIsWhatAPositionBeforeItsTimeDoesNotCover(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var events []Event
		at := bson.Timestamp{T: 1}
		for i := range rapid.IntRange(1, 30).Draw(t, "events") {
			if rapid.Bool().Draw(t, "later") {
				at = next(at)
			}
			events = append(events, Event{Token: tokenOf(at, i)})
		}
		first := LastGroup(events, events[len(events)-1].Token)
		for i, e := range events {
			time, _ := TokenTime(e.Token)
			if covered := !time.After(Before(at)); covered != (i < first) {
				t.Fatalf("event %d of %v: last group of %v begins at %d", i, time, at, first)
			}
		}
	})
}

// replyOf is a getMore's reply.
func replyOf(id any, events bson.A, token any) bson.Raw {
	cursor := bson.D{{Key: "id", Value: id}, {Key: "nextBatch", Value: events}}
	if token != nil {
		cursor = append(cursor, bson.E{Key: "postBatchResumeToken", Value: token})
	}
	return rawOf(bson.D{{Key: "cursor", Value: cursor}, {Key: "ok", Value: 1.0}})
}

func eventDoc(token bson.Raw) bson.D { return bson.D{{Key: "_id", Value: token}, {Key: "x", Value: 1}} }

func TestABatchStandsForItsEventsAndForWhatWasScanned(t *testing.T) {
	one, two := bson.Timestamp{T: 1, I: 1}, bson.Timestamp{T: 1, I: 2}
	for _, c := range []struct {
		what   string
		reply  bson.Raw
		events int
		token  bson.Raw
	}{
		{"empty", replyOf(int64(1), bson.A{}, tokenOf(two, 0)), 0, tokenOf(two, 0)},
		{"full", replyOf(int64(1), bson.A{eventDoc(tokenOf(one, 1)), eventDoc(tokenOf(two, 1))}, tokenOf(two, 1)), 2, tokenOf(two, 1)},
		{"scanned beyond", replyOf(int64(1), bson.A{eventDoc(tokenOf(one, 1))}, tokenOf(two, 0)), 1, tokenOf(two, 0)},
		{
			"a mark of the last event's own time, which sorts before it",
			replyOf(int64(1), bson.A{eventDoc(tokenOf(one, 1)), eventDoc(tokenOf(one, 2))}, tokenOf(one, 0)), 2, tokenOf(one, 2),
		},
	} {
		batch, err := parseBatch(c.reply)
		if err != nil || len(batch.Events) != c.events || string(batch.Token) != string(c.token) {
			t.Errorf("%s: %d events, token %v, %v", c.what, len(batch.Events), batch.Token, err)
		}
		for _, e := range batch.Events {
			if id, _ := e.Doc.Lookup("_id").DocumentOK(); string(id) != string(e.Token) {
				t.Errorf("%s: event %v has the token %v", c.what, e.Doc, e.Token)
			}
		}
	}
}

func TestAReplyThatIsNoneOfAChangeStreamIsAnError(t *testing.T) {
	token := tokenOf(bson.Timestamp{T: 1}, 1)
	for what, reply := range map[string]bson.Raw{
		"no cursor":         rawOf(bson.D{{Key: "ok", Value: 1}}),
		"cursor of no kind": rawOf(bson.D{{Key: "cursor", Value: 7}}),
		"no batch":          rawOf(bson.D{{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(1)}}}}),
		"no token":          replyOf(int64(1), bson.A{}, nil),
		"token of no kind":  replyOf(int64(1), bson.A{}, "8263"),
		"event without _id": replyOf(int64(1), bson.A{bson.D{{Key: "x", Value: 1}}}, token),
		"event of no kind":  replyOf(int64(1), bson.A{"x"}, token),
		"event with a text": replyOf(int64(1), bson.A{bson.D{{Key: "_id", Value: "x"}}}, token),
		"empty":             rawOf(bson.D{}),
		"nothing":           nil,
	} {
		if batch, err := parseBatch(reply); err == nil {
			t.Errorf("%s: %+v", what, batch)
		}
	}
	for what, reply := range map[string]bson.Raw{
		"without cursor": rawOf(bson.D{}), "without id": rawOf(bson.D{{Key: "cursor", Value: bson.D{}}}),
		"id of no kind": replyOf("x", bson.A{}, token),
	} {
		if id, ok := cursorID(reply); ok {
			t.Errorf("%s: cursor %d", what, id)
		}
	}
	if id, ok := cursorID(replyOf(int64(5), bson.A{}, token)); !ok || id != 5 {
		t.Errorf("cursor %d, %v", id, ok)
	}
}

// FuzzTokenTime: whatever a token holds, it is refused or read, never guessed at.
func FuzzTokenTime(f *testing.F) {
	f.Add([]byte(tokenOf(bson.Timestamp{T: 1, I: 2}, 3)))
	f.Add([]byte(dataToken("0163")))
	f.Fuzz(func(t *testing.T, data []byte) {
		at, err := TokenTime(data)
		if err != nil {
			return
		}
		text, _ := bson.Raw(data).Lookup("_data").StringValueOK()
		var want [9]byte
		if _, err := hex.Decode(want[:], []byte(text[:18])); err != nil || want[0] != 0x82 {
			t.Fatalf("%q taken for %v", text, at)
		}
	})
}

func TestATokenOfATopicHasTheSizeThatIsReservedForIt(t *testing.T) {
	p := TopicPosition{Topic: [16]byte{1, 2}, Offset: 1 << 40, Epoch: 7, Through: time.UnixMilli(1_700_000_000_123).UTC()}
	token := p.Token()
	if len(token) != TopicTokenSize || token.Validate() != nil {
		t.Errorf("token of %d bytes, want %d: %v", len(token), TopicTokenSize, token.Validate())
	}
	if got, err := TopicPositionOf(token); err != nil || got != p {
		t.Errorf("read back as %+v, want %+v: %v", got, p, err)
	}
}

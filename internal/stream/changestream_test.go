package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// pond is a collection with a change stream, and a busy neighbour.
type pond struct {
	t               testing.TB
	client          *mongo.Client
	db              *mongo.Database
	rows, neighbour *mongo.Collection
}

func newPond(t testing.TB) *pond {
	t.Helper()
	client := realtest.Client(t, realtest.Shared(t).URI())
	db := client.Database(realtest.DatabaseOn(t, client))
	p := &pond{t: t, client: client, db: db, rows: db.Collection("rows"), neighbour: db.Collection("neighbour")}
	p.create()
	return p
}

func (p *pond) create() {
	p.t.Helper()
	p.check(p.db.CreateCollection(p.t.Context(), "rows",
		options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}})))
}

func (p *pond) check(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// now is a cluster time after all that has been done.
func (p *pond) now() bson.Timestamp {
	p.t.Helper()
	session, err := p.client.StartSession()
	p.check(err)
	defer session.EndSession(p.t.Context())
	_, err = p.neighbour.InsertOne(mongo.NewSessionContext(p.t.Context(), session), bson.D{})
	p.check(err)
	return *session.OperationTime()
}

func (p *pond) open(from Start, batch int, stages ...any) Reader {
	p.t.Helper()
	reader, err := NewChangeStream(p.client, p.db.Name(), "rows", stages, batch).Open(p.t.Context(), from)
	p.check(err)
	p.t.Cleanup(func() { reader.Close(context.WithoutCancel(p.t.Context())) })
	return reader
}

func (p *pond) next(r Reader) Batch {
	p.t.Helper()
	batch, err := r.Next(p.t.Context())
	p.check(err)
	return batch
}

// read reads n events.
func (p *pond) read(r Reader, n int) (events []Event, token bson.Raw) {
	p.t.Helper()
	for len(events) < n {
		batch := p.next(r)
		events, token = append(events, batch.Events...), batch.Token
	}
	return events, token
}

// insert inserts rows with the given numbers.
func (p *pond) insert(ctx context.Context, from, to int) {
	p.t.Helper()
	_, err := p.rows.InsertMany(ctx, numbered(from, to))
	p.check(err)
}

func numbered(from, to int) []any {
	rows := make([]any, 0, to-from)
	for i := from; i < to; i++ {
		rows = append(rows, bson.D{{Key: "_id", Value: i}})
	}
	return rows
}

func (p *pond) transaction(from, to int) {
	p.t.Helper()
	p.check(p.client.UseSession(p.t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			_, err := p.rows.InsertMany(ctx, numbered(from, to))
			return nil, err
		})
		return err
	}))
}

// ids are the numbers of the rows that events are about.
func ids(events []Event) []int {
	all := make([]int, len(events))
	for i, e := range events {
		n, _ := e.Doc.Lookup("documentKey", "_id").AsInt64OK()
		all[i] = int(n)
	}
	return all
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

func TestAStartAtAPositionDeliversEverythingAfterItAndNothingBefore(t *testing.T) {
	p := newPond(t)
	p.insert(t.Context(), 100, 110)
	at := p.now()
	p.insert(t.Context(), 0, 10)
	events, _ := p.read(p.open(Start{Position: at}, 100), 10)
	if got := ids(events); !slices.Equal(got, upTo(10)) {
		t.Errorf("delivered %v", got)
	}
}

func TestATransactionHasOneClusterTimeAndIsResumedInsideIt(t *testing.T) {
	const size = 5000
	p := newPond(t)
	at := p.now()
	p.transaction(0, size)
	p.insert(t.Context(), size, size+1)
	all, _ := p.read(p.open(Start{Position: at}, 400), size+1)
	if got := ids(all); !slices.Equal(got, upTo(size+1)) {
		t.Fatalf("%d events, not every row once and in order", len(got))
	}
	inside, err := TokenTime(all[0].Token)
	p.check(err)
	for i, e := range all[:size] {
		if got, err := TokenTime(e.Token); err != nil || got != inside {
			t.Fatalf("event %d is of %v, the first of %v", i, got, inside)
		}
	}
	if after, _ := TokenTime(all[size].Token); !inside.Before(after) {
		t.Errorf("the row after the transaction is of %v, the transaction of %v", after, inside)
	}
	for _, i := range []int{0, 1, 399, 400, 2500, size - 2, size - 1} {
		rest, _ := p.read(p.open(Start{Token: all[i].Token}, 400), size-i)
		if got := ids(rest); !slices.Equal(got, upTo(size + 1)[i+1:]) {
			t.Fatalf("after event %d come %d others", i, len(got))
		}
	}
}

func TestATransactionOfManyMegabytesHasOneClusterTimeToo(t *testing.T) {
	size := 2000 // 20 MB: more than one entry of the oplog holds
	if os.Getenv("DRIFTLESS_SOAK") != "" {
		size = 4000
	}
	p := newPond(t)
	at := p.now()
	body := strings.Repeat("x", 10<<10)
	p.check(p.client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			rows := make([]any, size)
			for i := range rows {
				rows[i] = bson.D{{Key: "_id", Value: i}, {Key: "body", Value: body}}
			}
			_, err := p.rows.InsertMany(ctx, rows)
			return nil, err
		})
		return err
	}))
	slim := bson.D{{Key: "$project", Value: bson.D{{Key: "documentKey", Value: 1}}}}
	all, _ := p.read(p.open(Start{Position: at}, 400, slim), size)
	first, err := TokenTime(all[0].Token)
	p.check(err)
	last, err := TokenTime(all[size-1].Token)
	p.check(err)
	if got := ids(all); !slices.Equal(got, upTo(size)) || first != last {
		t.Fatalf("%d events from %v to %v", len(got), first, last)
	}
	for _, i := range []int{0, size / 3, size - 2} {
		rest, _ := p.read(p.open(Start{Token: all[i].Token}, 400, slim), size-1-i)
		if got := ids(rest); !slices.Equal(got, upTo(size)[i+1:]) {
			t.Fatalf("after event %d come %d others", i, len(got))
		}
	}
}

func TestEveryTokenOfAServerSaysItsTime(t *testing.T) {
	p := newPond(t)
	before := p.now()
	reader := p.open(Start{Position: before}, 10)
	p.insert(t.Context(), 0, 1)
	events, mark := p.read(reader, 1)
	event, err := TokenTime(events[0].Token)
	p.check(err)
	var entry struct {
		TS bson.Timestamp `bson:"ts"`
	}
	p.check(p.client.Database("local").Collection("oplog.rs").FindOne(t.Context(),
		bson.D{{Key: "ns", Value: p.db.Name() + ".rows"}, {Key: "op", Value: "i"}}).Decode(&entry))
	if event != entry.TS {
		t.Errorf("an event's token says %v, its oplog entry %v", event, entry.TS)
	}
	later := p.now()
	// High-water marks pass whatever the neighbour does.
	for at, _ := TokenTime(mark); at.Before(later); at, err = TokenTime(mark) {
		p.check(err)
		if batch := p.next(reader); len(batch.Events) != 0 {
			t.Fatalf("unexpected event %v", batch.Events[0].Doc)
		} else {
			mark = batch.Token
		}
	}
	p.check(p.rows.Drop(t.Context()))
	var kinds []string
	for !slices.Contains(kinds, "invalidate") {
		batch := p.next(reader)
		for _, e := range batch.Events {
			kinds = append(kinds, e.Doc.Lookup("operationType").StringValue())
			if at, err := TokenTime(e.Token); err != nil || at.Before(later) {
				t.Errorf("the token of a %s says %v, %v", kinds[len(kinds)-1], at, err)
			}
		}
	}
}

func TestAStreamThatWasInvalidatedIsOver(t *testing.T) {
	for what, end := range map[string]func(*pond) error{
		"dropped": func(p *pond) error { return p.rows.Drop(t.Context()) },
		"renamed": func(p *pond) error { return p.rename("rows", "others", false) },
		"renamed onto": func(p *pond) error {
			if _, err := p.neighbour.InsertOne(t.Context(), bson.D{}); err != nil {
				return err
			}
			return p.rename("neighbour", "rows", true)
		},
		"database dropped": func(p *pond) error { return p.db.Drop(t.Context()) },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPond(t)
			reader := p.open(Start{Position: p.now()}, 10)
			p.insert(t.Context(), 0, 3)
			p.check(end(p))
			var got []string
			for {
				batch, err := reader.Next(t.Context())
				if err != nil {
					// The server may have closed the cursor behind the invalidate: both are the end.
					if !errors.Is(err, ErrCollectionChanged) && !errors.Is(err, ErrInterrupted) {
						t.Error(err)
					}
					break
				}
				for _, e := range batch.Events {
					got = append(got, e.Doc.Lookup("operationType").StringValue())
				}
			}
			if len(got) < 4 || !slices.Equal(got[:3], []string{"insert", "insert", "insert"}) || got[len(got)-1] != "invalidate" {
				t.Errorf("delivered %v", got)
			}
		})
	}
}

func (p *pond) rename(from, to string, drop bool) error {
	return p.client.Database("admin").RunCommand(p.t.Context(), bson.D{
		{Key: "renameCollection", Value: p.db.Name() + "." + from}, {Key: "to", Value: p.db.Name() + "." + to}, {Key: "dropTarget", Value: drop},
	}).Err()
}

func TestALongForeignStretchOfTheOplogIsPassed(t *testing.T) {
	const each, times = 50000, 4
	p := newPond(t)
	at := p.now()
	p.insert(t.Context(), 0, 1)
	var writing sync.WaitGroup
	for n := range times {
		writing.Go(func() {
			_, err := p.neighbour.InsertMany(t.Context(), numbered(n*each, (n+1)*each), options.InsertMany().SetOrdered(false))
			if err != nil {
				t.Error(err)
			}
		})
	}
	writing.Wait()
	p.insert(t.Context(), 1, 2)
	began := time.Now()
	reader := p.open(Start{Position: at}, 10)
	opened := time.Since(began)
	first, token := p.read(reader, 1)
	for len(first) < 2 {
		batch := p.next(reader)
		first, token = append(first, batch.Events...), batch.Token
	}
	t.Logf("opened in %v, passed %d foreign entries in %v", opened, each*times, time.Since(began))
	if got := ids(first); !slices.Equal(got, upTo(2)) {
		t.Errorf("delivered %v", got)
	}
	// Resuming before the stretch, too: the opening itself does not scan it.
	again, _ := p.read(p.open(Start{Token: first[0].Token}, 10), 1)
	if got := ids(again); !slices.Equal(got, []int{1}) {
		t.Errorf("resumed with %v", got)
	}
	if last, err := TokenTime(token); err != nil || last.Before(p.timeOf(first[1])) {
		t.Errorf("the token says %v, %v", last, err)
	}
}

func (p *pond) timeOf(e Event) bson.Timestamp {
	p.t.Helper()
	at, err := TokenTime(e.Token)
	p.check(err)
	return at
}

func TestAnIdleStreamKeepsUpWithABusyNeighbour(t *testing.T) {
	p := newPond(t)
	reader := p.open(Start{Position: p.now()}, 10)
	ctx, cancel := context.WithCancel(t.Context())
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	writing.Go(func() {
		for ctx.Err() == nil {
			_, _ = p.neighbour.InsertMany(ctx, []any{bson.D{}, bson.D{}, bson.D{}})
		}
	})
	var last bson.Timestamp
	for range 3 {
		asked := p.now()
		batch := p.next(reader)
		at, err := TokenTime(batch.Token)
		p.check(err)
		if len(batch.Events) != 0 || at.Before(last) {
			t.Fatalf("%d events, from %v to %v", len(batch.Events), last, at)
		}
		if at.T+1 < asked.T { // it is answered within the second that it may wait
			t.Errorf("asked at %v, the answer reaches %v", asked, at)
		}
		last = at
	}
}

func TestWhatThePipelineDropsMovesTheToken(t *testing.T) {
	p := newPond(t)
	match := bson.D{{Key: "$match", Value: bson.D{{Key: "documentKey._id", Value: bson.D{{Key: "$gte", Value: 1000}}}}}}
	reader := p.open(Start{Position: p.now()}, 10, match)
	p.insert(t.Context(), 0, 500)
	end := p.now()
	for {
		batch := p.next(reader)
		if len(batch.Events) > 0 {
			t.Fatalf("delivered %v", ids(batch.Events))
		}
		if at, err := TokenTime(batch.Token); err != nil || !at.Before(end) {
			p.check(err)
			break
		}
	}
}

func TestAPipelineThatFailsOnARowIsAnExpressionsFault(t *testing.T) {
	p := newPond(t)
	size := bson.D{{Key: "$project", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$size", Value: "$fullDocument.tags"}}}}}}
	reader := p.open(Start{Position: p.now()}, 10, size)
	p.insert(t.Context(), 0, 1)
	if _, err := reader.Next(t.Context()); !errors.Is(err, ErrExpression) {
		t.Errorf("reading: %v", err)
	}
	unknown := bson.A{bson.D{{Key: "$project", Value: bson.D{{Key: "n", Value: bson.D{{Key: "$nope", Value: 1}}}}}}}
	_, err := NewChangeStream(p.client, p.db.Name(), "rows", unknown, 10).Open(t.Context(), Start{Position: p.now()})
	if !errors.Is(err, ErrExpression) {
		t.Errorf("opening: %v", err)
	}
}

func TestATokenThatIsNotInTheHistoryIsALostPosition(t *testing.T) {
	p := newPond(t)
	reader := p.open(Start{Position: p.now()}, 10)
	_, err := p.rows.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "aaaaaaaa"}})
	p.check(err)
	events, _ := p.read(reader, 1)
	// The same moment, another row: what is left of a server that was rolled back, or of another cluster.
	data := events[0].Token.Lookup("_data").StringValue()
	other := dataToken(strings.Replace(data, "6161616161616161", "6161616161616162", 1))
	if at, err := TokenTime(other); err != nil || at != p.timeOf(events[0]) || string(other) == string(events[0].Token) {
		t.Fatalf("%v is of %v, %v", other, at, err)
	}
	p.insert(t.Context(), 0, 1)
	lost, err := NewChangeStream(p.client, p.db.Name(), "rows", nil, 10).Open(t.Context(), Start{Token: other})
	if err == nil {
		defer lost.Close(t.Context())
		_, err = lost.Next(t.Context())
	}
	if !errors.Is(err, ErrPositionLost) {
		t.Errorf("resuming: %v", err)
	}
}

// resume opens a stream after a token and reads once.
func (p *pond) resume(from Start, stages ...any) error {
	p.t.Helper()
	reader, err := NewChangeStream(p.client, p.db.Name(), "rows", stages, 10).Open(p.t.Context(), from)
	if err != nil {
		return err
	}
	defer reader.Close(p.t.Context())
	_, err = reader.Next(p.t.Context())
	return err
}

// kindsOfTokens are an event's, a high-water mark and an invalidate's, with something to read behind each.
func (p *pond) kindsOfTokens() map[string]bson.Raw {
	p.t.Helper()
	kinds := map[string]bson.Raw{}
	reader := p.open(Start{Position: p.now()}, 10)
	p.insert(p.t.Context(), 0, 1)
	events, mark := p.read(reader, 1)
	kinds["an event's"] = events[0].Token
	for p.now(); len(mark.Lookup("_data").StringValue()) > len("8263D2C7B9000000012B0229296E04"); {
		mark = p.next(reader).Token
	}
	kinds["a high-water mark"] = mark
	p.check(p.rows.Drop(p.t.Context()))
	for kinds["an invalidate's"] == nil {
		for _, e := range p.next(reader).Events {
			if e.Doc.Lookup("operationType").StringValue() == "invalidate" {
				kinds["an invalidate's"] = e.Token
			}
		}
	}
	p.create()
	p.insert(p.t.Context(), 1, 2)
	return kinds
}

func TestADamagedTokenIsALostPosition(t *testing.T) {
	p := newPond(t)
	for kind, token := range p.kindsOfTokens() {
		data := token.Lookup("_data").StringValue()
		at, err := TokenTime(token)
		p.check(err)
		try := func(damaged string) {
			t.Helper()
			err := p.resume(Start{Token: dataToken(damaged), Position: Before(at)})
			if !errors.Is(err, ErrPositionLost) || errors.Is(err, ErrExpression) {
				t.Errorf("%s, %s, damaged to %s: %v", kind, data, damaged, err)
			}
		}
		if err := p.resume(Start{Token: token, Position: Before(at)}); err != nil {
			t.Fatalf("%s, whole: %v", kind, err)
		}
		// Cut short, but for a last zero byte that means nothing.
		for n := range len(data) - 2 {
			try(data[:n])
		}
		// Behind the time every type byte is another one, which no server knows.
		for _, n := range []int{18, 20, 22, 24, 26, 28} {
			try(data[:n] + "ff" + data[n+2:])
			try(data[:n] + "zz" + data[n+2:])
		}
		try(strings.Replace(data, "82", "827", 1)) // shifted: another time
		for n := 2; n < 18; n++ {
			digit := "0"
			if data[n] == '0' {
				digit = "1"
			}
			try(data[:n] + digit + data[n+1:])
		}
	}
	if err := p.resume(Start{Token: dataToken("0" + "263D2C7B900000001")}); !errors.Is(err, ErrForeignToken) {
		t.Errorf("another product's token: %v", err)
	}
}

func TestAFaultyPipelineIsNoLostPositionAndADamagedTokenIsNoFaultOfThePipeline(t *testing.T) {
	p := newPond(t)
	broken := map[int]any{ // by the server's code
		31325: bson.D{{Key: "$nope", Value: 1}},
		// What a token that is cut short is answered with, too.
		15: bson.D{{Key: "$add", Value: bson.A{time.Now(), int64(math.MaxInt64)}}},
		9:  bson.D{{Key: "$convert", Value: bson.D{{Key: "nope", Value: 1}}}},
	}
	for kind, token := range p.kindsOfTokens() {
		for code, expression := range broken {
			stage := bson.D{{Key: "$project", Value: bson.D{{Key: "x", Value: expression}}}}
			if err := p.resume(Start{Token: token}, stage); !errors.Is(err, ErrExpression) || errors.Is(err, ErrPositionLost) || !HasCode(err, code) {
				t.Errorf("%v after %s: %v", expression, kind, err)
			}
			damaged := dataToken(token.Lookup("_data").StringValue()[:20])
			if err := p.resume(Start{Token: damaged}, stage); !errors.Is(err, ErrPositionLost) {
				t.Errorf("%v after %s that is damaged: %v", expression, kind, err)
			}
		}
	}
}

func TestAServerThatRefusesEveryStreamHasLostNoPosition(t *testing.T) {
	p := newPond(t)
	token := p.kindsOfTokens()["an event's"]
	name := p.db.Name()
	refused := realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetAppName(name))
	point := realtest.FailCommand(t, p.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: name, Code: 50811, Times: -1})
	_, err := NewChangeStream(refused, name, "rows", nil, 10).Open(t.Context(), Start{Token: token})
	point.Off()
	if !errors.Is(err, ErrExpression) || errors.Is(err, ErrPositionLost) {
		t.Errorf("refused: %v", err)
	}
}

func TestACancelledReadingEndsAtOnceAndLeavesNoCursor(t *testing.T) {
	p := newPond(t)
	waiting := make(chan struct{}, 1)
	const name = "cancelled"
	client := realtest.Client(t, realtest.Shared(t).URI(), options.Client().SetAppName(name).SetMonitor(&event.CommandMonitor{
		Started: func(_ context.Context, e *event.CommandStartedEvent) {
			if e.CommandName == "getMore" {
				waiting <- struct{}{}
			}
		},
	}))
	reader, err := NewChangeStream(client, p.db.Name(), "rows", nil, 10).Open(t.Context(), Start{Position: p.now()})
	p.check(err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := reader.Next(ctx)
		ended <- err
	}()
	<-waiting
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v", err)
	}
	reader.Close(ctx)
	realtest.Eventually(t, 10*time.Second, "no cursor is open", func() bool {
		found, err := p.client.Database("admin").Aggregate(t.Context(), mongo.Pipeline{
			{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}}}},
			{{Key: "$match", Value: bson.D{{Key: "ns", Value: p.db.Name() + ".rows"}, {Key: "cursor", Value: bson.D{{Key: "$exists", Value: true}}}}}},
		})
		p.check(err)
		defer func() { _ = found.Close(t.Context()) }()
		return !found.Next(t.Context())
	})
}

func TestAServerThatIsGoneInterrupts(t *testing.T) {
	p := newPond(t)
	client := realtest.Client(t, "mongodb://127.0.0.1:1/?directConnection=true", options.Client().SetServerSelectionTimeout(50*time.Millisecond))
	_, err := NewChangeStream(client, "x", "rows", nil, 10).Open(t.Context(), Start{Position: p.now()})
	if !errors.Is(err, ErrInterrupted) {
		t.Errorf("opening: %v", err)
	}
}

func TestLargeRowsPassWithBothImagesWhenTheyAreNotShipped(t *testing.T) {
	p := newPond(t)
	project := bson.D{{Key: "$project", Value: bson.D{{Key: "documentKey", Value: 1}}}}
	reader := p.open(Start{Position: p.now()}, 10, project)
	body := string(make([]byte, 15<<20))
	_, err := p.rows.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 0}, {Key: "body", Value: body}})
	p.check(err)
	_, err = p.rows.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 0}}, bson.D{{Key: "$set", Value: bson.D{{Key: "n", Value: 1}}}})
	p.check(err)
	events, _ := p.read(reader, 2)
	if got := fmt.Sprint(ids(events)); got != "[0 0]" {
		t.Errorf("delivered %s", got)
	}
}

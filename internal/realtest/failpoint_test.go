package realtest_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// insert is one attempt: the driver's own retries would hide the failure.
func insert(ctx context.Context, client *mongo.Client, database string) error {
	_, err := client.Database(database).Collection("rows").InsertOne(ctx, bson.D{})
	return err
}

func onceClient(t *testing.T, uri, app string) *mongo.Client {
	return realtest.Client(t, uri, options.Client().SetAppName(app).SetRetryWrites(false))
}

func hasCode(err error, code int) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && server.HasErrorCode(code)
}

func TestFailPointFiresExactlyNTimesForOneAppName(t *testing.T) {
	t.Parallel()
	uri, database := realtest.Shared(t).URI(), realtest.Database(t)
	named, other := onceClient(t, uri, "named"), onceClient(t, uri, "other")

	fail := realtest.FailCommand(t, other, realtest.Failure{
		Commands: []string{"insert"}, AppName: "named", Times: 3, Code: 112, Labels: []string{"Custom"},
	})
	for i := range 3 {
		if err := insert(t.Context(), other, database); err != nil {
			t.Fatalf("other app, insert %d: %v", i, err)
		}
		err := insert(t.Context(), named, database)
		if !hasCode(err, 112) || !hasLabel(err, "Custom") {
			t.Fatalf("named app, insert %d: got %v, want code 112 labelled Custom", i, err)
		}
	}
	if err := insert(t.Context(), named, database); err != nil {
		t.Fatalf("named app, insert after the third failure: %v", err)
	}
	if err := fail.WaitEntered(t.Context(), 3); err != nil {
		t.Fatal(err)
	}
	wantEntered(t, fail, 3)
}

func hasLabel(err error, label string) bool {
	var server mongo.ServerError
	return errors.As(err, &server) && server.HasErrorLabel(label)
}

func wantEntered(t *testing.T, fail *realtest.FailPoint, want int) {
	t.Helper()
	got, err := fail.TimesEntered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("times entered: got %d, want %d", got, want)
	}
}

func TestFailPointOffEndsIt(t *testing.T) {
	t.Parallel()
	uri, database := realtest.Shared(t).URI(), realtest.Database(t)
	client := onceClient(t, uri, t.Name())

	fail := realtest.FailCommand(t, client, realtest.Failure{
		Commands: []string{"insert"}, AppName: t.Name(), Times: -1, CloseConnection: true,
	})
	for range 2 {
		if err := insert(t.Context(), client, database); !mongo.IsNetworkError(err) {
			t.Fatalf("got %v, want a network error", err)
		}
	}
	fail.Off()
	if err := insert(t.Context(), client, database); err != nil {
		t.Fatalf("insert after the fail point is off: %v", err)
	}
	wantEntered(t, fail, 2)
}

func TestFailPointSkipsThenFails(t *testing.T) {
	t.Parallel()
	uri, database := realtest.Shared(t).URI(), realtest.Database(t)
	client := onceClient(t, uri, t.Name())

	realtest.FailCommand(t, client, realtest.Failure{Commands: []string{"insert"}, AppName: t.Name(), Skip: 2, Code: 91})
	for i, fails := range []bool{false, false, true, true} {
		if err := insert(t.Context(), client, database); hasCode(err, 91) != fails {
			t.Fatalf("insert %d: got %v, want failure %v", i, err, fails)
		}
	}
}

func TestFailPointWriteConcernErrorStillWrites(t *testing.T) {
	t.Parallel()
	uri, database := realtest.Shared(t).URI(), realtest.Database(t)
	client := onceClient(t, uri, t.Name())

	realtest.FailCommand(t, client, realtest.Failure{Commands: []string{"insert"}, AppName: t.Name(), WriteConcernCode: 64})
	if err := insert(t.Context(), client, database); !hasCode(err, 64) {
		t.Fatalf("got %v, want code 64", err)
	}
	if n := countRows(t, client, database); n != 1 {
		t.Errorf("rows: got %d, want 1", n)
	}
}

func TestFailPointBlocksUntilSeen(t *testing.T) {
	t.Parallel()
	uri, database := realtest.Shared(t).URI(), realtest.Database(t)
	client := onceClient(t, uri, t.Name())

	fail := realtest.FailCommand(t, client, realtest.Failure{
		Commands: []string{"insert"}, AppName: t.Name(), Block: 300 * time.Millisecond,
	})
	start, result := time.Now(), make(chan error, 1)
	go func() { result <- insert(t.Context(), client, database) }()
	if err := fail.WaitEntered(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n := countRows(t, client, database); n != 0 {
		t.Errorf("rows while the insert is blocked: got %d, want 0", n)
	}
	if err := <-result; err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 300*time.Millisecond {
		t.Errorf("blocked insert took %v, want at least 300ms", took)
	}
}

func countRows(t *testing.T, client *mongo.Client, database string) int64 {
	t.Helper()
	n, err := client.Database(database).Collection("rows").CountDocuments(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

package realtest_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"driftless/internal/realtest"
)

// proxied returns a proxy to a server of its own, and a client that does not retry.
func proxied(t *testing.T) (*realtest.Proxy, *mongo.Client) {
	t.Helper()
	m := realtest.Private(t, realtest.Options{})
	proxy := realtest.NewProxy(t, m.Addr())
	client := realtest.Client(t, proxy.URI(), options.Client().SetRetryReads(false).SetRetryWrites(false))
	if err := insert(limited(t), client, "rows"); err != nil {
		t.Fatal(err)
	}
	return proxy, client
}

func TestProxyCutsAndHeals(t *testing.T) {
	t.Parallel()
	proxy, client := proxied(t)

	proxy.Cut()
	if err := insertBriefly(t, client); err == nil {
		t.Error("an insert went through a cut")
	}
	proxy.Heal()
	wantInsert(t, client, "an insert after healing a cut")
}

func TestProxySilencesAndHeals(t *testing.T) {
	t.Parallel()
	proxy, client := proxied(t)

	proxy.Silence()
	if err := insertBriefly(t, client); !mongo.IsTimeout(err) {
		t.Errorf("insert into silence: got %v, want a timeout", err)
	}
	proxy.Heal()
	wantInsert(t, client, "an insert after healing a silence")
}

func TestProxyDropsInTheMiddleOfAnAnswer(t *testing.T) {
	t.Parallel()
	proxy, client := proxied(t)
	rows := client.Database("rows").Collection("rows")
	if _, err := rows.InsertOne(limited(t), bson.D{{Key: "_id", Value: "long"}, {Key: "text", Value: strings.Repeat("x", 64<<10)}}); err != nil {
		t.Fatal(err)
	}

	proxy.Drop(32 << 10)
	err := rows.FindOne(limited(t), bson.D{{Key: "_id", Value: "long"}}).Err()
	if !mongo.IsNetworkError(err) {
		t.Errorf("got %v, want a network error", err)
	}
	proxy.Heal()
	wantInsert(t, client, "an insert after healing a drop")
}

func TestProxyDelays(t *testing.T) {
	t.Parallel()
	proxy, client := proxied(t)

	proxy.Delay(200 * time.Millisecond)
	start := time.Now()
	if err := insert(limited(t), client, "rows"); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 200*time.Millisecond {
		t.Errorf("insert took %v, want at least 200ms", took)
	}
}

func insertBriefly(t *testing.T, client *mongo.Client) error {
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	return insert(ctx, client, "rows")
}

func wantInsert(t *testing.T, client *mongo.Client, what string) {
	t.Helper()
	realtest.Eventually(t, patience, what, func() bool { return insert(limited(t), client, "rows") == nil })
}

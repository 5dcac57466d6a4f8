package deployment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/event"

	"driftless/internal/config"
	"driftless/internal/realtest"
)

func TestConnectReachesAReplicaSet(t *testing.T) {
	client, err := Connect(t.Context(), config.MongoDB{URI: realtest.Shared(t).URI()}, "test")
	if err != nil {
		t.Fatal(err)
	}
	defer Close(t.Context(), client)
	if err := client.Ping(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

func TestConnectEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Connect(ctx, config.MongoDB{URI: "mongodb://127.0.0.1:1/?replicaSet=rs0"}, "test")
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "topology") {
		t.Errorf("Connect = %v", err)
	}
}

func TestWhatTheConnectionStringSaysIsRespected(t *testing.T) {
	ours := clientOptions(config.MongoDB{URI: "mongodb://h/?replicaSet=rs0"}, "incrementer")
	if *ours.ServerSelectionTimeout != selectionTimeout || *ours.HeartbeatInterval != heartbeat || *ours.AppName != "driftless-incrementer" || setName(ours) != "rs0" {
		t.Errorf("our defaults: %v, %v, %q, %q", *ours.ServerSelectionTimeout, *ours.HeartbeatInterval, *ours.AppName, setName(ours))
	}
	theirs := clientOptions(config.MongoDB{URI: "mongodb://h/?serverSelectionTimeoutMS=300&heartbeatFrequencyMS=700&appName=counts"}, "incrementer")
	if *theirs.ServerSelectionTimeout != 300*time.Millisecond || *theirs.HeartbeatInterval != 700*time.Millisecond || *theirs.AppName != "counts" || setName(theirs) != "" {
		t.Errorf("theirs: %v, %v, %q, %q", *theirs.ServerSelectionTimeout, *theirs.HeartbeatInterval, *theirs.AppName, setName(theirs))
	}
}

func TestOnlyAReplicaSetOfMongoDB6Serves(t *testing.T) {
	for name, tt := range map[string]struct {
		says hello
		want error
	}{
		"member of a set":       {hello{SetName: "rs0", MaxWireVersion: 17}, nil},
		"newer":                 {hello{SetName: "rs0", MaxWireVersion: 27}, nil},
		"mongos":                {hello{Msg: "isdbgrid", MaxWireVersion: 17}, errMongos},
		"standalone":            {hello{MaxWireVersion: 17}, errStandalone},
		"not initiated":         {hello{IsReplicaSet: true, MaxWireVersion: 17}, errUninitiated},
		"older, MongoDB 5.0":    {hello{SetName: "rs0", MaxWireVersion: 13}, tooOld(13)},
		"rapid release, 5.3":    {hello{SetName: "rs0", MaxWireVersion: 16}, tooOld(16)},
		"a mongos that is old":  {hello{Msg: "isdbgrid", MaxWireVersion: 13}, errMongos},
		"a standalone that old": {hello{MaxWireVersion: 13}, errStandalone},
	} {
		if got := tt.says.fault(); !errors.Is(got, tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
	}
}

func TestAnOlderServerIsToldByItsRelease(t *testing.T) {
	for wire, want := range map[int]string{16: "5.3", 13: "5.0", 12: "4.4", 9: "4.4", 8: "4.2", 7: "4.0 or older"} {
		err := hello{SetName: "rs0", MaxWireVersion: wire}.fault()
		if err == nil || !strings.HasPrefix(err.Error(), "MongoDB "+want+", which is older than 6.0") {
			t.Errorf("wire version %d: %v", wire, err)
		}
	}
}

func TestSightingsSayWhyOfEveryServer(t *testing.T) {
	s := newSightings()
	m := s.monitor()
	fail := func(address string, err error) {
		m.ServerHeartbeatFailed(&event.ServerHeartbeatFailedEvent{ConnectionID: address + "[-12]", Failure: err})
	}
	reply := func(address, kind, set string) {
		m.ServerHeartbeatSucceeded(&event.ServerHeartbeatSucceededEvent{ConnectionID: address + "[-3]", Reply: event.ServerDescription{Kind: kind, SetName: set}})
	}
	if got := s.why("rs0"); got != "" {
		t.Errorf("without a sighting: %q", got)
	}
	fail("a:1", errors.New("overtaken by the next"))
	reply("a:1", "RSSecondary", "rs0")
	reply("b:1", "Standalone", "")
	fail("b:1", fmt.Errorf("read: %w", net.ErrClosed)) // the driver drops what is no member
	reply("c:1", "RSGhost", "")
	reply("d:1", "RSPrimary", "rs1")
	fail("e:1", errors.Join(errors.New("dial"), errors.New("refused")))
	got := strings.Split(s.why("rs0"), "; ")
	for i, want := range []string{
		"a:1 is not the primary", "b:1 is a standalone mongod", "c:1 is a mongod whose replica set is not initiated yet",
		`d:1 belongs to replica set "rs1", not to "rs0"`, "e:1 does not answer (dial",
	} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("%d: want %q in %q", i, want, got)
		}
	}
}

// The driver may quote what it stumbles over.
func TestNoErrorOfTheDriverQuotesThePassword(t *testing.T) {
	for uri, secret := range map[string]string{
		"mongodb://u:p%40ss@h/?replicaSet=rs0": "p%40ss",
		"mongodb+srv://u:hunter2@h":            "hunter2",
		"mongodb://u:p%40ss@h/":                "p@ss",
	} {
		err := errors.New("stumbled over " + secret)
		if got := withoutPassword(err, config.MongoDB{URI: uri}); got != "stumbled over ***" {
			t.Errorf("%s: %q", uri, got)
		}
	}
	if got := withoutPassword(errors.New("plain"), config.MongoDB{URI: "mongodb://h/"}); got != "plain" {
		t.Errorf("without a password: %q", got)
	}
}

func TestOldestIsTheBeginningOfTheOplog(t *testing.T) {
	client := realtest.Client(t, realtest.Shared(t).URI())
	at, err := Oldest(t.Context(), client)
	if err != nil || at.T == 0 || time.Since(time.Unix(int64(at.T), 0)) > 24*time.Hour {
		t.Errorf("Oldest = %v, %v", at, err)
	}
}

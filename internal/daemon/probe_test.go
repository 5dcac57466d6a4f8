package daemon

import (
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestProbeTellsWhoHasAnAddress(t *testing.T) {
	ours := serve(t, testOptions()).Addr()
	other := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(other.Close)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		program, address string
		answered         bool
		fault            string
	}{
		"free":            {"incrementer", free.Addr().String(), false, ""},
		"any free one":    {"incrementer", "127.0.0.1:0", false, ""},
		"the program":     {"incrementer", ours, true, ""},
		"another of ours": {"reconciler", ours, false, "the address is taken, perhaps by another reconciler"},
		"somebody else":   {"incrementer", other.Listener.Addr().String(), false, "the address is taken"},
		"elsewhere":       {"incrementer", "192.0.2.1:9464", false, "listen on 192.0.2.1:9464: "},
	} {
		answered, err := Probe(t.Context(), tt.program, tt.address)
		taken, is := errors.AsType[*ListenError](err)
		if answered != tt.answered || is != (tt.fault != "") || is && (!strings.Contains(taken.Found(), tt.fault) || taken.Fix() == "") {
			t.Errorf("%s: %v, %v", name, answered, err)
		}
	}
}

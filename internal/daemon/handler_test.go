package daemon

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// testOptions are complete and healthy, but not ready.
func testOptions() Options {
	return Options{
		Program:   "incrementer",
		Listen:    "127.0.0.1:0",
		Log:       NewLogger(discard{}, "error", "json", false),
		Health:    NewHealth(),
		Readiness: NewReadiness(),
		Metrics:   NewRegistry("incrementer"),
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

func get(o Options, path string) *httptest.ResponseRecorder {
	return ask(o, http.MethodGet, path)
}

func ask(o Options, method, path string) *httptest.ResponseRecorder {
	recorder := httptest.NewRecorder()
	newHandler(o).ServeHTTP(recorder, httptest.NewRequest(method, path, nil))
	return recorder
}

func TestHealthzNeedsNoReadiness(t *testing.T) {
	o := testOptions()
	o.Readiness.Add("mongodb", func(context.Context) error { return errors.New("no primary") })
	if got := get(o, "/healthz"); got.Code != http.StatusOK || got.Body.String() != "ok\n" {
		t.Errorf("%d %q", got.Code, got.Body)
	}
}

func TestHealthzNamesTheStuckLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := testOptions()
		o.Health.Loop("comments", time.Second)
		time.Sleep(time.Minute) //nolint:forbidigo // in a bubble
		got := get(o, "/healthz")
		if got.Code != http.StatusServiceUnavailable || !strings.Contains(got.Body.String(), "loop comments") {
			t.Errorf("%d %q", got.Code, got.Body)
		}
	})
}

func TestReadyz(t *testing.T) {
	type checks map[string]func(context.Context) error
	ok := func(context.Context) error { return nil }
	for name, tt := range map[string]struct {
		checks checks
		code   int
		want   string
	}{
		"no check yet": {checks{}, 503, `{"ready":false,"checks":{"start":{"ok":false,"reason":"still starting"}}}`},
		"all well":     {checks{"mongodb": ok, "lane comments": ok}, 200, `{"ready":true,"checks":{"lane comments":{"ok":true},"mongodb":{"ok":true}}}`},
		"one is not": {checks{"mongodb": ok, "lane comments": func(context.Context) error { return errors.New("a gap waits to be healed") }},
			503, `{"ready":false,"checks":{"lane comments":{"ok":false,"reason":"a gap waits to be healed"},"mongodb":{"ok":true}}}`},
		"one hangs": {checks{"mongodb": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, "lane comments": ok},
			503, `{"ready":false,"checks":{"lane comments":{"ok":true},"mongodb":{"ok":false,"reason":"no answer within 1s"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := testOptions()
				for name, check := range tt.checks {
					o.Readiness.Add(name, check)
				}
				got := get(o, "/readyz")
				if got.Code != tt.code || compact(got.Body.String()) != compact(tt.want) {
					t.Errorf("%d %s\nwant %d %s", got.Code, got.Body, tt.code, tt.want)
				}
				if kind := got.Header().Get("Content-Type"); kind != "application/json" {
					t.Errorf("Content-Type %q", kind)
				}
			})
		})
	}
}

func TestStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		status func(context.Context) (any, error)
		code   int
		want   string
	}{
		"document":       {func(context.Context) (any, error) { return map[string]int{"lag": 3}, nil }, 200, `{"lag":3}`},
		"unavailable":    {func(context.Context) (any, error) { return nil, errors.New("no primary") }, 500, `{"error":"no primary"}`},
		"not encodable":  {func(context.Context) (any, error) { return math.NaN(), nil }, 500, `the response could not be encoded; see the log`},
		"takes too long": {func(ctx context.Context) (any, error) { <-ctx.Done(); return nil, ctx.Err() }, 500, `{"error":"context deadline exceeded"}`},
		"none":           {nil, 404, `404 page not found`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := testOptions()
				o.Status = tt.status
				got := get(o, "/status")
				if got.Code != tt.code || compact(got.Body.String()) != compact(tt.want) {
					t.Errorf("%d %s, want %d %s", got.Code, got.Body, tt.code, tt.want)
				}
			})
		})
	}
}

func TestNothingOnThePortWrites(t *testing.T) {
	o := testOptions()
	o.Pprof = true
	for _, path := range []string{"/", "/healthz", "/readyz", "/metrics", "/debug/pprof/symbol", "/nowhere"} {
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodOptions} {
			got := ask(o, method, path)
			if got.Code != http.StatusMethodNotAllowed || got.Header().Get("Allow") != "GET, HEAD" {
				t.Errorf("%s %s: %d", method, path, got.Code)
			}
		}
	}
	if got := ask(o, http.MethodHead, "/healthz"); got.Code != http.StatusOK {
		t.Errorf("HEAD /healthz: %d", got.Code)
	}
}

func TestPprofIsOffByDefault(t *testing.T) {
	o := testOptions()
	if got := get(o, "/debug/pprof/"); got.Code != http.StatusNotFound {
		t.Errorf("off: %d", got.Code)
	}
	o.Pprof = true
	if got := get(o, "/debug/pprof/goroutine?debug=1"); got.Code != http.StatusOK {
		t.Errorf("on: %d", got.Code)
	}
}

func TestIndexLinksToWhatIsThere(t *testing.T) {
	o := testOptions()
	if body := get(o, "/").Body.String(); strings.Contains(body, "/status") || strings.Contains(body, "/debug") {
		t.Errorf("links to what is not there:\n%s", body)
	}
	o.Pprof = true
	o.Status = func(context.Context) (any, error) { return nil, nil }
	body := get(o, "/").Body.String()
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/status", "/debug/pprof/"} {
		if !strings.Contains(body, `href="`+path+`"`) {
			t.Errorf("no link to %s:\n%s", path, body)
		}
		if got := get(o, path); got.Code == http.StatusNotFound {
			t.Errorf("%s is not found", path)
		}
	}
	if got := get(o, "/nowhere"); got.Code != http.StatusNotFound {
		t.Errorf("/nowhere: %d", got.Code)
	}
}

func TestMetricsServesBothFormats(t *testing.T) {
	for _, tt := range []struct{ accept, contentType string }{
		{"", "text/plain"},
		{"application/openmetrics-text; version=1.0.0", "application/openmetrics-text"},
	} {
		request := httptest.NewRequest(http.MethodGet, "/metrics", nil)
		request.Header.Set("Accept", tt.accept)
		got := httptest.NewRecorder()
		newHandler(testOptions()).ServeHTTP(got, request)
		if kind := got.Header().Get("Content-Type"); !strings.HasPrefix(kind, tt.contentType) {
			t.Errorf("Accept %q: Content-Type %q", tt.accept, kind)
		}
		for _, name := range []string{"incrementer_build_info{", "go_goroutines ", "process_cpu_seconds_total "} {
			if !strings.Contains(got.Body.String(), "\n"+name) {
				t.Errorf("Accept %q: no %s", tt.accept, name)
			}
		}
	}
}

type brokenCollector struct{ desc *prometheus.Desc }

func (c brokenCollector) Describe(descs chan<- *prometheus.Desc) { descs <- c.desc }
func (c brokenCollector) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.NewInvalidMetric(c.desc, errors.New("broken"))
}

func TestOneBrokenCollectorDoesNotHideTheOtherMetrics(t *testing.T) {
	o := testOptions()
	registry := NewRegistry("incrementer")
	registry.MustRegister(brokenCollector{prometheus.NewDesc("broken", "Is broken.", nil, nil)})
	o.Metrics = registry
	got := get(o, "/metrics")
	if got.Code != http.StatusOK || !strings.Contains(got.Body.String(), "incrementer_build_info") {
		t.Errorf("%d %s", got.Code, got.Body)
	}
}

func TestMetricNamesPassTheLint(t *testing.T) {
	for _, program := range []string{"incrementer", "reconciler"} {
		problems, err := testutil.GatherAndLint(NewRegistry(program))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// compact drops what only indents.
func compact(text string) string {
	return strings.Join(strings.Fields(text), "")
}

package daemon

import (
	"bytes"
	"context"
	"html/template"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"driftless/internal/logkey"
)

// statusLimit bounds what the status function may take.
const statusLimit = 5 * time.Second

// newHandler returns everything that the port serves.
func newHandler(o Options) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/{$}", indexPage(o))
	mux.Handle("/healthz", healthz(o.Health))
	mux.Handle("/readyz", readyz(o.Readiness, o.Log))
	mux.Handle("/metrics", metrics(o.Metrics, o.Log))
	if o.Status != nil {
		mux.Handle("/status", status(o.Status, o.Log))
	}
	if o.Pprof {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return readOnly(mux)
}

// readOnly lets nothing through that could ask for a change, whatever is added behind it.
func readOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "nothing on this port writes", http.StatusMethodNotAllowed)
			return
		}
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}

func healthz(health *Health) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := health.Check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok\n")) // a client that went away needs no answer
	}
}

func readyz(readiness *Readiness, log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		report := readiness.report(r.Context())
		code := http.StatusOK
		if !report.Ready {
			code = http.StatusServiceUnavailable
		}
		respondJSON(w, log, code, report)
	}
}

func status(read func(context.Context) (any, error), log *slog.Logger) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), statusLimit)
		defer cancel()
		document, err := read(ctx)
		if err != nil {
			log.Warn("status is not available", logkey.Error, err)
			respondJSON(w, log, http.StatusInternalServerError, map[string]string{"error": err.Error()})
			return
		}
		respondJSON(w, log, http.StatusOK, document)
	}
}

// respondJSON encodes before it writes, so that a document that cannot be encoded is a 500 and not half a 200.
func respondJSON(w http.ResponseWriter, log *slog.Logger, code int, document any) {
	var body bytes.Buffer
	if err := WriteJSON(&body, document); err != nil {
		log.Error("encode response", logkey.Error, err)
		http.Error(w, "the response could not be encoded; see the log", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = body.WriteTo(w) // a client that went away needs no answer
}

// metrics serves what could be gathered even if one collector fails: a broken gauge must not blind an operator to the
// rest.
func metrics(gatherer prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelError),
	})
}

var indexTemplate = template.Must(template.New("index").Parse(`<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{.Program}}</title>
<h1>{{.Program}}</h1>
<p>{{.Version}}</p>
<ul>
{{- range .Paths}}
<li><a href="{{.}}">{{.}}</a></li>
{{- end}}
</ul>
</html>
`))

func indexPage(o Options) http.HandlerFunc {
	paths := []string{"/healthz", "/readyz", "/metrics"}
	if o.Status != nil {
		paths = append(paths, "/status")
	}
	if o.Pprof {
		paths = append(paths, "/debug/pprof/")
	}
	var page bytes.Buffer
	err := indexTemplate.Execute(&page, map[string]any{
		"Program": o.Program, "Version": ReadVersion(o.Program), "Paths": paths,
	})
	return func(w http.ResponseWriter, _ *http.Request) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(page.Bytes()) // a client that went away needs no answer
	}
}

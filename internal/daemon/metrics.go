package daemon

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// NewRegistry returns a registry of its own for one program, holding the Go runtime's and the process's metrics and
// <program>_build_info. Packages register theirs in it.
func NewRegistry(program string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(program, ReadVersion(program)),
	)
	return registry
}

func buildInfo(program string, v Version) prometheus.Collector {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: program + "_build_info",
		Help: "Always 1; the labels say which build of the program runs.",
		ConstLabels: prometheus.Labels{
			"version": v.Version, "revision": v.Revision, "goversion": v.Go,
		},
	})
	gauge.Set(1)
	return gauge
}

package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
)

// Options is where a configuration comes from.
type Options struct {
	File  string                      // "" reads none: flags, environment and defaults only
	Env   func(string) (string, bool) // such as os.LookupEnv; nil for none
	Flags map[string]string           // by setting path, only those that the user gave
}

// Load reads the layers, each over the one before: defaults, file, environment, flags. The error is a *Faults with
// everything that is wrong, in whichever layer, even where a higher layer hides it.
func Load(opts Options) (*Config, error) {
	r := newReader(opts)
	r.config = Default()
	r.readFile()
	r.readEnvironment()
	r.readFlags(opts.Flags)
	r.readURI()
	r.checkSources()
	r.checkCounters()
	r.checkTargets()
	if err := r.faults.err(); err != nil {
		return nil, err
	}
	return r.config, nil
}

// reader gathers a configuration and its faults.
type reader struct {
	config  *Config
	file    string
	env     func(string) (string, bool)
	nodes   map[string]*node // of the file, by path
	uriFrom *node            // where mongodb.uri or uri_file was given; nil by default
	faults  Faults
}

func newReader(opts Options) *reader {
	r := &reader{file: opts.File, env: opts.Env, nodes: map[string]*node{}}
	if r.env == nil {
		r.env = func(string) (string, bool) { return "", false }
	}
	return r
}

func (r *reader) fault(n *node, format string, args ...any) {
	r.faults.add(Fault{Pos: n.pos, Column: n.column(), Path: n.path, Message: fmt.Sprintf(format, args...)})
}

// breaks reports a fault and keeps later checks of the same value quiet.
func (r *reader) breaks(n *node, message string) {
	n.broken = true
	r.fault(n, "%s", message)
}

// faultAt reports a fault of a path in the file, at the nearest part of it that is there.
func (r *reader) faultAt(path, format string, args ...any) {
	at := path
	for r.nodes[at] == nil && at != "" {
		at = at[:max(strings.LastIndexAny(at, ".["), 0)]
	}
	n := node{path: path, pos: Pos{File: r.file, Line: 1}}
	if found := r.nodes[at]; found != nil {
		n.pos, n.token = found.pos, found.token
	}
	r.fault(&n, format, args...)
}

// written tells whether the file has something at path.
func (r *reader) written(path string) bool { return r.nodes[path] != nil }

func (r *reader) readFile() {
	if r.file == "" {
		return
	}
	data, err := os.ReadFile(r.file)
	if err != nil {
		r.fault(&node{pos: Pos{File: r.file}}, "%s", unreadable(err))
		return
	}
	top := r.parse(data)
	if top == nil {
		return
	}
	layer := map[string]*node{}
	fields := []field{optional("sources", readSources), optional("counters", readCounters)}
	for _, section := range sections {
		fields = append(fields, optional(section, object(func() []field { return r.settings(section, layer) })))
	}
	r.object(top, fields)
	r.chooseURI(layer)
	if counters := r.nodes["counters"]; !top.broken && (counters == nil || counters.kind == kindNull || isEmpty(counters)) {
		r.faultAt("counters", "declares no counters: add at least one")
	}
}

func isEmpty(n *node) bool { return n.kind == kindMapping && len(n.keys) == 0 }

func unreadable(err error) string {
	reason := err
	var where *fs.PathError
	if errors.As(err, &where) {
		reason = where.Err
	}
	if errors.Is(err, fs.ErrNotExist) {
		return "is missing: create it, or name another with --config FILE or " + configEnv
	}
	return fmt.Sprintf("cannot be read (%v): make it a readable file, or name another with --config FILE or %s", reason, configEnv)
}

// settings are the fields of a section of the file; what is there is noted in the layer.
func (r *reader) settings(section string, layer map[string]*node) []field {
	var fields []field
	for _, s := range Settings {
		if s.Section() != section {
			continue
		}
		key := strings.TrimPrefix(s.Path, section+".")
		fields = append(fields, optional(key, func(r *reader, n *node) { r.set(s, n, layer) }))
	}
	return fields
}

func (r *reader) set(s Setting, n *node, layer map[string]*node) {
	n.hidden = n.hidden || s.secret
	layer[s.Path] = n
	s.bind(r.config)(r, n)
}

// readEnvironment takes every variable that is set to something: compose files pass on unset ones as empty.
func (r *reader) readEnvironment() {
	layer := map[string]*node{}
	for _, s := range Settings {
		if value, _ := r.env(s.Env()); value != "" {
			r.set(s, &node{kind: kindText, text: value, loose: true, hidden: true, path: s.Path, pos: Pos{File: s.Env()}}, layer)
		}
	}
	r.chooseURI(layer)
}

func (r *reader) readFlags(flags map[string]string) {
	layer := map[string]*node{}
	for _, s := range Settings {
		value, given := flags[s.Path]
		if !given {
			continue
		}
		n := &node{kind: kindText, text: value, loose: true, path: s.Path, pos: Pos{File: "--" + s.Flag()}}
		if s.secret && holdsSecret(value) {
			r.breaks(n, "holds a password, and everyone on the machine can see flags: use mongodb.uri_file or DRIFTLESS_MONGODB_URI")
		}
		r.set(s, n, layer)
	}
	r.chooseURI(layer)
}

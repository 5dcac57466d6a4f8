package config

import (
	"fmt"
	"slices"

	"github.com/spf13/pflag"
)

const (
	configFlag  = "config"
	configEnv   = envPrefix + "CONFIG"
	defaultFile = "driftless.yaml"
)

// RegisterFlags adds --config and a flag for every setting of the sections, with its default and unit in the help.
func RegisterFlags(fs *pflag.FlagSet, sections ...string) {
	if fs.Lookup(configFlag) == nil {
		fs.String(configFlag, "", fmt.Sprintf("configuration `file`; default $%s, else %s", configEnv, defaultFile))
	}
	for _, s := range Settings {
		if slices.Contains(sections, s.Section()) && fs.Lookup(s.Flag()) == nil {
			fs.Var(new(flagValue), s.Flag(), s.usage())
		}
	}
}

func (s Setting) usage() string {
	if s.Default == "" {
		return fmt.Sprintf("%s (%s; default none)", s.Help, s.Unit)
	}
	return fmt.Sprintf("%s (%s; default %s)", s.Help, s.Unit, s.Default)
}

// flagValue takes any text: Load judges it together with everything else, and quotes no secret where pflag would.
type flagValue string

func (v *flagValue) String() string     { return string(*v) }
func (v *flagValue) Set(s string) error { *v = flagValue(s); return nil }
func (v *flagValue) Type() string       { return "value" }

// FromFlags collects which file to read and the settings that the user gave as flags.
func FromFlags(fs *pflag.FlagSet, env func(string) (string, bool)) Options {
	o := Options{File: FilePath(fs, env), Env: env, Flags: map[string]string{}}
	for _, s := range Settings {
		if f := fs.Lookup(s.Flag()); f != nil && f.Changed {
			o.Flags[s.Path] = f.Value.String()
		}
	}
	return o
}

// FilePath returns the file that --config names, else DRIFTLESS_CONFIG, else driftless.yaml. Empty names count as none.
func FilePath(fs *pflag.FlagSet, env func(string) (string, bool)) string {
	if f := fs.Lookup(configFlag); f != nil && f.Value.String() != "" {
		return f.Value.String()
	}
	if env != nil {
		if file, _ := env(configEnv); file != "" {
			return file
		}
	}
	return defaultFile
}

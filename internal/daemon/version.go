package daemon

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Version says which build this is, from what the Go toolchain records in the binary.
type Version struct {
	Program  string `json:"program"`
	Version  string `json:"version"`            // module version, (devel) when built without one
	Revision string `json:"revision,omitempty"` // commit; "" when built outside a checkout
	Time     string `json:"time,omitempty"`     // of the commit, RFC 3339
	Modified bool   `json:"modified"`           // the checkout had changes that the revision does not hold
	Go       string `json:"go"`                 // toolchain
	Platform string `json:"platform"`           // os/arch
}

// ReadVersion returns the version of the running program.
func ReadVersion(program string) Version {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{GoVersion: runtime.Version()}
	}
	return versionOf(program, info)
}

func versionOf(program string, info *debug.BuildInfo) Version {
	v := Version{
		Program: program, Version: info.Main.Version, Go: info.GoVersion,
		Platform: runtime.GOOS + "/" + runtime.GOARCH,
	}
	if v.Version == "" {
		v.Version = "(devel)"
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

// String returns one line for people.
func (v Version) String() string {
	line := v.Program + " " + v.Version
	if v.Revision != "" {
		line += ", revision " + v.Revision
	}
	if v.Modified {
		line += " with changes"
	}
	return fmt.Sprintf("%s, %s %s", line, v.Go, v.Platform)
}

// VersionCommand returns the verb version.
func VersionCommand(program string) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print which build this is",
		Args:  cobra.NoArgs,
	}
	output := OutputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return printVersion(cmd.OutOrStdout(), ReadVersion(program), *output)
	}
	return cmd
}

func printVersion(w io.Writer, v Version, output Output) error {
	if output == JSON {
		return WriteJSON(w, v)
	}
	_, err := fmt.Fprintln(w, v)
	return err
}

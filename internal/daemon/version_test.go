package daemon

import (
	"encoding/json"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/spf13/cobra"
)

func TestVersionOf(t *testing.T) {
	platform := runtime.GOOS + "/" + runtime.GOARCH
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "0123abcd"},
			{Key: "vcs.time", Value: "2026-07-01T12:00:00Z"}, {Key: "vcs.modified", Value: modified}}
	}
	for name, tt := range map[string]struct {
		info debug.BuildInfo
		want string
	}{
		"release":  {debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "v1.2.3"}, Settings: vcs("false")}, "incrementer v1.2.3, revision 0123abcd, go1.26.8 " + platform},
		"modified": {debug.BuildInfo{GoVersion: "go1.26.8", Main: debug.Module{Version: "(devel)"}, Settings: vcs("true")}, "incrementer (devel), revision 0123abcd with changes, go1.26.8 " + platform},
		"bare":     {debug.BuildInfo{GoVersion: "go1.26.8"}, "incrementer (devel), go1.26.8 " + platform},
	} {
		t.Run(name, func(t *testing.T) {
			if got := versionOf("incrementer", &tt.info).String(); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}

func TestVersionCommand(t *testing.T) {
	root := &cobra.Command{Use: "incrementer"}
	root.AddCommand(VersionCommand("incrementer"))
	code, stdout, _ := executeArgs(t.Context(), root, "version")
	if want := ReadVersion("incrementer").String() + "\n"; code != OK || stdout != want {
		t.Errorf("exit %d, %q, want %q", code, stdout, want)
	}

	code, stdout, _ = executeArgs(t.Context(), root, "version", "-o", "json")
	var v Version
	if err := json.Unmarshal([]byte(stdout), &v); err != nil || code != OK || v != ReadVersion("incrementer") {
		t.Errorf("exit %d, %s, %v", code, stdout, err)
	}
}

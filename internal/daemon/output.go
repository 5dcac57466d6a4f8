package daemon

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// Output is a form in which a verb prints its data on stdout.
type Output string

// The forms. JSON is one document, or one object a line where the data is a list.
const (
	Text Output = "text"
	JSON Output = "json"
	CSV  Output = "csv"
)

// OutputFlag gives cmd the flag -o, --output with text (the default) or json, and returns where its value will be.
func OutputFlag(cmd *cobra.Command) *Output {
	return FormatFlag(cmd, "output", "o", Text, JSON)
}

// FormatFlag is OutputFlag under another name and with other forms, of which the first is the default. The shorthand
// may be "".
func FormatFlag(cmd *cobra.Command, name, shorthand string, forms ...Output) *Output {
	flag := &outputFlag{value: forms[0], forms: forms}
	cmd.Flags().VarP(flag, name, shorthand, "how to print the data: "+flag.choices(" or "))
	err := cmd.RegisterFlagCompletionFunc(name,
		cobra.FixedCompletions(strings.Split(flag.choices("|"), "|"), cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag was added a line above
	}
	return &flag.value
}

// outputFlag is the pflag.Value behind an Output.
type outputFlag struct {
	value Output
	forms []Output
}

func (f *outputFlag) String() string { return string(f.value) }
func (f *outputFlag) Type() string   { return f.choices("|") }

// Set takes one of the forms.
func (f *outputFlag) Set(text string) error {
	if !slices.Contains(f.forms, Output(text)) {
		return fmt.Errorf("must be %s", f.choices(" or "))
	}
	f.value = Output(text)
	return nil
}

func (f *outputFlag) choices(separator string) string {
	names := make([]string, len(f.forms))
	for i, form := range f.forms {
		names[i] = string(form)
	}
	return strings.Join(names, separator)
}

// WriteJSON writes v as one indented document. Text such as "a < b" stays readable: nothing here ends in HTML.
func WriteJSON(w io.Writer, v any) error { return writeJSON(w, v, "  ") }

// WriteJSONLine writes v as one line, for lists.
func WriteJSONLine(w io.Writer, v any) error { return writeJSON(w, v, "") }

func writeJSON(w io.Writer, v any, indent string) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(v); err != nil {
		return fmt.Errorf("write json: %w", err)
	}
	return nil
}

package daemon

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
	"unicode/utf8"
)

// Table writes aligned columns for people. Rows are held back until Flush.
type Table struct {
	to   io.Writer
	text bytes.Buffer
	w    *tabwriter.Writer // into text
}

// NewTable returns a table with a header.
func NewTable(w io.Writer, columns ...string) *Table {
	t := &Table{to: w}
	t.w = tabwriter.NewWriter(&t.text, 0, 0, 2, ' ', 0)
	header := make([]any, len(columns))
	for i, column := range columns {
		header[i] = strings.ToUpper(column)
	}
	t.Row(header...)
	return t
}

// Row adds a row, one cell for each column, each as fmt prints it.
func (t *Table) Row(cells ...any) {
	texts := make([]string, len(cells))
	for i, cell := range cells {
		texts[i] = Printable(fmt.Sprint(cell))
	}
	_, _ = fmt.Fprintln(t.w, strings.Join(texts, "\t")) // into memory
}

// Flush writes the table, without blanks behind the last cell of a row.
func (t *Table) Flush() error {
	_ = t.w.Flush() // into memory
	for line := range strings.Lines(t.text.String()) {
		if _, err := fmt.Fprintln(t.to, strings.TrimRight(line, " \n")); err != nil {
			return fmt.Errorf("write table: %w", err)
		}
	}
	return nil
}

// Printable returns text such that it stays in its cell or line and cannot steer a terminal: keys come from users.
func Printable(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, notPrintable) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

package daemon

import (
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
	w       *tabwriter.Writer
	failure error // the first
}

// NewTable returns a table with a header.
func NewTable(w io.Writer, columns ...string) *Table {
	t := &Table{w: tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)}
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
		texts[i] = printable(fmt.Sprint(cell))
	}
	if _, err := fmt.Fprintln(t.w, strings.Join(texts, "\t")); err != nil && t.failure == nil {
		t.failure = err
	}
}

// Flush writes the table and returns the first error of it all.
func (t *Table) Flush() error {
	if err := t.w.Flush(); err != nil && t.failure == nil {
		t.failure = err
	}
	if t.failure != nil {
		return fmt.Errorf("write table: %w", t.failure)
	}
	return nil
}

// printable returns text such that it stays in its cell and cannot steer a terminal: keys come from users.
func printable(text string) string {
	if utf8.ValidString(text) && strings.IndexFunc(text, notPrintable) < 0 {
		return text
	}
	quoted := strconv.Quote(text)
	return quoted[1 : len(quoted)-1]
}

func notPrintable(r rune) bool { return !unicode.IsPrint(r) }

package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// decoder puts a value where it belongs, or reports what is wrong with it.
type decoder func(r *reader, n *node)

// field is one key of an object in the file.
type field struct {
	key      string
	required bool
	decode   decoder
}

func required(key string, d decoder) field { return field{key, true, d} }
func optional(key string, d decoder) field { return field{key, false, d} }

// object walks a mapping of known keys. An empty value is an empty mapping: all its keys are commented out.
func (r *reader) object(n *node, fields []field) {
	if n.broken || !r.is(n, kindMapping, "a mapping of keys") {
		return
	}
	meant := map[string]bool{} // by a key that was misspelled, so not missing
	for _, value := range n.keys {
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == value.key })
		if i < 0 {
			meant[r.unknownKey(value, fields)] = true
			continue
		}
		fields[i].decode(r, value)
	}
	for _, f := range fields {
		if f.required && n.child(f.key) == nil && !meant[f.key] {
			r.faultAt(join(n.path, f.key), "is missing: add it")
		}
	}
}

func object(fields func() []field) decoder {
	return func(r *reader, n *node) { r.object(n, fields()) }
}

// unknownKey returns the key that was probably meant; "" when none is near.
func (r *reader) unknownKey(n *node, fields []field) string {
	known := make([]string, len(fields))
	for i, f := range fields {
		known[i] = f.key
	}
	r.faults.add(Fault{n.pos, n.column(), n.path, "unknown key: " + advise(n.key, known), excerpt(n.token)})
	return nearest(n.key, known)
}

// is reports a value of another kind; null passes as an empty mapping or list.
func (r *reader) is(n *node, want kind, name string) bool {
	if n.kind == want || n.kind == kindNull {
		return true
	}
	r.mustBe(n, name)
	return false
}

// scalar decodes one value written as one of the kinds, or a loose text. want completes "must be …".
func scalar[T any](dst *T, want string, kinds []kind, parse func(string) (T, bool)) decoder {
	return func(r *reader, n *node) {
		if n.broken {
			return
		}
		if n.loose || slices.Contains(kinds, n.kind) {
			if v, ok := parse(n.text); ok {
				*dst = v
				return
			}
		}
		r.mustBe(n, want)
	}
}

func (r *reader) mustBe(n *node, want string) {
	message := "must be " + want
	if is := n.describe(); is != "" {
		message = "is " + is + ": " + message
	}
	r.breaks(n, message)
}

// text decodes a text that passes the check.
func text(dst *string, want string, check func(string) bool) decoder {
	return scalar(dst, want, []kind{kindText}, func(s string) (string, bool) { return s, check(s) })
}

// textOrNone also takes an empty text, for none.
func textOrNone(dst *string, want string, check func(string) bool) decoder {
	return text(dst, want+`, or "" for none`, func(s string) bool { return s == "" || check(s) })
}

func enum(dst *string, values ...string) decoder {
	return text(dst, "one of "+strings.Join(values, ", "), func(s string) bool { return slices.Contains(values, s) })
}

func yesNo(dst *bool) decoder {
	return scalar(dst, "true or false", []kind{kindBoolean}, func(s string) (bool, bool) { return s == "true", s == "true" || s == "false" })
}

// whole decodes an integer of between least and most.
func whole[T int | int64](dst *T, least, most T) decoder {
	return scalar(dst, between(least, most), []kind{kindInteger}, func(s string) (T, bool) {
		v, err := strconv.ParseInt(s, 10, 64)
		return T(v), err == nil && v >= int64(least) && v <= int64(most)
	})
}

func between[T int | int64](least, most T) string {
	switch {
	case int64(least) == math.MinInt64:
		return "a whole number"
	case int64(most) >= math.MaxInt32:
		return fmt.Sprintf("a whole number, at least %d", least)
	default:
		return fmt.Sprintf("a whole number from %d to %d", least, most)
	}
}

// share decodes a part of one.
func share(dst *float64) decoder {
	return scalar(dst, "a number from 0 to 1", []kind{kindInteger, kindFloat}, func(s string) (float64, bool) {
		v, err := strconv.ParseFloat(s, 64)
		return v, err == nil && v >= 0 && v <= 1
	})
}

// duration decodes a Go duration of at least least. A bare number is refused: everyone would read another unit into it.
func duration(dst *time.Duration, least time.Duration) decoder {
	want := "a duration such as 30s, 5m or 24h, above 0"
	switch {
	case least == 0:
		want = "a duration such as 30s, 5m or 24h, not negative"
	case least > smallest:
		want = "a duration such as 30s, 5m or 24h, at least " + least.String()
	}
	parse := scalar(dst, want, []kind{kindText}, func(s string) (time.Duration, bool) {
		v, err := time.ParseDuration(s)
		return v, err == nil && v >= least
	})
	return func(r *reader, n *node) {
		if _, err := strconv.ParseUint(n.text, 10, 64); err != nil {
			parse(r, n)
			return
		}
		number := n.text
		if n.hidden {
			number = "30"
		}
		r.fault(n, "must be a duration with its unit: write %ss", number)
	}
}

// texts decodes a list of at least one text.
func texts(dst *[]string, want string, check func(string) bool) decoder {
	return func(r *reader, n *node) {
		if n.broken || !r.is(n, kindList, "a list") {
			return
		}
		if len(n.items) == 0 {
			r.fault(n, "is an empty list: add at least one")
		}
		for _, item := range n.items {
			var s string
			text(&s, want, check)(r, item)
			*dst = append(*dst, s)
		}
	}
}

// named walks a mapping whose keys are names of our users' choice.
func (r *reader) named(n *node, each func(*node)) {
	if n.broken || !r.is(n, kindMapping, "a mapping of names") {
		return
	}
	for _, value := range n.keys {
		switch {
		case !name.MatchString(value.key):
			r.fault(value, "is not %s: rename it", wantName)
		case n.path == "sources" && value.key == Application:
			r.fault(value, "is a reserved name, for counters that the application keeps itself: rename it")
		}
		each(value)
	}
}

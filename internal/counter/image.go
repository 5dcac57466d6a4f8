package counter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const (
	// maxImageReads is how many changes without an image one transaction looks up. Beyond it a full recount is cheaper
	// than to go on asking, and the reconciler does one per run at most.
	maxImageReads = 100
	// imageReadTimeout bounds all the reads of one transaction.
	imageReadTimeout = 10 * time.Second
)

// Imageless is what the changes without an image of one transaction come to. Nothing of them is applied.
type Imageless struct {
	Events   int           // changes that some counter looks at; all others are free
	Recounts []*Definition // marked for a full recount
	Keys     []ImagelessKey
	Why      string // why a row was not looked up, "" when every one that was to be was

	after bson.Timestamp // of the last of those changes: a recount at an earlier position has not seen it
}

// ImagelessKey is one key to recount, since a change without an image touched one of its rows.
type ImagelessKey struct {
	Counter *Definition
	Key     bson.RawValue
	after   bson.Timestamp
}

// effect is what a change without an image means to one counter.
type effect int

const (
	free      effect = iota // the change is none of the counter's
	ofKey                   // the contribution may differ, the key does not
	ofUnknown               // the key before is not known
)

// reads is what a counter looks at in a row.
type reads struct {
	key    string
	fields []string // paths, the key's left out
	all    bool     // or every field there is
}

func readsOf(d *Definition) reads {
	r := reads{key: d.Key}
	for _, path := range []string{d.SoftDelete, d.Sum} {
		if path != "" {
			r.fields = append(r.fields, path)
		}
	}
	if d.CountIf.IsZero() {
		return r
	}
	var decoded bson.D
	raw, err := bson.Marshal(bson.D{{Key: "e", Value: d.CountIf}})
	if err == nil {
		err = bson.Unmarshal(raw, &decoded)
	}
	if err != nil {
		r.all = true
		return r
	}
	r.expression(decoded[0].Value)
	return r
}

// expression adds the fields that an expression refers to. A variable other than the row's own holds what an expression
// beside it gave, which is looked at there.
func (r *reads) expression(v any) {
	switch v := v.(type) {
	case string:
		path, found := strings.CutPrefix(v, "$")
		if variable, isVariable := strings.CutPrefix(path, "$"); isVariable {
			var name string
			name, path, _ = strings.Cut(variable, ".")
			found = name == "ROOT" || name == "CURRENT"
		}
		if found {
			r.all = r.all || path == ""
			r.fields = append(r.fields, path)
		}
	case bson.A:
		for i := range v {
			r.expression(v[i])
		}
	case bson.D:
		for _, e := range v {
			switch {
			case e.Key == "$literal", e.Key == "$const":
			case e.Key == "$getField", strings.HasPrefix(e.Key, "$_"):
				r.all = true // its name may be computed, and the row it reads is not named
			default:
				r.expression(e.Value)
			}
		}
	}
}

// effect says what a change without an image means to the counter: when in doubt, that its key is not known.
func (r *reads) effect(c Change) effect {
	touched := func(path string) bool {
		return slices.ContainsFunc(c.Paths, func(changed string) bool { return touches(changed, path) })
	}
	switch {
	case c.Operation != "update", len(c.Paths) == 0, touched(r.key):
		return ofUnknown
	case r.all, slices.ContainsFunc(r.fields, touched):
		return ofKey
	default:
		return free
	}
}

// touches reports whether a change of one path may change what is read at another: they are equal, or one leads to the
// other. Numbers are left out of both, since a changed path names the places in arrays, where a path that is read does
// not.
func touches(changed, read string) bool {
	a, b := withoutNumbers(changed), withoutNumbers(read)
	n := min(len(a), len(b))
	return slices.Equal(a[:n], b[:n])
}

func withoutNumbers(path string) []string {
	return slices.DeleteFunc(strings.Split(path, "."), func(name string) bool {
		return name != "" && strings.Trim(name, "0123456789") == ""
	})
}

// rowRead is one change whose row's key is to be read.
type rowRead struct {
	row      bson.RawValue
	at       bson.Timestamp
	counters []int // of Applier.all
}

// images is the work on the changes without an image of one transaction.
type images struct {
	*Applier
	whole []bool // by counter: to be recounted in full
	out   Imageless
	seen  map[string]bool // keys that are in out
}

// imageless decides what the changes without an image mean. It reads rows, so it comes before the transaction.
func (a *Applier) imageless(ctx context.Context, changes []Change) (Imageless, error) {
	if len(changes) == 0 {
		return Imageless{}, nil
	}
	w := &images{Applier: a, whole: make([]bool, len(a.all)), seen: map[string]bool{}}
	wanted, err := w.sort(changes)
	if err != nil {
		return Imageless{}, err
	}
	if w.read(ctx, wanted); ctx.Err() != nil {
		return Imageless{}, ctx.Err()
	}
	for i, d := range a.all {
		if w.whole[i] {
			w.out.Recounts = append(w.out.Recounts, d)
		}
	}
	// The full recount of a counter sees to its keys as well.
	w.out.Keys = slices.DeleteFunc(w.out.Keys, func(k ImagelessKey) bool { return slices.Contains(w.out.Recounts, k.Counter) })
	return w.out, nil
}

// sort tells the changes that are free from those that need a full recount or a look at their row. These it returns.
func (w *images) sort(changes []Change) ([]rowRead, error) {
	if w.reads == nil {
		for _, d := range w.all {
			w.reads = append(w.reads, readsOf(d))
		}
	}
	var wanted []rowRead
	for _, c := range changes {
		at, err := c.at()
		if err != nil {
			return nil, err
		}
		l := rowRead{row: c.Row, at: at}
		isFree := true
		for i := range w.all {
			switch w.reads[i].effect(c) {
			case ofUnknown:
				w.whole[i], isFree = true, false
			case ofKey:
				l.counters, isFree = append(l.counters, i), false
			case free:
			}
		}
		if !isFree {
			w.out.Events++
			if w.out.after.Before(at) { // of a topic they may come in any order
				w.out.after = at
			}
		}
		if len(l.counters) > 0 {
			wanted = append(wanted, l)
		}
	}
	return wanted, nil
}

// read looks up the keys of the changed rows, each at the time of its change, the latest first.
func (w *images) read(ctx context.Context, wanted []rowRead) {
	wanted = w.without(wanted)
	if len(wanted) > maxImageReads {
		w.giveUp(wanted, fmt.Sprintf("more than %d of them at once", maxImageReads))
		return
	}
	ctx, cancel := context.WithTimeout(ctx, imageReadTimeout)
	defer cancel()
	slices.SortStableFunc(wanted, func(a, b rowRead) int { return b.at.Compare(a.at) })
	for len(wanted) > 0 && ctx.Err() == nil {
		n := slices.IndexFunc(wanted, func(l rowRead) bool { return l.at != wanted[0].at })
		if n < 0 {
			n = len(wanted)
		}
		err := w.readAt(ctx, wanted[:n])
		if err != nil && IsSnapshotGone(err) {
			n = len(wanted) // and those before it are gone as well
		}
		if err != nil {
			w.giveUp(wanted[:n], err.Error())
		}
		wanted = w.without(wanted[n:])
	}
	w.giveUp(wanted, "out of time")
}

// without leaves out what is to be recounted in full anyway.
func (w *images) without(wanted []rowRead) []rowRead {
	var rest []rowRead
	for _, l := range wanted {
		l.counters = slices.DeleteFunc(slices.Clone(l.counters), func(i int) bool { return w.whole[i] })
		if len(l.counters) > 0 {
			rest = append(rest, l)
		}
	}
	return rest
}

func (w *images) giveUp(wanted []rowRead, why string) {
	for _, l := range wanted {
		w.out.Why = cmp.Or(w.out.Why, why)
		for _, i := range l.counters {
			w.whole[i] = true
		}
	}
}

// readAt reads the rows of changes at one cluster time, and has each one's key computed by the server (I3).
func (w *images) readAt(ctx context.Context, wanted []rowRead) error {
	ids := make(bson.A, len(wanted))
	project := bson.D{}
	for n, l := range wanted {
		ids[n] = l.row
		for _, i := range l.counters {
			field := fmt.Sprintf("k%d", i)
			if !slices.ContainsFunc(project, func(e bson.E) bool { return e.Key == field }) {
				key := "$" + w.all[i].Key
				project = append(project, bson.E{Key: field, Value: op("$cond", usableKey(key), key, "$$REMOVE")})
			}
		}
	}
	found := map[string]bson.Raw{}
	err := Snapshot(ctx, w.client, wanted[0].at, func(ctx context.Context) error {
		cursor, err := w.all[0].rows(w.client).Aggregate(ctx,
			bson.A{one("$match", one("_id", one("$in", ids))), one("$project", project)}, options.Aggregate().SetCollation(simple))
		if err != nil {
			return err
		}
		return collect(ctx, cursor, found)
	})
	if err != nil {
		return fmt.Errorf("read the changed rows: %w", err)
	}
	for n, l := range wanted {
		row, ok := found[Canonical(l.row)]
		if !ok { // it was deleted in the same transaction
			w.giveUp(wanted[n:n+1], "the row was not there any more")
			continue
		}
		for _, i := range l.counters {
			w.mark(w.all[i], row.Lookup(fmt.Sprintf("k%d", i)), l.at)
		}
	}
	return nil
}

// collect reads documents by their canonical _id.
func collect(ctx context.Context, cursor *mongo.Cursor, into map[string]bson.Raw) error {
	for cursor.Next(ctx) {
		raw := append(bson.Raw(nil), cursor.Current...)
		into[Canonical(raw.Lookup("_id"))] = raw
	}
	return errors.Join(cursor.Err(), cursor.Close(ctx))
}

// mark notes a key, once, at its latest change. A row without a usable one adds nothing to the counter, before and after.
func (w *images) mark(d *Definition, key bson.RawValue, at bson.Timestamp) {
	id := keyID(d, key)
	if key.IsZero() || w.seen[id] {
		return
	}
	w.seen[id] = true
	w.out.Keys = append(w.out.Keys, ImagelessKey{Counter: d, Key: key, after: at})
}

// touchImageless marks a key in the state database because of a change without an image.
func touchImageless(k ImagelessKey, stamp bson.ObjectID) mongo.WriteModel {
	return mongo.NewUpdateOneModel().SetFilter(one("_id", keyID(k.Counter, k.Key))).SetUpsert(true).
		SetUpdate(bson.D{
			{Key: "$set", Value: bson.D{
				{Key: "counter", Value: k.Counter.Name}, {Key: "key", Value: rawKey(k.Key)}, {Key: "stamp", Value: stamp},
				{Key: "reason", Value: ReasonMissingImage},
			}},
			{Key: "$max", Value: one("after", k.after)},
		})
}

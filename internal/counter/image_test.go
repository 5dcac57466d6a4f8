package counter_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/event"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"pgregory.net/rapid"

	"driftless/internal/checkpoint"
	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/realtest"
	"driftless/internal/stream"
)

func TestAChangedPathTouchesWhatLeadsToItAndWhatLiesBelow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		changed, read string
		want          bool
	}{
		{"post", "post", true},
		{"post", "post.id", true},
		{"post.id", "post", true},
		{"post", "posts", false},
		{"posts", "post", false},
		{"author.name", "author.age", false},
		{"author.name.first", "author.name", true},
		{"items.0", "items", true},
		{"items", "items.sku", true},
		{"items.0.sku", "items.sku", true},
		{"items.12.3.sku", "items.sku", true},
		{"items.0.sku", "items.price", false},
		{"items.0", "items.sku", true},
		{"items.1.sku", "items.0.sku", true}, // the first is a place, or a name; when in doubt
		{"0", "anything", true},              // as above
		{"", "post", false},                  // a field without a name, which no path can name
		{"post.", "post", true},
		{"v2", "v1", false},
	} {
		if got := counter.Touches(c.changed, c.read); got != c.want {
			t.Errorf("a change of %q, read at %q: got %v", c.changed, c.read, got)
		}
		if a, b := counter.Touches(c.changed, c.read), counter.Touches(c.read, c.changed); a != b {
			t.Errorf("%q and %q: got %v one way and %v the other", c.changed, c.read, a, b)
		}
	}
}

// TestPathsThatMeetInADocumentTouch: the model walks a change and a path that is read side by side.
func TestPathsThatMeetInADocumentTouch(t *testing.T) {
	t.Parallel()
	path := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "0", "1"}), 1, 5)
	rapid.Check(t, func(t *rapid.T) {
		changed, read := path.Draw(t, "changed"), path.Draw(t, "read")
		if meet(changed, read) && !counter.Touches(strings.Join(changed, "."), strings.Join(read, ".")) {
			t.Fatalf("a change of %v is not seen at %v", changed, read)
		}
	})
}

// meet reports whether a value at a changed place is, holds or is held by one at a path that is read: every name of the
// change is the next one read, or a place in an array, which such a path passes over, until either ends.
func meet(changed, read []string) bool {
	if len(changed) == 0 || len(read) == 0 {
		return true
	}
	isPlace := strings.Trim(changed[0], "0123456789") == ""
	return changed[0] == read[0] && meet(changed[1:], read[1:]) || isPlace && meet(changed[1:], read)
}

func TestFieldsThatACounterLooksAt(t *testing.T) {
	t.Parallel()
	const (
		free = iota
		ofItsKey
		full
	)
	update := func(paths ...string) counter.Change { return counter.Change{Operation: "update", Paths: paths} }
	plain := config.Counter{Name: "x", Key: "post.id", SoftDelete: "deleted_at", Sum: "words"}
	with := func(condition any) config.Counter {
		c := plain
		c.CountIf = expression(t, condition)
		return c
	}
	for name, c := range map[string]struct {
		counter config.Counter
		change  counter.Change
		want    int
	}{
		"another field":                     {plain, update("text"), free},
		"several others":                    {plain, update("text", "tags.0", "seen"), free},
		"the soft-delete field":             {plain, update("text", "deleted_at"), ofItsKey},
		"the summed field":                  {plain, update("words"), ofItsKey},
		"the key":                           {plain, update("post.id"), full},
		"what holds the key":                {plain, update("post"), full},
		"what lies below the key":           {plain, update("post.id.site"), full},
		"beside the key":                    {plain, update("post.title"), free},
		"the key and another":               {plain, update("words", "post.id"), full},
		"nothing that is known":             {plain, update(), full},
		"a replacement":                     {plain, counter.Change{Operation: "replace"}, full},
		"a delete":                          {plain, counter.Change{Operation: "delete"}, full},
		"an insert without its row":         {plain, counter.Change{Operation: "insert"}, full},
		"a path in count_if":                {with(e("$ne", "$status", "spam")), update("status"), ofItsKey},
		"not in count_if":                   {with(e("$ne", "$status", "spam")), update("stat"), free},
		"a literal":                         {with(e("$eq", "$status", e1("$literal", "$text"))), update("text"), free},
		"a literal by its old name":         {with(e("$eq", "$status", e1("$const", "$$ROOT"))), update("text"), free},
		"below a path":                      {with(e("$gt", "$author", nil)), update("author.name"), ofItsKey},
		"an array's element":                {with(e("$in", "x", "$items.sku")), update("items.3.sku"), ofItsKey},
		"beside it in the element":          {with(e("$in", "x", "$items.sku")), update("items.3.price"), free},
		"an expression within a document":   {with(e("$eq", bson.D{{Key: "s", Value: bson.A{"$status"}}}, nil)), update("status"), ofItsKey},
		"ROOT with a path":                  {with(e("$eq", "$$ROOT.status", "ok")), update("status"), ofItsKey},
		"not at ROOT's path":                {with(e("$eq", "$$ROOT.status", "ok")), update("text"), free},
		"ROOT itself":                       {with(e("$gt", e1("$bsonSize", "$$ROOT"), 150)), update("anything"), ofItsKey},
		"CURRENT itself":                    {with(field("status", "$$CURRENT")), update("anything"), ofItsKey},
		"CURRENT with a path":               {with(e("$eq", "$$CURRENT.status", "ok")), update("status"), ofItsKey},
		"CURRENT bound anew":                {with(let("CURRENT", "$author", e("$eq", "$name", "ann"))), update("author.name"), ofItsKey},
		"beside CURRENT bound anew":         {with(let("CURRENT", "$author", e("$eq", "$name", "ann"))), update("text"), free},
		"CURRENT bound to ROOT":             {with(let("CURRENT", "$$ROOT", e("$eq", "$name", "ann"))), update("text"), ofItsKey},
		"getField in short":                 {with(e("$eq", e1("$getField", "status"), "ok")), update("anything"), ofItsKey},
		"getField of a computed name":       {with(e1("$getField", e("$concat", "sta", "tus"))), update("anything"), ofItsKey},
		"a variable":                        {with(let("s", "$status", e("$eq", "$$s.text", "ok"))), update("text"), free},
		"what a variable holds":             {with(let("s", "$status", e("$eq", "$$s.text", "ok"))), update("status.text"), ofItsKey},
		"all fields, and still not the key": {with("$$ROOT"), update("post.id"), full},
		"a condition that is a path":        {with("$visible"), update("visible"), ofItsKey},
	} {
		d := must[*counter.Definition](t)(counter.Define(c.counter))
		isFree, isOfItsKey := counter.Means(d, c.change)
		if isFree != (c.want == free) || isOfItsKey != (c.want == ofItsKey) {
			t.Errorf("%s: free %v, of its key %v", name, isFree, isOfItsKey)
		}
	}
}

// TestWhatIsFreeChangesNoContribution (I6): whatever an update does to a row, a counter whose contribution differs looks
// at one of the changed paths, and one whose key differs finds its key's among them. The names are those that the server
// sends, the contributions those that it computes.
func TestWhatIsFreeChangesNoContribution(t *testing.T) {
	t.Parallel()
	declared := []config.Counter{
		{Name: "plain", Key: "key"},
		{Name: "soft", Key: "key", SoftDelete: "gone"},
		{Name: "dotted", Key: "doc.key", SoftDelete: "doc.gone"},
		{Name: "sum", Key: "key", SoftDelete: "gone", Sum: "n"},
		{Name: "dotted_sum", Key: "doc.key", Sum: "doc.n"},
		{Name: "below", Key: "author.name", SoftDelete: "doc"},
		{Name: "in_array", Key: "_id", CountIf: expression(t, e("$in", "x", e("$ifNull", "$items.sku", bson.A{})))},
		{Name: "named", Key: "_id", CountIf: expression(t, e("$eq", e1("$getField", "status"), "ok"))},
	}
	for i := 0; i < len(forms); i += 2 {
		declared = append(declared, config.Counter{Name: formName(i), Key: "_id", CountIf: expression(t, forms[i].condition)})
	}
	d := deploy(t, declared...)
	raw := must[*mongo.ChangeStream](t)(d.rows().Watch(t.Context(), mongo.Pipeline{}, options.ChangeStream().SetFullDocument(options.Default)))
	defer func() { _ = raw.Close(context.WithoutCancel(t.Context())) }()
	updates := 0
	rapid.Check(t, func(t *rapid.T) {
		d.write(t, insertAll(t)...)
		d.skip(t)
		d.write(t, rapid.SliceOfN(rapid.Custom(drawUpdate), 1, 40).Draw(t, "updates")...)
		events := d.read(t)
		changes := d.described(t, raw)
		for _, event := range events {
			change, ok := changes[event.Token.Lookup("_data").StringValue()]
			if !ok {
				continue
			}
			updates++
			for i, definition := range d.definitions {
				before, after := contributionOf(event.Doc, "b", i), contributionOf(event.Doc, "a", i)
				free, ofItsKey := counter.Means(definition, change)
				switch {
				case free && !before.Equal(after):
					t.Fatalf("%s: %v is free, and the contribution goes from %v to %v", definition.Name, change.Paths, before, after)
				case ofItsKey && before.Type == bson.TypeEmbeddedDocument && after.Type == bson.TypeEmbeddedDocument &&
					!before.Document().Lookup("k").Equal(after.Document().Lookup("k")):
					t.Fatalf("%s: %v leaves the key, and it goes from %v to %v", definition.Name, change.Paths, before, after)
				}
			}
		}
	})
	if updates == 0 {
		t.Error("no update changed a contribution")
	}
}

func contributionOf(doc bson.Raw, side string, i int) bson.RawValue {
	return doc.Lookup(fmt.Sprint(side, i))
}

// insertAll makes the rows anew that drawUpdate changes.
func insertAll(t *rapid.T) []mongo.WriteModel {
	var all []mongo.WriteModel
	for id := 1; id <= 4; id++ {
		all = append(all, replace(id, drawRow(t, id)))
	}
	return all
}

// drawUpdate draws an update of one row: of whole fields, of a part of one, or of the difference to another row, which
// the server finds out and describes by the narrowest paths it can.
func drawUpdate(t *rapid.T) mongo.WriteModel {
	id := rapid.IntRange(1, 4).Draw(t, "id")
	switch rapid.IntRange(0, 6).Draw(t, "update") {
	case 0, 1:
		return set(id, bson.D{drawField(t)})
	case 2:
		return unset(id, rapid.SampledFrom([]string{"key", "gone", "n", "doc", "status", "items", "author"}).Draw(t, "field"))
	case 3: // an element of an array, where there is one
		return mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: id}, {Key: "items.0.sku", Value: e1("$exists", true)}}).
			SetUpdate(e1("$set", e1("items.0.sku", rapid.SampledFrom([]string{"x", "z"}).Draw(t, "sku"))))
	default:
		return mongo.NewUpdateOneModel().SetFilter(bson.D{{Key: "_id", Value: id}}).
			SetUpdate(bson.A{e1("$replaceWith", e1("$literal", drawRow(t, id)))})
	}
}

// described reads what the server says of the updates made so far, by token.
func (d *deployment) described(t checker, raw *mongo.ChangeStream) map[string]counter.Change {
	t.Helper()
	found := map[string]counter.Change{}
	for {
		if !raw.Next(t.Context()) {
			t.Fatalf("read changes: %v", raw.Err())
		}
		e := raw.Current
		if n, ok := e.Lookup("fullDocument", markerField).AsInt64OK(); ok && n == d.marker {
			return found
		}
		if e.Lookup("operationType").StringValue() != "update" {
			continue
		}
		c := counter.Change{Operation: "update"}
		for _, field := range must[[]bson.RawElement](t)(e.Lookup("updateDescription", "updatedFields").Document().Elements()) {
			c.Paths = append(c.Paths, field.Key())
		}
		for _, field := range must[[]bson.RawValue](t)(e.Lookup("updateDescription", "removedFields").Array().Values()) {
			c.Paths = append(c.Paths, field.StringValue())
		}
		for _, field := range must[[]bson.RawValue](t)(e.Lookup("updateDescription", "truncatedArrays").Array().Values()) {
			c.Paths = append(c.Paths, field.Document().Lookup("field").StringValue())
		}
		found[e.Lookup("_id", "_data").StringValue()] = c
	}
}

// TestTheServerNamesWhatAnUpdateChanged: names alone, of everything that it set, removed or cut short.
func TestTheServerNamesWhatAnUpdateChanged(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "comments", Key: "post"})
	d.write(t, insert(append(comment(1, "p", nil), bson.E{Key: "list", Value: bson.A{1, 2, 3}}, bson.E{Key: "old", Value: 1})))
	d.read(t)
	d.images(t, false)
	cut := mongo.NewUpdateOneModel().SetFilter(byID(1)).SetUpdate(bson.A{
		e1("$set", bson.D{{Key: "list", Value: e("$slice", "$list", 2)}, {Key: "text", Value: "other"}}), e1("$unset", "old"),
	})
	d.write(t, update(1, bson.D{{Key: "$set", Value: bson.D{{Key: "a.b", Value: 1}, {Key: "list.1", Value: 7}}}, {Key: "$unset", Value: bson.D{{Key: "post", Value: ""}}}}),
		cut, replace(1, comment(1, "q", nil)), remove(1))
	d.images(t, true) // for the marker
	folded := must[counter.Folded](t)(counter.Fold(d.definitions, d.read(t)))
	var got []string
	for _, c := range folded.Missing {
		slices.Sort(c.Paths)
		got = append(got, fmt.Sprint(c.Operation, c.Paths))
	}
	if want := []string{"update[a list.1 post]", "update[list old text]", "replace[]", "delete[]"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// images turns the images of the rows on or off.
func (d *deployment) images(t checker, on bool) {
	t.Helper()
	check(t, d.database.RunCommand(t.Context(), bson.D{
		{Key: "collMod", Value: source}, {Key: "changeStreamPreAndPostImages", Value: bson.D{{Key: "enabled", Value: on}}},
	}).Err())
}

// imageless has images off while the given changes are made, and on again for the marker. It applies all of them and
// returns what came of those without an image.
func (d *deployment) imageless(t testing.TB, change func()) counter.Imageless {
	t.Helper()
	d.images(t, false)
	change()
	d.images(t, true)
	d.mark(t)
	var sum counter.Imageless
	for !d.sawMarker() {
		batch := must[stream.Batch](t)(d.reader.Next(t.Context()))
		var err error
		d.at, err = d.applier.Apply(t.Context(), d.at, batch)
		check(t, err)
	}
	for _, a := range d.applied {
		sum.Events += a.Images.Events
		sum.Recounts = append(sum.Recounts, a.Images.Recounts...)
		sum.Keys = append(sum.Keys, a.Images.Keys...)
		sum.Why = cmp.Or(sum.Why, a.Images.Why)
	}
	d.applied = nil
	return sum
}

// activate ends the recounts that a fresh start asks for.
func (d *deployment) activate(t testing.TB) {
	t.Helper()
	for _, state := range must[map[string]counter.State](t)(d.states.All(t.Context())) {
		must[bool](t)(d.states.Activate(t.Context(), state))
	}
}

// wantRecounts holds what is marked to the given counters, in full, and keys, by counter.
func (d *deployment) wantRecounts(t testing.TB, counters []string, keys map[string][]any) {
	t.Helper()
	states := must[map[string]counter.State](t)(d.states.All(t.Context()))
	for _, definition := range d.definitions {
		name, state := definition.Name, states[definition.Name]
		if want := slices.Contains(counters, name); (state.State == counter.Rebasing) != want {
			t.Errorf("counter %s is %s because of %q", name, state.State, state.Reason)
		} else if want && state.Reason != counter.ReasonMissingImage {
			t.Errorf("counter %s waits for a recount because of %q", name, state.Reason)
		}
		var got, want []string
		for _, mark := range must[[]counter.Touched](t)(definition.MarkedApart(d.client, d.states, 1000).Next(t.Context())) {
			got = append(got, counter.Canonical(mark.Key))
			if mark.Reason != counter.ReasonMissingImage || mark.After.IsZero() || !mark.ByLane() {
				t.Errorf("counter %s: the mark of %v is %+v", name, mark.Key, mark)
			}
		}
		for _, key := range keys[name] {
			want = append(want, canonical(t, key))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("counter %s: marked keys are %q, want %q", name, got, want)
		}
	}
}

// commentsAndVotes declares two counters that look at different fields of the same rows, and makes rows of two posts.
func commentsAndVotes(t *testing.T) *deployment {
	t.Helper()
	d := deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"}, config.Counter{Name: "votes", Key: "post", Sum: "n"})
	var rows []mongo.WriteModel
	for id, post := range []any{"p", "p", "q", nil} {
		rows = append(rows, insert(append(comment(id, post, nil), bson.E{Key: "n", Value: 1})))
	}
	d.write(t, rows...)
	d.catchUp(t)
	d.activate(t)
	return d
}

var softDeleted = bson.D{{Key: "deleted_at", Value: deletedAt}}

func TestWhatAChangeWithoutItsImageCosts(t *testing.T) {
	t.Parallel()
	const comments, votes = "comments", "votes"
	all := []string{comments, votes, markerName}
	for name, c := range map[string]struct {
		changes  []mongo.WriteModel
		events   int
		counters []string
		keys     map[string][]any
	}{
		"a field that nobody looks at": {[]mongo.WriteModel{set(0, bson.D{{Key: "text", Value: "other"}, {Key: "tags.0", Value: 1}})}, 0, nil, nil},
		"a field that one counter looks at": {
			[]mongo.WriteModel{set(0, softDeleted), set(2, softDeleted), set(1, bson.D{{Key: "text", Value: "other"}})}, 2,
			nil, map[string][]any{comments: {"p", "q"}},
		},
		"fields of both": {
			[]mongo.WriteModel{set(0, softDeleted), set(1, bson.D{{Key: "n", Value: 7}}), set(1, bson.D{{Key: "n", Value: 8}})}, 3,
			nil, map[string][]any{comments: {"p"}, votes: {"p"}},
		},
		"a row without a usable key":       {[]mongo.WriteModel{set(3, softDeleted)}, 1, nil, nil},
		"the key":                          {[]mongo.WriteModel{set(0, bson.D{{Key: "post", Value: "q"}})}, 1, []string{comments, votes}, nil},
		"the key, and other keys":          {[]mongo.WriteModel{set(0, bson.D{{Key: "post", Value: "q"}}), set(1, softDeleted)}, 2, []string{comments, votes}, nil},
		"a replacement":                    {[]mongo.WriteModel{replace(0, comment(0, "q", nil))}, 1, all, nil},
		"a delete":                         {[]mongo.WriteModel{remove(0)}, 1, all, nil},
		"a row that is deleted afterwards": {[]mongo.WriteModel{set(0, softDeleted), remove(0)}, 2, all, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := commentsAndVotes(t)
			before := d.displayed(t, comments)
			got := d.imageless(t, func() { d.write(t, c.changes...) })
			if got.Events != c.events || got.Why != "" {
				t.Errorf("%d events cost something, want %d; not read: %q", got.Events, c.events, got.Why)
			}
			d.wantRecounts(t, c.counters, c.keys)
			diffCounts(t, "displayed", d.displayed(t, comments), before) // nothing is guessed
		})
	}
}

// TestARowIsReadAsOfItsOwnChange: by the time the lane sees the change, the row has another key.
func TestARowIsReadAsOfItsOwnChange(t *testing.T) {
	t.Parallel()
	d := commentsAndVotes(t)
	d.images(t, false)
	d.write(t, set(0, softDeleted))
	d.images(t, true)
	d.write(t, set(0, bson.D{{Key: "post", Value: "elsewhere"}}), remove(2))
	got := d.imageless(t, func() {})
	if got.Events != 1 || got.Why != "" {
		t.Errorf("got %+v", got)
	}
	d.wantRecounts(t, nil, map[string][]any{"comments": {"p"}})
}

// reading replaces the deployment's applier by one whose client is made by the given options, and counts what it reads.
func (d *deployment) reading(t *testing.T, o *options.ClientOptions) *atomic.Int64 {
	t.Helper()
	reads := new(atomic.Int64)
	o.SetMonitor(&event.CommandMonitor{Started: func(_ context.Context, e *event.CommandStartedEvent) {
		if e.CommandName == "aggregate" && e.Command.Lookup("aggregate").StringValue() == source {
			reads.Add(1)
		}
	}})
	client := realtest.Client(t, realtest.Shared(t).URI(), o)
	d.applier = counter.NewApplier(client, checkpoint.NewStore(client, d.database.Name()), counter.NewStates(client, d.database.Name()),
		d.definitions, d.definitions, batchEvents, d)
	return reads
}

func TestChangesOfOneTransactionAreReadAtOnce(t *testing.T) {
	t.Parallel()
	d := commentsAndVotes(t)
	reads := d.reading(t, options.Client())
	got := d.imageless(t, func() {
		d.transaction(t, set(0, softDeleted), set(1, bson.D{{Key: "n", Value: 7}}), set(2, softDeleted))
		d.write(t, set(1, softDeleted))
	})
	if n := reads.Load(); got.Events != 4 || n != 2 {
		t.Errorf("%d events were read by %d commands", got.Events, n)
	}
	d.wantRecounts(t, nil, map[string][]any{"comments": {"p", "q"}, "votes": {"p"}})
}

func (d *deployment) transaction(t *testing.T, writes ...mongo.WriteModel) {
	t.Helper()
	check(t, d.client.UseSession(t.Context(), func(ctx context.Context) error {
		_, err := mongo.SessionFromContext(ctx).WithTransaction(ctx, func(ctx context.Context) (any, error) {
			return d.rows().BulkWrite(ctx, writes)
		})
		return err
	}))
}

func TestARowThatIsGoneWithItsTransactionCostsAFullRecount(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"})
	d.write(t, insert(comment(1, "p", nil)))
	d.catchUp(t)
	d.activate(t)
	got := d.imageless(t, func() {
		d.transaction(t, set(1, softDeleted), remove(1))
		d.write(t, insert(comment(1, "q", nil)))
	})
	if got.Events != 2 {
		t.Errorf("got %+v", got)
	}
	d.wantRecounts(t, []string{"comments", markerName}, nil)
}

func TestTooManyChangesToReadCostAFullRecount(t *testing.T) {
	t.Parallel()
	d := commentsAndVotes(t)
	reads := d.reading(t, options.Client())
	var rows, changes []mongo.WriteModel
	for id := range counter.MaxImageReads + 1 {
		rows = append(rows, insert(comment(100+id, "p", nil)))
		changes = append(changes, set(100+id, softDeleted))
	}
	d.write(t, rows...)
	got := d.imageless(t, func() { d.write(t, changes...) }) // all of them in one batch, since nobody reads meanwhile
	if n := reads.Load(); got.Events != len(changes) || n != 0 || got.Why == "" {
		t.Errorf("%d events, %d reads, because %q", got.Events, n, got.Why)
	}
	d.wantRecounts(t, []string{"comments"}, nil) // and votes do not mind
}

func TestARefusedReadCostsAFullRecount(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int32{"the snapshot is gone": 239, "unauthorized": 13, "the server fails": 8} {
		t.Run(name, func(t *testing.T) { // one after the other: a server has one fail point
			d := commentsAndVotes(t)
			reads := d.reading(t, options.Client().SetAppName(d.database.Name()))
			realtest.FailCommand(t, d.client, realtest.Failure{Commands: []string{"aggregate"}, AppName: d.database.Name(), Code: code, Times: -1})
			got := d.imageless(t, func() {
				for range 5 {
					d.write(t, update(0, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}))
				}
			})
			if got.Events != 5 || got.Why == "" {
				t.Errorf("got %+v", got)
			}
			if n := reads.Load(); n != 1 {
				t.Errorf("asked %d times, for a counter that was to be recounted after the first", n)
			}
			d.wantRecounts(t, []string{"votes"}, nil)
		})
	}
}

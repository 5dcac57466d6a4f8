package counter_test

import (
	"fmt"
	"math"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"pgregory.net/rapid"

	"driftless/internal/config"
	"driftless/internal/counter"
	"driftless/internal/stream"
)

func insert(row bson.D) mongo.WriteModel { return mongo.NewInsertOneModel().SetDocument(row) }

func update(id any, change bson.D) mongo.WriteModel {
	return mongo.NewUpdateOneModel().SetFilter(byID(id)).SetUpdate(change)
}

func set(id any, fields bson.D) mongo.WriteModel {
	return update(id, bson.D{{Key: "$set", Value: fields}})
}

func unset(id any, field string) mongo.WriteModel {
	return update(id, bson.D{{Key: "$unset", Value: bson.D{{Key: field, Value: ""}}}})
}

func replace(id any, row bson.D) mongo.WriteModel {
	return mongo.NewReplaceOneModel().SetFilter(byID(id)).SetReplacement(row).SetUpsert(true)
}

func remove(id any) mongo.WriteModel { return mongo.NewDeleteOneModel().SetFilter(byID(id)) }

// changes makes changes and returns their events, which are not applied.
func (d *deployment) changes(t checker, writes ...mongo.WriteModel) []stream.Event {
	t.Helper()
	d.write(t, writes...)
	return d.read(t)
}

func byID(id any) bson.D { return bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: id}}}} }

func (d *deployment) write(t checker, writes ...mongo.WriteModel) {
	t.Helper()
	_, err := d.rows().BulkWrite(t.Context(), writes)
	check(t, err)
}

var deletedAt = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// comment is a row, deleted when deleted is not nil.
func comment(id, post, deleted any) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "post", Value: post}, {Key: "deleted_at", Value: deleted}, {Key: "text", Value: "hello"}}
}

func TestEventsOfOneRowAddUpToItsRecount(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"})
	softDelete := bson.D{{Key: "deleted_at", Value: deletedAt}}
	// Rows and posts of a case are its own: what one leaves behind does not matter to the next.
	for _, c := range []struct {
		name   string
		writes []mongo.WriteModel
		events int
		want   map[any]int64
	}{
		{"insert", []mongo.WriteModel{insert(comment(1, "insert", nil))}, 1, map[any]int64{"insert": 1}},
		{"insert of a deleted row is no event", []mongo.WriteModel{insert(comment(2, "dead", deletedAt))}, 0, map[any]int64{"dead": 0}},
		{"insert without the soft-delete field", []mongo.WriteModel{insert(bson.D{{Key: "post", Value: "plain"}})}, 1, map[any]int64{"plain": 1}},
		{"undefined is not deleted", []mongo.WriteModel{insert(comment(30, "undefined", bson.Undefined{}))}, 1, map[any]int64{"undefined": 1}},
		{"anything else is deleted", []mongo.WriteModel{
			insert(comment(31, "else", false)), insert(comment(32, "else", "")), insert(comment(33, "else", 0)), insert(comment(34, "else", bson.A{})),
		}, 0, map[any]int64{"else": 0}},
		{"soft delete", []mongo.WriteModel{insert(comment(3, "soft", nil)), set(3, softDelete)}, 2, map[any]int64{"soft": 0}},
		{
			"the same soft delete again is no event",
			[]mongo.WriteModel{
				insert(comment(4, "again", nil)), insert(comment(5, "again", nil)),
				set(4, softDelete), set(4, bson.D{{Key: "deleted_at", Value: deletedAt.Add(time.Hour)}}),
			},
			3, map[any]int64{"again": 1},
		},
		{
			"undelete by unset",
			[]mongo.WriteModel{insert(comment(6, "undelete", nil)), set(6, softDelete), unset(6, "deleted_at")},
			3, map[any]int64{"undelete": 1},
		},
		{
			"undelete by null",
			[]mongo.WriteModel{insert(comment(7, "null", deletedAt)), set(7, bson.D{{Key: "deleted_at", Value: nil}})},
			1, map[any]int64{"null": 1},
		},
		{
			"move",
			[]mongo.WriteModel{insert(comment(8, "from", nil)), set(8, bson.D{{Key: "post", Value: "to"}})},
			2, map[any]int64{"from": 0, "to": 1},
		},
		{
			"move of a deleted row is no event",
			[]mongo.WriteModel{insert(comment(9, "dead from", deletedAt)), set(9, bson.D{{Key: "post", Value: "dead to"}})},
			0, map[any]int64{"dead from": 0, "dead to": 0},
		},
		{
			"move and undelete at once",
			[]mongo.WriteModel{insert(comment(10, "both from", deletedAt)), set(10, bson.D{{Key: "post", Value: "both to"}, {Key: "deleted_at", Value: nil}})},
			1, map[any]int64{"both from": 0, "both to": 1},
		},
		{
			"move from a number to the equal number of another type",
			[]mongo.WriteModel{insert(comment(11, int32(700), nil)), set(11, bson.D{{Key: "post", Value: 700.0}})},
			1, map[any]int64{int64(700): 1},
		},
		{
			"replace",
			[]mongo.WriteModel{insert(comment(12, "replace from", nil)), replace(12, comment(12, "replace to", nil))},
			2, map[any]int64{"replace from": 0, "replace to": 1},
		},
		{
			"replace by a deleted row",
			[]mongo.WriteModel{insert(comment(13, "replace dead", nil)), replace(13, comment(13, "replace dead", deletedAt))},
			2, map[any]int64{"replace dead": 0},
		},
		{
			"replace that drops the key",
			[]mongo.WriteModel{insert(comment(14, "dropped", nil)), replace(14, bson.D{{Key: "text", Value: "no post"}})},
			2, map[any]int64{"dropped": 0},
		},
		{
			"replace that brings a key",
			[]mongo.WriteModel{insert(bson.D{{Key: "_id", Value: 15}}), replace(15, comment(15, "brought", nil))},
			1, map[any]int64{"brought": 1},
		},
		{
			"unset of the key",
			[]mongo.WriteModel{insert(comment(16, "unset", nil)), unset(16, "post")},
			2, map[any]int64{"unset": 0},
		},
		{
			"hard delete of a live row",
			[]mongo.WriteModel{insert(comment(17, "hard", nil)), insert(comment(18, "hard", nil)), remove(17)},
			3, map[any]int64{"hard": 1},
		},
		{
			"hard delete of a deleted row is no event",
			[]mongo.WriteModel{insert(comment(19, "hard dead", nil)), set(19, softDelete), remove(19)},
			2, map[any]int64{"hard dead": 0},
		},
		{
			"delete and re-insert of one _id",
			[]mongo.WriteModel{
				insert(comment(20, "reborn", nil)), remove(20), insert(comment(20, "reborn", nil)),
				remove(20), insert(comment(20, "elsewhere", nil)),
			},
			5, map[any]int64{"reborn": 0, "elsewhere": 1},
		},
		{
			"edit of another field is no event",
			[]mongo.WriteModel{
				insert(comment(21, "edit", nil)), set(21, bson.D{{Key: "text", Value: "better"}}),
				replace(21, bson.D{{Key: "text", Value: "best"}, {Key: "post", Value: "edit"}}), unset(21, "text"),
			},
			1, map[any]int64{"edit": 1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.write(t, c.writes...)
			if events := d.catchUp(t); events != c.events {
				t.Errorf("events: got %d, want %d", events, c.events)
			}
			displayed, recounted := d.displayed(t, "comments"), d.recounted(t, "comments")
			for key, n := range c.want {
				if at := canonical(t, key); displayed[at] != n || recounted[at] != n {
					t.Errorf("%v: displayed %d, recounted %d, want %d", key, displayed[at], recounted[at], n)
				}
			}
			diffCounts(t, "displayed, against the recount,", displayed, recounted)
		})
	}
}

func TestChangesInsideATransactionAllCount(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"})
	session := must[*mongo.Session](t)(d.client.StartSession())
	defer session.EndSession(t.Context())
	check(t, session.StartTransaction())
	inside := mongo.NewSessionContext(t.Context(), session)
	_, err := d.rows().BulkWrite(inside, []mongo.WriteModel{
		insert(comment(1, "a", nil)), insert(comment(2, "a", nil)), insert(comment(3, "b", nil)),
		set(2, bson.D{{Key: "post", Value: "b"}}), remove(3),
	})
	check(t, err)
	check(t, session.CommitTransaction(inside))
	if events := d.catchUp(t); events != 5 {
		t.Errorf("events: got %d, want 5", events)
	}
	d.wantCounts(t, "comments", map[any]int64{"a": 1, "b": 1})
}

func TestCountersOfOneSourceDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	d := deploy(t,
		config.Counter{Name: "comments", Key: "post", SoftDelete: "deleted_at"},
		config.Counter{Name: "by_author", Key: "author.id"},
		config.Counter{Name: "votes", Key: "post", Sum: "votes", CountIf: expression(t, bson.D{{Key: "$ne", Value: bson.A{"$status", "spam"}}})},
	)
	row := func(id int, post, author string, votes int, status string) bson.D {
		return append(comment(id, post, nil), bson.E{Key: "author", Value: bson.D{{Key: "id", Value: author}}},
			bson.E{Key: "votes", Value: votes}, bson.E{Key: "status", Value: status})
	}
	d.write(t, insert(row(1, "p", "ann", 3, "ok")), insert(row(2, "p", "bob", 4, "spam")), insert(row(3, "q", "ann", -5, "ok")))
	if events := d.catchUp(t); events != 3 {
		t.Errorf("events: got %d, want 3", events)
	}
	d.wantCounts(t, "comments", map[any]int64{"p": 2, "q": 1})
	d.wantCounts(t, "by_author", map[any]int64{"ann": 2, "bob": 1})
	d.wantCounts(t, "votes", map[any]int64{"p": 3, "q": -5})

	d.write(t,
		set(1, bson.D{{Key: "author.id", Value: "bob"}}),      // by_author alone
		set(2, bson.D{{Key: "status", Value: "ok"}}),          // votes alone
		set(3, bson.D{{Key: "deleted_at", Value: deletedAt}}), // comments alone
		update(1, bson.D{{Key: "$inc", Value: bson.D{{Key: "votes", Value: 10}}}}),
		set(1, bson.D{{Key: "text", Value: "nobody looks at it"}}))
	if events := d.catchUp(t); events != 4 {
		t.Errorf("events: got %d, want 4", events)
	}
	d.wantCounts(t, "comments", map[any]int64{"p": 2, "q": 0})
	// The change of one counter does not touch the others, whose recount would find nothing.
	folded := must[counter.Folded](t)(counter.Fold(d.definitions, d.changes(t, update(1, bson.D{{Key: "$inc", Value: bson.D{{Key: "votes", Value: 0}}}}),
		update(1, bson.D{{Key: "$inc", Value: bson.D{{Key: "votes", Value: 1}}}}), update(1, bson.D{{Key: "$inc", Value: bson.D{{Key: "votes", Value: -1}}}}))))
	if got := sums(folded.Deltas); len(got) != 1 || got[0].counter != "votes" || got[0].n != 0 {
		t.Errorf("deltas of a change of votes: got %+v, want those of votes alone", got)
	}
	d.wantCounts(t, "by_author", map[any]int64{"ann": 1, "bob": 2})
	d.wantCounts(t, "votes", map[any]int64{"p": 17, "q": -5})
}

// form is a way to write a condition and the rows of formRows that it holds for, before and after formWrites.
type form struct {
	name          string
	condition     any
	before, after int64
}

// Rows of all forms. What they are changed into stands in formWrites.
var (
	formRows = []mongo.WriteModel{
		insert(bson.D{
			{Key: "_id", Value: 1}, {Key: "post", Value: "p"}, {Key: "status", Value: "ok"}, {Key: "text", Value: "$$ROOT"},
			{Key: "author", Value: bson.D{{Key: "name", Value: "ann"}, {Key: "age", Value: 30}}},
			{Key: "items", Value: bson.A{bson.D{{Key: "sku", Value: "x"}}, bson.D{{Key: "sku", Value: "y"}}}},
			{Key: "a.b", Value: "dotted"}, {Key: "$price", Value: 5},
		}),
		insert(bson.D{
			{Key: "_id", Value: 2}, {Key: "post", Value: "p"}, {Key: "status", Value: "spam"}, {Key: "text", Value: "ok"},
			{Key: "author", Value: bson.D{{Key: "name", Value: "bob"}, {Key: "age", Value: 10}}}, {Key: "items", Value: bson.A{}},
		}),
		insert(bson.D{{Key: "_id", Value: 3}, {Key: "post", Value: "p"}, {Key: "status", Value: nil}, {Key: "a", Value: bson.D{{Key: "b", Value: "dotted"}}}}),
		insert(bson.D{{Key: "_id", Value: 4}, {Key: "post", Value: "p"}, {Key: "author", Value: "ann"}}),
	}
	formWrites = []mongo.WriteModel{
		set(1, bson.D{{Key: "author.name", Value: "bob"}, {Key: "items", Value: bson.A{bson.D{{Key: "sku", Value: "y"}}}}}),
		set(2, bson.D{{Key: "status", Value: "ok"}, {Key: "text", Value: "$$ROOT"}}),
		remove(3),
		replace(4, bson.D{{Key: "post", Value: "p"}, {Key: "status", Value: "ok"}, {Key: "author", Value: bson.D{{Key: "name", Value: "ann"}, {Key: "age", Value: 50}}}}),
	}
)

func e(op string, args ...any) bson.D { return bson.D{{Key: op, Value: bson.A(args)}} }

func e1(op string, arg any) bson.D { return bson.D{{Key: op, Value: arg}} }

func let(name string, value, in any) bson.D {
	return e1("$let", bson.D{{Key: "vars", Value: bson.D{{Key: name, Value: value}}}, {Key: "in", Value: in}})
}

func field(name, input any) bson.D {
	return e1("$getField", bson.D{{Key: "field", Value: name}, {Key: "input", Value: input}})
}

// forms are conditions in every form that binds to the row in another way. A property test draws from them as well.
var forms = []form{
	{"path", e("$eq", "$status", "ok"), 1, 3},
	{"negation", e("$ne", "$status", "spam"), 3, 3},
	{"bare path", "$status", 2, 3},
	{"constant", true, 4, 3},
	{"dotted path", e("$gte", "$author.age", 18), 1, 2},
	{"path through an array", e("$in", "x", e("$ifNull", "$items.sku", bson.A{})), 1, 0},
	{"ROOT with a path", e("$eq", "$$ROOT.status", "ok"), 1, 3},
	{"ROOT itself", "$$ROOT", 4, 3},
	{"ROOT as a value", e("$gte", e1("$size", e1("$objectToArray", "$$ROOT")), 6), 2, 2},
	{"ROOT as a whole", e("$eq", "$$ROOT", e1("$literal", bson.D{{Key: "_id", Value: 4}, {Key: "post", Value: "p"}, {Key: "author", Value: "ann"}})), 1, 0},
	{"ROOT in an argument by name", e("$eq", field("status", "$$ROOT"), "ok"), 1, 3},
	{"ROOT merged", e("$eq", field("x", e1("$mergeObjects", bson.A{"$$ROOT", bson.D{{Key: "x", Value: "$$ROOT.status"}}})), "ok"), 1, 3},
	{"ROOT in a document", e("$eq", field("s", bson.D{{Key: "s", Value: "$$ROOT.status"}, {Key: "t", Value: "$text"}}), "ok"), 1, 3},
	{"size of ROOT", e("$gt", e1("$bsonSize", "$$ROOT"), 150), 1, 1},
	{"CURRENT with a path", e("$eq", "$$CURRENT.status", "ok"), 1, 3},
	{"CURRENT itself", e("$eq", field("status", "$$CURRENT"), "ok"), 1, 3},
	{"CURRENT bound anew", let("CURRENT", "$author", e("$eq", "$name", "ann")), 1, 1},
	{"CURRENT bound to a part of ROOT", let("CURRENT", "$$ROOT.author", e("$eq", "$$CURRENT.name", "ann")), 1, 1},
	{"ROOT inside CURRENT bound anew", let("CURRENT", "$author", e("$and", e("$eq", "$name", "bob"), e("$eq", "$$ROOT.status", "ok"))), 0, 2},
	{"getField in short", e("$eq", e1("$getField", "status"), "ok"), 1, 3},
	{"getField with a dot in the name", e("$eq", e1("$getField", "a.b"), "dotted"), 1, 1},
	{"getField with a dollar in the name", e("$eq", e1("$getField", e1("$literal", "$price")), 5), 1, 1},
	{"path that a dot in a name is not", e("$eq", "$a.b", "dotted"), 1, 0},
	{"let in let", let("s", "$status", let("t", "$$s", e("$eq", "$$t", "ok"))), 1, 3},
	{"let that hides", let("s", "$text", let("s", "$status", e("$eq", "$$s", "ok"))), 1, 3},
	{"literal text of a variable", e("$eq", "$text", e1("$literal", "$$ROOT")), 1, 2},
	{"literal text by its old name", e("$eq", "$text", e1("$const", "$$ROOT")), 1, 2},
	{"literal document of a variable", e("$eq", bson.D{{Key: "t", Value: "$text"}}, e1("$literal", bson.D{{Key: "t", Value: "$$ROOT"}})), 1, 2},
	{"default for null and missing", e("$eq", e("$ifNull", "$status", "ok"), "ok"), 3, 3},
	{"regular expression", e1("$regexMatch", bson.D{{Key: "input", Value: "$status"}, {Key: "regex", Value: "^o"}}), 1, 3},
	{"type of a missing field", e("$eq", e1("$type", "$status"), "missing"), 1, 0},
	{"REMOVE", e("$eq", e1("$type", "$$REMOVE"), "missing"), 4, 3},
	{"filter with ROOT", e("$gt", e1("$size", e1("$filter", bson.D{
		{Key: "input", Value: e("$ifNull", "$items", bson.A{})}, {Key: "as", Value: "i"},
		{Key: "cond", Value: e("$and", e("$eq", "$$i.sku", "y"), e("$eq", "$$ROOT.status", "ok"))},
	})), 0), 1, 1},
	{"map with this", e("$in", "sku", e1("$map", bson.D{
		{Key: "input", Value: e1("$reduce", bson.D{
			{Key: "input", Value: e("$ifNull", "$$ROOT.items", bson.A{})}, {Key: "initialValue", Value: bson.A{}},
			{Key: "in", Value: e("$concatArrays", "$$value", e1("$objectToArray", "$$this"))},
		})},
		{Key: "in", Value: "$$this.k"},
	})), 1, 1},
	{"switch", e1("$switch", bson.D{
		{Key: "branches", Value: bson.A{bson.D{{Key: "case", Value: e("$eq", "$$ROOT._id", 1)}, {Key: "then", Value: false}}}},
		{Key: "default", Value: e("$eq", "$status", "ok")},
	}), 0, 2},
	{"field set in ROOT", e("$eq", field("z", e1("$setField", bson.D{
		{Key: "field", Value: "z"}, {Key: "input", Value: "$$ROOT"}, {Key: "value", Value: "$status"},
	})), "ok"), 1, 3},
}

// TestEveryFormOfConditionHoldsForEventsAndRecountsAlike (I3): a condition is written for the row, and bound to the
// images of an event.
func TestEveryFormOfConditionHoldsForEventsAndRecountsAlike(t *testing.T) {
	t.Parallel()
	var declared []config.Counter
	for i, f := range forms {
		declared = append(declared, config.Counter{Name: formName(i), Key: "post", CountIf: expression(t, f.condition)})
	}
	d := deploy(t, declared...)
	d.write(t, formRows...)
	d.catchUp(t)
	for i, f := range forms {
		t.Run("before/"+f.name, func(t *testing.T) { d.wantCounts(t, formName(i), map[any]int64{"p": f.before}) })
	}
	d.write(t, formWrites...)
	d.catchUp(t)
	for i, f := range forms {
		t.Run("after/"+f.name, func(t *testing.T) { d.wantCounts(t, formName(i), map[any]int64{"p": f.after}) })
	}
}

func formName(i int) string { return fmt.Sprintf("form%02d", i) }

func decimal(t checker, text string) bson.Decimal128 {
	t.Helper()
	return must[bson.Decimal128](t)(bson.ParseDecimal128(text))
}

func TestASumAddsUpTheIntegersAndNothingElse(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "votes", Key: "post", Sum: "n"})
	missing := struct{}{}
	for _, c := range []struct {
		post   string
		values []any
		want   int64
	}{
		{"ints", []any{int32(3), int32(4)}, 7},
		{"longs", []any{int64(5), int64(1) << 40}, 5 + 1<<40},
		{"negative", []any{int32(-3), int64(-4), 1.0}, -6},
		{"whole doubles", []any{2.0, -5.0}, -3},
		{"doubles are cut", []any{2.7, -2.7, 0.9}, 0},
		{"whole decimals", []any{decimal(t, "4"), decimal(t, "4.0"), decimal(t, "1E3")}, 1008},
		{"not a number", []any{math.NaN(), decimal(t, "NaN"), 1}, 1},
		{"infinite", []any{math.Inf(1), math.Inf(-1), decimal(t, "Infinity"), 1}, 1},
		{"beyond a long", []any{1e300, -1e300, decimal(t, "9E30"), 1}, 1},
		{"strings", []any{"5", "x", ""}, 0},
		{"missing", []any{missing, 2}, 2},
		{"null", []any{nil, bson.Undefined{}, 2}, 2},
		{"others", []any{true, bson.A{1, 2}, bson.D{{Key: "n", Value: 3}}, deletedAt, 2}, 2},
		{"largest", []any{int64(math.MaxInt64)}, math.MaxInt64},
		{"largest and smallest", []any{int64(math.MaxInt64), int64(math.MinInt64)}, -1},
		{"largest doubles", []any{math.Nextafter(1<<63, 0)}, 1<<63 - 1024},
		{"just beyond", []any{float64(1 << 63), 1}, 1},
	} {
		t.Run(c.post, func(t *testing.T) {
			var writes []mongo.WriteModel
			for i, v := range c.values {
				row := bson.D{{Key: "_id", Value: c.post + string(rune('0'+i))}, {Key: "post", Value: c.post}}
				if v != missing {
					row = append(row, bson.E{Key: "n", Value: v})
				}
				writes = append(writes, insert(row))
			}
			d.write(t, writes...)
			d.catchUp(t)
			key := canonical(t, c.post)
			if displayed, recounted := d.displayed(t, "votes")[key], d.recounted(t, "votes")[key]; displayed != c.want || recounted != c.want {
				t.Errorf("displayed %d, recounted %d, want %d", displayed, recounted, c.want)
			}

			// Every change of the summed value, and the end of each row, is followed as well.
			writes = writes[:0]
			for i := range c.values {
				id := c.post + string(rune('0'+i))
				writes = append(writes, set(id, bson.D{{Key: "n", Value: int64(i)}}))
			}
			d.write(t, writes...)
			d.catchUp(t)
			want := int64(len(c.values) * (len(c.values) - 1) / 2)
			if displayed, recounted := d.displayed(t, "votes")[key], d.recounted(t, "votes")[key]; displayed != want || recounted != want {
				t.Errorf("after the change: displayed %d, recounted %d, want %d", displayed, recounted, want)
			}
		})
	}
}

// TestASumBeyond64BitsIsNeverWrongInSilence (I6): a change that no $inc can make is set apart and its key marked, and
// such a row stops neither the others nor the process.
func TestASumBeyond64BitsIsNeverWrongInSilence(t *testing.T) {
	t.Parallel()
	d := deploy(t, config.Counter{Name: "votes", Key: "post", Sum: "n"})
	row := func(id int, post string, n any) mongo.WriteModel {
		return insert(bson.D{{Key: "_id", Value: id}, {Key: "post", Value: post}, {Key: "n", Value: n}})
	}
	d.write(t, row(1, "low", int64(math.MinInt64)), row(2, "high", int64(math.MaxInt64)), row(3, "fine", 1))
	d.catchUp(t)
	d.wantCounts(t, "votes", map[any]int64{"low": math.MinInt64, "high": math.MaxInt64, "fine": 1})

	// From the smallest to 0 is a rise that is no int64, and one more than the largest is none either.
	d.write(t, set(1, bson.D{{Key: "n", Value: 0}}), row(4, "high", 1), row(5, "fine", 1))
	d.catchUp(t)
	if got := d.displayed(t, "votes")[canonical(t, "fine")]; got != 2 {
		t.Errorf("the counter beside them: got %d, want 2", got)
	}
	for _, collection := range []string{counter.DeadLettersCollection, counter.TouchedCollection} {
		if n := must[int64](t)(d.database.Collection(collection).CountDocuments(t.Context(), bson.D{{Key: "counter", Value: "votes"}})); n != 2 {
			t.Errorf("%s: got %d, want one for each of the two sums", collection, n)
		}
	}
	truths, _, err := d.definition(t, "votes").Count(t.Context(), d.client, everything)
	check(t, err)
	if truth := truths[canonical(t, "high")]; truth.Bad == "" {
		t.Errorf("a recount beyond 64 bits: got %d, want a reason why it is no count", truth.N)
	}
}

// TestTheHashTellsDefinitionsApart: a counter is recounted when it counts otherwise, and only then.
func TestTheHashTellsDefinitionsApart(t *testing.T) {
	t.Parallel()
	declared := func() config.Counter {
		return complete(config.Counter{
			Name: "votes", Key: "post", SoftDelete: "gone", Sum: "n", CountIf: expression(t, e("$eq", "$status", "ok")),
			Rows: config.Rows{Collection: "rows"},
			Target: config.Target{
				Database: "app", Collection: "posts", Base: "base", Live: "live", Total: "total", ReconciledAt: "at", Upsert: true,
			},
		}, "app")
	}
	hash := func(c config.Counter) string { return must[*counter.Definition](t)(counter.Define(c)).Hash }
	seen := map[string]string{hash(declared()): "nothing"}
	for name, change := range map[string]func(*config.Counter){
		"name":              func(c *config.Counter) { c.Name = "other" },
		"source":            func(c *config.Counter) { c.Source = "other" },
		"rows database":     func(c *config.Counter) { c.Rows.Database = "other" },
		"rows collection":   func(c *config.Counter) { c.Rows.Collection = "other" },
		"key":               func(c *config.Counter) { c.Key = "other" },
		"soft_delete":       func(c *config.Counter) { c.SoftDelete = "" },
		"sum":               func(c *config.Counter) { c.Sum = "" },
		"no count_if":       func(c *config.Counter) { c.CountIf = bson.RawValue{} },
		"count_if":          func(c *config.Counter) { c.CountIf = expression(t, e("$eq", "$status", "no")) },
		"count_if, type":    func(c *config.Counter) { c.CountIf = expression(t, e("$eq", "$status", 1)) },
		"count_if, type 2":  func(c *config.Counter) { c.CountIf = expression(t, e("$eq", "$status", 1.0)) },
		"target database":   func(c *config.Counter) { c.Target.Database = "other" },
		"target collection": func(c *config.Counter) { c.Target.Collection = "other" },
		"base":              func(c *config.Counter) { c.Target.Base = "other" },
		"live":              func(c *config.Counter) { c.Target.Live = "other" },
		"total":             func(c *config.Counter) { c.Target.Total = "" },
		"upsert":            func(c *config.Counter) { c.Target.Upsert = false },
	} {
		c := declared()
		change(&c)
		if other, known := seen[hash(c)]; known {
			t.Errorf("a change of %s has the hash of a change of %s", name, other)
		}
		seen[hash(c)] = name
	}
	same := declared()
	same.AlertAbove, same.Target.ReconciledAt, same.Pos.Line = 5, "other", 7
	if hash(same) != hash(declared()) {
		t.Error("what does not change the count changes the hash")
	}
}

// TestRandomHistoriesAddUpToTheRecount (I3): whatever rows hold, the contributions that events bring add up to exactly
// what a recount of the rows says, for every form of condition.
func TestRandomHistoriesAddUpToTheRecount(t *testing.T) {
	t.Parallel()
	declared := []config.Counter{
		{Name: "plain", Key: "key"},
		{Name: "soft", Key: "key", SoftDelete: "gone"},
		{Name: "dotted", Key: "doc.key", SoftDelete: "doc.gone"},
		{Name: "sum", Key: "key", SoftDelete: "gone", Sum: "n"},
		{Name: "dotted_sum", Key: "doc.key", Sum: "doc.n"},
		{Name: "own_id", Key: "_id", SoftDelete: "gone"},
		{Name: "sum_of_key", Key: "key", Sum: "key"},
		{Name: "gone_key", Key: "gone", SoftDelete: "key"},
		{Name: "key_below_gone", Key: "doc.key", SoftDelete: "doc"},
	}
	plain := len(declared)
	for i := 0; i < len(forms); i += 2 { // every second one: the server evaluates each of them for each event
		f := forms[i]
		declared = append(declared, config.Counter{Name: formName(i), Key: "key", SoftDelete: "gone", CountIf: expression(t, f.condition)})
	}
	d := deploy(t, declared...)
	rapid.Check(t, func(t *rapid.T) {
		_, err := d.rows().DeleteMany(t.Context(), bson.D{})
		check(t, err)
		d.skip(t)
		d.write(t, rapid.SliceOfN(rapid.Custom(drawWrite), 1, 60).Draw(t, "writes")...)
		folded := must[counter.Folded](t)(counter.Fold(d.definitions, d.read(t)))
		added := map[string]map[string]int64{}
		for _, delta := range folded.Deltas {
			of := added[delta.Counter.Name]
			if of == nil {
				of = map[string]int64{}
				added[delta.Counter.Name] = of
			}
			of[counter.Canonical(delta.Key)] += delta.N
		}
		if len(folded.Missing) > 0 || folded.Ended != nil {
			t.Fatalf("missing images %v, ended %v", folded.Missing, folded.Ended)
		}
		// Every event feeds every counter; to recount them all each time would take most of the test's time.
		for _, c := range append(declared[:plain:plain], declared[plain+rapid.IntRange(0, len(declared)-plain-1).Draw(t, "form")]) {
			truths, _, err := d.definition(t, c.Name).Count(t.Context(), d.client, everything)
			check(t, err)
			for key := range union(added[c.Name], truths) {
				switch truth := truths[key]; {
				case c.Key == "_id" && key == canonical(t, markerName): // the marker's last event is not in the history
				case truth.Bad != "": // the smallest integer twice, in a sum
				case added[c.Name][key] != truth.N:
					t.Fatalf("counter %s of %q: events add up to %d, the recount is %d", c.Name, key, added[c.Name][key], truth.N)
				}
			}
		}
	})
}

// drawWrite draws a write of one of a few rows: an insert, a replacement, changes of single fields, a delete.
func drawWrite(t *rapid.T) mongo.WriteModel {
	id := rapid.IntRange(1, 8).Draw(t, "id")
	switch rapid.IntRange(0, 5).Draw(t, "write") {
	case 0, 1:
		return replace(id, drawRow(t, id))
	case 2, 3:
		return set(id, bson.D{drawField(t)})
	case 4:
		return unset(id, rapid.SampledFrom([]string{"key", "gone", "n", "doc", "status", "items"}).Draw(t, "field"))
	default:
		return remove(id)
	}
}

func drawRow(t *rapid.T, id int) bson.D {
	row := bson.D{{Key: "_id", Value: id}, {Key: "key", Value: anyValue(t)}}
	seen := map[string]bool{"key": true}
	for range rapid.IntRange(0, 5).Draw(t, "fields") {
		if f := drawField(t); !seen[f.Key] {
			seen[f.Key] = true
			row = append(row, f)
		}
	}
	return row
}

func drawField(t *rapid.T) bson.E {
	field := rapid.SampledFrom([]string{"key", "key", "key", "gone", "n", "doc", "status", "author", "items", "text"}).Draw(t, "field")
	var value any
	switch field {
	case "gone":
		value = rapid.SampledFrom([]any{nil, bson.Undefined{}, deletedAt, false, bson.A{}, bson.A{nil}}).Draw(t, "gone")
	case "doc":
		value = drawDoc(t)
	case "status", "text": // $regexMatch refuses other types
		value = rapid.SampledFrom([]any{nil, "ok", "spam", "$$ROOT"}).Draw(t, field)
	case "author":
		value = bson.D{{Key: "name", Value: "ann"}, {Key: "age", Value: anyValue(t)}}
	case "items": // $objectToArray and $filter refuse other types
		value = rapid.SampledFrom([]any{nil, bson.A{}, bson.A{bson.D{{Key: "sku", Value: "x"}}, bson.D{{Key: "sku", Value: "y"}}}}).Draw(t, "items")
	default:
		value = anyValue(t)
	}
	return bson.E{Key: field, Value: value}
}

func drawDoc(t *rapid.T) any {
	inner := func() bson.D {
		return bson.D{{Key: "key", Value: anyValue(t)}, {Key: "gone", Value: anyValue(t)}, {Key: "n", Value: anyValue(t)}}
	}
	switch rapid.IntRange(0, 5).Draw(t, "doc") {
	case 0:
		return anyValue(t)
	case 1:
		return bson.A{inner(), inner()}
	case 2:
		return bson.A{inner()}
	default:
		return inner()
	}
}

// values are what fields of rows hold: every type, several values that are one key, and several that are none.
var values = []any{
	int32(1), int64(1), 1.0, int32(0), math.Copysign(0, -1), int64(math.MaxInt64), int64(math.MinInt64), 1e300, 0.1,
	math.NaN(), math.Inf(1), math.Inf(-1), "1", "", "a", "A", "$a", "$$ROOT", "a.b", bson.Symbol("a"),
	true, false, nil, bson.Undefined{}, deletedAt, bson.Timestamp{T: 7, I: 1}, bson.MinKey{}, bson.MaxKey{},
	bson.ObjectID{1}, bson.Binary{Subtype: 4, Data: make([]byte, 16)}, bson.Binary{Data: []byte("a")}, bson.Binary{Subtype: 2, Data: []byte("a")},
	bson.Regex{Pattern: "^a"}, bson.JavaScript("a"), bson.CodeWithScope{Code: "a", Scope: bson.D{{Key: "x", Value: 1}}},
	bson.DBPointer{DB: "a", Pointer: bson.ObjectID{1}},
	bson.A{}, bson.A{1}, bson.A{1, 1.0}, bson.A{"a", nil}, bson.D{}, bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "a", Value: 1.0}},
	bson.D{{Key: "é", Value: 1}}, bson.D{{Key: "", Value: 1}}, bson.D{{Key: "a", Value: nil}}, bson.D{{Key: "a", Value: bson.Undefined{}}},
	bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 2}}, bson.D{{Key: "b", Value: 2}, {Key: "a", Value: 1}},
	bson.D{{Key: "a", Value: bson.A{1, bson.D{{Key: "b", Value: 2}}}}}, bson.D{{Key: "a", Value: bson.Regex{Pattern: "a"}}},
	bson.D{{Key: "$ne", Value: nil}}, bson.D{{Key: "a", Value: bson.D{{Key: "$b", Value: 1}}}}, bson.D{{Key: "x", Value: 1}, {Key: "$y", Value: 1}},
	bson.D{{Key: "$ref", Value: "c"}, {Key: "$id", Value: 1}},
}

func anyValue(t *rapid.T) any {
	if rapid.IntRange(0, 9).Draw(t, "decimal") == 0 {
		text := rapid.SampledFrom([]string{"1", "1.0", "0E+3", "NaN", "-Infinity", "0.1", "9223372036854775808", "1E+6000"}).Draw(t, "digits")
		return decimal(t, text)
	}
	return rapid.SampledFrom(values).Draw(t, "value")
}

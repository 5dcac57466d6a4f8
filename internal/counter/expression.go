package counter

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
)

// rowVariable stands for $$ROOT where an expression is bound to an image inside an event: the one variable that
// rebinding CURRENT does not move.
const rowVariable = "driftlessRow"

// keyTypes are the types of a usable key: all that an _id can have. A sub-document is looked into apart, since a field
// that begins with $ cannot stand in an _id. Missing, null, undefined, an array and a regular expression are no keys.
var keyTypes = bson.A{
	"objectId", "string", "int", "long", "double", "decimal", "binData", "date", "bool", "timestamp", "symbol",
	"javascript", "javascriptWithScope", "dbPointer", "minKey", "maxKey",
}

// maxKeyDepth is how many levels of a sub-document are looked into. One that is nested deeper is no key: without a
// bound, no expression can tell whether the server would take it for an _id.
const maxKeyDepth = 5

func op(name string, args ...any) bson.D { return bson.D{{Key: name, Value: bson.A(args)}} }

func one(name string, arg any) bson.D { return bson.D{{Key: name, Value: arg}} }

// usableKey is true where key, an expression, names a counter document.
func usableKey(key any) bson.D {
	return op("$or", op("$in", one("$type", key), keyTypes),
		op("$and", op("$eq", one("$type", key), "object"), op("$not", unstorable(key, maxKeyDepth))))
}

// unstorable is true where value, a document or an array, cannot be part of an _id: a field begins with $, or may.
func unstorable(value any, depth int) bson.D {
	if depth == 0 {
		return op("$in", one("$type", value), bson.A{"object", "array"})
	}
	fields := one("$switch", bson.D{
		{Key: "branches", Value: bson.A{
			branch(op("$eq", one("$type", value), "object"), one("$objectToArray", value)),
			branch(op("$eq", one("$type", value), "array"),
				one("$map", bson.D{{Key: "input", Value: value}, {Key: "in", Value: bson.D{{Key: "k", Value: ""}, {Key: "v", Value: "$$this"}}}})),
		}},
		{Key: "default", Value: bson.A{}},
	})
	// By bytes, since a name may begin with a letter of several.
	dollar := op("$eq", op("$indexOfBytes", "$$this.k", one("$literal", "$"), 0, 1), 0)
	// No expression sees the scope of code.
	code := op("$eq", one("$type", "$$this.v"), "javascriptWithScope")
	return one("$anyElementTrue", bson.A{one("$map", bson.D{
		{Key: "input", Value: fields}, {Key: "in", Value: op("$or", dollar, code, unstorable("$$this.v", depth-1))},
	})})
}

// weight is what a row adds to its counter: 0 when it does not count.
func (d *Definition) weight() bson.D { return d.weightUnless(d.SoftDelete) }

// weightUnless is weight with another field, or none, that takes a row out of the count.
func (d *Definition) weightUnless(softDelete string) bson.D {
	conditions := bson.A{usableKey("$" + d.Key)}
	if softDelete != "" {
		// Null counts as not deleted; an index cannot tell it from missing, so the covered plan must not either.
		conditions = append(conditions, op("$in", one("$type", "$"+softDelete), bson.A{"missing", "null", "undefined"}))
	}
	if !d.CountIf.IsZero() {
		conditions = append(conditions, d.CountIf)
	}
	return op("$cond", bson.D{{Key: "$and", Value: conditions}}, d.unit(), int64(0))
}

// unit is the weight of a row that counts.
func (d *Definition) unit() any {
	if d.Sum == "" {
		return int64(1)
	}
	field := "$" + d.Sum
	converted := one("$convert", bson.D{
		{Key: "input", Value: field}, {Key: "to", Value: "long"},
		{Key: "onError", Value: int64(0)}, {Key: "onNull", Value: int64(0)},
	})
	return op("$cond", one("$isNumber", field), converted, int64(0))
}

// contribution is {k: key, w: weight} of a row, or null when it does not count, or not for the lane. A weight of 1 is left
// out.
func (d *Definition) contribution(lane checkpoint.LaneID) bson.D {
	if d.Sum == "" {
		return op("$cond", inLane(d.weight(), "$"+d.Key, lane), bson.D{{Key: "k", Value: "$" + d.Key}}, nil)
	}
	return one("$let", bson.D{
		{Key: "vars", Value: bson.D{{Key: "driftlessWeight", Value: d.weight()}}},
		{Key: "in", Value: op("$cond", inLane(op("$ne", "$$driftlessWeight", int64(0)), "$"+d.Key, lane),
			bson.D{{Key: "k", Value: "$" + d.Key}, {Key: "w", Value: "$$driftlessWeight"}}, nil)},
	})
}

// inLane is condition where key belongs to the lane. The condition comes first: it tells that the key can be hashed.
func inLane(condition, key any, lane checkpoint.LaneID) any {
	if lane.Whole() {
		return condition
	}
	return op("$and", condition, op("$eq", partition(key, lane.Count()), lane.Partition))
}

// partition is which of n lanes a key belongs to: one for all keys that the server holds for equal.
func partition(key any, n int) bson.D {
	return op("$mod", op("$add", op("$mod", one("$toHashedIndexKey", hashable(key, maxKeyDepth)), n), n), n)
}

// hashable is equal for equal keys in the eyes of $toHashedIndexKey as well, which rounds a decimal where it cuts a double:
// 1.5 and Decimal 1.5 are one key with two hashes, and so are 2^63 and Decimal 2^63. Keys that differ may share it.
func hashable(value any, depth int) bson.D {
	nested := func(input any, in any) bson.D {
		return one("$map", bson.D{{Key: "input", Value: input}, {Key: "in", Value: in}})
	}
	branches := bson.A{branch(one("$isNumber", value), one("$convert", bson.D{
		{Key: "input", Value: value}, {Key: "to", Value: "long"}, {Key: "onError", Value: int64(0)}, // not one of 64 bits
	}))}
	if depth > 0 {
		branches = append(branches,
			branch(op("$eq", one("$type", value), "object"), nested(one("$objectToArray", value),
				bson.D{{Key: "k", Value: "$$this.k"}, {Key: "v", Value: hashable("$$this.v", depth-1)}})),
			branch(op("$eq", one("$type", value), "array"), nested(value, hashable("$$this", depth-1))),
			branch(op("$eq", one("$type", value), "javascriptWithScope"), "")) // no expression sees the scope
	}
	return one("$switch", bson.D{{Key: "branches", Value: branches}, {Key: "default", Value: value}})
}

// bound evaluates an expression over a row on the image at path instead, and gives null where there is no image.
func bound(expression any, path string) (bson.D, error) {
	rewritten, err := rewriteRoot(expression)
	if err != nil {
		return nil, err
	}
	return op("$cond",
		op("$eq", one("$type", path), "object"),
		one("$let", bson.D{
			{Key: "vars", Value: bson.D{{Key: "CURRENT", Value: path}, {Key: rowVariable, Value: path}}},
			{Key: "in", Value: rewritten},
		}),
		nil), nil
}

// rewriteRoot replaces $$ROOT by the variable that bound binds. Text under $literal stays.
func rewriteRoot(expression any) (any, error) {
	raw, err := bson.Marshal(bson.D{{Key: "e", Value: expression}})
	if err != nil {
		return nil, fmt.Errorf("encode expression: %w", err)
	}
	var decoded bson.D
	if err := bson.Unmarshal(raw, &decoded); err != nil {
		return nil, fmt.Errorf("decode expression: %w", err)
	}
	return replaceRoot(decoded[0].Value), nil
}

func replaceRoot(v any) any {
	switch v := v.(type) {
	case string:
		if v == "$$ROOT" || strings.HasPrefix(v, "$$ROOT.") {
			return "$$" + rowVariable + strings.TrimPrefix(v, "$$ROOT")
		}
	case bson.A:
		for i := range v {
			v[i] = replaceRoot(v[i])
		}
	case bson.D:
		for i := range v {
			if v[i].Key != "$literal" && v[i].Key != "$const" { // two names of one operator
				v[i].Value = replaceRoot(v[i].Value)
			}
		}
	}
	return v
}

// Fields of a projected event. Contributions of the i-th counter are b<i>, before, and a<i>, after; special stands for
// all that is not a row with its images.
const (
	fieldSpecial  = "s"
	fieldWallTime = "t"
	fieldID       = "i" // of an event from a topic: what tells it from all others, where its source asks for that
	fieldBucket   = "u" // of an event from a topic, before its contributions: start and width of its bucket
	opDead        = "dead_letter"
)

// Pipeline returns the stages that turn a change event into the contributions of its two images to every counter of
// ds in the lane, and drop all that does not matter: the row itself never leaves the server, and an edit of a field that
// no counter looks at is no event at all.
func Pipeline(ds []*Definition, lane checkpoint.LaneID) (bson.A, error) {
	project, relevant, err := contributions(ds, lane)
	return bson.A{one("$project", project), relevant}, err
}

// contributions are the fields of a projected event, and the stage that drops what does not matter.
func contributions(ds []*Definition, lane checkpoint.LaneID) (project, relevant bson.D, err error) {
	project = bson.D{{Key: fieldWallTime, Value: "$wallTime"}, {Key: fieldSpecial, Value: specialEvent()}}
	either := bson.A{op("$ne", one("$type", "$"+fieldSpecial), "missing")}
	for i, d := range ds {
		before, err := bound(d.contribution(lane), "$fullDocumentBeforeChange")
		if err != nil {
			return nil, nil, fmt.Errorf("counter %s: %w", d.Name, err)
		}
		after, err := bound(d.contribution(lane), "$fullDocument")
		if err != nil {
			return nil, nil, fmt.Errorf("counter %s: %w", d.Name, err)
		}
		b, a := fmt.Sprintf("b%d", i), fmt.Sprintf("a%d", i)
		project = append(project, bson.E{Key: b, Value: before}, bson.E{Key: a, Value: after})
		either = append(either, op("$ne", "$"+b, "$"+a))
	}
	return project, one("$match", one("$expr", bson.D{{Key: "$or", Value: either}})), nil
}

// specialEvent is missing for an insert, update, replace or delete that carries the images it needs, and describes
// anything else: an image that is not there, or an event that is not about a row.
func specialEvent() bson.D {
	image := func(path string) bson.D { return op("$eq", one("$type", path), "object") }
	before, after := image("$fullDocumentBeforeChange"), image("$fullDocument")
	return bson.D{{Key: "$switch", Value: bson.D{
		{Key: "branches", Value: bson.A{
			branch(op("$eq", "$operationType", "insert"), op("$cond", after, "$$REMOVE", specialFields())),
			branch(op("$in", "$operationType", bson.A{"update", "replace"}),
				op("$cond", op("$and", before, after), "$$REMOVE", specialFields())),
			branch(op("$eq", "$operationType", "delete"), op("$cond", before, "$$REMOVE", specialFields())),
		}},
		{Key: "default", Value: specialFields()},
	}}}
}

func branch(condition, then any) bson.D {
	return bson.D{{Key: "case", Value: condition}, {Key: "then", Value: then}}
}

func specialFields() bson.D {
	return bson.D{
		{Key: "op", Value: "$operationType"}, {Key: "row", Value: "$documentKey._id"},
		{Key: "p", Value: op("$cond", op("$eq", "$operationType", "update"), changedPaths(), "$$REMOVE")},
	}
}

// changedPaths are the names of the fields that an update changed, without their values.
func changedPaths() bson.D {
	names := one("$map", bson.D{
		{Key: "input", Value: one("$objectToArray", op("$ifNull", "$updateDescription.updatedFields", bson.D{}))},
		{Key: "in", Value: "$$this.k"},
	})
	return op("$concatArrays", names,
		op("$ifNull", "$updateDescription.removedFields", bson.A{}),
		op("$ifNull", "$updateDescription.truncatedArrays.field", bson.A{}))
}

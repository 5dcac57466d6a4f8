package counter

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/expression"
)

// Evaluator computes the contribution of a row in Go, for images that did not come from the server. A property test holds
// it to contribution (I3).
type Evaluator struct {
	key, softDelete, sum expression.Path
	countIf              *expression.Expression
}

// Compile makes the evaluator of a definition. The error says which part of count_if only the server can evaluate, and
// what can be evaluated without it.
func Compile(d *Definition) (*Evaluator, error) {
	e := &Evaluator{key: expression.ParsePath(d.Key)}
	if d.SoftDelete != "" {
		e.softDelete = expression.ParsePath(d.SoftDelete)
	}
	if d.Sum != "" {
		e.sum = expression.ParsePath(d.Sum)
	}
	if d.CountIf.IsZero() {
		return e, nil
	}
	var err error
	if e.countIf, err = expression.Compile(d.CountIf); err != nil {
		return nil, fmt.Errorf("counter %s: count_if: %w", d.Name, err)
	}
	return e, nil
}

// Contribution is the key and the weight of a row, a valid document or nil for no row. A weight of 0 is no contribution:
// the key is then zero. The key aliases the row.
func (e *Evaluator) Contribution(row bson.Raw) (key bson.RawValue, weight int64) {
	if key = e.key.In(row); !Usable(key) || e.deleted(row) || e.countIf != nil && !e.countIf.Holds(row) {
		return bson.RawValue{}, 0
	}
	if e.sum == nil {
		return key, 1
	}
	if weight = expression.Long(e.sum.In(row)); weight == 0 {
		return bson.RawValue{}, 0
	}
	return key, weight
}

// deleted reports a soft delete: the field holds anything but null.
func (e *Evaluator) deleted(row bson.Raw) bool {
	if e.softDelete == nil {
		return false
	}
	switch e.softDelete.In(row).Type { //nolint:exhaustive // anything else deletes
	case 0, bson.TypeNull, bson.TypeUndefined:
		return false
	default:
		return true
	}
}

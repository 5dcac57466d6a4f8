package counter

import (
	"go.mongodb.org/mongo-driver/v2/bson"

	"driftless/internal/checkpoint"
)

// MaxImageReads is exported for tests.
const MaxImageReads = maxImageReads

// Means says what a change without an image means to a counter: nothing, or a recount of the key that the row has
// after it. Neither is a full recount.
func Means(d *Definition, c Change) (free, ofItsKey bool) {
	r := readsOf(d)
	e := r.effect(c)
	return e == effect(0), e == ofKey
}

// Touches is exported for tests.
var Touches = touches

// ContributionExpression is the expression of a row's contribution: {k, w} or null.
func ContributionExpression(d *Definition) bson.D { return d.contribution(checkpoint.LaneID{}) }

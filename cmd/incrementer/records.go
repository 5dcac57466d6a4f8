package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"driftless/internal/checkpoint"
	"driftless/internal/counter"
)

// records are what the state database holds beside the checkpoints.
type records struct {
	states      map[string]counter.State // by counter
	gaps        map[string]laneGaps      // by lane
	roster      checkpoint.Roster
	kept        []counter.KeptBack
	deadLetters int64
}

// laneGaps sums up the gaps of one lane.
type laneGaps struct {
	Lane   string    `bson:"_id"`
	Count  int64     `bson:"count"`
	At     time.Time `bson:"at"`     // of the last
	Reason string    `bson:"reason"` // of the last
}

// readRecords reads little, however much there is.
func readRecords(ctx context.Context, client *mongo.Client, stateDatabase string) (records, error) {
	of := counter.NewStates(client, stateDatabase)
	states, err := of.All(ctx)
	if err != nil {
		return records{}, err
	}
	kept, err := of.KeptBack(ctx)
	if err != nil {
		return records{}, err
	}
	roster, err := checkpoint.NewLeases(client, stateDatabase, "", 0).Roster(ctx)
	if err != nil {
		return records{}, err
	}
	db := client.Database(stateDatabase, options.Database().SetReadPreference(readpref.Primary()))
	gaps, err := readGaps(ctx, db)
	if err != nil {
		return records{}, err
	}
	letters, err := of.LetterCount(ctx)
	if err != nil {
		return records{}, err
	}
	return records{states: states, gaps: gaps, roster: roster, kept: kept, deadLetters: letters}, nil
}

func readGaps(ctx context.Context, db *mongo.Database) (map[string]laneGaps, error) {
	cursor, err := db.Collection(counter.GapsCollection).Aggregate(ctx, bson.A{
		bson.D{{Key: "$sort", Value: bson.D{{Key: "at", Value: 1}}}},
		bson.D{{Key: "$group", Value: bson.D{
			{Key: "_id", Value: "$lane"},
			{Key: "count", Value: bson.D{{Key: "$sum", Value: 1}}},
			{Key: "at", Value: bson.D{{Key: "$last", Value: "$at"}}},
			{Key: "reason", Value: bson.D{{Key: "$last", Value: "$reason"}}},
		}}},
	})
	if err != nil {
		return nil, fmt.Errorf("count gaps: %w", err)
	}
	var all []laneGaps
	if err := cursor.All(ctx, &all); err != nil {
		return nil, fmt.Errorf("count gaps: %w", err)
	}
	gaps := make(map[string]laneGaps, len(all))
	for _, g := range all {
		gaps[g.Lane] = g
	}
	return gaps, nil
}

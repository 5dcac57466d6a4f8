package main

import (
	"context"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// cost is how long something took, and the processor time of the server for it.
type cost struct{ took, server time.Duration }

func (c cost) String() string { return fmt.Sprintf("%s, server %s", round(c.took), round(c.server)) }

// division is what so many lanes cost, round by round.
type division struct {
	lanes                   int
	subjects                []*subject
	reading, catchUp, check []cost
}

// divide measures 1, 2, 4 and so on lanes, up to most, in turn on the same backlog.
func divide(ctx context.Context, client *mongo.Client, scale float64, most int) error {
	var divisions []*division
	made := 0
	for n := 1; n <= most; n *= 2 {
		d := &division{lanes: n}
		for range rounds {
			s, err := newSubject(ctx, rowsOf(client), fmt.Sprint(made), n)
			if err != nil {
				return err
			}
			d.subjects = append(d.subjects, s)
			made++
		}
		divisions = append(divisions, d)
	}
	if err := backlogOf(scale).write(ctx, rowsOf(client)); err != nil {
		return err
	}
	for r := range rounds {
		for _, d := range divisions {
			if err := d.measure(ctx, client, d.subjects[r]); err != nil {
				return err
			}
		}
	}
	one := divisions[0]
	for _, d := range divisions {
		caught, reading, checked := middle(d.catchUp), middle(d.reading), middle(d.check)
		fmt.Printf("%d lanes: catch up %.2f times as fast as one (%s), reading alone costs the server %s a lane (one: %s), a full run takes %.2f times as long (%s)\n",
			d.lanes, middle(one.catchUp).took.Seconds()/caught.took.Seconds(), caught, round(reading.server/time.Duration(d.lanes)),
			round(middle(one.reading).server), checked.took.Seconds()/middle(one.check).took.Seconds(), checked)
	}
	return nil
}

// measure does one round: reading alone, lane after lane; catching up, all at once; a full run of the reconciler.
func (d *division) measure(ctx context.Context, client *mongo.Client, s *subject) error {
	events := 0
	reading, err := timed(ctx, client, func() error {
		for _, id := range s.ids {
			n, _, err := s.readOnly(ctx, id)
			if err != nil {
				return err
			}
			events += n
		}
		return nil
	})
	if err != nil {
		return err
	}
	var result caught
	caughtUp, err := timed(ctx, client, func() (err error) {
		result, err = s.catchUp(ctx, events)
		return err
	})
	if err != nil {
		return err
	}
	caughtUp.took = result.took
	checked, err := timed(ctx, client, func() error { return s.check(ctx) })
	if err != nil {
		return err
	}
	d.reading, d.catchUp, d.check = append(d.reading, reading), append(d.catchUp, caughtUp), append(d.check, checked)
	fmt.Printf("round: %d lanes  %d events  read only, one after the other %s  catch up %s (%s)  full run %s\n",
		d.lanes, events, reading, caughtUp, rate(events, caughtUp.took), checked)
	return s.clear(ctx)
}

// timed measures do.
func timed(ctx context.Context, client *mongo.Client, do func() error) (cost, error) {
	before, err := processorTime(ctx, client)
	if err != nil {
		return cost{}, err
	}
	began := time.Now()
	if err := do(); err != nil {
		return cost{}, err
	}
	took := time.Since(began)
	after, err := processorTime(ctx, client)
	return cost{took, after - before}, err
}

// processorTime is how much of it the server has used.
func processorTime(ctx context.Context, client *mongo.Client) (time.Duration, error) {
	var status struct {
		Extra struct {
			User   int64 `bson:"user_time_us"`
			System int64 `bson:"system_time_us"`
		} `bson:"extra_info"`
	}
	if err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "serverStatus", Value: 1}}).Decode(&status); err != nil {
		return 0, fmt.Errorf("ask for the server's processor time: %w", err)
	}
	return time.Duration(status.Extra.User+status.Extra.System) * time.Microsecond, nil
}

// middle is the medians of both.
func middle(costs []cost) cost {
	var took, server []time.Duration
	for _, c := range costs {
		took, server = append(took, c.took), append(server, c.server)
	}
	return cost{median(took), median(server)}
}

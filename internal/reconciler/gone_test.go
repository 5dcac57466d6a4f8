package reconciler

import (
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

func TestRowsThatAreGoneSinceThePositionAreNotJudged(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		left   int64 // rows in the end
		change func(*fixture) error
	}{
		"dropped": {0, func(f *fixture) error { return f.rows.Drop(t.Context()) }},
		"renamed": {0, func(f *fixture) error {
			database := f.rows.Database().Name()
			return f.client.Database("admin").RunCommand(t.Context(), bson.D{
				{Key: "renameCollection", Value: database + ".comments"}, {Key: "to", Value: database + ".elsewhere"},
			}).Err()
		}},
		"dropped and made again": {0, func(f *fixture) error {
			if err := f.rows.Drop(t.Context()); err != nil {
				return err
			}
			f.create(f.rows.Database(), f.rows.Name(), options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}}))
			return nil
		}},
		"dropped and made again, with rows": {1, func(f *fixture) error {
			if err := f.rows.Drop(t.Context()); err != nil {
				return err
			}
			f.create(f.rows.Database(), f.rows.Name(), options.CreateCollection().SetChangeStreamPreAndPostImages(bson.D{{Key: "enabled", Value: true}}))
			f.comment("a", 1)
			return nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t, impatient)
			f.comment("a", 3)
			f.start()
			r := f.reconciler(equipment{})
			f.activate(r)
			f.stop()
			f.check(tt.change(f))
			for _, o := range []Options{{Full: true, DryRun: true}, {Full: true}, {Key: raw("a")}} {
				if report := f.run(r, o); report.Drifted() {
					t.Errorf("%+v: false drift: %s", o, show(report))
				}
			}
			f.wantShown("a", 3)
			// The incrementer records the gap, and what is then different is drift of that cause.
			f.config.Reconciler.JudgeTimeout = 2 * time.Second
			r = f.reconciler(equipment{})
			f.start()
			f.catchUp()
			report := f.run(r, Options{})
			wantDrift(t, report, map[any]int64{"a": 3 - tt.left})
			if d := only(t, report).Drifted; len(d) == 1 && d[0].Cause != CauseGap {
				t.Errorf("cause %q, want %q", d[0].Cause, CauseGap)
			}
			f.wantExact()
		})
	}
}

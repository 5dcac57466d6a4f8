package cmd_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/segmentio/kafka-go"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"driftless/internal/deployment"
	"driftless/internal/realtest"
)

// Each program works as a user that may do exactly what deployment.Privileges lists for it where the source is a topic.
func TestLeastPrivilegesAreEnoughForATopic(t *testing.T) {
	t.Parallel()
	m := guarded.start(t)
	for _, format := range []string{"event", "debezium"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			p, k, topic := reactingOn(t, m, 1)
			d := &debezium{place: p, kafka: k, topic: topic}
			react := func() {
				if err := (&reactions{place: p, kafka: k, topic: topic, partitions: 1}).burst(t.Context(), 50); err != nil {
					t.Fatal(err)
				}
			}
			d.permitted()
			if format == "debezium" {
				d.configure()
				react = func() { d.insert(1, 2, 2) }
			}
			setup, follow := p.privileges(deployment.Setup), p.privileges(deployment.Follow)
			verify, reconcile := p.privileges(deployment.Verify), p.privileges(deployment.Reconcile)
			p.as(m, "setup", setup)
			p.want(0, "incrementer", "setup")
			p.as(m, "follow", follow)
			s := p.start("incrementer")
			s.becomes("/readyz", 200, `"ready": true`)
			react()
			p.as(m, "reconcile", reconcile)
			recount := func() bool { return p.run("reconciler", "run", "--once").code == 0 && p.active() }
			realtest.Eventually(t, 3*patience, "the first recount", recount)
			react()
			if format == "debezium" {
				d.deleteSoftly(2)
				const message = "changes without an image, nothing of them is applied: their keys are marked for a recount"
				s.logs(message)
				if told := s.logged(message); !strings.Contains(fmt.Sprint(told["action"]), "have the connector publish the row before") || !p.active() {
					t.Errorf("the row's key was not found:\n%s", s.log)
				}
			}
			loop := p.start("reconciler")
			loop.leads()
			r := &reactions{place: p}
			realtest.Eventually(t, 3*patience, "every count to be right", r.isRight)
			loop.terminate()
			if code := loop.ended(); code != 0 || strings.Contains(loop.log.String()+s.log.String(), `"ERROR"`) {
				t.Errorf("the loop ends with %d:\n%s", code, loop.log)
			}
			p.as(m, "verify", verify)
			realtest.Eventually(t, 3*patience, "a verdict", func() bool { return p.run("reconciler", "verify", "--full").code != 1 })
			p.want(0, "reconciler", "verify", "--full")
			if format == "debezium" {
				p.as(m, "blind", withoutOn(follow, "reactions", "find"))
				p.wantLine(1, []string{"lacks privileges: grant it find on " + p.app + ".reactions"}, "incrementer", "run")
			}
		})
	}
}

// withoutOn takes one action on a collection away.
func withoutOn(all []deployment.Privilege, collection, action string) []deployment.Privilege {
	var rest []deployment.Privilege
	for _, g := range all {
		if g.Collection == collection {
			rest = append(rest, without([]deployment.Privilege{g}, action)...)
		} else {
			rest = append(rest, g)
		}
	}
	return rest
}

// debezium publishes changes of rows as the connector does without images before them.
type debezium struct {
	*place
	kafka *realtest.Kafka
	topic string
}

// permitted has the broker's user do what docs/privileges.md lists, and no more.
func (d *debezium) permitted() {
	d.t.Helper()
	group := d.topic
	entries := []kafka.ACLEntry{
		{ResourceType: kafka.ResourceTypeTopic, ResourceName: d.topic, Principal: "User:" + realtest.KafkaUser},
		{ResourceType: kafka.ResourceTypeGroup, ResourceName: group, Principal: "User:" + realtest.KafkaUser},
		{ResourceType: kafka.ResourceTypeCluster, ResourceName: "kafka-cluster", Principal: "User:another"}, // what is not listed is open to all
	}
	for i := range entries {
		entries[i].ResourcePatternType, entries[i].Host = kafka.PatternTypeLiteral, "*"
		entries[i].Operation, entries[i].PermissionType = kafka.ACLOperationTypeRead, kafka.ACLPermissionTypeAllow
	}
	entries[2].Operation = kafka.ACLOperationTypeDescribe
	response, err := d.kafka.Client().CreateACLs(d.t.Context(), &kafka.CreateACLsRequest{ACLs: entries})
	if err == nil {
		err = errors.Join(response.Errors...)
	}
	file := filepath.Join(d.t.TempDir(), "password")
	if err := errors.Join(err, os.WriteFile(file, []byte(realtest.KafkaPassword), 0o600)); err != nil {
		d.t.Fatal(err)
	}
	d.edit(func(text string) string {
		text = strings.Replace(text, d.kafka.Addr(), d.kafka.SASLAddr(), 1)
		return strings.Replace(text, "      event: ", fmt.Sprintf("      sasl: {mechanism: PLAIN, username: %s, password_file: %q}\n      event: ", realtest.KafkaUser, file), 1)
	})
}

// configure has the source read the connector's envelopes.
func (d *debezium) configure() {
	d.edit(func(text string) string {
		from, to := strings.Index(text, "      event: "), strings.Index(text, "counters:\n")
		return strings.Replace(text[:from]+"      format: debezium\n"+text[to:], ", created_at: created_at", "", 1)
	})
}

// change makes one and publishes its record.
func (d *debezium) change(id bson.ObjectID, do func(context.Context, *mongo.Collection) error, record string) {
	d.t.Helper()
	session, err := d.client.StartSession()
	if err != nil {
		d.t.Fatal(err)
	}
	defer session.EndSession(context.WithoutCancel(d.t.Context()))
	if err := do(mongo.NewSessionContext(d.t.Context(), session), d.client.Database(d.app).Collection("reactions")); err != nil {
		d.t.Fatal(err)
	}
	at := session.OperationTime()
	value := fmt.Sprintf(`{%s,"source":{"connector":"mongodb","db":%q,"collection":"reactions","ts_ms":%d,"ord":%d}}`, record, d.app, int64(at.T)*1000, at.I)
	key := fmt.Sprintf(`{"id":"{\"$oid\":\"%s\"}"}`, id.Hex())
	if err := d.kafka.Produce(d.t.Context(), d.topic, 0, realtest.Record{Key: []byte(key), Value: []byte(value)}); err != nil {
		d.t.Fatal(err)
	}
}

func (d *debezium) insert(posts ...int) {
	d.t.Helper()
	for _, post := range posts {
		id := bson.NewObjectID()
		d.change(id, func(ctx context.Context, rows *mongo.Collection) error {
			_, err := rows.InsertOne(ctx, bson.D{{Key: "_id", Value: id}, {Key: "post_id", Value: post}})
			return err
		}, fmt.Sprintf(`"op":"c","before":null,"after":"{\"_id\":{\"$oid\":\"%s\"},\"post_id\":{\"$numberInt\":\"%d\"}}"`, id.Hex(), post))
	}
}

// deleteSoftly marks a row of a post as deleted, and waits until the incrementer has met the record of it.
func (d *debezium) deleteSoftly(post int) {
	d.t.Helper()
	var row struct {
		ID bson.ObjectID `bson:"_id"`
	}
	if err := d.client.Database(d.app).Collection("reactions").FindOne(d.t.Context(), bson.D{{Key: "post_id", Value: post}}).Decode(&row); err != nil {
		d.t.Fatal(err)
	}
	now := time.Now()
	d.change(row.ID, func(ctx context.Context, rows *mongo.Collection) error {
		_, err := rows.UpdateByID(ctx, row.ID, bson.D{{Key: "$set", Value: bson.D{{Key: "deleted_at", Value: now}}}})
		return err
	}, fmt.Sprintf(`"op":"u","before":null,"after":null,"updateDescription":{"updatedFields":"{\"deleted_at\":{\"$date\":%d}}","removedFields":null,"truncatedArrays":null}`, now.UnixMilli()))
	realtest.Eventually(d.t, patience, "the key to be marked", func() bool {
		n, err := d.client.Database(d.state).Collection("touched").CountDocuments(d.t.Context(), bson.D{{Key: "reason", Value: "missing_image"}})
		return err == nil && n == 1
	})
}

package config

import (
	"math"
	"slices"
	"strings"
	"time"
)

func readSources(r *reader, n *node) {
	r.named(n, func(n *node) {
		s := Source{Name: n.key, OnPositionLost: "recount", Pos: n.pos}
		r.object(n, []field{
			optional("change_stream", s.readChangeStream),
			optional("kafka", s.readKafka),
			optional("on_position_lost", enum(&s.OnPositionLost, "recount", "stop")),
		})
		r.config.Sources = append(r.config.Sources, s)
	})
}

func (s *Source) readChangeStream(r *reader, n *node) {
	c := &ChangeStream{Partitions: 1}
	s.ChangeStream = c
	r.object(n, []field{
		required("database", text(&c.Database, wantDatabase, isDatabase)),
		required("collection", text(&c.Collection, wantCollection, isCollection)),
		optional("partitions", whole(&c.Partitions, 1, 1024)),
	})
}

func (s *Source) readKafka(r *reader, n *node) {
	k := &Kafka{Group: "driftless", Format: "event", Start: "earliest", OnError: "dead_letter", Dedupe: Dedupe{Window: 10 * time.Minute}}
	s.Kafka = k
	r.object(n, []field{
		required("brokers", texts(&k.Brokers, wantBroker, isBroker)),
		required("topic", text(&k.Topic, wantText, isText)),
		optional("group", text(&k.Group, wantText, isText)),
		optional("format", enum(&k.Format, "event", "debezium", "change_stream")),
		optional("event", object(k.Event.fields)),
		optional("start", text(&k.Start, wantStart, isStart)),
		optional("tls", object(k.TLS.fields)),
		optional("sasl", object(k.SASL.fields)),
		optional("on_error", enum(&k.OnError, "dead_letter", "stop")),
		optional("dedupe", object(k.Dedupe.fields)),
	})
}

func (e *Event) fields() []field {
	return []field{
		required("type", text(&e.Type, wantRowPath, isRowPath)),
		required("key", text(&e.Key, wantRowPath, isRowPath)),
		required("time", text(&e.Time, wantRowPath, isRowPath)),
		required("deltas", e.readDeltas),
	}
}

// readDeltas takes any text as the name of an event's type.
func (e *Event) readDeltas(r *reader, n *node) {
	if n.broken || !r.is(n, kindMapping, "a mapping of event types to whole numbers") {
		return
	}
	e.Deltas = map[string]int64{}
	for _, value := range n.keys {
		var delta int64
		whole(&delta, math.MinInt64, math.MaxInt64)(r, value)
		e.Deltas[value.key] = delta
	}
	if len(n.keys) == 0 {
		r.fault(n, "maps no event type: add at least one, such as reaction.added: 1")
	}
}

func (t *TLS) fields() []field {
	return []field{
		optional("enabled", yesNo(&t.Enabled)),
		optional("ca_file", text(&t.CAFile, wantText, isText)),
		optional("cert_file", text(&t.CertFile, wantText, isText)),
		optional("key_file", text(&t.KeyFile, wantText, isText)),
	}
}

func (s *SASL) fields() []field {
	return []field{
		optional("mechanism", enum(&s.Mechanism, "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")),
		optional("username", text(&s.Username, wantText, isText)),
		optional("password_file", text(&s.PasswordFile, wantText, isText)),
	}
}

func (d *Dedupe) fields() []field {
	return []field{
		required("field", text(&d.Field, wantRowPath, isRowPath)),
		optional("window", duration(&d.Window, smallest)),
	}
}

func (s *Source) path() string { return join("sources", s.Name) }

// checkSources judges what no single key of a source can tell.
func (r *reader) checkSources() {
	for _, s := range r.config.Sources {
		path := s.path()
		switch {
		case s.ChangeStream != nil && s.Kafka != nil:
			r.faultAt(path+".kafka", "stands beside change_stream: keep one of the two")
		case s.ChangeStream == nil && s.Kafka == nil && !r.faults.within(path):
			r.faultAt(path, "says not where its events come from: add change_stream or kafka")
		}
		if s.ChangeStream != nil {
			r.refuseOurs(path+".change_stream.database", s.ChangeStream.Database)
		}
		if s.Kafka != nil {
			r.checkKafka(path+".kafka", s.Kafka)
		}
	}
}

func (r *reader) checkKafka(path string, k *Kafka) {
	switch written := r.written(path + ".event"); {
	case k.Format == "event" && !written:
		r.faultAt(path+".event", "is missing: say which fields of an event hold its type, key and time, and map its types to deltas")
	case k.Format != "event" && written:
		r.faultAt(path+".event", "is for format event only: remove it, or set format: event")
	}
	r.allOrNone(path+".tls", "cert_file", "key_file")
	r.allOrNone(path+".sasl", "mechanism", "username", "password_file")
}

// allOrNone reports the keys that are missing beside others.
func (r *reader) allOrNone(path string, keys ...string) {
	missing := slices.Clone(keys)
	missing = slices.DeleteFunc(missing, func(key string) bool { return r.written(join(path, key)) })
	if len(missing) == len(keys) {
		return
	}
	for _, key := range missing {
		r.faultAt(join(path, key), "is missing: %s go together", strings.Join(keys, ", "))
	}
}

// refuseOurs reports a database of others that is our own.
func (r *reader) refuseOurs(path, database string) {
	// The server holds no two databases that differ in case alone.
	if state := r.config.MongoDB.StateDatabase; database != "" && strings.EqualFold(database, state) {
		r.faultAt(path, "is %s, which is mongodb.state_database: our own collections need a database of their own", database)
	}
}

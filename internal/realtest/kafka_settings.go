package realtest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// The user of the listeners with SASL: with PLAIN from the start, with SCRAM once [Kafka.SetScramPassword] was called.
const (
	KafkaUser     = "driftless"
	KafkaPassword = "secret"
)

// listener is one way into a broker.
type listener int

const (
	plainListener listener = iota
	tlsListener
	mutualListener
	saslListener
	saslTLSListener
	controllerListener
	numListeners
)

func (l listener) name() string {
	return [...]string{"PLAIN", "TLS", "MUTUAL", "SASL", "SASLTLS", "CONTROLLER"}[l]
}

func (l listener) protocol() string {
	return [...]string{"PLAINTEXT", "SSL", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "PLAINTEXT"}[l]
}

// KafkaOptions describe a broker to start. The zero value is one with every kind of listener.
type KafkaOptions struct {
	// HeapMB is the size of the Java heap in MB; 0 is 512.
	HeapMB int
	// Optimize lets Java compile as well as it can, for measurements. Without, it starts with little more than half of the CPU time.
	Optimize bool
	// Settings are further lines of server.properties, or replace some of ours.
	Settings map[string]string
}

func (o KafkaOptions) javaOptions() []string {
	list := []string{"-Xmx" + strconv.Itoa(orDefault(o.HeapMB, 512)) + "m", "-XX:+UseSerialGC"}
	if !o.Optimize {
		list = append(list, "-XX:TieredStopAtLevel=1")
	}
	return list
}

// settings are the lines of server.properties: one process that is broker and controller, quick to start, to join a group and to
// clean its logs. Whoever comes without credentials may do everything, and who has some is held to the access lists.
func (k *Kafka) settings() string {
	var listeners, advertised, protocols []string
	for l := range numListeners {
		at := l.name() + "://" + address(k.ports[l])
		listeners = append(listeners, at)
		protocols = append(protocols, l.name()+":"+l.protocol())
		if l != controllerListener {
			advertised = append(advertised, at)
		}
	}
	set := map[string]string{
		"process.roles": "broker,controller", "node.id": "1",
		"controller.quorum.voters":       "1@" + address(k.ports[controllerListener]),
		"controller.listener.names":      controllerListener.name(),
		"inter.broker.listener.name":     plainListener.name(),
		"listeners":                      strings.Join(listeners, ","),
		"advertised.listeners":           strings.Join(advertised, ","),
		"listener.security.protocol.map": strings.Join(protocols, ","),
		"log.dirs":                       k.DataDir(),

		"offsets.topic.replication.factor": "1", "offsets.topic.num.partitions": "1",
		"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1", "transaction.state.log.num.partitions": "1",
		"share.coordinator.state.topic.replication.factor": "1", "share.coordinator.state.topic.min.isr": "1",
		"group.initial.rebalance.delay.ms": "0", "group.min.session.timeout.ms": "1000",
		// After a kill the controller lets the broker in again when its session is over.
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",
		"auto.create.topics.enable": "false",
		"log.cleaner.backoff.ms":    "100", "log.retention.check.interval.ms": "500", "log.initial.task.delay.ms": "100",

		"authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
		"super.users":           "User:ANONYMOUS", "allow.everyone.if.no.acl.found": "true",

		"ssl.keystore.type": "PEM", "ssl.keystore.location": k.certificates.serverFile,
		"ssl.truststore.type": "PEM", "ssl.truststore.location": k.certificates.CAFile,
		"listener.name.mutual.ssl.client.auth": "required",

		"sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
	}
	for _, l := range []string{"sasl", "sasltls"} {
		prefix := "listener.name." + l + "."
		set[prefix+"plain.sasl.jaas.config"] = fmt.Sprintf(
			`org.apache.kafka.common.security.plain.PlainLoginModule required user_%s="%s";`, KafkaUser, KafkaPassword)
		for _, mechanism := range []string{"scram-sha-256", "scram-sha-512"} {
			set[prefix+mechanism+".sasl.jaas.config"] = `org.apache.kafka.common.security.scram.ScramLoginModule required;`
		}
	}
	maps.Copy(set, k.options.Settings)
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&b, "%s=%s\n", name, set[name])
	}
	return b.String()
}

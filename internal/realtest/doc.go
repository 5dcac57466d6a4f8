// Package realtest runs real servers for tests, the demo and the benchmarks: mongod processes that end with the process that
// started them, replica sets of several members, fail points, a Kafka with every kind of listener, and a proxy that breaks
// connections. Nothing here ships.
//
// A test asks for the smallest thing that does: [Shared] and [SharedKafka] for a server that it only reads and writes, [Private]
// and [PrivateKafka] for one that it stops, pauses or starts with other options. A package that uses a shared one has
// `func TestMain(m *testing.M) { realtest.Main(m) }`.
package realtest

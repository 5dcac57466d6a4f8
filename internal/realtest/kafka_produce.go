package realtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"
	"github.com/segmentio/kafka-go/protocol/produce"
	"github.com/segmentio/kafka-go/protocol/rawproduce"
)

// Record is what a test writes. A nil key or value is null; a zero time is now.
type Record struct {
	Key, Value []byte
	Time       time.Time
	Headers    []kafka.Header
}

// Produce writes records to a partition, as one batch, and returns when the broker has them.
func (k *Kafka) Produce(ctx context.Context, topic string, partition int32, records ...Record) error {
	return k.ProduceCompressed(ctx, 0, topic, partition, records...)
}

// ProduceCompressed is [Kafka.Produce] with a batch that is compressed.
func (k *Kafka) ProduceCompressed(ctx context.Context, codec kafka.Compression, topic string, partition int32, records ...Record) error {
	batch, err := encodeBatch(protocol.Attributes(codec), records)
	if err != nil {
		return err
	}
	return k.send(ctx, "", topic, partition, batch)
}

// encodeBatch returns a batch with its size before it, as it stands in a request.
func encodeBatch(attributes protocol.Attributes, records []Record) ([]byte, error) {
	list := make([]protocol.Record, len(records))
	for i, r := range records {
		list[i] = protocol.Record{Key: protocol.NewBytes(r.Key), Value: protocol.NewBytes(r.Value), Time: r.Time, Headers: r.Headers}
	}
	var b bytes.Buffer
	set := protocol.RecordSet{Version: 2, Attributes: attributes, Records: protocol.NewRecordReader(list...)}
	if _, err := set.WriteTo(&b); err != nil {
		return nil, fmt.Errorf("encode records: %w", err)
	}
	return b.Bytes(), nil
}

// send tries again while the broker does not know yet that it leads the partition.
func (k *Kafka) send(ctx context.Context, transaction, topic string, partition int32, batch []byte) error {
	err := k.retry(ctx, func(ctx context.Context) error {
		response, err := k.transport.RoundTrip(ctx, k.client.Addr, &rawproduce.Request{
			TransactionalID: transaction, Acks: -1, Timeout: 30_000,
			Topics: []rawproduce.RequestTopic{{Topic: topic, Partitions: []rawproduce.RequestPartition{
				{Partition: partition, RecordSet: protocol.RawRecordSet{Reader: bytes.NewReader(batch)}},
			}}},
		})
		if err != nil {
			return err
		}
		if code := response.(*produce.Response).Topics[0].Partitions[0].ErrorCode; code != 0 {
			return kafka.Error(code)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("produce: %w", err)
	}
	return nil
}

// Transaction is one that a producer has begun. kafka-go cannot write in one, so its batches are ours.
type Transaction struct {
	k        *Kafka
	id       string
	producer *kafka.ProducerSession
	written  map[string]map[int32]int32 // the next sequence number of each partition
}

// Begin starts a transaction. Another one under the same id ends it.
func (k *Kafka) Begin(ctx context.Context, id string) (*Transaction, error) {
	x := &Transaction{k: k, id: id, written: map[string]map[int32]int32{}}
	err := k.retry(ctx, func(ctx context.Context) error {
		response, err := k.client.InitProducerID(ctx, &kafka.InitProducerIDRequest{
			TransactionalID: id, TransactionTimeoutMs: 60_000, ProducerID: -1, ProducerEpoch: -1,
		})
		if err != nil {
			return err
		}
		x.producer = response.Producer
		return response.Error
	})
	if err != nil {
		return nil, fmt.Errorf("begin transaction: %w", err)
	}
	return x, nil
}

// Produce writes records to a partition, as one batch that counts only if the transaction commits.
func (x *Transaction) Produce(ctx context.Context, topic string, partition int32, records ...Record) error {
	if err := x.join(ctx, topic, partition); err != nil {
		return fmt.Errorf("add partition to transaction: %w", err)
	}
	batch, err := encodeBatch(protocol.Transactional, records)
	if err != nil {
		return err
	}
	// https://kafka.apache.org/documentation/#recordbatch, with the size of the whole before it
	binary.BigEndian.PutUint64(batch[4+43:], uint64(x.producer.ProducerID))       //nolint:gosec // bits
	binary.BigEndian.PutUint16(batch[4+51:], uint16(x.producer.ProducerEpoch))    //nolint:gosec // bits
	binary.BigEndian.PutUint32(batch[4+53:], uint32(x.written[topic][partition])) //nolint:gosec // bits
	binary.BigEndian.PutUint32(batch[4+17:], crc32.Checksum(batch[4+21:], crc32.MakeTable(crc32.Castagnoli)))
	x.written[topic][partition] += int32(len(records)) //nolint:gosec // a few
	return x.k.send(ctx, x.id, topic, partition, batch)
}

// join makes a partition part of the transaction, once.
func (x *Transaction) join(ctx context.Context, topic string, partition int32) error {
	if _, joined := x.written[topic][partition]; joined {
		return nil
	}
	err := x.k.retry(ctx, func(ctx context.Context) error {
		response, err := x.k.client.AddPartitionsToTxn(ctx, &kafka.AddPartitionsToTxnRequest{
			TransactionalID: x.id, ProducerID: x.producer.ProducerID, ProducerEpoch: x.producer.ProducerEpoch,
			Topics: map[string][]kafka.AddPartitionToTxn{topic: {{Partition: int(partition)}}},
		})
		if err != nil {
			return err
		}
		return response.Topics[topic][0].Error
	})
	if err == nil {
		if x.written[topic] == nil {
			x.written[topic] = map[int32]int32{}
		}
		x.written[topic][partition] = 0
	}
	return err
}

// Commit ends the transaction: what it has written counts.
func (x *Transaction) Commit(ctx context.Context) error { return x.end(ctx, true) }

// Abort ends the transaction: what it has written does not count.
func (x *Transaction) Abort(ctx context.Context) error { return x.end(ctx, false) }

func (x *Transaction) end(ctx context.Context, commit bool) error {
	err := x.k.retry(ctx, func(ctx context.Context) error {
		response, err := x.k.client.EndTxn(ctx, &kafka.EndTxnRequest{
			TransactionalID: x.id, ProducerID: x.producer.ProducerID, ProducerEpoch: x.producer.ProducerEpoch, Committed: commit,
		})
		if err != nil {
			return err
		}
		return response.Error
	})
	if err != nil {
		return fmt.Errorf("end transaction: %w", err)
	}
	return nil
}

// retry tries again while the coordinator or leader is not there yet, or is still busy with the transaction before. None of it has
// had an effect then.
func (k *Kafka) retry(ctx context.Context, try func(context.Context) error) error {
	return poll(ctx, func(ctx context.Context) (bool, error) {
		err := try(ctx)
		for _, again := range []kafka.Error{
			kafka.GroupCoordinatorNotAvailable, kafka.GroupLoadInProgress, kafka.NotCoordinatorForGroup, kafka.ConcurrentTransactions,
			kafka.BrokerNotAvailable, kafka.NotLeaderForPartition,
		} {
			if errors.Is(err, again) {
				return false, nil
			}
		}
		return err == nil, err
	})
}

import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.mongodb.client.MongoClients;
import com.mongodb.client.MongoCollection;
import com.mongodb.client.model.BulkWriteOptions;
import com.mongodb.client.model.Filters;
import com.mongodb.client.model.ReplaceOneModel;
import com.mongodb.client.model.ReplaceOptions;
import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.common.utils.Bytes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.processor.PunctuationType;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.bson.Document;

/**
 * Counts the events of a topic per key with Kafka Streams and keeps the counts in MongoDB by bulk upserts, as one would without
 * driftless. The record cache leaves one update per key and commit. What of them is not a full bulk is written within 50 ms, which
 * may be after the commit: a crash between the two would lose it, and to wait would only be slower. The settings are in
 * bench/streams.go.
 *
 * Arguments: topic, MongoDB URI, database, collection, how many events there are, their sum; then settings of Kafka Streams as
 * name=value. It prints "running" when it has its partitions, "done" when all events are counted and their sum is in MongoDB,
 * and ends with its standard input.
 */
public final class Counts {
    private static final int BULK = 5000;
    private static final JsonFactory JSON = new JsonFactory();
    private static final LongAdder counted = new LongAdder();
    private static final AtomicLong written = new AtomicLong();

    public static void main(String[] args) throws InterruptedException {
        long events = Long.parseLong(args[4]), sum = Long.parseLong(args[5]);
        Properties settings = new Properties();
        Arrays.stream(args).skip(6).map(a -> a.split("=", 2)).forEach(a -> settings.put(a[0], a[1]));
        MongoCollection<Document> target = MongoClients.create(args[1]).getDatabase(args[2]).getCollection(args[3]);
        KafkaStreams streams = new KafkaStreams(topology(args[0], target), settings);
        streams.setStateListener((now, before) -> {
            if (now == KafkaStreams.State.RUNNING) {
                System.out.println("running");
            }
        });
        streams.start();
        new Thread(Counts::endWithInput).start();
        while (counted.sum() < events || written.get() != sum) {
            Thread.sleep(5);
        }
        System.out.println("done");
    }

    private static void endWithInput() {
        try {
            while (System.in.read() >= 0) { }
        } catch (IOException e) {
            // as good as its end
        }
        Runtime.getRuntime().halt(0);
    }

    private static Topology topology(String topic, MongoCollection<Document> target) {
        Deserializer<Integer> delta = (name, event) -> deltaOf(event);
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(topic, Consumed.with(Serdes.String(), Serdes.serdeFrom(Serdes.Integer().serializer(), delta)))
            .groupByKey(Grouped.with(Serdes.String(), Serdes.Integer()))
            .aggregate(() -> 0L, (key, by, sum) -> {
                counted.increment();
                return sum + by;
            }, Materialized.<String, Long, KeyValueStore<Bytes, byte[]>>as("counts").withKeySerde(Serdes.String()).withValueSerde(Serdes.Long()))
            .toStream()
            .process(() -> new Upserts(target));
        return builder.build();
    }

    private static int deltaOf(byte[] event) {
        try (JsonParser p = JSON.createParser(event)) {
            p.nextToken();
            while (p.nextToken() == JsonToken.FIELD_NAME) {
                boolean type = p.currentName().equals("type");
                p.nextToken();
                if (type) {
                    return p.getText().equals("comment.added") ? 1 : -1;
                }
                p.skipChildren();
            }
            throw new IllegalArgumentException("event without a type");
        } catch (IOException e) {
            throw new IllegalArgumentException(e);
        }
    }

    /** Writes the latest count of each key, many at a time. */
    private static final class Upserts implements Processor<String, Long, Void, Void> {
        private final MongoCollection<Document> target;
        private final Map<String, Long> latest = new HashMap<>();
        private final Map<String, Long> before = new HashMap<>();

        Upserts(MongoCollection<Document> target) { this.target = target; }

        @Override
        public void init(ProcessorContext<Void, Void> context) {
            context.schedule(Duration.ofMillis(50), PunctuationType.WALL_CLOCK_TIME, now -> write());
        }

        @Override
        public void process(Record<String, Long> count) {
            latest.put(count.key(), count.value());
            if (latest.size() >= BULK) {
                write();
            }
        }

        @Override
        public void close() { write(); }

        private void write() {
            if (latest.isEmpty()) {
                return;
            }
            List<ReplaceOneModel<Document>> models = new ArrayList<>(latest.size());
            long moved = 0;
            for (Map.Entry<String, Long> e : latest.entrySet()) {
                long key = Long.parseLong(e.getKey());
                models.add(new ReplaceOneModel<>(Filters.eq(key), new Document("_id", key).append("n", e.getValue()), new ReplaceOptions().upsert(true)));
                Long last = before.put(e.getKey(), e.getValue());
                moved += e.getValue() - (last == null ? 0 : last);
            }
            target.bulkWrite(models, new BulkWriteOptions().ordered(false));
            written.addAndGet(moved);
            latest.clear();
        }
    }
}

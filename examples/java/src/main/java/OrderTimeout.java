import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Orders that are not paid in time are closed: the official RocketMQ client for Java, unchanged. */
public final class OrderTimeout {
    private static final String TOPIC = "order-timeouts";
    // So that a broker that is used again does not mix up two runs.
    private static final String RUN = "java-" + ProcessHandle.current().pid();
    private static final int ORDERS = 10;
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    public static void main(String[] arguments) throws Exception {
        String endpoint = System.getenv().getOrDefault("TIDEMILL_ENDPOINT", "127.0.0.1:8081");
        // This client uses TLS unless it is turned off.
        ClientConfiguration configuration =
            ClientConfiguration.newBuilder().setEndpoints(endpoint).enableSsl(false).build();

        List<String> expected = new ArrayList<>();
        Map<String, Long> closed = new TreeMap<>();
        boolean isOnce;
        try (Producer producer =
                 PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(TOPIC).build();
             SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                 .setClientConfiguration(configuration)
                 .setConsumerGroup("order-closer")
                 .setSubscriptionExpressions(Collections.singletonMap(TOPIC, FilterExpression.SUB_ALL))
                 .setAwaitDuration(Duration.ofSeconds(5))
                 .build()) {
            List<String> handles = new ArrayList<>();
            for (int number = 0; number < ORDERS; number++) {
                handles.add(place(producer, number));
            }
            for (int number = 0; number < ORDERS; number++) {
                if (number % 3 == 0) {
                    producer.recallMessage(TOPIC, handles.get(number)); // throws if it was closed already
                    System.out.printf("order %d: paid, its time-out is recalled%n", number);
                } else {
                    expected.add(RUN + "-" + number);
                }
            }
            isOnce = closeUnpaid(consumer, expected.size(), closed);
        }

        boolean isNeverEarly = closed.values().stream().allMatch(lateMs -> lateMs >= 0);
        boolean holds = isOnce && isNeverEarly && new ArrayList<>(closed.keySet()).equals(expected);
        System.out.println(holds ? "everything held" : "expected " + expected + ", got " + closed);
        System.exit(holds ? 0 : 1);
    }

    /** Sends the time-out of an order; what comes back is what a payment needs. */
    private static String place(Producer producer, int number) throws Exception {
        return producer.send(PROVIDER.newMessageBuilder()
            .setTopic(TOPIC)
            .setKeys(RUN + "-" + number)
            .setBody(("close order " + number).getBytes(StandardCharsets.UTF_8))
            .setDeliveryTimestamp(System.currentTimeMillis() + 2000 + 370L * (number % 4))
            .build()).getRecallHandle();
    }

    /** Receives what falls due: the key of each order and how late it was released. */
    private static boolean closeUnpaid(SimpleConsumer consumer, int count, Map<String, Long> closed) throws Exception {
        boolean isOnce = true;
        long giveUp = System.currentTimeMillis() + 30_000;
        while (closed.size() < count && System.currentTimeMillis() < giveUp) {
            for (MessageView message : consumer.receive(32, Duration.ofSeconds(30))) {
                consumer.ack(message);
                String key = message.getKeys().iterator().next();
                if (!key.startsWith(RUN)) {
                    continue;
                }
                // Both times are the broker's, so they can be compared on any machine.
                Map<String, String> properties = message.getProperties();
                long lateMs = Long.parseLong(properties.get("__released_at")) - Long.parseLong(properties.get("__due_at"));
                isOnce &= closed.put(key, lateMs) == null;
                System.out.printf("%s: not paid, %d ms after its time%n",
                    StandardCharsets.UTF_8.decode(message.getBody()), lateMs);
            }
        }
        return isOnce;
    }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * The official Java client behind a pipe: one request a line in, one answer a line out, so that a test in
 * Python can drive it. See official_client.py for the form of the lines. The client itself is untouched.
 */
public final class Driver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, Producer> PRODUCERS = new ConcurrentHashMap<>();
    private static final Map<String, SimpleConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final Map<String, AutoCloseable> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, MessageView> HELD = new ConcurrentHashMap<>(); // by receipt
    private static final Map<String, Transaction> TRANSACTIONS = new ConcurrentHashMap<>(); // by message id

    public static void main(String[] arguments) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null; ) {
            String[] parts = line.split("\t", -1);
            threads.execute(() -> answer(parts[0], parts[1], decode(parts[2])));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(String id, String operation, Map<String, String> request) {
        try {
            List<String> records = perform(operation, request);
            say("ok\t" + id + "\t" + String.join("\t", records));
        } catch (Throwable error) {
            say("error\t" + id + "\t" + encode(Map.of("text", String.valueOf(error))));
        }
    }

    private static List<String> perform(String operation, Map<String, String> request) throws Exception {
        String name = request.get("name");
        switch (operation) {
            case "producer":
                openProducer(name, request);
                return List.of();
            case "simple":
                SimpleConsumer consumer = PROVIDER.newSimpleConsumerBuilder()
                    .setClientConfiguration(configuration(request))
                    .setConsumerGroup(request.get("group"))
                    .setSubscriptionExpressions(subscription(request, request.get("tags")))
                    .setAwaitDuration(milliseconds(request.get("await_ms")))
                    .build();
                CONSUMERS.put(name, consumer);
                CLIENTS.put(name, consumer);
                return List.of();
            case "push":
                openPush(name, request);
                return List.of();
            case "send":
                return List.of(send(PRODUCERS.get(name), request));
            case "commit":
                TRANSACTIONS.get(request.get("message_id")).commit();
                return List.of();
            case "roll_back":
                TRANSACTIONS.get(request.get("message_id")).rollback();
                return List.of();
            case "recall":
                String recalled = PRODUCERS.get(name)
                    .recallMessage(request.get("topic"), request.get("handle")).getMessageId().toString();
                return List.of(encode(Map.of("message_id", recalled)));
            case "receive":
                return CONSUMERS.get(name)
                    .receive(Integer.parseInt(request.get("count")), milliseconds(request.get("invisible_ms")))
                    .stream().map(Driver::held).collect(Collectors.toList());
            case "ack":
                CONSUMERS.get(name).ack(HELD.get(request.get("receipt")));
                return List.of();
            case "retry_in":
                CONSUMERS.get(name)
                    .changeInvisibleDuration(HELD.get(request.get("receipt")), milliseconds(request.get("delay_ms")));
                return List.of();
            case "close":
                CLIENTS.get(name).close();
                return List.of();
            default:
                throw new IllegalArgumentException(operation);
        }
    }

    private static void openProducer(String name, Map<String, String> request) throws Exception {
        ProducerBuilder builder = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(request))
            .setTopics(request.get("topic"));
        if (!request.get("checker").isEmpty()) {
            builder.setTransactionChecker(message -> TransactionResolution.valueOf(request.get("checker")));
        }
        Producer producer = builder.build();
        PRODUCERS.put(name, producer);
        CLIENTS.put(name, producer);
    }

    private static void openPush(String name, Map<String, String> request) throws Exception {
        Map<String, Integer> seen = new ConcurrentHashMap<>();
        int failures = Integer.parseInt(request.get("failures"));
        CLIENTS.put(name, PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration(request))
            .setConsumerGroup(request.get("group"))
            .setSubscriptionExpressions(subscription(request, "*"))
            .setMessageListener(message -> {
                String body = StandardCharsets.UTF_8.decode(message.getBody()).toString();
                int times = seen.merge(body, 1, Integer::sum);
                say("event\t" + name + "\t" + record(message));
                return body.startsWith("fail") && times <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
    }

    private static String send(Producer producer, Map<String, String> request) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder()
            .setTopic(request.get("topic"))
            .setBody(request.get("body").getBytes(StandardCharsets.UTF_8));
        request.forEach((field, value) -> {
            switch (field) {
                case "tag" -> builder.setTag(value);
                case "key" -> builder.setKeys(value);
                case "message_group" -> builder.setMessageGroup(value);
                case "deliver_at_ms" -> builder.setDeliveryTimestamp(Long.parseLong(value));
                default -> {
                    if (field.startsWith("p.")) {
                        builder.addProperty(field.substring(2), value);
                    }
                }
            }
        });
        SendReceipt receipt;
        if (request.containsKey("in_transaction")) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(builder.build(), transaction);
            TRANSACTIONS.put(receipt.getMessageId().toString(), transaction);
        } else {
            receipt = producer.send(builder.build());
        }
        String handle = receipt.getRecallHandle() == null ? "" : receipt.getRecallHandle();
        return encode(Map.of("message_id", receipt.getMessageId().toString(), "handle", handle));
    }

    // -- words ----------------------------------------------------------------------------------------

    private static ClientConfiguration configuration(Map<String, String> request) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(request.get("endpoint"))
            .setNamespace(request.getOrDefault("namespace", ""))
            .enableSsl(request.containsKey("tls"));
        if (request.containsKey("access_key")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(request.get("access_key"), request.get("secret_key")));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscription(Map<String, String> request, String tags) {
        return Collections.singletonMap(request.get("topic"), new FilterExpression(tags, FilterExpressionType.TAG));
    }

    private static Duration milliseconds(String text) {
        return Duration.ofMillis(Long.parseLong(text));
    }

    /** A message with a receipt of our own: the client keeps its receipt to itself. */
    private static String held(MessageView message) {
        String receipt = message.getMessageId() + "#" + message.getDeliveryAttempt();
        HELD.put(receipt, message);
        return record(message);
    }

    private static String record(MessageView message) {
        Map<String, String> fields = new HashMap<>();
        fields.put("message_id", message.getMessageId().toString());
        fields.put("body", StandardCharsets.UTF_8.decode(message.getBody()).toString());
        fields.put("tag", message.getTag().orElse(""));
        fields.put("keys", String.join(" ", message.getKeys()));
        fields.put("message_group", message.getMessageGroup().orElse(""));
        fields.put("attempt", String.valueOf(message.getDeliveryAttempt()));
        fields.put("is_corrupted", ""); // the client gives such messages to nobody
        fields.put("receipt", message.getMessageId() + "#" + message.getDeliveryAttempt());
        fields.put("at_ms", String.valueOf(System.currentTimeMillis()));
        message.getProperties().forEach((name, value) -> fields.put("p." + name, value));
        return encode(fields);
    }

    private static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String encode(Map<String, String> fields) {
        return fields.entrySet().stream()
            .map(field -> URLEncoder.encode(field.getKey(), StandardCharsets.UTF_8) + "="
                + URLEncoder.encode(field.getValue(), StandardCharsets.UTF_8))
            .collect(Collectors.joining("&"));
    }

    private static Map<String, String> decode(String text) {
        return Arrays.stream(text.split("&")).filter(pair -> !pair.isEmpty()).map(pair -> pair.split("=", 2))
            .collect(Collectors.toMap(
                pair -> URLDecoder.decode(pair[0], StandardCharsets.UTF_8),
                pair -> URLDecoder.decode(pair[1], StandardCharsets.UTF_8)));
    }
}

// The official Node client behind a pipe: one request a line in, one answer a line out, so that a test in
// Python can drive it. See official_client.py for the form of the lines. The client itself is untouched.
'use strict';

const readline = require('node:readline');
const { Producer, SimpleConsumer, PushConsumer, ConsumeResult } = require('rocketmq-client-nodejs');
const { TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const quiet = { info() {}, debug() {}, warn() {}, error() {} };
const clients = new Map();
const held = new Map(); // messages by receipt
const transactions = new Map(); // by message id

const say = (...fields) => process.stdout.write(fields.join('\t') + '\n');
const encode = fields => new URLSearchParams(fields).toString();

function fieldsOf(message) {
  const fields = {
    message_id: message.messageId,
    body: message.body.toString(),
    tag: message.tag ?? '',
    keys: message.keys.join(' '),
    message_group: message.messageGroup ?? '',
    attempt: String(message.deliveryAttempt),
    is_corrupted: String(message.corrupted),
    receipt: message.receiptHandle,
    at_ms: String(Date.now()),
  };
  for (const [name, value] of message.properties) fields[`p.${name}`] = value;
  return encode(fields);
}

const options = request => ({
  endpoints: request.endpoint,
  namespace: request.namespace ?? '',
  logger: quiet,
  sslEnabled: request.tls === 'yes',
  ...(request.access_key
    ? { sessionCredentials: { accessKey: request.access_key, accessSecret: request.secret_key } }
    : {}),
});

const operations = {
  async producer(request) {
    const checker = { async check() { return TransactionResolution[request.checker]; } };
    const producer = new Producer({
      ...options(request),
      topic: request.topic,
      ...(request.checker ? { checker } : {}),
    });
    await producer.startup();
    clients.set(request.name, producer);
  },

  async simple(request) {
    const consumer = new SimpleConsumer({
      ...options(request),
      consumerGroup: request.group,
      subscriptions: new Map([[request.topic, request.tags]]),
      awaitDuration: Number(request.await_ms),
    });
    await consumer.startup();
    clients.set(request.name, consumer);
  },

  async push(request) {
    const seen = new Map();
    const consumer = new PushConsumer({
      ...options(request),
      consumerGroup: request.group,
      subscriptions: new Map([[request.topic, '*']]),
      messageListener: {
        consume(message) {
          const body = message.body.toString();
          const times = (seen.get(body) ?? 0) + 1;
          seen.set(body, times);
          const fails = body.startsWith('fail') && times <= Number(request.failures);
          say('event', request.name, fieldsOf(message));
          return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        },
      },
    });
    await consumer.startup();
    clients.set(request.name, consumer);
  },

  async send(request) {
    const producer = clients.get(request.name);
    const message = { topic: request.topic, body: Buffer.from(request.body) };
    if (request.tag) message.tag = request.tag;
    if (request.key) message.keys = [request.key];
    if (request.message_group) message.messageGroup = request.message_group;
    if (request.deliver_at_ms) message.deliveryTimestamp = new Date(Number(request.deliver_at_ms));
    const properties = Object.entries(request).filter(([name]) => name.startsWith('p.'));
    if (properties.length) message.properties = new Map(properties.map(([name, value]) => [name.slice(2), value]));
    const transaction = request.in_transaction ? producer.beginTransaction() : undefined;
    const receipt = await producer.send(message, transaction);
    if (transaction) transactions.set(receipt.messageId, transaction);
    return [encode({ message_id: receipt.messageId, handle: receipt.recallHandle ?? '' })];
  },

  async commit(request) {
    await transactions.get(request.message_id).commit();
  },

  async roll_back(request) {
    await transactions.get(request.message_id).rollback();
  },

  async recall(request) {
    const receipt = await clients.get(request.name).recallMessage(request.topic, request.handle);
    return [encode({ message_id: receipt.messageId })];
  },

  async receive(request) {
    const messages = await clients.get(request.name).receive(Number(request.count), Number(request.invisible_ms));
    for (const message of messages) held.set(message.receiptHandle, message);
    return messages.map(fieldsOf);
  },

  async ack(request) {
    await clients.get(request.name).ack(held.get(request.receipt));
  },

  async retry_in(request) {
    await clients.get(request.name).changeInvisibleDuration(held.get(request.receipt), Number(request.delay_ms));
  },

  async close(request) {
    await clients.get(request.name).shutdown();
  },
};

async function answer(line) {
  const [id, operation, text] = line.split('\t');
  try {
    say('ok', id, ...(await operations[operation](Object.fromEntries(new URLSearchParams(text))) ?? []));
  } catch (error) {
    say('error', id, encode({ text: String(error.message ?? error) }));
  }
}

process.on('unhandledRejection', () => {}); // the client logs and goes on; so do we
readline.createInterface({ input: process.stdin }).on('line', answer).on('close', () => process.exit(0));

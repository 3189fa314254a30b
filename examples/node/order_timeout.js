// Orders that are not paid in time are closed: the official RocketMQ client for Node, unchanged.
'use strict';

const { Producer, SimpleConsumer } = require('rocketmq-client-nodejs');

const endpoints = process.env.TIDEMILL_ENDPOINT ?? '127.0.0.1:8081';
const topic = 'order-timeouts';
const run = `node-${process.pid}`; // so that a broker that is used again does not mix up two runs
const orders = 10;
const quiet = { info() {}, debug() {}, warn: console.warn, error: console.error };
const options = { endpoints, namespace: '', logger: quiet };

// Send the time-out of an order; what comes back is what a payment needs.
async function place(producer, number) {
  const receipt = await producer.send({
    topic,
    keys: [`${run}-${number}`],
    body: Buffer.from(`close order ${number}`),
    delay: 2000 + 370 * (number % 4), // or deliveryTimestamp: a Date
  });
  return receipt.recallHandle;
}

// Receive what falls due: the key of each order and how late it was released.
async function closeUnpaid(consumer, expected) {
  const closed = [];
  const giveUp = Date.now() + 30_000;
  while (closed.length < expected && Date.now() < giveUp) {
    for (const message of await consumer.receive(32, 30_000)) {
      await consumer.ack(message);
      const [key] = message.keys;
      if (!key?.startsWith(run)) continue;
      // Both times are the broker's, so they can be compared on any machine.
      const lateMs = message.properties.get('__released_at') - message.properties.get('__due_at');
      closed.push({ key, lateMs });
      console.log(`${message.body}: not paid, ${lateMs} ms after its time`);
    }
  }
  return closed;
}

async function main() {
  const producer = new Producer({ ...options, topic });
  const consumer = new SimpleConsumer({
    ...options,
    consumerGroup: 'order-closer',
    subscriptions: new Map([[topic, '*']]),
    awaitDuration: 5000,
  });
  await producer.startup();
  await consumer.startup();

  const numbers = [...Array(orders).keys()];
  const handles = [];
  for (const number of numbers) handles.push(await place(producer, number));
  const paid = numbers.filter(number => number % 3 === 0);
  for (const number of paid) {
    await producer.recallMessage(topic, handles[number]); // throws if it was closed already
    console.log(`order ${number}: paid, its time-out is recalled`);
  }
  const closed = await closeUnpaid(consumer, orders - paid.length);
  await consumer.shutdown();
  await producer.shutdown();

  const expected = numbers.filter(number => !paid.includes(number)).map(number => `${run}-${number}`);
  const keys = closed.map(({ key }) => key).sort();
  const holds = keys.join() === expected.sort().join() && closed.every(({ lateMs }) => lateMs >= 0);
  console.log(holds ? 'everything held' : `expected ${expected}, got ${JSON.stringify(closed)}`);
  return holds ? 0 : 1;
}

main().then(code => process.exit(code), error => { console.error(error); process.exit(1); });

// Produces COUNT records with acks=all, consumes as many, and prints how many different ones it got:
//   node client.mjs CLIENT ADDRESS NAME TOPIC GROUP COUNT
import { createRequire } from 'node:module'
const require = createRequire(process.env.NODE_MODULES + '/x.js')
const [client, address, name, topic, groupId, text] = process.argv.slice(2)
const count = Number(text)
const BATCH = 1000
const values = start => Array.from({ length: Math.min(BATCH, count - start) }, (_, k) => String(start + k))
const got = new Set()
let stop
const stopped = new Promise(resolve => { stop = resolve })

function take(value) {
  got.add(value)
  if (got.size === count) stop()
}

async function kafkajs() {
  const { Kafka, logLevel } = require('kafkajs')
  const kafka = new Kafka({ clientId: name, brokers: [address], logLevel: logLevel.ERROR })
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  for (let at = 0; at < count; at += BATCH) {
    await producer.send({ topic, acks: -1, messages: values(at).map(value => ({ value })) })
  }
  await producer.disconnect()
  const consumer = kafka.consumer({ groupId, sessionTimeout: 6000, heartbeatInterval: 500 })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({ eachMessage: async ({ message }) => take(message.value.toString()) })
  await stopped
  await consumer.disconnect()
}

async function platformatic() {
  const { Producer, Consumer, stringSerializers, stringDeserializers } = require('@platformatic/kafka')
  const bootstrapBrokers = [address]
  const producer = new Producer({ clientId: name, bootstrapBrokers, serializers: stringSerializers })
  for (let at = 0; at < count; at += BATCH) {
    await producer.send({ acks: -1, messages: values(at).map(value => ({ topic, key: value, value })) })
  }
  await producer.close()
  const consumer = new Consumer({
    groupId, clientId: name, bootstrapBrokers, deserializers: stringDeserializers,
    sessionTimeout: 6000, heartbeatInterval: 500, rebalanceTimeout: 30000, maxWaitTime: 500
  })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: true })
  stream.on('data', message => take(message.value))
  await stopped
  await stream.close()
  await consumer.close(true)
}

await { kafkajs, platformatic }[client]()
console.log(got.size)

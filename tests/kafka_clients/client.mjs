// The clients of npm as processes, as client.py has it:
//   node client.mjs CLIENT ADDRESS NAME TOPIC OPTIONS
import { createRequire } from 'node:module'
const require = createRequire(process.env.NODE_MODULES + '/x.js')
const [client, address, name, topic, text] = process.argv.slice(2)
const options = JSON.parse(text)
const BATCH = 1000
const stopped = new Promise(resolve => process.on('SIGTERM', resolve))

function* batches() {
  for (let at = 0; at < options.produce; at += BATCH) {
    yield Array.from({ length: Math.min(BATCH, options.produce - at) }, (_, k) => String(at + k))
  }
}

async function kafkajs() {
  const { Kafka, PartitionAssigners, logLevel } = require('kafkajs')
  const kafka = new Kafka({ clientId: name, brokers: [address], logLevel: logLevel.ERROR })
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  for (const values of batches()) {
    await producer.send({ topic, acks: -1, messages: values.map(value => ({ value })) })
  }
  await producer.disconnect()
  const consumer = kafka.consumer({
    groupId: options.group,
    sessionTimeout: options.session_ms,
    heartbeatInterval: 500,
    maxWaitTimeInMs: options.max_wait_ms,
    minBytes: options.min_bytes,
    // Its own, under the name that the other clients have for it.
    partitionAssigners: [cluster => ({ ...PartitionAssigners.roundRobin(cluster), name: options.strategy })]
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [topic], fromBeginning: true })
  await consumer.run({
    autoCommit: false,
    eachBatch: async ({ batch, resolveOffset, uncommittedOffsets, commitOffsetsIfNecessary }) => {
      for (const message of batch.messages) resolveOffset(message.offset)
      await commitOffsetsIfNecessary(uncommittedOffsets())
      process.stdout.write(batch.messages.map(message => message.value + '\n').join(''))
    }
  })
  await stopped
  await consumer.disconnect()
}

async function platformatic() {
  const { Producer, Consumer, stringSerializers, stringDeserializers } = require('@platformatic/kafka')
  const bootstrapBrokers = [address]
  const producer = new Producer({ clientId: name, bootstrapBrokers, serializers: stringSerializers, idempotent: true })
  for (const values of batches()) {
    await producer.send({ acks: -1, messages: values.map(value => ({ topic, key: value, value })) })
  }
  await producer.close()
  const consumer = new Consumer({
    groupId: options.group,
    clientId: name,
    bootstrapBrokers,
    deserializers: stringDeserializers,
    sessionTimeout: options.session_ms,
    rebalanceTimeout: 30000 + options.session_ms,
    heartbeatInterval: 500,
    maxWaitTime: options.max_wait_ms,
    minBytes: options.min_bytes,
    protocols: [{ name: options.strategy, version: 1 }],
    ...(options.instance && { groupInstanceId: options.instance })
  })
  const stream = await consumer.consume({ topics: [topic], mode: 'committed', fallbackMode: 'earliest', autocommit: true })
  stream.on('data', message => process.stdout.write(message.value + '\n'))
  await stopped
  await stream.close()
  await consumer.close(true)
}

await { kafkajs, platformatic }[client]()

// Drives the server that runs on QSTASH_DEV_PORT with the official client, and verifies what arrives with the official
// receiver. The client finds the server by its own probe: nothing here names a token or a key.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import { once } from "node:events";
import { createRequire } from "node:module";

const require = createRequire(`${process.env.PEER_MODULES}/`);
const { Client, Receiver } = require("@upstash/qstash");

const client = new Client({ devMode: true });
const receiver = new Receiver({ devMode: true });
const base = `http://127.0.0.1:${process.env.QSTASH_DEV_PORT}`;

const arrived = [];
let status = 200;
const waiting = [];
const hook = createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString();
  const url = `${origin}${request.url}`;
  const genuine = await receiver.verify({ signature: request.headers["upstash-signature"], body, url });
  const seen = { path: request.url, headers: request.headers, body, genuine };
  response.writeHead(status).end("done");
  const taker = waiting.shift();
  taker ? taker(seen) : arrived.push(seen);
});
hook.listen(0, "127.0.0.1");
await once(hook, "listening");
const origin = `http://127.0.0.1:${hook.address().port}`;

const next = () => (arrived.length ? arrived.shift() : new Promise((resolve) => waiting.push(resolve)));
const travel = async (by) => {
  const answer = await fetch(`${base}/time-travel`, {
    method: "POST",
    headers: { authorization: `Bearer ${process.env.PEER_TOKEN}` },
    body: JSON.stringify({ by }),
  });
  assert.equal(answer.status, 200);
};
// An outcome is written a moment after the destination answered.
const until = async (look) => {
  for (;;) {
    const found = await look();
    if (found) return found;
    await new Promise((resolve) => setImmediate(resolve));
  }
};

const steps = {
  async publish() {
    const { messageId } = await client.publishJSON({ url: `${origin}/now`, body: { é: 1 }, headers: { "x-a": "b" } });
    const seen = await next();
    assert.deepEqual(JSON.parse(seen.body), { é: 1 });
    assert.equal(seen.genuine, true);
    assert.equal(seen.headers["upstash-message-id"], messageId);
    assert.equal(seen.headers["x-a"], "b");
  },
  async delay() {
    const { messageId } = await client.publish({ url: `${origin}/late`, body: "x", delay: "1h" });
    const message = await client.messages.get(messageId);
    assert.equal(message.notBefore - message.createdAt, 3_600_000);
    await travel("1h");
    assert.equal((await next()).path, "/late");
  },
  async dedup() {
    const order = { url: `${origin}/once`, body: "x", deduplicationId: "once" };
    const first = await client.publish(order);
    const second = await client.publish(order);
    assert.deepEqual([second.messageId, second.deduplicated], [first.messageId, true]);
    assert.equal((await next()).path, "/once");
  },
  async batch() {
    const answers = await client.batchJSON([
      { url: `${origin}/b1`, body: 1 },
      { url: `${origin}/b2`, body: 2, queueName: "line" },
    ]);
    assert.equal(answers.length, 2);
    const paths = [(await next()).path, (await next()).path];
    assert.deepEqual(paths.sort(), ["/b1", "/b2"]);
  },
  async queue() {
    const queue = client.queue({ queueName: "line" });
    await queue.upsert({ parallelism: 1 });
    await queue.pause();
    await queue.enqueueJSON({ url: `${origin}/q1`, body: 1 });
    await queue.enqueueJSON({ url: `${origin}/q2`, body: 2 });
    assert.equal((await queue.get()).lag, 2);
    await queue.resume();
    assert.deepEqual([(await next()).path, (await next()).path], ["/q1", "/q2"]);
    await until(async () => (await queue.get()).lag === 0);
    await queue.delete();
  },
  async dlq() {
    status = 500;
    await client.publish({ url: `${origin}/dead`, body: "x", retries: 0, label: "peer" });
    await next();
    const [letter] = await until(async () => {
      const { messages } = await client.dlq.listMessages({ filter: { label: "peer" } });
      return messages.length && messages;
    });
    assert.deepEqual([letter.responseStatus, letter.responseBody], [500, "done"]);
    status = 200;
    const { responses } = await client.dlq.retry(letter.dlqId);
    const again = await next();
    assert.equal(again.headers["upstash-message-id"], responses[0].messageId);
    assert.equal((await client.dlq.listMessages({})).messages.length, 0);
    status = 489;
    await client.publish({ url: `${origin}/dead`, retries: 0 });
    await next();
    status = 200;
    const dead = await until(async () => (await client.dlq.listMessages({})).messages[0]);
    assert.deepEqual(await client.dlq.delete(dead.dlqId), { deleted: 1 });
  },
  async schedules() {
    const { scheduleId } = await client.schedules.create({ destination: `${origin}/tick`, cron: "* * * * *", body: "t" });
    await client.schedules.pause({ schedule: scheduleId });
    assert.equal((await client.schedules.get(scheduleId)).isPaused, true);
    await client.schedules.resume({ schedule: scheduleId });
    await travel("1m");
    const seen = await next();
    assert.deepEqual([seen.path, seen.headers["upstash-schedule-id"]], ["/tick", scheduleId]);
    assert.deepEqual((await client.schedules.list()).map((each) => each.scheduleId), [scheduleId]);
    await client.schedules.delete(scheduleId);
  },
  async cancel() {
    const ids = [];
    for (let n = 0; n < 4; n++) ids.push((await client.publish({ url: `${origin}/never`, delay: "1d" })).messageId);
    assert.equal((await client.messages.cancel(ids[0])).cancelled, 1);
    assert.equal((await client.messages.cancel([ids[1], ids[2]])).cancelled, 2);
    assert.equal((await client.messages.cancel({ all: true })).cancelled, 1);
    await assert.rejects(client.messages.get(ids[3]), /not found/);
  },
  async logs() {
    const { messageId } = await client.publish({ url: `${origin}/told`, body: "x" });
    await next();
    const logs = await until(async () => {
      const found = (await client.logs({ filter: { messageId } })).logs;
      return found.length === 3 && found;
    });
    assert.deepEqual(logs.map((entry) => entry.state), ["DELIVERED", "ACTIVE", "CREATED"]);
  },
  async errors() {
    await assert.rejects(client.publish({ url: "example.com" }), /invalid scheme, add http/);
    await assert.rejects(client.publish({ url: origin, deduplicationId: "a:b" }), /cannot contain ':'/);
  },
};

for (const [name, step] of Object.entries(steps)) {
  await step();
  console.log(name);
}
hook.close();
hook.closeAllConnections();

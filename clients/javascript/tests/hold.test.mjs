import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { SessionLost, hold } from "../tenure.js";
import { Service, manualClock } from "./service.mjs";

const URL = "http://tenure.test/a/b";
let clock;

beforeEach(() => {
  clock = manualClock();
});
afterEach(() => {
  clock.restore();
});

async function held(service, options = {}) {
  const session = await settled(
    hold({ sessionId: service.session().sessionId, token: "tns_token", url: URL, fetch: service.fetch, ...options }),
  );
  const events = [];
  for (const name of ["renewed", "expiring", "lost"]) {
    session.addEventListener(name, (event) => events.push([name, event.detail?.reason].filter(Boolean).join(" ")));
  }
  return { session, events };
}

async function settled(promise) {
  await clock.advance(0);
  return promise;
}

test("heartbeats are sent at the interval of the service, with the token, below the prefix", async () => {
  const service = new Service(clock);
  const { session, events } = await held(service);
  service.requests.length = 0;
  await clock.advance(60_000);
  assert.equal(service.requests.length, 12);
  assert.ok(service.requests.every(({ path }) => path.startsWith("/a/b/sessions/")));
  assert.ok(service.requests.every(({ headers }) => headers.authorization === "Bearer tns_token"));
  assert.deepEqual(new Set(events), new Set(["renewed"]));
  assert.equal(session.isHeld, true);
  assert.ok(Math.abs(session.serverTime.getTime() - service.now()) < 100);
});

test("an outage within the lease sends `expiring` once, and the session is renewed after the outage", async () => {
  const service = new Service(clock);
  const { session, events } = await held(service);
  service.reachable = false;
  await clock.advance(45_000);
  assert.deepEqual(events, ["expiring"]);
  assert.equal(session.isHeld, true);
  service.reachable = true;
  await clock.advance(10_000);
  assert.equal(events[1], "renewed");
  assert.ok(!events.slice(1).includes("expiring"));
});

test("an outage longer than the lease sends `lost` once, and not after the deadline of the service", async () => {
  const service = new Service(clock);
  const { session, events } = await held(service);
  service.reachable = false;
  for (let second = 0; second < 70; second += 1) {
    await clock.advance(1000);
    if (service.isOver) assert.equal(session.isHeld, false);
  }
  assert.deepEqual(events, ["expiring", "lost unreachable"]);
  assert.throws(() => session.check(), SessionLost);
});

test("a session that another caller ended is lost at the next heartbeat, with the reason of the end", async () => {
  for (const [closeReason, reason] of [
    ["EVICTED", "evicted"],
    ["UPGRADED", "upgraded"],
    ["TERMINATED", "terminated"],
    ["STOPPED", "stopped"],
  ]) {
    const service = new Service(clock);
    const { session, events } = await held(service);
    service.closeReason = closeReason;
    await clock.advance(6_000);
    assert.deepEqual(events, [`lost ${reason}`]);
    assert.equal(session.loss.closeReason, closeReason);
    service.requests.length = 0;
    await clock.advance(60_000);
    assert.deepEqual(service.requests, []);
  }
});

test("404 loses the session at the next heartbeat, 401 when the lease runs out", async () => {
  for (const [status, code, seconds, reason] of [
    [404, "NOT_FOUND", 6, "unknown"],
    [401, "UNAUTHENTICATED", 60, "unauthorized"],
  ]) {
    const service = new Service(clock);
    const { events } = await held(service);
    service.refusal = { status, code };
    await clock.advance(seconds * 1000);
    assert.equal(events.at(-1), `lost ${reason}`);
  }
});

test("a heartbeat that got 503 is sent again, but not before Retry-After", async () => {
  const service = new Service(clock);
  const { events } = await held(service);
  service.refusal = { status: 503, code: "DATABASE_UNAVAILABLE", headers: { "retry-after": "7" } };
  await clock.advance(5_100);
  service.requests.length = 0;
  await clock.advance(6_000);
  assert.equal(service.requests.length, 0);
  service.refusal = null;
  await clock.advance(4_000);
  assert.equal(events.at(-1), "renewed");
});

test("a page that slept longer than the lease does not rely on its session", async () => {
  const service = new Service(clock);
  const { session, events } = await held(service);
  clock.jump(120_000);
  assert.equal(session.isHeld, false);
  await clock.advance(5_000);
  assert.deepEqual(events, ["expiring", "lost expired"]);
});

test("setting the wall clock forward makes isHeld false until the next heartbeat, but loses no session", async () => {
  const service = new Service(clock);
  const { session, events } = await held(service);
  service.offset -= 120_000;
  clock.jump(120_000);
  assert.equal(session.isHeld, false);
  await clock.advance(6_000);
  assert.equal(session.isHeld, true);
  assert.ok(!events.some((name) => name.startsWith("lost")));
});

test("touch restarts the idle limit with the next heartbeat only", async () => {
  const service = new Service(clock);
  const { session } = await held(service);
  session.touch();
  service.requests.length = 0;
  await clock.advance(11_000);
  assert.deepEqual(
    service.requests.map(({ body }) => body.active),
    [true, false],
  );
});

test("end ends the session without an event; release only stops the heartbeats", async () => {
  const service = new Service(clock);
  const first = await held(service);
  first.session.check();
  const ending = first.session.end();
  assert.throws(() => first.session.check(), SessionLost);
  await settled(ending);
  assert.equal(service.closeReason, "STOPPED");
  assert.throws(
    () => first.session.check(),
    (error) => error instanceof SessionLost && error.reason === "stopped",
  );
  assert.deepEqual(first.session.loss, { reason: "stopped", closeReason: "STOPPED" });
  assert.deepEqual([first.session.isLost, first.session.isHeld, first.session.remainingMs], [true, false, 0]);
  await assert.rejects(first.session.heartbeat(), SessionLost);
  const other = new Service(clock);
  const second = await held(other);
  second.session.release();
  other.requests.length = 0;
  await clock.advance(120_000);
  assert.deepEqual([first.events, second.events, other.requests], [[], [], []]);
});

import assert from "node:assert/strict";
import { afterEach, beforeEach, test } from "node:test";

import { Client, ConnectionError, TenureError } from "../tenure.js";
import { Service, manualClock } from "./service.mjs";

const OPEN = { userObjectId: "u", tenantObjectId: "t", capacityId: "c", sessionKind: 1 };
let clock;

beforeEach(() => {
  clock = manualClock();
});
afterEach(() => {
  clock.restore();
});

function answering(...responses) {
  const requests = [];
  const fetch = async (url, options) => {
    requests.push({ url: String(url), ...options });
    const response = responses[Math.min(requests.length, responses.length) - 1];
    if (response instanceof Error) throw response;
    return new Response(JSON.stringify(response.body ?? {}), { status: response.status ?? 200, headers: response.headers });
  };
  return { fetch, requests };
}

test("a problem becomes an error with its code, close reason and request id", async () => {
  const { fetch } = answering({
    status: 410,
    body: { status: 410, code: "SESSION_OVER", detail: "over", closeReason: "EVICTED" },
    headers: { "x-request-id": "r-1" },
  });
  await assert.rejects(new Client({ url: "http://x", fetch }).getSession("s"), (error) => {
    assert.ok(error instanceof TenureError);
    assert.deepEqual([error.status, error.code, error.closeReason, error.requestId], [410, "SESSION_OVER", "EVICTED", "r-1"]);
    return true;
  });
});

test("an error response that is not a problem becomes an error with code HTTP_ERROR", async () => {
  const { fetch } = answering({ status: 500, body: "<html>" });
  await assert.rejects(new Client({ url: "http://x", fetch }).health(), { code: "HTTP_ERROR", status: 500 });
});

test("a success that is not JSON is an error, and the request is not repeated", async () => {
  let requests = 0;
  const fetch = async () => {
    requests += 1;
    return new Response("<html>", { status: 200 });
  };
  await assert.rejects(new Client({ url: "http://x", fetch }).health(), { name: "TenureError", code: "HTTP_ERROR", status: 200 });
  assert.equal(requests, 1);
});

test("a dry run of endAllSessions sends one request without an action id", async () => {
  const { fetch, requests } = answering({ body: { ended: 0, remaining: 3, done: false } });
  const answers = [];
  for await (const answer of new Client({ url: "http://x", fetch }).endAllSessions({ all: true, dryRun: true })) answers.push(answer);
  assert.equal(answers.length, 1);
  assert.deepEqual(requests.map(({ body }) => JSON.parse(body)), [{ all: true, dryRun: true }]);
});

test("Retry-After may be a date", async () => {
  const date = new Date(Date.now() + 30_000).toUTCString();
  const { fetch } = answering({ status: 500, headers: { "retry-after": date } });
  await assert.rejects(new Client({ url: "http://x", fetch }).health(), (error) => {
    assert.ok(error.retryAfterSeconds > 28 && error.retryAfterSeconds <= 30, String(error.retryAfterSeconds));
    return true;
  });
});

test("`follow` does not pause after an empty page if its signal is aborted", async () => {
  const stop = new AbortController();
  const fetch = async () => {
    stop.abort(new Error("stopped"));
    return new Response(JSON.stringify({ events: [], nextCursor: "c" }));
  };
  const following = new Client({ url: "http://x", fetch }).follow({ after: "a", signal: stop.signal });
  await assert.rejects(following.next(), { message: "stopped" });
});

test("an open request is repeated after 503 and broken connections, but the creation of a key is not", async () => {
  const opened = answering(new Error("reset"), { status: 503 }, { status: 201, body: { status: "created" } });
  const opening = new Client({ url: "http://x", fetch: opened.fetch }).openSession(OPEN);
  await clock.advance(10_000);
  assert.equal((await opening).status, "created");
  assert.equal(opened.requests.length, 3);
  const created = answering(new Error("reset"));
  await assert.rejects(new Client({ url: "http://x", fetch: created.fetch }).createKey({}), ConnectionError);
  assert.equal(created.requests.length, 1);
});

test("an open request is not repeated after SESSION_LIMIT or TOO_MANY_FAILURES", async () => {
  for (const code of ["SESSION_LIMIT", "TOO_MANY_FAILURES"]) {
    const { fetch, requests } = answering({ status: 429, body: { code } });
    await assert.rejects(new Client({ url: "http://x", fetch }).openSession(OPEN), { code });
    assert.equal(requests.length, 1);
  }
});

test("a submission keeps its idempotency key when it is repeated", async () => {
  const { fetch, requests } = answering(new Error("reset"), { status: 202 });
  const submitting = new Client({ url: "http://x", fetch }).submit({ gateway: "g", payload: {} });
  await clock.advance(10_000);
  await submitting;
  const [first, second] = requests.map(({ headers }) => headers["idempotency-key"]);
  assert.ok(first && first === second);
});

test("`each` yields the items of all pages", async () => {
  const { fetch, requests } = answering(
    { body: { sessions: [1, 2], nextCursor: "next" } },
    { body: { sessions: [3], nextCursor: null } },
  );
  const found = [];
  for await (const each of new Client({ url: "http://x/a", fetch }).each("/sessions", "sessions", { kind: 1 })) {
    found.push(each);
  }
  assert.deepEqual(found, [1, 2, 3]);
  assert.deepEqual(
    requests.map(({ url }) => url),
    ["http://x/a/sessions?kind=1", "http://x/a/sessions?kind=1&cursor=next"],
  );
});

test("a request without a response fails after its timeout", async () => {
  const service = new Service(clock);
  service.reachable = false;
  const asking = new Client({ url: "http://x", fetch: service.fetch, tries: 1 }).health();
  const failed = assert.rejects(asking, ConnectionError);
  await clock.advance(10_000);
  await failed;
});

test("`Client.hold` opens a session with the API key, and holds it with the session token", async () => {
  const service = new Service(clock);
  const client = new Client({ url: "http://x", credential: "tnr_key", fetch: service.fetch });
  const holding = client.hold(OPEN);
  await clock.advance(0);
  const session = await holding;
  await clock.advance(5_000);
  assert.equal(service.requests[0].body.withToken, true);
  assert.deepEqual(
    service.requests.map(({ headers }) => headers.authorization),
    ["Bearer tnr_key", "Bearer tns_token"],
  );
  assert.equal(session.isHeld, true);
});

test("`follow` gets a cursor first, and continues from this cursor after an outage", async () => {
  const page = (events, nextCursor) => ({ body: { events, nextCursor } });
  const { fetch, requests } = answering(
    page([], "c1"),
    ...Array(7).fill(new Error("reset")),
    page([], "c1"),
    page(["event"], "c2"),
    { status: 403 },
  );
  const client = new Client({ url: "http://x", fetch });
  const pages = client.follow({ waitSeconds: 30 });
  const next = pages.next();
  for (let seconds = 0; seconds < 60; seconds += 1) await clock.advance(1_000);
  assert.deepEqual((await next).value.events, ["event"]);
  await assert.rejects(pages.next(), { status: 403 });
  const queries = requests.map(({ url }) => new URL(url).search);
  assert.equal(queries[0], "?after=latest&limit=1");
  assert.deepEqual([...new Set(queries.slice(1, 10))], ["?after=c1&wait=30"]);
  assert.equal(queries.at(-1), "?after=c2&wait=30");
});

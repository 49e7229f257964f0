/**
 * A clock that tests move, and a service with one session. The clock replaces the global timers and clocks until
 * `restore` is called.
 */

export function manualClock() {
  const real = { setTimeout: globalThis.setTimeout, clearTimeout: globalThis.clearTimeout, now: Date.now };
  const realPerformance = performance.now;
  let steady = 1000;
  let wallOffset = 1_700_000_000_000;
  let last = 0;
  const timers = new Map();
  globalThis.setTimeout = (callback, delay = 0) => {
    timers.set((last += 1), { at: steady + delay, callback });
    return last;
  };
  globalThis.clearTimeout = (id) => timers.delete(id);
  performance.now = () => steady;
  Date.now = () => steady + wallOffset;
  /** Let everything that is ready run. A chain of promises needs several turns of the event loop. */
  async function settle() {
    for (let turn = 0; turn < 20; turn += 1) await new Promise((resolve) => setImmediate(resolve));
  }
  return {
    get steady() {
      return steady;
    },
    /** Set the wall clock forward, as if the user set it, or the machine slept while the steady clock stood still. */
    jump(milliseconds) {
      wallOffset += milliseconds;
    },
    async advance(milliseconds) {
      const end = steady + milliseconds;
      await settle();
      for (;;) {
        const due = [...timers].filter(([, timer]) => timer.at <= end).sort((a, b) => a[1].at - b[1].at)[0];
        if (!due) break;
        timers.delete(due[0]);
        steady = Math.max(steady, due[1].at);
        due[1].callback();
        await settle();
      }
      steady = end;
      await settle();
    },
    restore() {
      Object.assign(globalThis, { setTimeout: real.setTimeout, clearTimeout: real.clearTimeout });
      Date.now = real.now;
      performance.now = realPerformance;
    },
  };
}

const JSON_TYPE = { "content-type": "application/json" };

/** A service with one session, which has a lease. `now` is the server's time, which is a day ahead of the page's. */
export class Service {
  constructor(clock, { leaseMs = 60_000, intervalMs = 5_000 } = {}) {
    this.clock = clock;
    this.leaseMs = leaseMs;
    this.intervalMs = intervalMs;
    this.offset = 86_400_000;
    this.startedAt = this.now();
    this.lastHeartbeat = this.now();
    this.closeReason = null;
    this.reachable = true;
    this.refusal = null;
    this.requests = [];
    this.fetch = this.fetch.bind(this);
  }

  /** The server's clock follows the wall clock, so it keeps running while the page sleeps. */
  now() {
    return Date.now() + this.offset;
  }

  get deadline() {
    return this.lastHeartbeat + this.leaseMs;
  }

  get isOver() {
    return this.closeReason !== null || this.now() >= this.deadline;
  }

  async fetch(url, { method, headers, body, signal }) {
    this.requests.push({ method, path: new URL(url).pathname, headers, body: body && JSON.parse(body) });
    if (!this.reachable) {
      return new Promise((_, reject) => signal.addEventListener("abort", () => reject(signal.reason)));
    }
    if (this.refusal) return this.problem(this.refusal.status, this.refusal.code, this.refusal.headers);
    if (method === "PUT") {
      this.startedAt = this.lastHeartbeat = this.now();
      return this.answer({ ...this.session(), status: "created", sessionToken: "tns_token" }, 201);
    }
    if (this.isOver) return this.problem(410, "SESSION_OVER", {}, this.closeReason ?? "LEASE_EXPIRED");
    if (method === "DELETE") this.closeReason = "STOPPED";
    if (method !== "POST") return this.answer(this.session());
    this.lastHeartbeat = this.now();
    return this.answer({ ...this.session(), acknowledged: true });
  }

  session() {
    return {
      sessionId: "0190b0a0-0000-7000-8000-000000000001",
      sessionStartUtc: text(this.startedAt),
      lastHeartbeat: text(this.lastHeartbeat),
      leaseExpiresAt: text(this.deadline),
      heartbeatInterval: this.intervalMs / 1000,
      state: "created",
      closeReason: this.closeReason,
    };
  }

  answer(content, status = 200) {
    return new Response(JSON.stringify(content), { status, headers: JSON_TYPE });
  }

  problem(status, code, headers = {}, closeReason = undefined) {
    return new Response(JSON.stringify({ status, code, detail: "as the test asked", closeReason }), {
      status,
      headers: { "content-type": "application/problem+json", "x-request-id": "request-1", ...headers },
    });
  }
}

/** An instant with six decimals, as the service writes it. */
function text(milliseconds) {
  return new Date(milliseconds).toISOString().replace("Z", "000Z");
}

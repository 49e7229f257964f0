// @ts-check
/**
 * Tenure's client for browsers and Node: one ES module without dependencies.
 *
 * Every instance serves this module at `/client/tenure.js`, below the URL prefix of its routes. A page imports the
 * module from there, or from a copy.
 *
 *     import { hold } from "https://tenure.example.com/client/tenure.js";
 *
 *     const session = await hold({ sessionId, token });      // both come from your backend
 *     session.addEventListener("expiring", () => warn());
 *     session.addEventListener("lost", (event) => signOut(event.detail.reason));
 *
 * `Client` has a method for every route of the API; `hold` keeps one session alive. A page uses a session token, which
 * is valid for one session only: your backend gets the token when it opens the session with `withToken`. Never put an
 * API key into a page.
 */

export const VERSION = "0.1.0";

// Errors.

/**
 * An error response. `code` is one of ERROR_CODES, or `HTTP_ERROR` if the response is not a problem document of Tenure,
 * for example because a proxy sent it.
 */
export class TenureError extends Error {
  /**
   * @param {number} status
   * @param {Partial<ProblemDetails>} problem
   * @param {Headers} [headers]
   */
  constructor(status, problem, headers) {
    super(`${status} ${problem.code ?? "HTTP_ERROR"}: ${problem.detail ?? "the response is not one of Tenure's"}`);
    this.name = "TenureError";
    this.status = status;
    this.code = problem.code ?? "HTTP_ERROR";
    this.detail = problem.detail ?? "";
    this.errors = problem.errors ?? [];
    this.closeReason = problem.closeReason ?? null;
    this.requestId = headers?.get("x-request-id") ?? null;
    this.retryAfterSeconds = secondsOf(headers?.get("retry-after"));
  }
}

/**
 * No response: the service could not be reached, or did not respond in time, or the caller aborted the request.
 * `cause` is the original error.
 */
export class ConnectionError extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super("the service did not answer", { cause });
    this.name = "ConnectionError";
  }
}

/** The session is lost, so it cannot be used any more. */
export class SessionLost extends Error {
  /** @param {Loss} loss */
  constructor(loss) {
    super(`the session is lost: ${loss.reason}`);
    this.name = "SessionLost";
    this.reason = loss.reason;
    this.closeReason = loss.closeReason;
  }
}

/** Return the seconds of a `Retry-After` header, which is a number or a date. @param {string | null | undefined} text */
function secondsOf(text) {
  if (!text) return null;
  const seconds = Number(text);
  if (Number.isFinite(seconds)) return seconds;
  const at = Date.parse(text);
  return Number.isNaN(at) ? null : Math.max(0, (at - Date.now()) / 1000);
}

// The client.

const TIMEOUT_MS = 10_000;
const TRIES = 3;
const FIRST_PAUSE_MS = 200;
const HELD_PAUSE_MS = 200;
const LONGEST_PAUSE_MS = 5_000;
const LATEST = "latest";
/** If an empty page of events arrives within this time, the service did not wait, because the instance is stopping. */
const EMPTY_MS = 500;
/** Statuses after which a repeatable request is retried. */
const PASSING = new Set([429, 502, 503, 504]);
/** Codes with status 429 that are not retried: a retry fails until a seat is free, or until the credential is right. */
const LASTING = new Set(["SESSION_LIMIT", "TOO_MANY_FAILURES"]);

/**
 * @typedef {object} ClientOptions
 * @property {string | URL} [url] The address of the service with its prefix. Default: where this module came from.
 * @property {string} [credential] An API key, a session token or a token of an OIDC issuer.
 * @property {number} [timeoutMs] How long one try of a request may take.
 * @property {number} [tries] The most times that a repeatable request is sent.
 * @property {typeof globalThis.fetch} [fetch]
 *
 * @typedef {object} RequestOptions
 * @property {Record<string, unknown>} [query] Values that are undefined or null are left out.
 * @property {unknown} [body] Sent as JSON; a Blob or an ArrayBuffer is sent as it is.
 * @property {Record<string, string>} [headers]
 * @property {boolean} [repeatable] Whether the request is retried after a failure. Default: false for POST, else true.
 * @property {boolean} [asText] Whether the response is returned as text instead of decoded JSON.
 * @property {AbortSignal} [signal]
 * @property {number} [timeoutMs]
 */

export class Client {
  #url;
  #credential;
  #fetch;
  #timeoutMs;
  #tries;

  /** @param {ClientOptions} [options] */
  constructor({ url, credential, timeoutMs = TIMEOUT_MS, tries = TRIES, fetch } = {}) {
    const base = new URL(url ?? new URL("..", import.meta.url));
    if (!base.pathname.endsWith("/")) base.pathname += "/";
    this.#url = base;
    this.#credential = credential ?? null;
    this.#timeoutMs = timeoutMs;
    this.#tries = tries;
    this.#fetch = fetch ?? globalThis.fetch.bind(globalThis);
  }

  /**
   * The option `credentials` of `fetch`. Without a credential, the browser sends the cookie of `signIn` if the page and
   * the service have the same origin. With a credential, the browser sends no cookie.
   */
  get #cookies() {
    return /** @type {RequestCredentials} */ (this.#credential === null ? "same-origin" : "omit");
  }

  /** The address of the service, with a slash at its end. */
  get url() {
    return this.#url.href;
  }

  /**
   * Return a client with other options. Options that are not given keep their values.
   * @param {ClientOptions} options
   */
  withOptions(options) {
    return new Client({
      url: this.#url,
      credential: this.#credential ?? undefined,
      timeoutMs: this.#timeoutMs,
      tries: this.#tries,
      fetch: this.#fetch,
      ...options,
    });
  }

  /**
   * Send a request and return the decoded JSON of the response. Throws `TenureError` or `ConnectionError`.
   * @param {string} method
   * @param {string} path Relative to the address of the service, such as `/sessions`.
   * @param {RequestOptions} [options]
   * @returns {Promise<any>}
   */
  async request(method, path, options = {}) {
    const repeatable = options.repeatable ?? method !== "POST";
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#send(method, path, options);
      } catch (error) {
        if (!repeatable || attempt >= this.#tries || !isPassing(error) || options.signal?.aborted) throw error;
        await pause(Math.max(askedPause(error), jitter(attempt)), options.signal);
      }
    }
  }

  /**
   * @param {string} method
   * @param {string} path
   * @param {RequestOptions} options
   */
  async #send(method, path, { query, body, headers = {}, asText = false, signal, timeoutMs = this.#timeoutMs }) {
    const url = new URL(path.replace(/^\//, ""), this.#url);
    for (const [name, value] of Object.entries(query ?? {})) {
      if (value !== undefined && value !== null) url.searchParams.set(name, textOf(value));
    }
    const isJson = body !== undefined && !(body instanceof Blob) && !(body instanceof ArrayBuffer);
    const timer = new AbortController();
    const timeout = setTimeout(() => timer.abort(new Error(`no answer within ${timeoutMs} ms`)), timeoutMs);
    const forward = () => timer.abort(signal?.reason);
    signal?.addEventListener("abort", forward, { once: true });
    if (signal?.aborted) forward();
    try {
      const response = await this.#fetch(url, {
        method,
        headers: {
          accept: asText ? "text/plain" : "application/json",
          // With this header, an instance responds in camelCase even if its `json_case` is "snake".
          "tenure-json-case": "camel",
          ...(isJson ? { "content-type": "application/json" } : {}),
          ...(this.#credential === null ? {} : { authorization: `Bearer ${this.#credential}` }),
          ...headers,
        },
        body: isJson ? JSON.stringify(body) : /** @type {BodyInit | undefined} */ (body),
        signal: timer.signal,
        credentials: this.#cookies,
        // A cached response may be outdated.
        cache: "no-store",
      });
      const content = await response.text();
      if (!response.ok) throw new TenureError(response.status, problemIn(content), response.headers);
      return asText ? content : jsonOf(content, response);
    } catch (error) {
      throw error instanceof TenureError ? error : new ConnectionError(error);
    } finally {
      clearTimeout(timeout);
      signal?.removeEventListener("abort", forward);
    }
  }

  /**
   * Yield the items of all pages of a list.
   * @param {string} path
   * @param {string} plural The field of the response that contains the items, such as `sessions`.
   * @param {Record<string, unknown>} [query]
   * @returns {AsyncGenerator<any>}
   */
  async *each(path, plural, query = {}) {
    /** @type {string | null} */
    let cursor = null;
    do {
      const page = await this.request("GET", path, { query: { ...query, cursor: cursor ?? undefined } });
      yield* page[plural];
      cursor = page.nextCursor;
    } while (cursor !== null);
  }

  // Sessions.

  /** @param {OpenBody} body @returns {Promise<OpenAnswer>} */
  openSession(body) {
    return this.request("PUT", "/sessions", { body });
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<SessionList>} */
  listSessions(query) {
    return this.request("GET", "/sessions", { query });
  }

  /** Count the matching sessions. @param {Record<string, unknown>} [query] @returns {Promise<SessionCountAnswer>} */
  countSessions(query) {
    return this.request("GET", "/sessions/count", { query });
  }

  /** @param {string} sessionId @returns {Promise<SessionAnswer>} */
  getSession(sessionId) {
    return this.request("GET", `/sessions/${part(sessionId)}`);
  }

  /**
   * The facts about a session, in the order of time: why it ended, who ended it, how it was billed.
   * @param {string} sessionId
   * @param {Record<string, unknown>} [query]
   * @returns {Promise<HistoryAnswer>}
   */
  sessionHistory(sessionId, query) {
    return this.request("GET", `/sessions/${part(sessionId)}/history`, { query });
  }

  /** @param {string} sessionId @returns {Promise<EndAnswer>} */
  endSession(sessionId) {
    return this.request("DELETE", `/sessions/${part(sessionId)}`);
  }

  /**
   * End up to `limit` live sessions that match the filter in `body`. Repeat the call with the `actionId` of the
   * response until `done` is true.
   * @param {EndBody} body
   * @returns {Promise<EndedAnswer>}
   */
  endSessions(body) {
    const actionId = body.actionId ?? (body.dryRun ? undefined : globalThis.crypto.randomUUID());
    return this.request("POST", "/sessions/end", { body: { ...body, actionId }, repeatable: true });
  }

  /**
   * End all live sessions that match the filter in `body`, as one action, and yield the response to each request. With
   * `dryRun`, send one request, which only counts.
   * @param {EndBody} body
   * @returns {AsyncGenerator<EndedAnswer>}
   */
  async *endAllSessions(body) {
    const actionId = body.actionId ?? (body.dryRun ? undefined : globalThis.crypto.randomUUID());
    for (;;) {
      const answer = await this.endSessions({ ...body, actionId });
      yield answer;
      if (answer.done || body.dryRun) return;
      // Other transactions hold the rows of the remaining sessions, so try again after a pause.
      if (answer.ended === 0) await new Promise((resolve) => setTimeout(resolve, HELD_PAUSE_MS));
    }
  }

  /** @param {string} sessionId @param {HeartbeatBody} [body] @returns {Promise<HeartbeatAnswer>} */
  heartbeat(sessionId, body = {}) {
    return this.request("POST", `/sessions/${part(sessionId)}/heartbeat`, { body, repeatable: true });
  }

  /** @param {HeartbeatsBody} body @returns {Promise<HeartbeatsAnswer>} */
  heartbeats(body) {
    return this.request("POST", "/sessions/heartbeats", { body, repeatable: true });
  }

  /** @returns {Promise<MetricsAnswer>} */
  sessionMetrics() {
    return this.request("GET", "/sessions/metrics");
  }

  // Capacities.

  /** @param {string} capacityId @param {CapacityBody} body @returns {Promise<CapacityAnswer>} */
  setCapacity(capacityId, body) {
    return this.request("PUT", `/capacities/${part(capacityId)}`, { body });
  }

  /** @param {string} capacityId @returns {Promise<SeatsAnswer>} */
  getCapacity(capacityId) {
    return this.request("GET", `/capacities/${part(capacityId)}`);
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<CapacityList>} */
  listCapacities(query) {
    return this.request("GET", "/capacities", { query });
  }

  /** @param {string} capacityId @returns {Promise<CapacityAnswer>} */
  deleteCapacity(capacityId) {
    return this.request("DELETE", `/capacities/${part(capacityId)}`);
  }

  // Transcription.

  /**
   * Transcribe a recording. The query names the session's user, tenant, capacity and kind.
   * @param {Blob | ArrayBuffer} audio A WAV file.
   * @param {Record<string, unknown>} query
   * @returns {Promise<TranscribeAnswer>}
   */
  transcribe(audio, query) {
    return this.request("POST", "/transcribe", { body: audio, query, headers: { "content-type": "audio/wav" } });
  }

  // Submissions.

  /**
   * @param {SubmitBody} body
   * @param {string} [idempotencyKey] Pass your own key if a later call may repeat this submission. Default: a new key.
   * @returns {Promise<AcceptedAnswer>}
   */
  submit(body, idempotencyKey = globalThis.crypto.randomUUID()) {
    const headers = { "idempotency-key": idempotencyKey };
    return this.request("POST", "/submissions", { body, headers, repeatable: true });
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<SubmissionList>} */
  listSubmissions(query) {
    return this.request("GET", "/submissions", { query });
  }

  /** @returns {Promise<SubmissionCounts>} */
  countSubmissions() {
    return this.request("GET", "/submissions/counts");
  }

  /** @param {string} submissionId @returns {Promise<SubmissionAnswer>} */
  getSubmission(submissionId) {
    return this.request("GET", `/submissions/${part(submissionId)}`);
  }

  /** @param {string} submissionId @returns {Promise<SubmissionAnswer>} */
  retrySubmission(submissionId) {
    return this.request("POST", `/submissions/${part(submissionId)}/retry`);
  }

  /** @param {string} submissionId @returns {Promise<SubmissionAnswer>} */
  cancelSubmission(submissionId) {
    return this.request("POST", `/submissions/${part(submissionId)}/cancel`);
  }

  /** @param {CommandBody} body @returns {Promise<CommandedAnswer>} */
  retrySubmissions(body) {
    return this.request("POST", "/submissions/retry", { body });
  }

  /** @param {CommandBody} body @returns {Promise<CommandedAnswer>} */
  cancelSubmissions(body) {
    return this.request("POST", "/submissions/cancel", { body });
  }

  // Usage.

  /** @param {Record<string, unknown>} [query] @returns {Promise<UsageAnswer>} */
  usage(query) {
    return this.request("GET", "/usage", { query });
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<WindowList>} */
  listUsageWindows(query) {
    return this.request("GET", "/usage/windows", { query });
  }

  /** @param {number | string} windowId @returns {Promise<WholeWindowAnswer>} */
  getUsageWindow(windowId) {
    return this.request("GET", `/usage/windows/${part(windowId)}`);
  }

  /** @param {SendBody} body @returns {Promise<SentAnswer>} */
  sendUsageWindows(body) {
    return this.request("POST", "/usage/windows/send", { body });
  }

  // Leases and jobs.

  /** @param {Record<string, unknown>} [query] @returns {Promise<LeaseList>} */
  listLeases(query) {
    return this.request("GET", "/leases", { query });
  }

  /** @param {string} name @param {Record<string, unknown>} [query] @returns {Promise<TermList>} */
  listLeaseHistory(name, query) {
    return this.request("GET", `/leases/${part(name)}/history`, { query });
  }

  /** List the terms of all leases. @param {Record<string, unknown>} [query] @returns {Promise<TermList>} */
  listLeaseTimeline(query) {
    return this.request("GET", "/leases/history", { query });
  }

  /** @param {string} name @returns {Promise<LeaseAnswer>} */
  resignLease(name) {
    return this.request("POST", `/leases/${part(name)}/resign`);
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<JobList>} */
  listJobs(query) {
    return this.request("GET", "/jobs", { query });
  }

  /** @param {string} name @param {Record<string, unknown>} [query] @returns {Promise<RunList>} */
  listRuns(name, query) {
    return this.request("GET", `/jobs/${part(name)}/runs`, { query });
  }

  /** @param {string} name @returns {Promise<JobAnswer>} */
  runJob(name) {
    return this.request("POST", `/jobs/${part(name)}/run`);
  }

  /** @param {string} name @returns {Promise<JobAnswer>} */
  pauseJob(name) {
    return this.request("POST", `/jobs/${part(name)}/pause`, { repeatable: true });
  }

  /** @param {string} name @returns {Promise<JobAnswer>} */
  resumeJob(name) {
    return this.request("POST", `/jobs/${part(name)}/resume`, { repeatable: true });
  }

  // Instances.

  /** @param {Record<string, unknown>} [query] @returns {Promise<InstanceList>} */
  listInstances(query) {
    return this.request("GET", "/instances", { query });
  }

  /**
   * Count openings, heartbeats and ends over time.
   * @param {{from?: Date | string, to?: Date | string, step?: number}} [query] @returns {Promise<ActivityAnswer>}
   */
  activity(query) {
    return this.request("GET", "/activity", { query });
  }

  // The caller.

  /** @returns {Promise<CallerAnswer>} */
  me() {
    return this.request("GET", "/me");
  }

  /** Whether a credential is needed, and whether a person can sign in at an OIDC issuer. @returns {Promise<SignInOptions>} */
  signInOptions() {
    return this.request("GET", "/sign-in");
  }

  /**
   * Sign this page in: the browser keeps the credential in a cookie that scripts cannot read, and sends the cookie with
   * every request of a client without a credential. This works only on a page of the same origin as the service.
   * @param {string} credential An API key, or a token of an OIDC issuer.
   * @returns {Promise<CallerAnswer>}
   */
  signIn(credential) {
    return this.request("POST", "/sign-in", { body: { credential } });
  }

  /** Clear the cookie of `signIn`. @returns {Promise<SignedOutAnswer>} */
  signOut() {
    return this.request("POST", "/sign-out", { repeatable: true });
  }

  // Keys and the audit log.

  /** @param {KeyBody} body @returns {Promise<CreatedKeyAnswer>} */
  createKey(body) {
    return this.request("POST", "/keys", { body });
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<KeyList>} */
  listKeys(query) {
    return this.request("GET", "/keys", { query });
  }

  /** @param {string} publicId @returns {Promise<KeyAnswer>} */
  revokeKey(publicId) {
    return this.request("DELETE", `/keys/${part(publicId)}`);
  }

  /** @param {Record<string, unknown>} [query] @returns {Promise<AuditLog>} */
  listAuditLog(query) {
    return this.request("GET", "/audit-log", { query });
  }

  // Events.

  /** @param {Record<string, unknown>} [query] @returns {Promise<EventList>} */
  listEvents(query) {
    return this.request("GET", "/events", { query });
  }

  /**
   * Yield session events without end, in pages of at least one event. Begin after the cursor `after`, or, with
   * `latest`, with the events that happen from now on. To continue after a restart, store `nextCursor` of a page once
   * its events are processed. A poll without a response, or with status 429, 502, 503 or 504, is repeated until it
   * succeeds. Every other error is thrown, and so is an error with the code `TOO_MANY_FAILURES`.
   * @param {{after?: string, type?: string, waitSeconds?: number, signal?: AbortSignal}} [options]
   * @returns {AsyncGenerator<EventList>}
   */
  async *follow({ after = LATEST, type, waitSeconds = 20, signal } = {}) {
    for (let failures = 0; ; ) {
      // `latest` means another position at each poll. So the first poll does not wait for an event: it returns at once
      // with a cursor, from which the next poll continues.
      const query = { after, type, ...(after === LATEST ? { limit: 1 } : { wait: waitSeconds }) };
      const timeoutMs = this.#timeoutMs + waitSeconds * 1000;
      const began = Date.now();
      /** @type {EventList} */
      let page;
      try {
        page = await this.request("GET", "/events", { query, signal, timeoutMs });
      } catch (error) {
        if (!isPassing(error) || signal?.aborted) throw error;
        failures += 1;
        await pause(Math.max(askedPause(error), jitter(failures)), signal);
        continue;
      }
      if (page.events.length > 0) yield page;
      if (page.events.length > 0 || after === LATEST || Date.now() - began >= EMPTY_MS) {
        failures = 0;
      } else {
        failures += 1;
        await pause(jitter(failures), signal);
      }
      after = page.nextCursor;
    }
  }

  // Alerts and metrics.

  /** @param {Record<string, unknown>} [query] @returns {Promise<AlertList>} */
  listAlerts(query) {
    return this.request("GET", "/alerts", { query });
  }

  /** The metrics as text for Prometheus. @returns {Promise<string>} */
  metrics() {
    return this.request("GET", new URL("/metrics", this.#url).href, { asText: true });
  }

  // Probes.

  /** @returns {Promise<LivenessAnswer>} */
  live() {
    return this.request("GET", new URL("/healthz", this.#url).href);
  }

  /** Throws `TenureError` with status 503 while the instance is not ready. @returns {Promise<ReadinessAnswer>} */
  ready() {
    return this.request("GET", new URL("/readyz", this.#url).href, { repeatable: false });
  }

  /** @returns {Promise<HealthAnswer>} */
  health() {
    return this.request("GET", "/health");
  }

  // Streams.

  /**
   * Open a WebSocket that is the stream of a session. The credential is sent as a subprotocol, because a browser cannot
   * set headers on a WebSocket.
   * @param {string} sessionId
   * @returns {WebSocket}
   */
  stream(sessionId) {
    return this.#socket(`sessions/${part(sessionId)}/stream`);
  }

  /**
   * Open a WebSocket without a session. Send the message `open` first: it opens the session (docs/streams.md).
   * @returns {WebSocket}
   */
  streamSession() {
    return this.#socket("sessions/stream");
  }

  /**
   * Open a WebSocket that transcribes audio. Its session starts with the connection.
   * @param {{user?: string, tenant?: string, capacity?: string, kind?: 1 | 2 | 3}} [query]
   * @returns {WebSocket}
   */
  transcribeStream(query = {}) {
    return this.#socket("transcribe/stream", query);
  }

  /**
   * End a session while the page is being closed. The browser completes the request even if the page is gone.
   * @param {string} sessionId
   */
  endOnUnload(sessionId) {
    const headers = this.#credential === null ? undefined : { authorization: `Bearer ${this.#credential}` };
    const url = new URL(`sessions/${part(sessionId)}`, this.#url);
    void this.#fetch(url, { method: "DELETE", headers, keepalive: true, credentials: this.#cookies }).catch(() => {});
  }

  /**
   * @param {string} path
   * @param {Record<string, string | number>} [query]
   */
  #socket(path, query = {}) {
    const url = new URL(path, this.#url);
    for (const [name, value] of Object.entries(query)) url.searchParams.set(name, String(value));
    url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
    const offered = ["tenure", "tenure.camel"];
    if (this.#credential !== null) offered.push(`tenure.bearer.${this.#credential}`);
    const socket = new WebSocket(url, offered);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  /**
   * Open a session with this client's credential, and hold it with a session token.
   * @param {OpenBody} body
   * @param {HoldOptions} [options]
   * @returns {Promise<HeldSession>}
   */
  async hold(body, options = {}) {
    const sent = stamp();
    const opened = await this.openSession({ ...body, withToken: true });
    const token = /** @type {{sessionToken: string}} */ (/** @type {unknown} */ (opened)).sessionToken;
    const held = new HeldSession(this.withOptions({ credential: token }), opened.sessionId, options);
    await held.begin(opened.status === "existing" ? null : opened, sent);
    return held;
  }
}

/** @param {unknown} value */
function part(value) {
  return encodeURIComponent(String(value));
}

/** @param {unknown} value */
function textOf(value) {
  return value instanceof Date ? value.toISOString() : String(value);
}

/** @param {string} content @returns {Partial<ProblemDetails>} */
function problemIn(content) {
  try {
    const problem = JSON.parse(content);
    return typeof problem === "object" && problem !== null ? problem : {};
  } catch {
    return {};
  }
}

/**
 * Return the decoded JSON, or null if the body is empty. Throws `TenureError` with the code `HTTP_ERROR` if the body is
 * not JSON, for example because it is a page of a proxy.
 * @param {string} content
 * @param {Response} response
 */
function jsonOf(content, response) {
  try {
    return content === "" ? null : JSON.parse(content);
  } catch {
    throw new TenureError(response.status, {}, response.headers);
  }
}

/** @param {unknown} error */
function isPassing(error) {
  if (error instanceof TenureError) return PASSING.has(error.status) && !LASTING.has(error.code);
  return error instanceof ConnectionError;
}

/** Return `Retry-After` in milliseconds, or 0. @param {unknown} error */
function askedPause(error) {
  return error instanceof TenureError ? (error.retryAfterSeconds ?? 0) * 1000 : 0;
}

/** @param {number} attempt */
function jitter(attempt) {
  return Math.random() * Math.min(LONGEST_PAUSE_MS, FIRST_PAUSE_MS * 2 ** attempt);
}

/** @param {number} milliseconds @param {AbortSignal} [signal] @returns {Promise<void>} */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const timer = setTimeout(done, milliseconds);
    function done() {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }
    function aborted() {
      clearTimeout(timer);
      reject(signal?.reason);
    }
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

// Holding a session.
//
// The invariant: the page never treats a session as live after its deadline on the service. So every estimate of the
// deadline is too early rather than too late. If another caller ends the session before its deadline, the page learns
// of the end with its next heartbeat.
//
// The deadline of a session is the earliest of the end of its term, its last heartbeat plus the lease, and its last
// activity plus the idle limit. The response to a heartbeat has the deadline in the server's time, but not the server's
// current time. So the page converts the deadline into a local instant, in two ways:
//
// 1. The server reads its clock after the request was sent. So a deadline that comes from the lease is not before
//    `sent + lease`. The page computes the lease as the difference between the deadline and the last heartbeat of one
//    response; the real lease is never shorter.
// 2. An *anchor* is a pair: a local instant, and a time that the server's clock showed at that instant or later. The
//    anchor converts every deadline, including one that comes from the term or the idle limit.
//
// The local deadline is the earlier of the two results.
//
// `performance.now()` may stand still while the machine sleeps, and `Date.now()` may jump. So the page measures the
// time since a request by both clocks, and uses the longer time. If the deadline has passed by `Date.now()` only,
// either the machine slept or its clock was set. The page then does not rely on the session until a heartbeat is
// acknowledged.

const DRIFT = 0.001; // The share by which the server's clock may run faster than the local one.
const CHECK_SECONDS = 30; // The interval between heartbeats of a session without a lease, to learn if it was ended.
const SHORTEST_INTERVAL_MS = 1_000;
const HEARTBEAT_TIMEOUT_MS = 5_000;
const RETRY_MS = 1_000;
const EXPIRING_SHARE = 0.5; // `expiring` is sent after this share of the time from the last renewal to the deadline.

/**
 * @typedef {object} HoldOptions
 * @property {boolean} [active] Whether each heartbeat also restarts the idle limit. Default: false, so only the
 *   heartbeat after a `touch()` restarts it.
 * @property {number} [warnSeconds] How long before the deadline `expiring` is sent, but not earlier than 1.5 heartbeat
 *   intervals after the last renewal. Default: half of the time from the last renewal to the deadline.
 * @property {boolean} [endOnClose] Whether closing the page ends the session. Default: false, so the session lapses.
 *
 * @typedef {object} Loss
 * @property {LostReason} reason
 * @property {string | null} closeReason The close reason that the service returned, or null.
 *
 * @typedef {"expired" | "evicted" | "upgraded" | "terminated" | "stopped" | "unknown" | "unauthorized" |
 *   "unreachable"} LostReason
 *
 * @typedef {object} Stamp A local instant, in milliseconds of both clocks.
 * @property {number} steady `performance.now()`.
 * @property {number} wall `Date.now()`.
 */

/** @type {Record<string, LostReason>} */
const LOST_REASONS = {
  EXPIRED: "expired",
  LEASE_EXPIRED: "expired",
  IDLE_TIMEOUT: "expired",
  EVICTED: "evicted",
  UPGRADED: "upgraded",
  STOPPED: "stopped",
};

/** @returns {Stamp} */
function stamp() {
  return { steady: performance.now(), wall: Date.now() };
}

/**
 * Hold a session that your backend has opened with `withToken`.
 * @param {{sessionId: string, token: string, url?: string | URL, fetch?: typeof globalThis.fetch} & HoldOptions} options
 * @returns {Promise<HeldSession>} Rejects if the session has ended, the token is refused, or the service is unreachable.
 */
export async function hold({ sessionId, token, url, fetch, ...options }) {
  const held = new HeldSession(new Client({ url, credential: token, fetch }), sessionId, options);
  await held.begin(null, stamp());
  return held;
}

/**
 * A session that this page keeps alive. Events:
 *
 * - `renewed`: a heartbeat was acknowledged.
 * - `expiring`: no heartbeat has succeeded for a while, for example because the network is down. Sent at most once
 *   between two `renewed`. `detail.remainingMs` is how long the page may still rely on the session.
 * - `lost`: the session has ended, or may have ended. Sent once; `detail` is the `Loss`. No other event follows.
 */
export class HeldSession extends EventTarget {
  #client;
  #options;
  #interval = CHECK_SECONDS * 1000;
  /** @type {number | null} */
  #lease = null;
  /** @type {{local: Stamp, server: number} | null} */
  #anchor = null;
  #sent = stamp();
  #expires = 0;
  /** How long after #sent the page may rely on the session. */
  #trustedMs = 0;
  #warned = false;
  #touched = false;
  #failures = 0;
  /** Whether the last response refused the token. */
  #unauthorized = false;
  /** How long after #sent the next heartbeat is due. */
  #dueMs = 0;
  /** @type {Promise<void> | null} */
  #beating = null;
  /** @type {Loss | null} */
  #loss = null;
  #released = false;
  /** Whether this page itself has ended the session. */
  #ended = false;
  /** @type {(() => void) | null} */
  #cancelTimer = null;
  #timer = ticker();
  #stopped = new AbortController();
  #onWake = () => this.#wake();

  /**
   * Use `hold` or `Client.hold` instead.
   * @param {Client} client With the session token as its credential.
   * @param {string} sessionId
   * @param {HoldOptions} options
   */
  constructor(client, sessionId, options) {
    super();
    this.sessionId = sessionId;
    this.#client = client.withOptions({ tries: 1 });
    this.#options = options;
  }

  /**
   * Start to hold the session.
   * @param {SessionAnswer | null} opened The response to the request that opened the session, or null if the session
   *   was already live.
   * @param {Stamp} sent When the request for `opened` was sent.
   */
  async begin(opened, sent) {
    if (opened === null) {
      await this.#adopt();
    } else {
      this.#anchor = { local: sent, server: serverMs(opened.sessionStartUtc) };
      this.#learn(opened);
      this.#renew(sent, opened.leaseExpiresAt, opened.heartbeatInterval);
    }
    for (const [target, name] of wakingEvents()) target.addEventListener(name, this.#onWake);
    if (this.#options.endOnClose && typeof document !== "undefined") {
      globalThis.addEventListener("pagehide", (event) => event.persisted || this.#endNow(), {
        signal: this.#stopped.signal,
      });
    }
    this.#schedule();
  }

  /**
   * Whether the session has ended, or may have ended. Each read compares the clock with the deadline. Also true after
   * `end()`.
   */
  get isLost() {
    if (this.#loss === null && !this.#released) this.#check();
    return this.#loss !== null;
  }

  /** Whether the page may rely on the session at this moment. */
  get isHeld() {
    return !this.#released && !this.isLost && this.#remaining(false) > 0;
  }

  /** Why the session is lost; after `end()` the reason is `stopped`. @returns {Loss | null} */
  get loss() {
    return this.isLost ? this.#loss : null;
  }

  /** When the session ends, in the server's time, if no heartbeat renews it. */
  get expiresAt() {
    return new Date(this.#expires);
  }

  /**
   * An estimate of the server's time. As long as both clocks run at the same speed and none is set, the estimate is
   * never behind the server's time, and ahead of it by at most the duration of the requests from which the page learned
   * the server's time.
   */
  get serverTime() {
    const anchor = this.#anchor;
    return new Date(anchor === null ? Date.now() : anchor.server + elapsed(anchor.local));
  }

  /** How long the page may still rely on the session, in milliseconds. For a countdown. */
  get remainingMs() {
    return this.isLost ? 0 : Math.max(0, this.#remaining(false));
  }

  /** Throw `SessionLost` if the session is lost, or ended by `end()`. Call it before each use. */
  check() {
    if (this.isLost && this.#loss !== null) throw new SessionLost(this.#loss);
  }

  /** Let the next heartbeat restart the idle limit, too. Call `touch` when the user does something. */
  touch() {
    this.#touched = true;
  }

  /** Send a heartbeat, or wait for the one in flight. Throws if the session is lost, but not if the heartbeat fails. */
  async heartbeat() {
    this.check();
    await this.#beat();
    this.check();
  }

  /** Open the stream of this session. */
  stream() {
    this.check();
    return this.#client.stream(this.sessionId);
  }

  /**
   * End the session. From then on the session counts as lost, with the reason `stopped`, and no event is sent. If `end`
   * throws, call `end` again.
   */
  async end() {
    if (!this.#giveUp()) return;
    try {
      const answer = await this.#client.withOptions({ tries: TRIES }).endSession(this.sessionId);
      this.#loss = { reason: "stopped", closeReason: answer.closeReason };
    } catch (error) {
      if (!(error instanceof TenureError && (error.status === 410 || error.status === 404))) throw error;
      this.#loss = { reason: "stopped", closeReason: error.closeReason };
    }
  }

  /** Mark the session as ended by this page. Return false if the session was already lost for another reason. */
  #giveUp() {
    this.release();
    if (this.#loss !== null) return this.#ended;
    this.#ended = true;
    this.#loss = { reason: "stopped", closeReason: null };
    return true;
  }

  /** Stop sending heartbeats. The session then lapses at its deadline, and no event is sent. */
  release() {
    this.#released = true;
    this.#stop();
  }

  // The loop.

  async #adopt() {
    const sent = stamp();
    const answer = await this.#client.heartbeat(this.sessionId, { active: this.#options.active ?? false });
    await this.#read(sent);
    this.#renew(sent, answer.leaseExpiresAt, answer.heartbeatInterval);
  }

  /**
   * Read the session after a heartbeat that was sent at `sent`, to get a new anchor. `lastHeartbeat` is the time of
   * that heartbeat, or of a later one.
   * @param {Stamp} sent
   */
  async #read(sent) {
    const session = await this.#client.getSession(this.sessionId);
    this.#anchor = { local: sent, server: serverMs(session.lastHeartbeat) };
    this.#learn(session);
  }

  /** @param {SessionAnswer} session */
  #learn(session) {
    if (session.heartbeatInterval === null) return;
    const lease = Date.parse(session.leaseExpiresAt) - serverMs(session.lastHeartbeat);
    this.#lease = Math.max(lease, this.#lease ?? 0);
  }

  /** @param {Stamp} sent @param {string} expiresAt @param {number | null} interval */
  #renew(sent, expiresAt, interval) {
    this.#sent = sent;
    this.#expires = Date.parse(expiresAt);
    const byLease = this.#lease === null ? Infinity : this.#lease * (1 - DRIFT);
    const anchor = this.#anchor;
    const byAnchor =
      anchor === null ? Infinity : (this.#expires - anchor.server) * (1 - DRIFT) - between(anchor.local, sent);
    this.#trustedMs = Math.min(byLease, byAnchor);
    const wanted = (interval ?? CHECK_SECONDS) * 1000;
    // If the idle limit is shorter than the lease, the server's interval can be too long.
    this.#interval = Math.max(Math.min(wanted, this.#trustedMs / 3), SHORTEST_INTERVAL_MS);
    this.#dueMs = this.#interval;
    this.#failures = 0;
    this.#unauthorized = false;
    this.#warned = false;
  }

  /**
   * How long the page may still rely on the session.
   * @param {boolean} steadyOnly Whether to use only the steady clock, which can stand still while the machine sleeps.
   */
  #remaining(steadyOnly) {
    return this.#trustedMs - (steadyOnly ? performance.now() - this.#sent.steady : elapsed(this.#sent));
  }

  /** Declare the loss if the deadline has passed by the steady clock, or by either clock after a failed heartbeat. */
  #check() {
    if (this.#remaining(true) <= 0 || (this.#remaining(false) <= 0 && this.#failures > 0)) {
      this.#lose(this.#failures > 0 ? (this.#unauthorized ? "unauthorized" : "unreachable") : "expired", null);
    }
  }

  #schedule() {
    this.#cancelTimer?.();
    if (this.#loss !== null || this.#released) return;
    const passed = elapsed(this.#sent);
    const times = [this.#trustedMs, this.#warned ? Infinity : this.#warnAt(), this.#beating ? Infinity : this.#dueMs];
    // A heartbeat in flight calls this function when it ends, so set no timer for an instant that has already passed.
    const next = Math.min(...times.filter((time) => time > passed || this.#beating === null));
    if (next === Infinity) return;
    this.#cancelTimer = this.#timer.after(Math.max(1, Math.ceil(next - passed)), () => this.#tick());
  }

  #warnAt() {
    const before = this.#options.warnSeconds;
    // Give the next regular heartbeat time to succeed before the warning.
    const earliest = Math.min(this.#interval * 1.5, this.#trustedMs);
    return Math.max(before === undefined ? this.#trustedMs * EXPIRING_SHARE : this.#trustedMs - before * 1000, earliest);
  }

  #tick() {
    if (this.isLost || this.#released) return;
    const passed = elapsed(this.#sent);
    if (!this.#warned && passed >= this.#warnAt()) {
      this.#warned = true;
      this.#emit("expiring", { remainingMs: this.remainingMs });
    }
    if (this.#beating === null && (passed >= this.#dueMs || passed >= this.#trustedMs)) void this.#beat();
    this.#schedule();
  }

  /** The page may have slept, or the network may work again: do not wait for the timer. */
  #wake() {
    if (this.#failures > 0 || elapsed(this.#sent) >= this.#interval) this.#dueMs = 0;
    this.#tick();
  }

  /** @returns {Promise<void>} */
  #beat() {
    this.#beating ??= this.#sendHeartbeat().finally(() => {
      this.#beating = null;
      this.#check();
      this.#schedule();
    });
    return this.#beating;
  }

  async #sendHeartbeat() {
    const sent = stamp();
    const active = this.#options.active || this.#touched;
    this.#touched = false;
    try {
      const answer = await this.#client
        .withOptions({ timeoutMs: HEARTBEAT_TIMEOUT_MS })
        .request("POST", `/sessions/${part(this.sessionId)}/heartbeat`, {
          body: { active },
          signal: this.#stopped.signal,
        });
      if (this.#loss !== null || this.#released) return;
      this.#renew(sent, answer.leaseExpiresAt, answer.heartbeatInterval);
      await this.#refreshAnchor(sent, answer);
      if (this.isLost || this.#released) return;
      this.#emit("renewed", { expiresAt: this.expiresAt, remainingMs: this.remainingMs });
    } catch (error) {
      this.#touched ||= active;
      this.#failed(error);
    }
  }

  /**
   * Read the session to get a new anchor, if the old anchor makes the local deadline clearly earlier than the lease
   * does. The old anchor may then be wrong: the database's clock was stepped, or the first response was slow.
   * @param {Stamp} sent @param {HeartbeatAnswer} answer
   */
  async #refreshAnchor(sent, answer) {
    const anchor = this.#anchor;
    const byLease = this.#lease === null ? Infinity : this.#lease * (1 - DRIFT);
    if (anchor === null || this.#trustedMs >= byLease - Math.max(0.05 * (this.#lease ?? 0), 250)) return;
    if (between(anchor.local, sent) <= Math.max(this.#interval, this.#trustedMs / 10)) return;
    try {
      await this.#read(sent);
      this.#renew(sent, answer.leaseExpiresAt, answer.heartbeatInterval);
    } catch {
      // The deadline that was computed with the old anchor stays in force.
    }
  }

  /** @param {unknown} error */
  #failed(error) {
    if (this.#loss !== null || this.#released) return;
    this.#failures += 1;
    if (error instanceof TenureError) {
      if (error.status === 410) return this.#lose(LOST_REASONS[error.closeReason ?? ""] ?? "terminated", error.closeReason);
      if (error.status === 404) return this.#lose("unknown", null);
      this.#unauthorized = error.status === 401 || error.status === 403;
    }
    const asked = error instanceof TenureError ? (error.retryAfterSeconds ?? 0) * 1000 : 0;
    this.#dueMs = elapsed(this.#sent) + Math.max(asked, Math.min(RETRY_MS, this.#interval) * (0.5 + Math.random()));
  }

  /** @param {LostReason} reason @param {string | null} closeReason */
  #lose(reason, closeReason) {
    if (this.#loss !== null || this.#released) return;
    this.#loss = { reason, closeReason };
    this.#stop();
    this.#emit("lost", this.#loss);
  }

  #stop() {
    this.#cancelTimer?.();
    this.#timer.stop();
    this.#stopped.abort();
    for (const [target, name] of wakingEvents()) target.removeEventListener(name, this.#onWake);
  }

  #endNow() {
    if (this.#loss === null && !this.#released) {
      this.#giveUp();
      this.#client.endOnUnload(this.sessionId);
    }
  }

  /** @param {string} name @param {unknown} detail */
  #emit(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }
}

/**
 * Parse an instant of the service into milliseconds, rounded up. `Date` drops the microseconds, so the real instant
 * may be up to a millisecond later. If the server's time in an anchor were too early, the local deadline would be too
 * late.
 * @param {string} text
 */
function serverMs(text) {
  return Date.parse(text) + 1;
}

/** The time since an instant, by the clock that shows the longer time. @param {Stamp} since */
function elapsed(since) {
  return Math.max(performance.now() - since.steady, Date.now() - since.wall);
}

/** @param {Stamp} earlier @param {Stamp} later */
function between(earlier, later) {
  return Math.max(later.steady - earlier.steady, later.wall - earlier.wall, 0);
}

/** @returns {[EventTarget, string][]} */
function wakingEvents() {
  if (typeof document === "undefined") return [];
  return [
    [document, "visibilitychange"],
    [document, "resume"],
    [globalThis, "online"],
    [globalThis, "pageshow"],
    [globalThis, "focus"],
  ];
}

// Timers.
//
// A browser lets the timers of a hidden page fire once a second, and after five minutes once a minute, which is too
// seldom for a lease of a minute. The timers of a worker are not throttled. So the page starts a worker that measures
// the time. The script of the worker is this module if the page and the module have the same origin, else a blob. If
// the worker does not start, for example because the page's Content-Security-Policy forbids it, the page uses its own
// timers, and `expiring` is sent if they fire too late.

const TIMER_NAME = "tenure-timer";

/** @typedef {{after: (milliseconds: number, callback: () => void) => () => void, stop: () => void}} Ticker */

/** @returns {Ticker} */
function ticker() {
  if (typeof Worker === "undefined" || typeof document === "undefined") return pageTimer();
  try {
    return workerTimer();
  } catch {
    return pageTimer();
  }
}

/** @returns {Ticker} */
function pageTimer() {
  return {
    after(milliseconds, callback) {
      const timer = setTimeout(callback, milliseconds);
      return () => clearTimeout(timer);
    },
    stop() {},
  };
}

/** @returns {Ticker} */
function workerTimer() {
  const page = pageTimer();
  const sameOrigin = new URL(import.meta.url).origin === globalThis.location.origin;
  const source = `onmessage = ${timerWorker.toString()}`;
  const address = sameOrigin ? import.meta.url : URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const worker = new Worker(address, { name: TIMER_NAME, type: sameOrigin ? "module" : "classic" });
  if (!sameOrigin) URL.revokeObjectURL(address);
  /** @type {Map<number, () => void>} */
  const waiting = new Map();
  let works = true;
  let last = 0;
  worker.onerror = (event) => {
    event.preventDefault();
    works = false;
  };
  worker.onmessage = (event) => {
    const callback = waiting.get(event.data);
    waiting.delete(event.data);
    callback?.();
  };
  return {
    after(milliseconds, callback) {
      const id = (last += 1);
      // Set both timers: the page's timer fires if the worker could not be started.
      const cancelPage = page.after(milliseconds, () => waiting.delete(id) && callback());
      waiting.set(id, () => {
        cancelPage();
        callback();
      });
      if (works) worker.postMessage([id, milliseconds]);
      return () => {
        cancelPage();
        waiting.delete(id);
      };
    },
    stop() {
      worker.terminate();
      waiting.clear();
    },
  };
}

/** The worker's message handler: posts the id back after the given time. @param {MessageEvent<[number, number]>} event */
function timerWorker(event) {
  const [id, milliseconds] = event.data;
  setTimeout(() => globalThis.postMessage(id), milliseconds);
}

// This module is also the script of the worker.
if (typeof document === "undefined" && /** @type {any} */ (globalThis).name === TIMER_NAME) {
  globalThis.onmessage = timerWorker;
}

// Types and error codes, written by make_types.py: begin.

/** Every `code` of a problem. */
export const ERROR_CODES = Object.freeze([
  "ALREADY_DELIVERED",
  "CAPACITY_OF_ANOTHER_TENANT",
  "DATABASE_UNAVAILABLE",
  "DRAINING",
  "FORBIDDEN",
  "FORBIDDEN_ORIGIN",
  "GATEWAY_RESERVED",
  "HEADERS_TOO_LARGE",
  "INTERNAL",
  "INVALID",
  "KEY_NAME_TAKEN",
  "KEY_REUSED",
  "METHOD_NOT_ALLOWED",
  "MISDIRECTED",
  "NOT_FOUND",
  "NOT_INSTALLED",
  "NO_USAGE_GATEWAY",
  "OVERLOADED",
  "RATE_LIMITED",
  "REQUEST_TIMEOUT",
  "SCHEMA_TOO_OLD",
  "SESSION_LIMIT",
  "SESSION_OVER",
  "STARTING",
  "TENANT_MISMATCH",
  "TOO_LARGE",
  "TOO_MANY_CONNECTIONS",
  "TOO_MANY_FAILURES",
  "UNAUTHENTICATED",
  "UNAVAILABLE",
  "UNSUPPORTED_MEDIA_TYPE",
  "URI_TOO_LONG",
  "USAGE_NOT_CANCELLABLE",
]);

/**
 * @typedef {object} AcceptedAnswer
 * @property {string} submissionId
 * @property {SubmissionState} state
 */

/**
 * @typedef {object} ActivityAnswer
 * @property {string} from
 * @property {string} to
 * @property {number} stepSeconds
 * @property {(ActivityPointAnswer)[]} points
 */

/**
 * @typedef {object} ActivityPointAnswer
 * @property {string} at
 * @property {number} opened
 * @property {number} upgraded
 * @property {number} existing
 * @property {number} refused
 * @property {number} heartbeats
 * @property {number} lateHeartbeats
 * @property {Record<string, number>} closed
 * @property {number} lapsed
 */

/**
 * @typedef {object} AlertAnswer
 * @property {string} alertId
 * @property {string} name
 * @property {string | null} subject
 * @property {"active" | "cleared"} state
 * @property {string} detail
 * @property {string} raisedAt
 * @property {string | null} clearedAt
 */

/**
 * @typedef {object} AlertList
 * @property {(AlertAnswer)[]} alerts
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} AttemptAnswer
 * @property {number} number
 * @property {number} epoch
 * @property {string} startedAt
 * @property {string | null} endedAt
 * @property {AttemptOutcome | null} outcome
 * @property {number | null} status
 * @property {string | null} error
 * @property {boolean} early
 * @property {boolean} receipt
 */

/** @typedef {"abandoned" | "delivered" | "failed" | "unknown"} AttemptOutcome */

/**
 * @typedef {object} AuditEntryAnswer
 * @property {string} entryId
 * @property {string} at
 * @property {string} subject
 * @property {string} name
 * @property {string} action
 * @property {string} target
 * @property {string | null} detail
 * @property {string | null} requestId
 * @property {number} changes
 */

/**
 * @typedef {object} AuditLog
 * @property {(AuditEntryAnswer)[]} entries
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} CallerAnswer
 * @property {string} subject
 * @property {string} name
 * @property {Role} role
 * @property {string | null} tenantObjectId
 * @property {string | null} userObjectId
 * @property {boolean} anonymous
 * @property {string | null} expiresAt
 * @property {boolean} mayChange
 * @property {string} now
 */

/**
 * @typedef {object} CapacityAnswer
 * @property {string} capacityId
 * @property {number | null} maxSessions
 * @property {WhenFull} whenFull
 * @property {string | null} tenantObjectId
 * @property {number} activeSessions
 * @property {string} createdAt
 * @property {string} modifiedAt
 */

/**
 * @typedef {object} CapacityBody
 * @property {number | null} [maxSessions]
 * @property {WhenFull} [whenFull]
 * @property {string | null} [tenantObjectId]
 */

/**
 * @typedef {object} CapacityList
 * @property {(CapacityAnswer)[]} capacities
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} ChunkAnswer
 * @property {number} chunk
 * @property {string | null} submissionId
 * @property {number} sessions
 * @property {number} usage
 * @property {string | null} digest
 * @property {string | null} deliveredAt
 * @property {boolean} receipt
 */

/** @typedef {"DISCONNECTED" | "EVICTED" | "EXPIRED" | "FAILED" | "IDLE_TIMEOUT" | "LEASE_EXPIRED" | "SHUTDOWN" | "STOPPED" | "TERMINATED" | "UPGRADED"} CloseReason */

/**
 * @typedef {object} CommandBody
 * @property {string | null} [gateway]
 * @property {"cancelled" | "failed" | "pending" | null} [state]
 */

/**
 * @typedef {object} CommandedAnswer
 * @property {number} count
 */

/**
 * @typedef {object} CreatedKeyAnswer
 * @property {string} publicId
 * @property {string} name
 * @property {Role} role
 * @property {string | null} tenantObjectId
 * @property {string} createdAt
 * @property {string} createdBy
 * @property {string | null} expiresAt
 * @property {string | null} lastUsedAt
 * @property {string | null} revokedAt
 * @property {string} key
 */

/**
 * @typedef {object} EndAnswer
 * @property {string} sessionId
 * @property {string} userObjectId
 * @property {string} tenantObjectId
 * @property {string} capacityId
 * @property {1 | 2 | 3} sessionKind
 * @property {string} sessionStartUtc
 * @property {string} sessionEndUtc
 * @property {boolean} isActive
 * @property {State} state
 * @property {string} leaseExpiresAt
 * @property {number | null} heartbeatInterval
 * @property {string} lastHeartbeat
 * @property {string} lastActivity
 * @property {CloseReason | null} closeReason
 * @property {string | null} previousSessionId
 * @property {string} createdUtc
 * @property {string} modifiedUtc
 * @property {StreamCounters | null} stream
 * @property {"already_closed" | "closed"} status
 */

/**
 * @typedef {object} EndBody
 * @property {string | null} [tenant]
 * @property {string | null} [user]
 * @property {string | null} [capacity]
 * @property {1 | 2 | 3 | null} [kind]
 * @property {"active" | "created" | null} [state]
 * @property {(string)[] | null} [sessionIds]
 * @property {boolean} [all]
 * @property {string | null} [actionId]
 * @property {number} [limit]
 * @property {boolean} [dryRun]
 */

/**
 * @typedef {object} EndedAnswer
 * @property {string | null} actionId
 * @property {number} ended
 * @property {number} totalEnded
 * @property {number} remaining
 * @property {boolean} exact
 * @property {boolean} done
 */

/**
 * @typedef {object} EventAnswer
 * @property {string} id
 * @property {EventType} type
 * @property {string} at
 * @property {string} sessionId
 * @property {string} userObjectId
 * @property {string} tenantObjectId
 * @property {string} capacityId
 * @property {1 | 2 | 3} sessionKind
 * @property {string} [previousSessionId]
 * @property {string} [sessionStartUtc]
 * @property {CloseReason} [closeReason]
 */

/**
 * @typedef {object} EventList
 * @property {(EventAnswer)[]} events
 * @property {number} count
 * @property {string} nextCursor
 */

/** @typedef {"session.closed" | "session.opened" | "session.upgraded"} EventType */

/**
 * @typedef {object} FactAnswer
 * @property {string} at
 * @property {FactName} fact
 * @property {string} text
 * @property {string} [userObjectId]
 * @property {string} [tenantObjectId]
 * @property {string} [capacityId]
 * @property {1 | 2 | 3} [sessionKind]
 * @property {string} [termEndsAt]
 * @property {number} [leaseSeconds]
 * @property {number} [idleSeconds]
 * @property {number} [heartbeatInterval]
 * @property {string} [previousSessionId]
 * @property {string} [nextSessionId]
 * @property {(string)[]} [sessionIds]
 * @property {string} [until]
 * @property {CloseReason} [closeReason]
 * @property {boolean} [recorded]
 * @property {string} [subject]
 * @property {string} [name]
 * @property {string} [requestId]
 * @property {StreamCounters} [stream]
 * @property {number} [windowId]
 * @property {number} [lastWindowId]
 * @property {number} [windows]
 * @property {string} [from]
 * @property {string} [to]
 * @property {number} [usage]
 * @property {"delivered" | "notSent" | "waiting"} [delivery]
 * @property {string} [deliveredAt]
 * @property {number} [chunk]
 * @property {string} [submissionId]
 * @property {string} [gateway]
 * @property {number} [attempt]
 * @property {number} [attempts]
 * @property {number} [status]
 * @property {string} [error]
 * @property {boolean} [receipt]
 */

/** @typedef {"billed" | "deadline" | "delivered" | "delivering" | "deliveryAbandoned" | "deliveryFailed" | "deliveryGivenUp" | "deliveryUnknown" | "deliveryWaits" | "ended" | "evictedFor" | "keptAliveUntil" | "lastActivity" | "notBilledYet" | "opened" | "streamed" | "upgradedFrom" | "upgradedTo" | "windowsNotKept"} FactName */

/**
 * @typedef {object} FieldError
 * @property {string} field
 * @property {string} message
 */

/** @typedef {"capacity" | "kind" | "session" | "tenant" | "user"} GroupBy */

/**
 * @typedef {object} HealthAnswer
 * @property {"ok"} status
 * @property {string} version
 * @property {number} activeSessions
 */

/**
 * @typedef {object} HeartbeatAnswer
 * @property {string} sessionId
 * @property {string} leaseExpiresAt
 * @property {number | null} heartbeatInterval
 * @property {true} acknowledged
 * @property {State} state
 */

/**
 * @typedef {object} HeartbeatBody
 * @property {boolean} [active]
 */

/**
 * @typedef {object} HeartbeatOfMany
 * @property {string} sessionId
 * @property {boolean} acknowledged
 * @property {string} [leaseExpiresAt]
 * @property {number | null} [heartbeatInterval]
 * @property {State} [state]
 * @property {404 | 410} [status]
 * @property {CloseReason} [closeReason]
 */

/**
 * @typedef {object} HeartbeatsAnswer
 * @property {(HeartbeatOfMany)[]} heartbeats
 * @property {number} count
 */

/**
 * @typedef {object} HeartbeatsBody
 * @property {(string)[]} sessionIds
 * @property {boolean} [active]
 */

/**
 * @typedef {object} HistoryAnswer
 * @property {SessionAnswer} session
 * @property {(FactAnswer)[]} facts
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} InstanceAnswer
 * @property {string} instance
 * @property {string} holder
 * @property {string} host
 * @property {number} pid
 * @property {number} worker
 * @property {string} version
 * @property {string} startedAt
 * @property {string} lastSeenAt
 * @property {string | null} stoppedAt
 * @property {boolean} alive
 * @property {(string)[]} leads
 */

/**
 * @typedef {object} InstanceList
 * @property {(InstanceAnswer)[]} instances
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} JobAnswer
 * @property {string} name
 * @property {number} intervalSeconds
 * @property {number} lockTimeoutSeconds
 * @property {string} nextRunAt
 * @property {string | null} retryAt
 * @property {string | null} lastStartAt
 * @property {string | null} lastSuccessAt
 * @property {number | null} lastDurationSeconds
 * @property {number} runCount
 * @property {number} failuresInARow
 * @property {string | null} lastError
 * @property {boolean} paused
 */

/**
 * @typedef {object} JobList
 * @property {(JobAnswer)[]} jobs
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} KeyAnswer
 * @property {string} publicId
 * @property {string} name
 * @property {Role} role
 * @property {string | null} tenantObjectId
 * @property {string} createdAt
 * @property {string} createdBy
 * @property {string | null} expiresAt
 * @property {string | null} lastUsedAt
 * @property {string | null} revokedAt
 */

/**
 * @typedef {object} KeyBody
 * @property {string} name
 * @property {Role} role
 * @property {string | null} [tenantObjectId]
 * @property {string | null} [expiresAt]
 * @property {string | null} [othersExpireAt]
 */

/**
 * @typedef {object} KeyList
 * @property {(KeyAnswer)[]} keys
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} LeaseAnswer
 * @property {string} name
 * @property {string} holder
 * @property {number} epoch
 * @property {boolean} held
 * @property {string} acquiredAt
 * @property {string} renewedAt
 * @property {string} expiresAt
 */

/**
 * @typedef {object} LeaseList
 * @property {(LeaseAnswer)[]} leases
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} LeaseWithRole
 * @property {string} name
 * @property {string} holder
 * @property {number} epoch
 * @property {boolean} held
 * @property {string} acquiredAt
 * @property {string} renewedAt
 * @property {string} expiresAt
 * @property {"follower" | "leader"} role
 */

/**
 * @typedef {object} ListedSubmission
 * @property {string} submissionId
 * @property {string} gateway
 * @property {SubmissionState} state
 * @property {number} attemptCount
 * @property {string | null} nextAttemptAt
 * @property {string | null} lastError
 * @property {string | null} requestId
 * @property {string} createdAt
 * @property {string | null} endedAt
 */

/**
 * @typedef {object} LivenessAnswer
 * @property {"ok"} status
 */

/**
 * @typedef {object} MetricsAnswer
 * @property {number} activeSessions
 * @property {number} totalSessions
 * @property {Record<string, number>} activeByKind
 * @property {Record<string, number>} activeByState
 * @property {number} [opened]
 * @property {number} [upgraded]
 * @property {Record<string, number>} [closedByReason]
 * @property {number} [totalBytesReceived]
 * @property {number} [totalChunks]
 * @property {number} [totalMessagesSent]
 * @property {number} [totalPartialsSent]
 * @property {number} [totalFinalsSent]
 * @property {number} [totalErrorsSent]
 * @property {number} [totalAudioDurationMs]
 * @property {number} [workers]
 * @property {number} [workersAnswered]
 */

/**
 * @typedef {object} NextLapse
 * @property {string} sessionId
 * @property {string} deadline
 */

/**
 * @typedef {object} OidcOption
 * @property {string} issuer
 * @property {string} address
 */

/**
 * @typedef {object} OpenAnswer
 * @property {string} sessionId
 * @property {string} userObjectId
 * @property {string} tenantObjectId
 * @property {string} capacityId
 * @property {1 | 2 | 3} sessionKind
 * @property {string} sessionStartUtc
 * @property {string} sessionEndUtc
 * @property {boolean} isActive
 * @property {State} state
 * @property {string} leaseExpiresAt
 * @property {number | null} heartbeatInterval
 * @property {string} lastHeartbeat
 * @property {string} lastActivity
 * @property {CloseReason | null} closeReason
 * @property {string | null} previousSessionId
 * @property {string} createdUtc
 * @property {string} modifiedUtc
 * @property {StreamCounters | null} stream
 * @property {"created" | "existing" | "upgraded"} status
 * @property {boolean} wasCreated
 * @property {boolean} wasUpgraded
 * @property {string} [sessionToken]
 */

/**
 * @typedef {object} OpenBody
 * @property {string} userObjectId
 * @property {string} tenantObjectId
 * @property {string} capacityId
 * @property {1 | 2 | 3} sessionKind
 * @property {number | null} [leaseSeconds]
 * @property {number | null} [idleSeconds]
 * @property {boolean} [withToken]
 */

/**
 * @typedef {object} ProblemDetails
 * @property {string} type
 * @property {string} title
 * @property {number} status
 * @property {string} detail
 * @property {string} error
 * @property {string} code
 * @property {(FieldError)[]} [errors]
 * @property {string | null} [closeReason]
 * @property {string | null} [requestId]
 */

/**
 * @typedef {object} ReadinessAnswer
 * @property {"ready"} status
 * @property {string} instance
 * @property {"follower" | "leader"} mode
 * @property {(LeaseWithRole)[]} leases
 */

/** @typedef {"client" | "operator" | "reader"} Role */

/**
 * @typedef {object} RunAnswer
 * @property {string} startedAt
 * @property {string | null} endedAt
 * @property {string} holder
 * @property {number} epoch
 * @property {RunOutcome | null} outcome
 * @property {string | null} error
 */

/**
 * @typedef {object} RunList
 * @property {(RunAnswer)[]} runs
 * @property {number} count
 * @property {string | null} nextCursor
 */

/** @typedef {"abandoned" | "failed" | "succeeded"} RunOutcome */

/**
 * @typedef {object} SeatsAnswer
 * @property {string} capacityId
 * @property {number | null} maxSessions
 * @property {WhenFull} whenFull
 * @property {string | null} tenantObjectId
 * @property {number} activeSessions
 * @property {string} createdAt
 * @property {string} modifiedAt
 * @property {NextLapse | null} nextLapse
 */

/**
 * @typedef {object} SendBody
 * @property {string} from
 * @property {string | null} [to]
 */

/**
 * @typedef {object} SentAnswer
 * @property {number} windows
 * @property {number} chunks
 * @property {boolean} complete
 */

/**
 * @typedef {object} SessionAnswer
 * @property {string} sessionId
 * @property {string} userObjectId
 * @property {string} tenantObjectId
 * @property {string} capacityId
 * @property {1 | 2 | 3} sessionKind
 * @property {string} sessionStartUtc
 * @property {string} sessionEndUtc
 * @property {boolean} isActive
 * @property {State} state
 * @property {string} leaseExpiresAt
 * @property {number | null} heartbeatInterval
 * @property {string} lastHeartbeat
 * @property {string} lastActivity
 * @property {CloseReason | null} closeReason
 * @property {string | null} previousSessionId
 * @property {string} createdUtc
 * @property {string} modifiedUtc
 * @property {StreamCounters | null} stream
 */

/**
 * @typedef {object} SessionCountAnswer
 * @property {number} count
 * @property {boolean} exact
 */

/**
 * @typedef {object} SessionList
 * @property {(SessionAnswer)[]} sessions
 * @property {number} count
 * @property {string | null} nextCursor
 * @property {boolean} exact
 */

/**
 * @typedef {object} SignInBody
 * @property {string} credential
 */

/**
 * @typedef {object} SignInOptions
 * @property {boolean} credentialsRequired
 * @property {OidcOption | null} oidc
 */

/**
 * @typedef {object} SignedOutAnswer
 * @property {boolean} signedIn
 */

/** @typedef {"active" | "closed" | "closing" | "created"} State */

/**
 * @typedef {object} StreamCounters
 * @property {number} bytesReceived
 * @property {number} chunks
 * @property {number} messagesSent
 * @property {number} partialsSent
 * @property {number} finalsSent
 * @property {number} errorsSent
 * @property {number} audioDurationMs
 */

/**
 * @typedef {object} SubmissionAnswer
 * @property {string} submissionId
 * @property {string} gateway
 * @property {SubmissionState} state
 * @property {number} attemptCount
 * @property {string | null} nextAttemptAt
 * @property {string | null} lastError
 * @property {string | null} requestId
 * @property {string} createdAt
 * @property {string | null} endedAt
 * @property {(AttemptAnswer)[]} attempts
 */

/**
 * @typedef {object} SubmissionCountAnswer
 * @property {string} gateway
 * @property {SubmissionState} state
 * @property {number} count
 * @property {boolean} exact
 */

/**
 * @typedef {object} SubmissionCounts
 * @property {(SubmissionCountAnswer)[]} counts
 */

/**
 * @typedef {object} SubmissionList
 * @property {(ListedSubmission)[]} submissions
 * @property {number} count
 * @property {string | null} nextCursor
 */

/** @typedef {"cancelled" | "delivered" | "failed" | "pending"} SubmissionState */

/**
 * @typedef {object} SubmitBody
 * @property {string} gateway
 * @property {unknown} payload
 */

/**
 * @typedef {object} TermAnswer
 * @property {string} name
 * @property {number} epoch
 * @property {string} holder
 * @property {string} acquiredAt
 * @property {string | null} endedAt
 * @property {"expired" | "released" | "resigned" | null} how
 */

/**
 * @typedef {object} TermList
 * @property {(TermAnswer)[]} terms
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} TranscribeAnswer
 * @property {string} text
 */

/**
 * @typedef {object} UsageAnswer
 * @property {string} from
 * @property {string} to
 * @property {string} finalUntil
 * @property {GroupBy | null} groupBy
 * @property {(UsageGroupAnswer)[]} groups
 * @property {number} count
 * @property {string | null} nextCursor
 */

/**
 * @typedef {object} UsageGroupAnswer
 * @property {string} [tenantObjectId]
 * @property {string} [capacityId]
 * @property {string} [userObjectId]
 * @property {1 | 2 | 3} [sessionKind]
 * @property {string} [sessionId]
 * @property {number} usage
 * @property {number} sessions
 */

/** @typedef {"evictOldest" | "reject"} WhenFull */

/**
 * @typedef {object} WholeWindowAnswer
 * @property {number} windowId
 * @property {string} startAt
 * @property {string} endAt
 * @property {Record<string, number>} factors
 * @property {number | null} sessions
 * @property {number | null} usage
 * @property {string | null} deliveredAt
 * @property {"delivered" | "notSent" | "nothing" | "waiting"} delivery
 * @property {(ChunkAnswer)[]} chunks
 */

/**
 * @typedef {object} WindowAnswer
 * @property {number} windowId
 * @property {string} startAt
 * @property {string} endAt
 * @property {Record<string, number>} factors
 * @property {number | null} sessions
 * @property {number | null} usage
 * @property {string | null} deliveredAt
 * @property {"delivered" | "notSent" | "nothing" | "waiting"} delivery
 */

/**
 * @typedef {object} WindowList
 * @property {(WindowAnswer)[]} windows
 * @property {number} count
 * @property {string | null} nextCursor
 */

// Types and error codes: end.

// @ts-check
/**
 * Keeps what a page shows up to date, with at most one request a second per tab after the first loads.
 *
 * A page watches addresses, each with an interval. The first request of a watch is sent at once, because a person waits
 * for it. After that, one timer loads the watch that is the longest overdue, at most once a second. If no watch is due,
 * the timer still loads one every few seconds, so that the page notices when the service does not respond. The timer
 * sends nothing while updates are paused or the tab is hidden, not even when a paused tab is shown again. While the
 * service is unavailable, the timer loads one watch at a time, with growing pauses; after a response, all watches are
 * due.
 *
 * A watch can depend on events of sessions: it is due as soon as an event arrives that concerns it. The events come as
 * a stream (`GET /events`), which is open only while the tab is visible: browsers allow few connections per host, and
 * hidden tabs must not take them from others. Without the stream, which the role `client` cannot read, a watch that
 * depends on events is due at least every two seconds, unless its responses are slow.
 */

import { ApiError, connection, isAway, request, root, WITHOUT_DATABASE } from "./api.js";

export const SPACING_MS = 1_000;
const TICK_MS = 250;
const LONGEST_PAUSE_MS = 5_000;
/** After this time without a request, a watch is loaded before it is due, to find out whether the service responds. */
const QUIET_MS = 1_500;
/**
 * How long a watch waits for a response. A request follows at most SILENT_MS after the last one, so the console notices
 * an outage of the service within five seconds.
 */
const WATCH_TIMEOUT_MS = 2_500;
/**
 * Unless an event arrives, a watch is due again after at least this many times the duration of its last request, so that
 * no tab keeps the service busy.
 */
const REST_FACTOR = 20;
/** A watch whose last response took longer than this is not loaded before it is due, except after SILENT_MS. */
const COSTLY_MS = 300;
/** After this time without a request, the watch with the fastest response is loaded, even if it exceeds COSTLY_MS. */
const SILENT_MS = 2_500;
const PAUSED = "tenure.paused";
const EVENT_TYPES = ["session.opened", "session.upgraded", "session.closed"];
/** With more events in a second than this, watches would always be due, so the stream is closed for STREAM_BUSY_MS. */
const EVENTS_PER_SECOND_MAX = 200;
const STREAM_RETRY_MS = 3_000;
const STREAM_BUSY_MS = 30_000;
/** The longest interval of a watch that depends on events while the stream of events is closed. */
const WITHOUT_EVENTS_MS = 2_000;

/**
 * An address that is loaded again and again, with its last data. If a later request fails, the data stays.
 * @template T
 */
export class Watch extends EventTarget {
  /** @type {T | null} */
  data = null;
  /** @type {unknown} */
  error = null;
  /** @type {Date | null} */
  loadedAt = null;
  /** Whether the data is older than the last call of `reload`. */
  isStale = false;
  dueAt = 0;
  tookMs = 0;
  isLoading = false;
  #stopped = new AbortController();
  #generation = 0;
  #isOutdated = false;

  /**
   * @param {() => {path: string, query?: Record<string, unknown>, exact?: boolean} | null} address Null: there is nothing to load now.
   * @param {number} everyMs
   * @param {((event: import("./types.js").SessionEvent) => boolean) | null} [concerns] Whether an event changes the data.
   * @param {number} [timeoutMs]
   */
  constructor(address, everyMs, concerns = null, timeoutMs = WATCH_TIMEOUT_MS) {
    super();
    this.timeoutMs = timeoutMs;
    this.address = address;
    this.everyMs = everyMs;
    this.concerns = concerns;
  }

  get isFirst() {
    return this.data === null && this.error === null;
  }

  /** Load now. */
  async load() {
    const address = this.address();
    if (address === null || this.#stopped.signal.aborted) return;
    this.#generation += 1;
    const generation = this.#generation;
    this.isLoading = true;
    const began = performance.now();
    this.dueAt = began + this.everyMs;
    try {
      const signal = this.#stopped.signal;
      const { path, query, exact } = address;
      const data = await request("GET", path, { query, exact, signal, timeoutMs: this.timeoutMs });
      if (generation !== this.#generation) return;
      this.data = data;
      this.error = null;
      this.isStale = false;
      this.loadedAt = new Date();
    } catch (error) {
      if (generation !== this.#generation || this.#stopped.signal.aborted) return;
      // While the service is unavailable, the page keeps its data, and a banner says that the service is unavailable.
      this.error = error;
    } finally {
      if (generation === this.#generation) {
        this.isLoading = false;
        const asked = this.error instanceof ApiError ? this.error.retryAfterSeconds * 1000 : 0;
        const everyMs = this.concerns !== null && !live.isFollowing ? Math.min(this.everyMs, WITHOUT_EVENTS_MS) : this.everyMs;
        // If an event arrived during the request, the response may be older than the event: the watch is due again.
        this.tookMs = performance.now() - began;
        this.dueAt = this.#isOutdated ? 0 : performance.now() + Math.max(asked, everyMs, this.tookMs * REST_FACTOR);
        this.#isOutdated = false;
        if (!this.#stopped.signal.aborted) this.dispatchEvent(new Event("change"));
      }
    }
  }

  /** Something has changed: make the watch due, so that the timer loads it soon. */
  touch() {
    if (this.isLoading) this.#isOutdated = true;
    else this.dueAt = 0;
  }

  /** The address or its data has changed: load at once, and mark the shown data as old until the response arrives. */
  reload() {
    this.isStale = true;
    void this.load();
  }

  stop() {
    this.#stopped.abort();
  }
}

class Live extends EventTarget {
  /** @type {Set<Watch<any>>} */
  #watches = new Set();
  #failures = 0;
  #tryAt = 0;
  #isPaused = stored() === "true";
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {EventSource | null} */
  #stream = null;
  #isFollowing = false;
  #followAt = 0;
  #events = { since: 0, count: 0 };
  /** Whether the caller may read events. */
  mayFollow = false;

  constructor() {
    super();
    connection.addEventListener("change", () => {
      if (connection.lost !== null) return;
      this.#failures = 0;
      for (const watch of this.#watches) watch.dueAt = 0;
    });
    document.addEventListener("visibilitychange", () => this.#schedule());
    addEventListener("pagehide", () => this.#closeStream());
  }

  get isPaused() {
    return this.#isPaused;
  }

  set isPaused(paused) {
    this.#isPaused = paused;
    try {
      sessionStorage.setItem(PAUSED, String(paused));
    } catch {
      // Storage is switched off: the choice lasts until the page is loaded again.
    }
    this.dispatchEvent(new Event("change"));
    this.#schedule();
  }

  /** The time until the next request is tried while the service is unavailable. */
  get retryInMs() {
    return Math.max(0, this.#tryAt - performance.now());
  }

  /** @param {Watch<any>} watch */
  add(watch) {
    this.#watches.add(watch);
    if (watch.dueAt <= performance.now()) void watch.load();
    this.#schedule();
  }

  /** @param {Watch<any>} watch */
  remove(watch) {
    watch.stop();
    this.#watches.delete(watch);
  }

  /** Load all shown data once, even while updates are paused. */
  refresh() {
    this.#failures = 0;
    this.#tryAt = 0;
    for (const watch of this.#watches) void watch.load();
  }

  #schedule() {
    clearTimeout(this.#timer);
    if (this.#isPaused || document.hidden || this.#watches.size === 0) {
      this.#closeStream();
      return;
    }
    this.#timer = setTimeout(() => this.#tick(), TICK_MS);
  }

  /** Whether changes arrive as events now. */
  get isFollowing() {
    return this.#isFollowing;
  }

  /**
   * Open the stream of events if a watch needs it, otherwise close it.
   * @param {number} now
   * @returns {boolean} Whether a request was sent.
   */
  #openStream(now) {
    const isWanted = this.mayFollow && [...this.#watches].some(({ concerns }) => concerns !== null);
    if (!isWanted) this.#closeStream();
    if (!isWanted || this.#stream !== null || now < this.#followAt || connection.lost !== null) return false;
    connection.lastSentAt = now;
    const stream = new EventSource(new URL("events?after=latest", root));
    this.#stream = stream;
    stream.addEventListener("open", () => {
      if (this.#stream !== stream) return;
      this.#isFollowing = true;
      // The stream does not contain what happened before it began.
      for (const watch of this.#watches) if (watch.concerns !== null) watch.touch();
    });
    // Close the stream. Otherwise the browser would reconnect on its own, beyond the limit of one request a second.
    stream.addEventListener("error", () => this.#stream === stream && this.#closeStream(STREAM_RETRY_MS));
    for (const type of EVENT_TYPES) stream.addEventListener(type, (event) => this.#arrived(event, stream));
    return true;
  }

  /** @param {MessageEvent<string>} message @param {EventSource} stream */
  #arrived(message, stream) {
    if (this.#stream !== stream) return;
    const now = performance.now();
    if (now - this.#events.since > 1000) this.#events = { since: now, count: 0 };
    this.#events.count += 1;
    if (this.#events.count > EVENTS_PER_SECOND_MAX) {
      this.#closeStream(STREAM_BUSY_MS);
      for (const watch of this.#watches) if (watch.concerns !== null) watch.touch();
      return;
    }
    const event = camelCased(JSON.parse(message.data));
    for (const watch of this.#watches) if (watch.concerns?.(event)) watch.touch();
  }

  /** @param {number} [pauseMs] */
  #closeStream(pauseMs = 0) {
    this.#stream?.close();
    this.#stream = null;
    this.#isFollowing = false;
    this.#followAt = performance.now() + pauseMs;
  }

  #tick() {
    const now = performance.now();
    if (now - connection.lastSentAt >= SPACING_MS && now >= this.#tryAt && !this.#openStream(now)) {
      const next = this.#next(now);
      if (next !== undefined) void this.#load(next);
    }
    this.#schedule();
  }

  /**
   * The watch to load next: usually one that failed because the service was unavailable, else the longest overdue one.
   * @param {number} now
   * @returns {Watch<any> | undefined}
   */
  #next(now) {
    const idle = [...this.#watches].filter((watch) => !watch.isLoading && watch.address() !== null);
    const isAllowed = this.#probes(idle, now);
    const due = idle.filter((watch) => watch.dueAt <= now || isAway(watch.error) || isAllowed(watch));
    const order = (/** @type {Watch<any>} */ watch) => (isAway(watch.error) ? watch.dueAt - now : watch.dueAt);
    return due.sort((one, other) => order(one) - order(other))[0];
  }

  /**
   * Decide which watches may be loaded before they are due, to find out whether the service responds. Watches that
   * failed because the service was unavailable are loaded in any case.
   * @param {Watch<any>[]} idle
   * @param {number} now
   * @returns {(watch: Watch<any>) => boolean}
   */
  #probes(idle, now) {
    const isLost = connection.lost !== null;
    const quietMs = now - connection.lastSentAt;
    if (!isLost && quietMs < QUIET_MS) return () => false;
    // A response that does not need the database does not show whether the database is available. A watch with such a
    // response is allowed only if there is no other idle watch.
    const informative = idle.filter((watch) => !WITHOUT_DATABASE.has(watch.address()?.path ?? ""));
    const probes = informative.length > 0 ? informative : idle;
    const cheapestMs = Math.min(...probes.map(({ tookMs }) => tookMs));
    const mostMs = isLost || quietMs >= SILENT_MS ? Math.max(COSTLY_MS, cheapestMs) : COSTLY_MS;
    return (watch) => probes.includes(watch) && watch.tookMs <= mostMs;
  }

  /** @param {Watch<any>} watch */
  async #load(watch) {
    await watch.load();
    if (isAway(watch.error)) {
      this.#failures += 1;
      this.#tryAt = performance.now() + Math.min(LONGEST_PAUSE_MS, SPACING_MS * 2 ** (this.#failures - 1));
    } else if (connection.lost === null) {
      this.#tryAt = 0;
    }
  }
}

/**
 * Rename the fields of an event to camelCase. The default of an instance may be snake_case, and an `EventSource` cannot
 * send the header that requests camelCase.
 * @param {Record<string, unknown>} event
 * @returns {any}
 */
function camelCased(event) {
  const renamed = Object.entries(event).map(([name, value]) => [name.replace(/_([a-z])/g, (_, letter) => letter.toUpperCase()), value]);
  return Object.fromEntries(renamed);
}

function stored() {
  try {
    return sessionStorage.getItem(PAUSED);
  } catch {
    return null;
  }
}

export const live = new Live();

// @ts-check
/**
 * Requests to the API: the same routes that every other client uses, with the cookie of the sign-in as credential.
 *
 * `Connection` knows whether the service is available. A request that fails because the service is unavailable (no
 * response, or one of the statuses in AWAY) sets `lost`, and the next response with another status clears `lost`. If
 * the failed request got a response, the database may be unavailable: then a response of a path in WITHOUT_DATABASE
 * does not clear `lost`. Until `lost` is cleared, pages keep showing their data.
 */

import { learnServerTime, serverNow } from "./clock.js";

/** How long a request may take if its options have no `timeoutMs`. */
const TIMEOUT_MS = 15_000;
/** The statuses with which the service, or a proxy, reports that the service is unavailable at the moment. */
const AWAY = new Set([502, 503, 504]);
/** Paths that an instance serves for a while without the database: a response does not show that the database is back. */
export const WITHOUT_DATABASE = new Set(["me"]);
/** An amount of usage in JSON text. It cannot match inside of a JSON string, because quotes in strings are escaped. */
const AMOUNT = /"usage":\s*(-?\d+(?:\.\d+)?)/g;

/** The address of the service, with its prefix and a slash at its end. The console is one level below. */
export const root = new URL("..", document.baseURI);

/** A response with a problem, as the service sends it. */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string, detail?: string, title?: string, errors?: {field: string, message: string}[]}} problem
   * @param {string | null} requestId
   * @param {number} retryAfterSeconds
   */
  constructor(status, problem, requestId, retryAfterSeconds = 0) {
    const detail = problem.detail ?? problem.title ?? `the service answered with status ${status}`;
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.code = problem.code ?? "HTTP_ERROR";
    this.detail = detail;
    this.errors = problem.errors ?? [];
    this.requestId = requestId;
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** The service did not respond. */
export class ConnectionLost extends Error {
  /** @param {unknown} cause */
  constructor(cause) {
    super("The service does not answer.", { cause });
    this.name = "ConnectionLost";
  }
}

/** Whether the service is unavailable, so that the same request may succeed later. @param {unknown} error */
export function isAway(error) {
  return error instanceof ConnectionLost || (error instanceof ApiError && AWAY.has(error.status));
}

/**
 * @typedef {object} RequestOptions
 * @property {Record<string, unknown>} [query] Values that are undefined, null or "" are left out.
 * @property {unknown} [body] Sent as JSON.
 * @property {AbortSignal} [signal]
 * @property {number} [timeoutMs]
 * @property {boolean} [exact] Return amounts of usage as text: a JavaScript number is too inexact for large amounts.
 *
 * @typedef {{since: Date, detail: string, requestId: string | null}} Loss
 */

class Connection extends EventTarget {
  /** @type {Loss | null} */
  lost = null;
  /** When the last request was sent, by `performance.now()`. */
  lastSentAt = Number.NEGATIVE_INFINITY;

  #isDatabaseAway = false;

  /** @param {unknown} error */
  failed(error) {
    this.#isDatabaseAway = error instanceof ApiError;
    const requestId = error instanceof ApiError ? error.requestId : null;
    const detail = error instanceof ApiError ? error.detail : "";
    this.lost = { since: this.lost?.since ?? new Date(serverNow()), detail, requestId };
    this.dispatchEvent(new Event("change"));
  }

  /** @param {string} path */
  answered(path) {
    if (this.lost === null || (this.#isDatabaseAway && WITHOUT_DATABASE.has(path))) return;
    this.lost = null;
    this.dispatchEvent(new Event("change"));
  }

  /** The credential is missing or not valid any more. */
  signedOut() {
    this.dispatchEvent(new Event("signed-out"));
  }
}

export const connection = new Connection();

/**
 * When the user last changed something or requested other data, by `performance.now()`. For some seconds after that,
 * tables show new responses at once.
 */
export const acted = { at: Number.NEGATIVE_INFINITY };

/**
 * Send a request and return the decoded JSON of the response.
 * @param {string} method
 * @param {string} path Relative to `root`, such as `sessions/…`. Encode each value in the path with `part`.
 * @param {RequestOptions} [options]
 * @returns {Promise<any>} Rejects with `ApiError`, `ConnectionLost`, or the reason of the signal.
 */
export async function request(method, path, options = {}) {
  const url = new URL(path.replace(/^\//, ""), root);
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== null && value !== "") url.searchParams.set(name, String(value));
  }
  const timeout = AbortSignal.timeout(options.timeoutMs ?? TIMEOUT_MS);
  const sentAt = performance.now();
  connection.lastSentAt = sentAt;
  if (method !== "GET") acted.at = sentAt;
  /** @type {Response} */
  let response;
  /** @type {string} */
  let content;
  try {
    response = await fetch(url, {
      method,
      headers: {
        accept: "application/json",
        // The default of an instance may be snake_case.
        "tenure-json-case": "camel",
        ...(options.body === undefined ? {} : { "content-type": "application/json" }),
      },
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal === undefined ? timeout : AbortSignal.any([timeout, options.signal]),
      credentials: "same-origin",
      cache: "no-store",
    });
    content = await response.text();
  } catch (error) {
    if (options.signal?.aborted) throw options.signal.reason;
    const lost = new ConnectionLost(error);
    connection.failed(lost);
    throw lost;
  }
  const answer = decoded(options.exact ? content.replace(AMOUNT, '"usage":"$1"') : content);
  if (response.ok) {
    connection.answered(path);
    if (typeof answer?.now === "string") learnServerTime(answer.now, sentAt);
    return answer;
  }
  const seconds = Number(response.headers.get("retry-after") ?? 0);
  const error = new ApiError(response.status, answer ?? {}, response.headers.get("x-request-id"), seconds || 0);
  if (isAway(error)) connection.failed(error);
  else connection.answered(path);
  if (error.status === 401) connection.signedOut();
  throw error;
}

/** @param {string} content */
function decoded(content) {
  if (content === "") return null;
  try {
    return JSON.parse(content);
  } catch {
    return null;
  }
}

/** The error, in one line with the id of the request. @param {unknown} error */
export function problemOf(error) {
  if (!(error instanceof ApiError)) return "The service does not answer.";
  return error.requestId === null ? error.detail : `${error.detail} (request ${error.requestId})`;
}

/** Encode a value as one part of a path. @param {unknown} value */
export const part = (value) => encodeURIComponent(String(value));

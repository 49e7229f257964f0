// @ts-check
/**
 * The session that this tab holds, if there is one. The tab keeps holding it when the user goes to another page.
 *
 * The JavaScript client of the service does the work (`hold` in `/client/tenure.js`): it sends heartbeats at the
 * server's interval with the session's own token, and never treats the session as live for longer than the server does.
 */

import { ApiError, ConnectionLost, request, root } from "./api.js";

/**
 * @typedef {import("../../../http/routes/tenure.js").HeldSession} HeldSession
 * @typedef {import("../../../http/routes/tenure.js").Loss} Loss
 * @typedef {import("../../../http/routes/tenure.js").OpenBody} OpenBody
 * @typedef {import("../../../http/routes/tenure.js").OpenAnswer} OpenAnswer
 */

/** The meaning of each reason of a loss. @type {Record<string, string>} */
export const LOSSES = {
  expired: "The session reached its deadline.",
  evicted: "A newer session took the seat.",
  upgraded: "The same user opened a session of a higher kind.",
  terminated: "An operator ended the session, or its stream ended.",
  stopped: "A client ended the session.",
  unknown: "The service does not know the session.",
  unauthorized: "The service no longer accepts the token of the session.",
  unreachable: "The service could not be reached before the deadline, so the session may have ended.",
};

/**
 * The key under which `sessionStorage` contains the held session, without its token. After a reload, the console offers
 * to hold this session again.
 */
const REMEMBERED = "tenure.held";

/** @typedef {Pick<OpenAnswer, "sessionId" | "userObjectId" | "tenantObjectId" | "capacityId" | "sessionKind">} Remembered */

class Holding extends EventTarget {
  /** The session that this tab held until the tab was reloaded. @type {Remembered | null} */
  interrupted = remembered();
  /** @type {HeldSession | null} */
  #session = null;
  /** @type {OpenAnswer | null} */
  opened = null;
  /** @type {Loss | null} */
  loss = null;
  isExpiring = false;
  renewals = 0;
  /** @type {Date | null} */
  renewedAt = null;

  get session() {
    return this.#session;
  }

  get isHeld() {
    return this.#session !== null && this.loss === null;
  }

  /**
   * Open a session and hold it. If the user already has a live session of the same or a higher kind on the capacity,
   * hold that session instead.
   * @param {OpenBody} body
   * @param {{endOnClose?: boolean}} [options]
   * @returns {Promise<OpenAnswer>}
   */
  async begin(body, { endOnClose = false } = {}) {
    const client = await import(new URL("client/tenure.js", root).href);
    const opened = /** @type {OpenAnswer} */ (await request("PUT", "sessions", { body: { ...body, withToken: true } }));
    this.release();
    let session;
    try {
      session = await client.hold({ sessionId: opened.sessionId, token: opened.sessionToken, url: root, active: true, endOnClose });
    } catch (error) {
      throw translated(error, client);
    }
    this.#session = session;
    this.opened = opened;
    this.loss = null;
    this.isExpiring = false;
    this.renewals = 0;
    this.renewedAt = new Date();
    // With `endOnClose`, a reload ends the session as well, so there is nothing to offer afterwards.
    remember(endOnClose ? null : opened);
    session.addEventListener("renewed", () => this.#renewed(session));
    session.addEventListener("expiring", () => this.#change(session, () => (this.isExpiring = true)));
    session.addEventListener("lost", (/** @type {CustomEvent<Loss>} */ event) =>
      this.#change(session, () => {
        this.loss = event.detail;
        this.isExpiring = false;
        remember(null);
      }),
    );
    this.dispatchEvent(new Event("change"));
    return opened;
  }

  /** Send a heartbeat now. */
  async heartbeat() {
    try {
      await this.#session?.heartbeat();
    } catch {
      // Nothing to do: the panel shows the loss, or warns that the session expires.
    }
  }

  /** Stop sending heartbeats. The session stays live until its deadline. */
  release() {
    this.#session?.release();
    this.#forget();
  }

  async end() {
    const session = this.#session;
    this.#forget();
    await session?.end();
  }

  /** Forget a session that is lost. */
  dismiss() {
    this.#forget();
  }

  #forget() {
    this.#session = null;
    this.opened = null;
    this.interrupted = null;
    this.loss = null;
    this.isExpiring = false;
    remember(null);
    this.dispatchEvent(new Event("change"));
  }

  /** @param {HeldSession} session */
  #renewed(session) {
    this.#change(session, () => {
      this.isExpiring = false;
      this.renewals += 1;
      this.renewedAt = new Date();
    });
  }

  /** @param {HeldSession} session @param {() => void} change */
  #change(session, change) {
    if (this.#session !== session) return;
    change();
    this.dispatchEvent(new Event("change"));
  }
}

/** @returns {Remembered | null} */
function remembered() {
  try {
    return JSON.parse(sessionStorage.getItem(REMEMBERED) ?? "null");
  } catch {
    return null; // Storage is switched off.
  }
}

/** @param {Remembered | null} session */
function remember(session) {
  try {
    if (session === null) return sessionStorage.removeItem(REMEMBERED);
    const { sessionId, userObjectId, tenantObjectId, capacityId, sessionKind } = session;
    sessionStorage.setItem(REMEMBERED, JSON.stringify({ sessionId, userObjectId, tenantObjectId, capacityId, sessionKind }));
  } catch {
    // Storage is switched off.
  }
}

/** Convert an error of the client to a class of api.js, which pages handle. @param {any} error @param {any} client */
function translated(error, client) {
  if (error instanceof client.TenureError) {
    return new ApiError(error.status, { code: error.code, detail: error.detail, errors: error.errors }, error.requestId);
  }
  return error instanceof client.ConnectionError ? new ConnectionLost(error) : error;
}

export const held = new Holding();

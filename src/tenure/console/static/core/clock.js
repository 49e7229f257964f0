// @ts-check
/**
 * The server's clock, as far as this page knows it.
 *
 * The server's time is that of the database's clock, which determines when a deadline has passed. The clock of the
 * machine that shows the page may be wrong. An answer that contains the server's time bounds the difference of the two
 * clocks: this time was read after the request was sent and before the answer arrived. The page keeps the most exact
 * estimate: the shorter the round trip of a request, the more exact is its estimate. Clocks drift, so an estimate
 * becomes less exact as it ages, until a newer one is at least as exact and replaces it.
 */

/** By how much an estimate becomes less exact each second. */
const DRIFT_MS_PER_SECOND = 0.1;

let aheadMs = 0;
let uncertainMs = Number.POSITIVE_INFINITY;
let learnedAt = 0;

/**
 * Learn the server's time from an answer.
 * @param {string} serverTime As in the answer.
 * @param {number} sentAt `performance.now()` when the request was sent.
 * @param {number} [arrivedAt] `performance.now()` when the answer arrived.
 */
export function learnServerTime(serverTime, sentAt, arrivedAt = performance.now()) {
  const server = Date.parse(serverTime);
  if (Number.isNaN(server)) return;
  const uncertain = (arrivedAt - sentAt) / 2;
  const aged = uncertainMs + ((arrivedAt - learnedAt) / 1000) * DRIFT_MS_PER_SECOND;
  if (uncertain > aged) return;
  aheadMs = server - (performance.timeOrigin + (sentAt + arrivedAt) / 2);
  uncertainMs = uncertain;
  learnedAt = arrivedAt;
}

/** The server's time in milliseconds since 1970. */
export function serverNow() {
  return performance.timeOrigin + performance.now() + aheadMs;
}

/** Whether an answer has contained the server's time yet. */
export function knowsServerTime() {
  return uncertainMs !== Number.POSITIVE_INFINITY;
}

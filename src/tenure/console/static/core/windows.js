// @ts-check
/** Windows of usage that are not delivered yet, and how late they are. Lists of windows are newest first. */

import { serverNow } from "./clock.js";

/** By default a window is cut each minute and delivered within seconds. If usage lags by more than LAG_MS, something is
 * wrong. */
export const LAG_MS = 180_000;
/** A window is usually delivered within seconds of its end. After this time, the lag is shown as a warning. */
const SLOW_MS = 30_000;

/** @typedef {Pick<import("./types.js").UsageWindow, "startAt" | "endAt" | "deliveredAt" | "sessions" | "delivery">} Window */

/** @template {Window} T @param {T[]} windows */
export const undelivered = (windows) => windows.filter(({ deliveredAt, sessions }) => deliveredAt === null && sessions !== 0);

/**
 * The CSS class of a figure that shows how late the oldest undelivered window is: `warn`, `bad` or none.
 * @param {Window[]} windows
 * @returns {"" | "warn" | "bad"}
 */
export function lateness(windows) {
  const oldest = undelivered(windows).at(-1);
  const late = oldest === undefined ? 0 : serverNow() - Date.parse(oldest.endAt);
  return late > LAG_MS ? "bad" : late > SLOW_MS ? "warn" : "";
}

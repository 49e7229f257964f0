// @ts-check
/** Numbers, times and names as a person reads them. Numbers are exact, with separators, except those of an axis. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

/** An exact number: 1,234,567. @param {number | null | undefined} value */
export const number = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** An exact decimal number that was read as text: 1,234.000001. @param {string | null | undefined} text */
export const decimal = (text) => (text === null || text === undefined ? "–" : WHOLE.format(/** @type {any} */ (text)));

/** A short number for an axis: 1.2M. @param {number} value */
export const shortNumber = (value) => SHORT.format(value);

/** @param {number} count @param {string} singular @param {string} [plural] */
export const counted = (count, singular, plural = `${singular}s`) =>
  `${number(count)} ${count === 1 ? singular : plural}`;

/** The time of a day in UTC: 10:42:07. @param {Date | string | number} instant */
export const time = (instant) => new Date(instant).toISOString().slice(11, 19);

/** 2026-11-18 10:42:07. @param {Date | string | number} instant */
export const dateTime = (instant) => new Date(instant).toISOString().slice(0, 19).replace("T", " ");

/**
 * The time, with the date unless the instant is today.
 * @param {Date | string | number} instant
 * @param {number} now
 */
export function shortTime(instant, now) {
  const text = dateTime(instant);
  return text.slice(0, 10) === dateTime(now).slice(0, 10) ? text.slice(11) : text;
}

const UNITS = /** @type {const} */ ([
  ["d", 86_400],
  ["h", 3_600],
  ["min", 60],
  ["s", 1],
]);

/** A duration in its two largest units: 2 h 5 min. @param {number} milliseconds */
export function duration(milliseconds) {
  const seconds = Math.abs(milliseconds) / 1000;
  if (seconds < 1) return `${Math.round(Math.abs(milliseconds))} ms`;
  if (seconds < 10) return `${Math.floor(seconds * 10) / 10} s`;
  let rest = Math.floor(seconds);
  const parts = [];
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count > 0 || parts.length > 0) parts.push(count > 0 ? `${count} ${unit}` : "");
    if (parts.length === 2) break;
  }
  return parts.filter(Boolean).join(" ");
}

/** 0:59, 12:05, 3:00:10, or 29 d 4 h. For a countdown. @param {number} milliseconds */
export function countdown(milliseconds) {
  const seconds = Math.max(0, Math.ceil(milliseconds / 1000));
  if (seconds >= 86_400) return duration(seconds * 1000);
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  const two = (/** @type {number} */ value) => String(value).padStart(2, "0");
  return hours > 0 ? `${hours}:${two(minutes)}:${two(seconds % 60)}` : `${minutes}:${two(seconds % 60)}`;
}

/** "12 s ago", "in 3 min". @param {Date | string | number} instant @param {number} now */
export function ago(instant, now) {
  const difference = new Date(instant).getTime() - now;
  if (Math.abs(difference) < 1000) return "now";
  return difference < 0 ? `${duration(-difference)} ago` : `in ${duration(difference)}`;
}

const BYTES = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

/** @param {number} count */
export function bytes(count) {
  const units = ["bytes", "KB", "MB", "GB", "TB"];
  let value = count;
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${BYTES.format(value)} ${units[unit]}`;
}

/** The beginning and the end of a UUID. The end is shown because sessions that were opened at about the same time have
 * ids with the same beginning. @param {string} id */
export const shortId = (id) => (id.length > 16 ? `${id.slice(0, 8)}…${id.slice(-4)}` : id);

const UUID = /^\{?[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}\}?$/i;

/** @param {string} text */
export const isUuid = (text) => UUID.test(text.trim());

/** The close reasons in words; `it` is the session. @type {Record<string, string>} */
export const REASONS = {
  DISCONNECTED: "its stream was disconnected",
  EVICTED: "a newer session took its seat",
  EXPIRED: "it reached the end of its term",
  FAILED: "its stream handler failed",
  IDLE_TIMEOUT: "it was idle for too long",
  LEASE_EXPIRED: "its lease ran out without a heartbeat",
  SHUTDOWN: "its instance stopped",
  STOPPED: "its client ended it",
  TERMINATED: "an operator ended it",
  UPGRADED: "the same user opened a higher kind",
};

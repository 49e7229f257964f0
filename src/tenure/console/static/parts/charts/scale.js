// @ts-check
/** Axes with round numbers. */

/** The smallest round number that is not less than the value: 1, 2 or 5 times a power of ten. @param {number} value */
export function roundUp(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const factor = [1, 2, 5, 10].find((each) => each * power >= value - power * 1e-9) ?? 10;
  return factor * power;
}

/**
 * The values at which an axis has lines: from 0, in round steps, to the first step that reaches the highest value.
 * @param {number} highest
 * @param {number} [count] The greatest number of steps.
 */
export function ticks(highest, count = 3) {
  const top = Math.max(highest, 1);
  const step = Math.max(1, roundUp(top / count));
  const found = [];
  for (let value = 0; value < top + step; value += step) found.push(value);
  return found;
}

const STEPS_MS = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 10080].map((minutes) => minutes * 60_000);

/**
 * The round instants between two instants, and the step between them. All are in milliseconds.
 * @param {number} from
 * @param {number} to
 * @param {number} count The greatest number of steps between the two instants.
 */
export function timeTicks(from, to, count) {
  const step = STEPS_MS.find((each) => (to - from) / each <= count) ?? (to - from) / count;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { step, instants: found };
}

/** @param {number} at @param {number} step */
export function timeLabel(at, step) {
  const text = new Date(at).toISOString();
  if (step >= 86_400_000) return text.slice(5, 10);
  return text.slice(11, 16) === "00:00" ? text.slice(5, 10) : text.slice(11, 16);
}

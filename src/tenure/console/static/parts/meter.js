// @ts-check
/** How much of a limit is taken, as a short bar. The number is next to it, so the bar is hidden from screen readers. */

import { html } from "../core/template.js";

const NEARLY = 0.9;

/** The tone of a share: `bad` if the limit is reached, `warn` if it is nearly reached. @param {number} share */
export const fullness = (share) => (share >= 1 ? "bad" : share >= NEARLY ? "warn" : "good");

const TONES = { good: "2", warn: "3", bad: "5" };

/** @param {number} share The part of the limit that is taken: 1 is all of it, and more than 1 is possible. */
export const meter = (share) => html`
  <svg class="meter" width="72" height="8" viewBox="0 0 72 8" aria-hidden="true">
    <rect class="track" width="72" height="8"></rect>
    <rect class="fill tone-${TONES[fullness(share)]}" width="${Math.min(72, share * 72)}" height="8"></rect>
  </svg>
`;

// @ts-check
/** A custom element that draws itself with a template, once after several synchronous changes. */

import { render } from "../core/template.js";

export class TenureElement extends HTMLElement {
  #isAsked = false;

  connectedCallback() {
    this.update();
  }

  /** Draw again, once, after the code that runs now. */
  update() {
    if (this.#isAsked) return;
    this.#isAsked = true;
    queueMicrotask(() => {
      this.#isAsked = false;
      if (this.isConnected) render(this.template(), this);
    });
  }

  /** @returns {unknown} */
  template() {
    return "";
  }
}

/**
 * An observer that reports the width of its element, in whole pixels, when it is above 0 and differs from the last one.
 * @param {(width: number) => void} changed
 */
export function observedWidth(changed) {
  let last = 0;
  return new ResizeObserver(([entry]) => {
    const width = Math.round(entry?.contentRect.width ?? 0);
    if (width > 0 && width !== last) changed((last = width));
  });
}

/**
 * Elements that change with time. One timer serves them all.
 * @type {Set<{tick: () => void}>}
 */
const ticking = new Set();
const TICK_MS = 250;
/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;

/** @param {{tick: () => void}} element */
export function startTicking(element) {
  ticking.add(element);
  timer ??= setInterval(() => {
    for (const each of ticking) each.tick();
  }, TICK_MS);
}

/** @param {{tick: () => void}} element */
export function stopTicking(element) {
  ticking.delete(element);
  if (ticking.size > 0 || timer === undefined) return;
  clearInterval(timer);
  timer = undefined;
}

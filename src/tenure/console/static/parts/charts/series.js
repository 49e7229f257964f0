// @ts-check
/**
 * `<tenure-series>`: values over time, as lines. Properties:
 *
 * - `points`: `{at: string | number, values: number[]}[]`, in order of time; one value for each line.
 * - `lines`: `{label: string, tone: string}[]`; the tone is the name of a colour in tokens.css.
 * - `label`: what the chart shows, for screen readers.
 * - `stepMs`: how long the span of one point is, in milliseconds.
 * - `isPartial`: whether the span of the last point has not ended yet. If so, the line to this point is dashed.
 *
 * The pointer chooses a point, and so do the arrow keys while the chart has the focus. The exact values of the chosen
 * point are shown; if no point is chosen, the totals. A table below, which is closed at first, has the values of the
 * newest ROWS_MAX points.
 */

import * as format from "../../core/format.js";
import { html, svg } from "../../core/template.js";
import { observedWidth, TenureElement } from "../element.js";
import { ticks, timeLabel, timeTicks } from "./scale.js";

const HEIGHT = 168;
const LEFT = 44;
const RIGHT = 8;
const TOP = 8;
const BOTTOM = 22;
const ROWS_MAX = 200;

/** @typedef {{at: string | number, values: number[]}} Point */

class TenureSeries extends TenureElement {
  /** @type {Point[]} */
  #points = [];
  /** @type {{label: string, tone: string}[]} */
  #lines = [];
  #width = 600;
  /** @type {number | null} */
  #chosen = null;
  #isTableOpen = false;
  label = "";
  stepMs = 60_000;
  isPartial = false;
  #observer = observedWidth((width) => {
    this.#width = width;
    this.update();
  });

  connectedCallback() {
    super.connectedCallback();
    this.#observer.observe(this);
  }

  disconnectedCallback() {
    this.#observer.disconnect();
  }

  get points() {
    return this.#points;
  }

  set points(points) {
    this.#points = points;
    if (this.#chosen !== null && this.#chosen >= points.length) this.#chosen = null;
    this.update();
  }

  get lines() {
    return this.#lines;
  }

  set lines(lines) {
    this.#lines = lines;
    this.update();
  }

  template() {
    const points = this.#points;
    const width = Math.max(this.#width, 160);
    const instants = points.map(({ at }) => new Date(at).getTime());
    const from = instants[0] ?? 0;
    const to = instants.at(-1) ?? 1;
    const levels = ticks(Math.max(0, ...points.flatMap(({ values }) => values)));
    const top = levels.at(-1) ?? 1;
    const x = (/** @type {number} */ at) => LEFT + ((at - from) / Math.max(1, to - from)) * (width - LEFT - RIGHT);
    const y = (/** @type {number} */ value) => HEIGHT - BOTTOM - (value / top) * (HEIGHT - TOP - BOTTOM);
    const axis = timeTicks(from, to, Math.max(2, Math.floor(width / 90)));
    const chosen = this.#chosen === null ? null : points[this.#chosen];
    const chosenX = this.#chosen === null ? 0 : x(instants[this.#chosen] ?? 0);
    return html`
      <div
        class="plot"
        role="group"
        tabindex="0"
        aria-label="${this.label}. ${this.#summary()} Arrow keys choose a point and show its values."
        @pointermove=${(/** @type {PointerEvent} */ event) => this.#point(event, x, instants)}
        @pointerdown=${(/** @type {PointerEvent} */ event) => this.#point(event, x, instants)}
        @pointerleave=${() => this.#choose(null)}
        @keydown=${(/** @type {KeyboardEvent} */ event) => this.#key(event)}
        @blur=${() => this.#choose(null)}
      >
        <svg width="${width}" height="${HEIGHT}" viewBox="0 0 ${width} ${HEIGHT}" aria-hidden="true">
          ${levels.map(
            (level) => svg`<g class="level"><line x1="${LEFT}" x2="${width - RIGHT}" y1="${y(level)}" y2="${y(level)}"></line>
              <text x="${LEFT - 6}" y="${y(level) + 4}" text-anchor="end">${format.shortNumber(level)}</text></g>`,
          )}
          ${axis.instants.map(
            (at) => svg`<text class="when" x="${x(at)}" y="${HEIGHT - 6}" text-anchor="middle">${timeLabel(at, axis.step)}</text>`,
          )}
          ${this.#lines.map(({ tone }, line) => {
            const places = points.map(
              ({ values }, index) => `${x(instants[index] ?? 0).toFixed(1)},${y(values[line] ?? 0).toFixed(1)}`,
            );
            const whole = this.isPartial ? places.slice(0, -1) : places;
            return svg`<polyline class="line tone-${tone}" points="${whole.join(" ")}"></polyline>
              <polyline class="line is-partial tone-${tone}" points="${this.isPartial ? places.slice(-2).join(" ") : ""}"></polyline>`;
          })}
          ${chosen === null || chosen === undefined
            ? ""
            : svg`<line class="cursor" x1="${chosenX}" x2="${chosenX}" y1="${TOP}" y2="${HEIGHT - BOTTOM}"></line>
              ${this.#lines.map(
                ({ tone }, line) =>
                  svg`<circle class="dot tone-${tone}" cx="${chosenX}" cy="${y(chosen.values[line] ?? 0)}" r="3.5"></circle>`,
              )}`}
        </svg>
      </div>
      <p class="legend" aria-live="${document.activeElement === this.querySelector(".plot") ? "polite" : "off"}">
        <span class="legend-when">${chosen ? this.#span(new Date(chosen.at).getTime()) : "Total"}</span>
        ${this.#lines.map(
          ({ label, tone }, line) => html`<span class="legend-item">
            <span class="swatch tone-${tone}" aria-hidden="true"></span>${label}
            <strong>${format.number(chosen ? (chosen.values[line] ?? 0) : this.#total(line))}</strong>
          </span>`,
        )}
      </p>
      <details
        class="values"
        @toggle=${(/** @type {Event} */ event) => {
          this.#isTableOpen = /** @type {HTMLDetailsElement} */ (event.target).open;
          this.update();
        }}
      >
        <summary>Values as a table</summary>
        ${this.#isTableOpen ? this.#table() : ""}
      </details>
    `;
  }

  #table() {
    const rows = this.#points.slice(-ROWS_MAX).reverse();
    return html`<div class="table" role="region" aria-label="${this.label}, values" tabindex="0"><table>
      <caption class="off-screen">${this.label}</caption>
      <thead><tr><th scope="col">from (UTC)</th>${this.#lines.map(({ label }) => html`<th scope="col" class="number">${label}</th>`)}</tr></thead>
      <tbody>${rows.map(
        ({ at, values }) => html`<tr><th scope="row">${format.dateTime(at)}</th>
          ${this.#lines.map((_, line) => html`<td class="number">${format.number(values[line] ?? 0)}</td>`)}</tr>`,
      )}</tbody>
    </table></div>`;
  }

  /** @param {number} line */
  #total(line) {
    return this.#points.reduce((sum, { values }) => sum + (values[line] ?? 0), 0);
  }

  #summary() {
    return this.#lines.map(({ label }, line) => `${label}: ${format.number(this.#total(line))} in total.`).join(" ");
  }

  /** @param {number} at */
  #span(at) {
    return `${format.dateTime(at).slice(5, 16)} to ${format.time(at + this.stepMs).slice(0, 5)}`;
  }

  /** @param {PointerEvent} event @param {(at: number) => number} x @param {number[]} instants */
  #point(event, x, instants) {
    const plot = this.querySelector(".plot");
    if (plot === null || instants.length === 0) return;
    const at = event.clientX - plot.getBoundingClientRect().left;
    let nearest = 0;
    instants.forEach((instant, index) => {
      if (Math.abs(x(instant) - at) < Math.abs(x(instants[nearest] ?? 0) - at)) nearest = index;
    });
    this.#choose(nearest);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const last = this.#points.length - 1;
    const chosen = this.#chosen;
    const next = {
      ArrowLeft: chosen === null ? last : Math.max(0, chosen - 1),
      ArrowRight: chosen === null ? last : Math.min(last, chosen + 1),
      Home: 0,
      End: last,
      Escape: null,
    }[event.key];
    if (next === undefined || last < 0) return;
    event.preventDefault();
    this.#choose(next);
  }

  /** @param {number | null} index */
  #choose(index) {
    if (this.#chosen === index) return;
    this.#chosen = index;
    this.update();
  }
}

customElements.define("tenure-series", TenureSeries);

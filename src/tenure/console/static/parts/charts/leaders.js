// @ts-check
/**
 * `<tenure-leaders>`: who held which lease when. Properties:
 *
 * - `rows`: `{name, terms: {holder, from, to, epoch, how}[]}[]`. `to` is null for the present term, and `how` says how
 *   a term ended.
 * - `from` and `to`: the beginning and the end of the chart, in milliseconds since 1970.
 *
 * Each holder has the same tone in all rows; with more than six holders, some share a tone. The exact times of a term
 * are shown below the chart while the pointer is over the term or the term has the focus.
 */

import * as format from "../../core/format.js";
import { html, svg } from "../../core/template.js";
import { TenureElement } from "../element.js";
import { timeLabel, timeTicks } from "./scale.js";

const TONES = 6;
/** The smallest width of a term, in percent of the span. */
const NARROWEST = 0.4;

/**
 * @typedef {{holder: string, from: string, to: string | null, epoch: number, how?: string | null}} Term
 * @typedef {{name: string, terms: Term[]}} Row
 */

class TenureLeaders extends TenureElement {
  /** @type {Row[]} */
  #rows = [];
  /** @type {Term & {name: string} | null} */
  #chosen = null;
  from = 0;
  to = 1;

  get rows() {
    return this.#rows;
  }

  set rows(rows) {
    this.#rows = rows;
    this.update();
  }

  template() {
    const holders = [...new Set(this.#rows.flatMap(({ terms }) => terms.map(({ holder }) => holder)))];
    const axis = timeTicks(this.from, this.to, 5);
    const chosen = this.#chosen;
    return html`
      <div class="leaders">
        ${this.#rows.map(
          ({ name, terms }) => html`<div class="leader-row">
            <span class="leader-name">${name}</span>
            <svg class="leader-line" width="100%" height="18" viewBox="0 0 100 18" preserveAspectRatio="none" role="group" aria-label="Terms of ${name}">
              <rect class="track" width="100" height="18"></rect>
              ${terms.map((term) => this.#term(name, term, holders.indexOf(term.holder)))}
            </svg>
          </div>`,
        )}
        <div class="leader-row leader-axis" aria-hidden="true">
          <span></span>
          <svg width="100%" height="16" class="leader-times">
            ${axis.instants.map(
              (at) => svg`<text x="${((at - this.from) / Math.max(1, this.to - this.from)) * 100}%" y="12"
                text-anchor="middle">${timeLabel(at, axis.step)}</text>`,
            )}
          </svg>
        </div>
      </div>
      <p class="legend" aria-live="polite">
        ${chosen === null
          ? holders.map(
              (holder, index) => html`<span class="legend-item"><span class="swatch tone-${(index % TONES) + 1}" aria-hidden="true"></span>${holder}</span>`,
            )
          : `${chosen.name}: ${describe(chosen)}`}
      </p>
    `;
  }

  /** @param {string} name @param {Term} term @param {number} holder */
  #term(name, term, holder) {
    const share = (/** @type {number} */ at) =>
      Math.min(100, Math.max(0, ((at - this.from) / Math.max(1, this.to - this.from)) * 100));
    const start = share(Date.parse(term.from));
    const end = term.to === null ? 100 : share(Date.parse(term.to));
    const choose = () => this.#choose({ ...term, name });
    return svg`<rect class="term tone-${(holder % TONES) + 1}" x="${start}" width="${Math.max(NARROWEST, end - start)}"
      height="18" tabindex="0" role="img" aria-label="${describe(term)}" @pointerenter=${choose} @focus=${choose}
      @pointerleave=${() => this.#choose(null)} @blur=${() => this.#choose(null)}></rect>`;
  }

  /** @param {Term & {name: string} | null} term */
  #choose(term) {
    this.#chosen = term;
    this.update();
  }
}

/** @param {Term} term */
function describe({ holder, from, to, epoch, how }) {
  const until = to === null ? "until now" : `until ${format.dateTime(to)}`;
  return `${holder}, epoch ${format.number(epoch)}, from ${format.dateTime(from)} ${until}${how ? ` (${how})` : ""}`;
}

customElements.define("tenure-leaders", TenureLeaders);

// @ts-check
/**
 * `<tenure-bars>`: amounts as bars, one below the other. Properties:
 *
 * - `items`: `{label, value, text?, share?, note?, tone?, href?}[]`. The length of a bar is `share`, or else `value`.
 * - `label`: what the chart shows, for screen readers.
 * - `most`: the length at which a bar is full; by default, the length of the longest bar.
 *
 * Each bar is a row of a table that also shows the exact number, so there is nothing to hover over.
 */

import * as format from "../../core/format.js";
import { html } from "../../core/template.js";
import { TenureElement } from "../element.js";

/** @typedef {{label: unknown, value: number, text?: string, share?: number, note?: unknown, tone?: string, href?: string}} Bar */

class TenureBars extends TenureElement {
  /** @type {Bar[]} */
  #items = [];
  label = "";
  /** The length at which a bar is full; null stands for the length of the longest bar. @type {number | null} */
  #most = null;

  get items() {
    return this.#items;
  }

  set items(items) {
    this.#items = items;
    this.update();
  }

  get most() {
    return this.#most;
  }

  set most(most) {
    this.#most = most;
    this.update();
  }

  template() {
    const most = Math.max(1e-9, this.#most ?? Math.max(0, ...this.#items.map(lengthOf)));
    return html`<table class="bars">
      <caption class="off-screen">${this.label}</caption>
      <tbody>
        ${this.#items.map(
          (item) => html`<tr>
            <th scope="row">${item.href ? html`<a href="${item.href}">${item.label}</a>` : item.label}</th>
            <td class="bar">
              <svg width="100%" height="10" preserveAspectRatio="none" viewBox="0 0 100 10" aria-hidden="true">
                <rect class="track" width="100" height="10"></rect>
                <rect class="fill tone-${item.tone ?? "1"}" width="${Math.min(100, (lengthOf(item) / most) * 100)}" height="10"></rect>
              </svg>
            </td>
            <td class="number">${item.text ?? format.number(item.value)} <span class="faint">${item.note ?? ""}</span></td>
          </tr>`,
        )}
      </tbody>
    </table>`;
  }
}

/** @param {Bar} bar */
const lengthOf = ({ value, share = value }) => share;

customElements.define("tenure-bars", TenureBars);

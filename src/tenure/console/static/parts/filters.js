// @ts-check
/** Fields of a filter. A choice takes effect at once. A typed value takes effect with Enter, or when the field loses the focus. */

import * as format from "../core/format.js";
import { html } from "../core/template.js";
import { notify } from "./notice.js";

/**
 * @typedef {object} Filter
 * @property {string} name The name of the filter in the address of the page and in the API.
 * @property {string} label
 * @property {(string | {value: string, label: string})[]} [options] If given, the field is a choice of these and "any".
 * @property {boolean} [isId] Accepts only a UUID.
 */

/**
 * @param {Filter[]} filters
 * @param {(name: string) => string} value
 * @param {(changes: Record<string, string>) => void} change
 */
export const filterFields = (filters, value, change) =>
  filters.map((filter) =>
    filter.options === undefined ? text(filter, value(filter.name), change) : select(filter, value(filter.name), change),
  );

/** @param {Filter} filter @param {string} value @param {(changes: Record<string, string>) => void} change */
const select = ({ name, label, options = [] }, value, change) => html`
  <label class="field">
    <span>${label}</span>
    <select
      name="${name}"
      .value=${value}
      @change=${(/** @type {Event} */ event) => change({ [name]: /** @type {HTMLSelectElement} */ (event.target).value })}
    >
      <option value="">any</option>
      ${options.map((option) => {
        const { value: each, label: shown } = typeof option === "string" ? { value: option, label: option } : option;
        return html`<option value="${each}" ?selected=${each === value}>${shown}</option>`;
      })}
    </select>
  </label>
`;

/** @param {Filter} filter @param {string} value @param {(changes: Record<string, string>) => void} change */
function text({ name, label, isId = false }, value, change) {
  const take = (/** @type {HTMLInputElement} */ field) => {
    const given = field.value.trim();
    if (given === value) return;
    if (isId && given !== "" && !format.isUuid(given)) {
      field.setAttribute("aria-invalid", "true");
      notify(`${label}: “${given}” is not a UUID.`, "bad");
      return;
    }
    field.removeAttribute("aria-invalid");
    change({ [name]: given });
  };
  return html`<label class="field long">
    <span>${label}</span>
    <input
      name="${name}"
      type="search"
      .value=${value}
      placeholder="${isId ? "UUID" : "any"}"
      autocomplete="off"
      autocapitalize="off"
      spellcheck="false"
      @keydown=${(/** @type {KeyboardEvent} */ event) => event.key === "Enter" && take(/** @type {HTMLInputElement} */ (event.target))}
      @change=${(/** @type {Event} */ event) => take(/** @type {HTMLInputElement} */ (event.target))}
      @search=${(/** @type {Event} */ event) => take(/** @type {HTMLInputElement} */ (event.target))}
    >
  </label>`;
}

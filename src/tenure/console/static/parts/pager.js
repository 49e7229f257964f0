// @ts-check
/** The buttons that lead to the first and the next page of a list. The cursor of the shown page is in the address. */

import { html } from "../core/template.js";

/**
 * @param {import("../core/view.js").View} view
 * @param {import("../core/live.js").Watch<any>} watch
 * @param {string | null} nextCursor
 * @param {string} [name] The name of the cursor in the address, if the page has more than one list.
 */
export function pager(view, watch, nextCursor, name = "cursor") {
  const isFirst = view.value(name) === "";
  if (isFirst && nextCursor === null) return "";
  const turn = (/** @type {string} */ cursor) => {
    view.setQuery({ [name]: cursor });
    watch.reload();
  };
  return html`<div class="pager">
    ${isFirst ? "" : html`<button type="button" @click=${() => turn("")}>First page</button>`}
    ${nextCursor === null
      ? html`<span>This is the last page.</span>`
      : html`<button type="button" @click=${() => turn(nextCursor)}>Next page</button>`}
  </div>`;
}

// @ts-check
/** The section of the runbook about an alert. */

import { RUNBOOK } from "../core/runbook.js";
import { html } from "../core/template.js";

const TITLES = /** @type {const} */ ([
  ["meaning", "What it means"],
  ["look", "Look at first"],
  ["act", "Do"],
  ["avoid", "Do not"],
]);
const MARKS = /`([^`]+)`|\[([^\]]+)\]\([^)]*\)/g;

/** @param {string} name */
export function runbookOf(name) {
  const found = RUNBOOK[name];
  if (found === undefined) return "";
  return html`<dl class="facts runbook">
    ${TITLES.map(([key, title]) => html`<dt>${title}</dt><dd>${rich(found[key])}</dd>`)}
  </dl>`;
}

/**
 * A text of the runbook as a template. Text between backquotes becomes code. A link becomes its text in italics.
 * @param {string} text
 */
function rich(text) {
  const pieces = [];
  let end = 0;
  for (const found of text.matchAll(MARKS)) {
    pieces.push(text.slice(end, found.index));
    pieces.push(found[1] === undefined ? html`<em>${found[2]}</em>` : html`<code>${found[1]}</code>`);
    end = found.index + found[0].length;
  }
  return [...pieces, text.slice(end)];
}

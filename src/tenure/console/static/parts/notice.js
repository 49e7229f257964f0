// @ts-check
/** Short messages at the edge of the page: what an action did. A screen reader says them too. */

import { html, keyed, render } from "../core/template.js";

const SHOWN_MS = 6_000;
const SHOWN_MAX = 3;

/** @type {{id: number, text: string, tone: string}[]} */
let notices = [];
let last = 0;

/** @returns {HTMLElement} */
function region() {
  let found = document.getElementById("notices");
  if (found === null) {
    found = document.createElement("div");
    found.id = "notices";
    found.setAttribute("role", "status");
    found.setAttribute("aria-live", "polite");
    document.body.append(found);
  }
  return found;
}

/** @param {string} text @param {"plain" | "bad"} [tone] */
export function notify(text, tone = "plain") {
  const id = (last += 1);
  notices = [...notices, { id, text, tone }].slice(-SHOWN_MAX);
  draw();
  setTimeout(() => {
    notices = notices.filter((notice) => notice.id !== id);
    draw();
  }, SHOWN_MS);
}

function draw() {
  render(
    notices.map(({ id, text, tone }) => keyed(id, html`<p class="notice ${tone}">${text}</p>`)),
    region(),
  );
}

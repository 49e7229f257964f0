// @ts-check
/** One window of usage: its sums, and the delivery of its chunks. */

import { part } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, empty, figure, id, instant, section, shown, table } from "../parts/bits.js";
import { delivery } from "./usage.js";

/**
 * @typedef {import("./usage.js").Window & {chunks: Chunk[]}} Window
 * @typedef {{chunk: number, submissionId: string | null, sessions: number, usage: string, digest: string | null, deliveredAt: string | null, receipt: boolean}} Chunk
 */

export class WindowPage {
  static path = "usage/windows/:windowId";
  static title = "Usage window";

  #view;
  #id;
  /** @type {import("../core/live.js").Watch<Window>} */
  #window;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#id = view.params.windowId ?? "";
    this.#window = view.watch(() => ({ path: `usage/windows/${part(this.#id)}`, exact: true }), 4_000);
  }

  render() {
    const found = this.#window.data;
    return html`
      <div class="page-head">
        <h1>Usage window ${this.#id}</h1>
        <span class="actions">${this.#steps()}</span>
      </div>
      ${shown(this.#window, (window) => html`${figures(window)}`)}
      ${found === null ? "" : section("Chunks", this.#chunks(found), { note: "each submission lists the attempts of its chunk" })}
    `;
  }

  #steps() {
    const number = Number(this.#id);
    if (!Number.isSafeInteger(number)) return "";
    const to = (/** @type {number} */ other) => this.#view.href(`usage/windows/${other}`);
    return html`${number > 1 ? html`<a class="button" href="${to(number - 1)}">Window before</a>` : ""}
      <a class="button" href="${to(number + 1)}">Window after</a>`;
  }

  /** @param {Window} window */
  #chunks({ chunks, sessions }) {
    if (chunks.length === 0) {
      return sessions === null
        ? empty("The window is being divided.", "Its chunks appear in a moment.")
        : empty("No session was live in this window.", "There is nothing to send.");
    }
    return table(
      "Chunks",
      [
        { label: "Chunk", className: "number" },
        "Delivery",
        { label: "Sessions", className: "number" },
        { label: "Usage", className: "number" },
        "Submission",
        { label: "Receipt", className: "optional" },
        { label: "Digest", className: "optional" },
      ],
      chunks.map((chunk) =>
        keyed(
          chunk.chunk,
          html`<tr>
            <th scope="row" class="number">${format.number(chunk.chunk)}</th>
            <td>${chunkState(chunk)}</td>
            <td class="number">${format.number(chunk.sessions)}</td>
            <td class="number">${format.decimal(chunk.usage)}</td>
            <td>
              ${chunk.submissionId === null
                ? html`<span class="faint">–</span>`
                : id(chunk.submissionId, { href: this.#view.href(`deliveries/${part(chunk.submissionId)}`), label: "submission id" })}
            </td>
            <td class="optional">${chunk.receipt ? "yes" : html`<span class="faint">no</span>`}</td>
            <td class="optional">${id(chunk.digest, { label: "digest" })}</td>
          </tr>`,
        ),
      ),
    );
  }
}

/** @param {Window} window */
const figures = (window) => html`<dl class="figures">
  ${figure("Usage", format.decimal(window.usage), `factors ${Object.entries(window.factors).map(([kind, factor]) => `${kind}: ${format.number(factor)}`).join(", ")}`)}
  ${figure("Sessions", format.number(window.sessions), "live in the window")}
  ${figure("From (UTC)", instant(window.startAt), window.startAt.slice(0, 10))}
  ${figure("To (UTC)", instant(window.endAt), window.endAt.slice(0, 10))}
  ${figure("Delivery", delivery(window), "", { tone: window.delivery === "notSent" ? "bad" : "" })}
</dl>`;

/** @param {Chunk} chunk */
function chunkState({ deliveredAt, submissionId }) {
  if (deliveredAt !== null) return html`${badge("delivered", "good")} <span class="faint">${ago(deliveredAt)}</span>`;
  return submissionId === null ? badge("never sent", "bad") : badge("waits", "warn");
}

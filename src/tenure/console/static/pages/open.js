// @ts-check
/** Opens a session and holds it in this tab, so that a person can try what a client does. */

import { held } from "../core/held.js";
import { newId } from "../core/ids.js";
import { html } from "../core/template.js";
import { problem, section } from "../parts/bits.js";

const FIELDS = /** @type {const} */ ([
  ["userObjectId", "User"],
  ["tenantObjectId", "Tenant"],
  ["capacityId", "Capacity"],
]);

export class OpenPage {
  static path = "open";
  static title = "Open and hold a session";

  #view;
  #isBusy = false;
  /** @type {unknown} */
  #error = null;
  /** @type {Record<string, string>} */
  #start;
  /** The labels of the fields that contain a new id. @type {string[]} */
  #made;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    /** @type {Record<string, string>} */
    const known = {
      userObjectId: view.value("user", view.me.userObjectId ?? ""),
      tenantObjectId: view.value("tenant", view.me.tenantObjectId ?? ""),
      capacityId: view.value("capacity"),
    };
    this.#start = Object.fromEntries(FIELDS.map(([name]) => [name, known[name] || newId()]));
    this.#made = FIELDS.filter(([name]) => !known[name]).map(([, label]) => label);
  }

  render() {
    return html`
      <div class="page-head"><h1>Open and hold a session</h1></div>
      ${section(
        "In this tab",
        html`<form class="fields narrow" @submit=${(/** @type {SubmitEvent} */ event) => void this.#open(event)}>
          <p class="small">
            Opens a session, or takes over the live session of this user on this capacity, and keeps the session alive while
            this tab is open. The tab sends heartbeats at the server's interval, warns before the session lapses, and shows
            when the session is lost. It is a real session: it takes a seat, and its usage is billed.
          </p>
          ${this.#made.length === 0 ? "" : html`<p class="small">Filled in with new ids: ${this.#made.join(", ").toLowerCase()}. Replace them to use your own.</p>`}
          ${FIELDS.map(
            ([name, label]) => html`<label class="field"><span>${label}</span>
              <input class="mono" name="${name}" .value=${this.#start[name]} required pattern="\\{?[0-9A-Fa-f]{8}-?([0-9A-Fa-f]{4}-?){3}[0-9A-Fa-f]{12}\\}?"
                title="a UUID" autocomplete="off" spellcheck="false"></label>`,
          )}
          <label class="field"><span>Kind</span>
            <select name="sessionKind"><option>1</option><option>2</option><option>3</option></select></label>
          <label class="field"><span>Lease in seconds (empty: the default of the server)</span>
            <input name="leaseSeconds" type="number" min="5" max="86400" value="60"></label>
          <label class="check"><input type="checkbox" name="endOnClose"> End the session when this tab is closed</label>
          ${this.#error === null ? "" : problem(this.#error)}
          <div class="buttons">
            <button type="submit" class="primary" ?disabled=${this.#isBusy}>${this.#isBusy ? "Opening…" : "Open and hold"}</button>
          </div>
        </form>`,
      )}
    `;
  }

  /** @param {SubmitEvent} event */
  async #open(event) {
    event.preventDefault();
    const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const text = (/** @type {string} */ name) => String(given.get(name) ?? "").trim();
    const lease = text("leaseSeconds");
    this.#isBusy = true;
    this.#error = null;
    this.#view.update();
    try {
      const opened = await held.begin(
        {
          userObjectId: text("userObjectId"),
          tenantObjectId: text("tenantObjectId"),
          capacityId: text("capacityId"),
          sessionKind: /** @type {1 | 2 | 3} */ (Number(text("sessionKind"))),
          ...(lease === "" ? {} : { leaseSeconds: Number(lease) }),
        },
        { endOnClose: given.has("endOnClose") },
      );
      this.#view.go(`sessions/${opened.sessionId}`);
    } catch (error) {
      this.#error = error;
    } finally {
      this.#isBusy = false;
      this.#view.update();
    }
  }
}

// @ts-check
/** Finds the session, user, tenant or capacity with a given id. The field at the top of every page leads here. */

import { ApiError, part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { go } from "../core/router.js";
import { html } from "../core/template.js";
import { empty, loading, problem } from "../parts/bits.js";

/** @typedef {{label: string, href: string, note: string}} Found */

export class FindPage {
  static path = "find";
  static title = "Find";

  #view;
  #wanted;
  /** @type {Found[] | null} */
  #found = null;
  /** @type {unknown} */
  #error = null;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#wanted = view.value("id").trim();
    if (format.isUuid(this.#wanted)) void this.#find();
  }

  async #find() {
    try {
      const [session, ...lists] = await Promise.all([this.#session(), ...["user", "capacity", "tenant"].map((by) => this.#list(by))]);
      this.#found = [...session, ...lists.flat()];
    } catch (error) {
      this.#error = error;
    }
    const only = this.#found?.length === 1 ? this.#found[0] : undefined;
    if (only === undefined) this.#view.update();
    else go(only.href, { replace: true });
  }

  /** @returns {Promise<Found[]>} */
  async #session() {
    try {
      const session = await request("GET", `sessions/${part(this.#wanted)}`);
      return [{ label: "Session", href: `sessions/${part(session.sessionId)}`, note: session.isActive ? "live" : "ended" }];
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return [];
      throw error;
    }
  }

  /** @param {string} by @returns {Promise<Found[]>} */
  async #list(by) {
    const { sessions } = await request("GET", "sessions", { query: { [by]: this.#wanted, limit: 1 } });
    if (sessions.length === 0) return [];
    const label = by.charAt(0).toUpperCase() + by.slice(1);
    const hasPage = by === "capacity" && this.#view.may("reader", "operator");
    return [{ label, href: hasPage ? `capacities/${part(this.#wanted)}` : `sessions?${by}=${part(this.#wanted)}`, note: "has sessions" }];
  }

  render() {
    return html`
      <div class="page-head"><h1>Find</h1></div>
      ${this.#content()}
    `;
  }

  #content() {
    if (!format.isUuid(this.#wanted)) {
      return empty(
        this.#wanted === "" ? "Nothing to look for." : `“${this.#wanted}” is not an id.`,
        "Ids are UUIDs, such as 01a1e101-cf59-7227-bfde-814513a2153a. Paste the id of a session, a user, a tenant or a capacity.",
      );
    }
    if (this.#error !== null) return problem(this.#error);
    if (this.#found === null) return loading("Looking…");
    if (this.#found.length === 0) {
      return empty(
        "No session has this id, and no user, tenant or capacity with this id has sessions.",
        "Closed sessions are deleted after 400 days. Check that the id is correct.",
      );
    }
    return html`<p>The id ${this.#wanted} belongs to:</p>
      <ul>${this.#found.map(({ label, href, note }) => html`<li><a href="${this.#view.href(href)}">${label}</a> <span class="note">${note}</span></li>`)}</ul>`;
  }
}

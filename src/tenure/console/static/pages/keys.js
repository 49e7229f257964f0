// @ts-check
/** The API keys: their names, roles and last uses. */

import { part, request } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, choice, empty, figure, id, instant, section, shown, table } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { filterFields } from "../parts/filters.js";
import { notify } from "../parts/notice.js";
import { pager } from "../parts/pager.js";
import { createKey } from "./key-dialog.js";

const PAGE = 200;
const SOON_MS = 14 * 86_400_000;

/** @typedef {import("../core/types.js").Key} Key */

export class KeysPage {
  static path = "keys";
  static title = "Keys";
  static nav = {
    label: "Keys",
    order: 90,
    needs: /** @type {import("../core/types.js").Role[]} */ (["reader", "operator"]),
    allTenants: true,
  };

  #view;
  /** @type {import("../core/live.js").Watch<{keys: Key[], nextCursor: string | null}>} */
  #keys;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#keys = view.watch(
      () => ({ path: "keys", query: { name: view.value("name"), limit: PAGE, cursor: view.value("cursor") } }),
      5_000,
    );
  }

  render() {
    return html`
      <div class="page-head">
        <h1>Keys</h1>
        <span class="actions">
          ${this.#view.may("operator") ? html`<button type="button" class="primary" @click=${() => this.#create()}>Create a key</button>` : ""}
        </span>
      </div>
      ${this.#figures()}
      <div class="filters" role="search" aria-label="Filter keys">
        ${choice(
          "Which keys",
          [
            { value: "", label: "Live" },
            { value: "all", label: "All" },
          ],
          this.#view.value("show"),
          (show) => this.#view.setQuery({ show }, { replace: true }),
        )}
        ${filterFields([{ name: "name", label: "Name" }], (name) => this.#view.value(name), (changes) => {
          this.#view.setQuery({ ...changes, cursor: "" });
          this.#keys.reload();
        })}
      </div>
      ${section("API keys", shown(this.#keys, (data) => this.#table(data)), { note: "the newest of this page first" })}
    `;
  }

  #figures() {
    const data = this.#keys.data;
    if (data === null || data.keys.length === 0) return "";
    const live = data.keys.filter((key) => stateOf(key) === "live");
    const soon = live.filter(({ expiresAt }) => expiresAt !== null && Date.parse(expiresAt) - serverNow() < SOON_MS);
    const unused = live.filter(({ lastUsedAt }) => lastUsedAt === null);
    const where = data.nextCursor === null ? "" : ", on this page";
    return html`<dl class="figures">
      ${figure("Live keys", format.number(live.length), `${format.number(live.filter(({ role }) => role === "operator").length)} of them for operators${where}`)}
      ${figure("Expire within 14 days", format.number(soon.length), soon.map(({ name }) => name).slice(0, 3).join(", "), { tone: soon.length > 0 ? "warn" : "" })}
      ${figure("Never used", format.number(unused.length), unused.length > 0 ? "revoke keys that are not needed" : "")}
    </dl>`;
  }

  /** @param {{keys: Key[], nextCursor: string | null}} data */
  #table({ keys, nextCursor }) {
    const showsAll = this.#view.value("show") === "all";
    const wanted = showsAll ? keys : keys.filter((key) => stateOf(key) === "live");
    if (wanted.length === 0) {
      return html`${keys.length === 0 && this.#view.value("name") === ""
        ? empty("No key exists.", "Until the first key exists, an instance without an OIDC issuer needs no sign-in, and by default serves this machine only. Create the first key here, or with:", "tenure keys create --name ops --role operator --expires 90d")
        : showsAll
          ? empty("No key matches.", "Change the name.")
          : empty("No live key matches.", "Choose “All” to see keys that were revoked or have expired.")}
      ${pager(this.#view, this.#keys, nextCursor)}`;
    }
    const ordered = [...wanted].sort((one, other) => (one.createdAt < other.createdAt ? 1 : -1));
    const mayRevoke = this.#view.may("operator");
    return html`
      ${table(
        "API keys",
        [
          "Name",
          "Role",
          "State",
          "Last used",
          { label: "Expires", className: "optional" },
          { label: "Tenant", className: "optional" },
          { label: "Public id", className: "optional" },
          { label: "Created", className: "optional" },
          ...(mayRevoke ? [html`<span class="off-screen">Actions</span>`] : []),
        ],
        ordered.map((key) => keyed(key.publicId, this.#row(key, mayRevoke))),
      )}
      ${pager(this.#view, this.#keys, nextCursor)}
    `;
  }

  /** @param {Key} key @param {boolean} mayRevoke */
  #row(key, mayRevoke) {
    const state = stateOf(key);
    return html`<tr>
      <th scope="row" class="wrap-name">${key.name} ${key.publicId === this.#view.me.subject ? badge("you") : ""}</th>
      <td>${badge(key.role, key.role === "operator" ? "warn" : "quiet")}</td>
      <td>${state === "live" ? badge("live", "good") : html`${badge(state, "bad")} <span class="faint">${ago(key.revokedAt ?? key.expiresAt)}</span>`}</td>
      <td>${ago(key.lastUsedAt)}</td>
      <td class="optional">${key.expiresAt === null ? html`<span class="faint">never</span>` : instant(key.expiresAt)}</td>
      <td class="optional">${key.tenantObjectId === null ? html`<span class="faint">all</span>` : id(key.tenantObjectId, { label: "tenant" })}</td>
      <td class="optional">${id(key.publicId, { label: "public id" })}</td>
      <td class="optional" title="by ${key.createdBy}">${instant(key.createdAt)}</td>
      ${mayRevoke
        ? html`<td class="row-actions">
            ${state === "live" ? html`<button type="button" class="plain quiet-danger" aria-label="Revoke ${key.name} ${key.publicId}" @click=${() => this.#revoke(key)}>Revoke</button>` : ""}
          </td>`
        : ""}
    </tr>`;
  }

  async #create() {
    await createKey(this.#view, this.#keys.data?.keys ?? []);
    this.#keys.reload();
  }

  /** @param {Key} key */
  async #revoke(key) {
    const isDone = await confirm({
      title: "Revoke this key?",
      body: html`
        <dl class="facts">
          <dt>Name</dt><dd>${key.name}</dd>
          <dt>Public id</dt><dd>${id(key.publicId, { label: "public id", isShort: false })}</dd>
          <dt>Role</dt><dd>${key.role}</dd>
          <dt>Last used</dt><dd>${ago(key.lastUsedAt)}</dd>
        </dl>
        <p>Every instance that can reach the database refuses the key within two seconds. This cannot be undone.</p>
        ${key.publicId === this.#view.me.subject ? html`<p class="callout bad">You are signed in with this key. You will be signed out.</p>` : ""}
      `,
      action: "Revoke",
      typed: "revoke",
      run: async () => {
        await request("DELETE", `keys/${part(key.publicId)}`);
      },
    });
    if (!isDone) return;
    notify(`The key ${key.name} is revoked.`);
    this.#keys.reload();
  }
}

/** @param {Key} key */
function stateOf({ revokedAt, expiresAt }) {
  if (revokedAt !== null) return "revoked";
  return expiresAt !== null && Date.parse(expiresAt) <= serverNow() ? "expired" : "live";
}

// @ts-check
/** The dialog that creates an API key and then shows the key once. */

import { ApiError, ConnectionLost, request } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import * as format from "../core/format.js";
import { live } from "../core/live.js";
import { html } from "../core/template.js";
import { problem } from "../parts/bits.js";
import { openDialog } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { field } from "./capacity-dialog.js";

const DAY_MS = 86_400_000;
const SIGN_IN_TRIES = 20;
const SIGN_IN_PAUSE_MS = 300;
const LIVES = [
  { value: "30", label: "in 30 days" },
  { value: "90", label: "in 90 days" },
  { value: "365", label: "in a year" },
  { value: "", label: "never" },
];
const OVERLAPS = [
  { value: "", label: "stay as they are" },
  { value: "0.0417", label: "expire in an hour" },
  { value: "1", label: "expire in a day" },
  { value: "7", label: "expire in 7 days" },
];
/** @type {{role: import("../core/types.js").Role, text: string}[]} */
const ROLES = [
  { role: "client", text: "client: opens and keeps sessions, and sends submissions" },
  { role: "reader", text: "reader: sees everything, changes nothing" },
  { role: "operator", text: "operator: sees and changes everything" },
];

/**
 * @param {import("../core/view.js").View} view
 * @param {import("../core/types.js").Key[]} keys The keys that the page has loaded. If one that is not revoked has the
 *   name of the new key, the dialog asks when the older keys with this name expire.
 */
export async function createKey(view, keys) {
  /** @type {import("../core/types.js").CreatedKey | null} */
  let created = null;
  /** @type {unknown} */
  let error = null;
  /** @type {Record<string, string>} */
  let wrong = {};
  let name = "";
  let isRunning = false;
  const isFirst = view.me.anonymous;
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const read = readForm(/** @type {HTMLFormElement} */ (event.target));
    wrong = read.wrong;
    if (Object.keys(wrong).length === 0) {
      isRunning = true;
      error = null;
      dialog.update();
      const wasPaused = live.isPaused;
      try {
        // Once the first key exists, every request needs a credential. Pause updates until the page has signed in.
        if (isFirst) live.isPaused = true;
        created = await request("POST", "keys", { body: read.body });
        dialog.element.dataset.kept = "";
        if (isFirst && created !== null) await signIn(created.key);
      } catch (caught) {
        if (!(caught instanceof ApiError) && !(caught instanceof ConnectionLost)) throw caught;
        error = caught;
      } finally {
        isRunning = false;
        if (isFirst) {
          live.isPaused = wasPaused;
          // Load all data again: unless an error occurred, the caller is now signed in with the new key.
          live.refresh();
        }
      }
    }
    dialog.update();
  };
  const form = (/** @type {() => void} */ close) => {
    const isTaken = keys.some((key) => key.name === name && key.revokedAt === null);
    return html`<form method="dialog" novalidate @submit=${submit}>
      ${isFirst
        ? html`<p class="callout">This is the first key. Once it exists, every request needs a key, and this page signs in with the new key.
            Choose operator, or the console cannot manage keys.</p>`
        : ""}
      ${field(
        "Name: who uses it, and for what",
        html`<input name="name" maxlength="64" autocomplete="off" @input=${(/** @type {InputEvent} */ event) => {
          name = /** @type {HTMLInputElement} */ (event.target).value.trim();
          dialog.update();
        }}>`,
        wrong.name,
      )}
      <fieldset class="options">
        <legend>Role</legend>
        ${ROLES.map(
          ({ role, text }) => html`<label class="check"><input type="radio" name="role" value="${role}" ?checked=${role === (isFirst ? "operator" : "client")}> ${text}</label>`,
        )}
      </fieldset>
      ${field("Expires", html`<select name="days">${LIVES.map(({ value, label }) => html`<option value="${value}" ?selected=${value === "90"}>${label}</option>`)}</select>`, undefined)}
      ${field("Tenant (empty: all tenants)", html`<input name="tenantObjectId" placeholder="UUID" autocomplete="off" spellcheck="false">`, wrong.tenantObjectId)}
      ${isTaken
        ? field("The other keys with this name", html`<select name="others">${OVERLAPS.map(({ value, label }) => html`<option value="${value}">${label}</option>`)}</select>`, undefined)
        : ""}
      ${error === null ? "" : problem(error)}
      <div class="buttons">
        <button type="button" class="plain" ?disabled=${isRunning} @click=${close}>Cancel</button>
        <button type="submit" class="primary" ?disabled=${isRunning}>${isRunning ? "Working…" : "Create"}</button>
      </div>
    </form>`;
  };
  const dialog = openDialog(
    "Create a key",
    ({ close }) => (created === null ? form(close) : shownOnce(created, close)),
    { mayClose: () => !isRunning && created === null },
  );
  await dialog.closed;
  created = null;
}

/**
 * Sign in with the first key. Retries, because an instance treats callers as anonymous until it has read the key.
 * @param {string} credential
 */
async function signIn(credential) {
  for (let tries = 0; tries < SIGN_IN_TRIES; tries += 1) {
    const me = await request("POST", "sign-in", { body: { credential } });
    if (!me.anonymous) return;
    await new Promise((resolve) => setTimeout(resolve, SIGN_IN_PAUSE_MS));
  }
  notify("This page could not sign in with the new key. Reload the page, and sign in with the key.");
}

/** @param {import("../core/types.js").CreatedKey} key @param {() => void} close */
const shownOnce = (key, close) => html`
  <p class="callout"><strong>Copy the key now. It is shown only once.</strong> The key itself is not stored anywhere: if you lose it, revoke it and create another.</p>
  <p class="command secret"><code>${key.key}</code><tenure-copy value="${key.key}" label="key"></tenure-copy></p>
  <dl class="facts">
    <dt>Name</dt><dd>${key.name}</dd>
    <dt>Role</dt><dd>${key.role}</dd>
    <dt>Tenant</dt><dd>${key.tenantObjectId ?? "all"}</dd>
    <dt>Expires</dt><dd>${key.expiresAt === null ? "never" : `${format.dateTime(key.expiresAt)} UTC`}</dd>
  </dl>
  <div class="buttons"><button type="button" class="primary" @click=${close}>I have stored the key</button></div>
`;

/** @param {HTMLFormElement} form */
function readForm(form) {
  const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
  /** @type {Record<string, string>} */
  const wrong = {};
  if (!/^[!-~]([ -~]*[!-~])?$/.test(values.name ?? "")) wrong.name = "1 to 64 characters of printable ASCII.";
  const tenant = values.tenantObjectId ?? "";
  if (tenant !== "" && !format.isUuid(tenant)) wrong.tenantObjectId = "This is not a UUID.";
  const after = (/** @type {string | undefined} */ days) => (days ? new Date(serverNow() + Number(days) * DAY_MS).toISOString() : null);
  const body = {
    name: values.name,
    role: values.role,
    expiresAt: after(values.days),
    tenantObjectId: tenant === "" ? null : tenant,
    othersExpireAt: after(values.others),
  };
  return { body, wrong };
}

// @ts-check
/** The dialog that sets the limit and the tenant of a capacity, and what happens when all seats are taken. */

import { ApiError, ConnectionLost, part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { html } from "../core/template.js";
import { problem } from "../parts/bits.js";
import { openDialog } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";

const SEATS_MAX = 2_147_483_647;

/** @typedef {import("../core/types.js").Capacity} Capacity */

/**
 * Ask for the settings and store them. `PUT` replaces all settings, so the dialog shows all of them.
 * @param {import("../core/view.js").View} view
 * @param {Pick<Capacity, "capacityId" | "maxSessions" | "whenFull" | "tenantObjectId" | "activeSessions"> | null} capacity
 *   Null: the dialog also asks for the id of the capacity.
 * @returns {Promise<Capacity | null>} The new settings; null if nothing was changed.
 */
export async function setCapacity(view, capacity) {
  /** @type {Capacity | null} */
  let changed = null;
  /** @type {unknown} */
  let error = null;
  /** @type {Record<string, string>} */
  let wrong = {};
  let isRunning = false;
  let limit = capacity?.maxSessions ?? null;
  const isBound = view.me.tenantObjectId !== null;
  const dialog = openDialog(
    capacity === null ? "Set a capacity" : "Change the settings",
    ({ update, close }) => {
      const submit = async (/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const read = readForm(/** @type {HTMLFormElement} */ (event.target), capacity?.capacityId ?? null);
        wrong = read.wrong;
        if (Object.keys(wrong).length === 0) {
          isRunning = true;
          error = null;
          update();
          try {
            changed = await request("PUT", `capacities/${part(read.capacityId)}`, { body: read.body });
            notify("The settings are stored. The limit holds from now on.");
            close();
          } catch (caught) {
            if (!(caught instanceof ApiError) && !(caught instanceof ConnectionLost)) throw caught;
            error = caught;
          } finally {
            isRunning = false;
          }
        }
        update();
      };
      return html`<form method="dialog" novalidate @submit=${submit}>
        ${capacity === null
          ? field("Capacity", html`<input name="capacityId" placeholder="UUID" autocomplete="off" spellcheck="false">`, wrong.capacityId)
          : html`<p class="mono">${capacity.capacityId}</p>`}
        ${field(
          "Limit of seats (empty: no limit)",
          html`<input
            name="maxSessions"
            inputmode="numeric"
            autocomplete="off"
            value="${capacity?.maxSessions ?? ""}"
            @input=${(/** @type {InputEvent} */ event) => {
              limit = seatsOf(/** @type {HTMLInputElement} */ (event.target).value);
              update();
            }}
          >`,
          wrong.maxSessions,
        )}
        ${consequence(capacity, limit)}
        <fieldset class="options">
          <legend>When all seats are taken</legend>
          <label class="check"><input type="radio" name="whenFull" value="reject" ?checked=${capacity?.whenFull !== "evictOldest"}>
            refuse to open another session (429)</label>
          <label class="check"><input type="radio" name="whenFull" value="evictOldest" ?checked=${capacity?.whenFull === "evictOldest"}>
            end the session with the oldest activity</label>
        </fieldset>
        ${isBound
          ? ""
          : field(
              "Tenant (empty: sessions of every tenant)",
              html`<input name="tenantObjectId" placeholder="UUID" autocomplete="off" spellcheck="false" value="${capacity?.tenantObjectId ?? ""}">`,
              wrong.tenantObjectId,
            )}
        ${error === null ? "" : problem(error)}
        <div class="buttons">
          <button type="button" class="plain" ?disabled=${isRunning} @click=${close}>Cancel</button>
          <button type="submit" class="primary" ?disabled=${isRunning}>${isRunning ? "Working…" : "Store"}</button>
        </div>
      </form>`;
    },
    { mayClose: () => !isRunning },
  );
  await dialog.closed;
  return changed;
}

/** @param {string} label @param {unknown} input @param {string | undefined} error */
export const field = (label, input, error) => html`
  <label class="field"><span>${label}</span>${input}${error === undefined ? "" : html`<span class="error" role="alert">${error}</span>`}</label>
`;

/** @param {{activeSessions: number} | null} capacity @param {number | null} limit */
function consequence(capacity, limit) {
  if (capacity === null || limit === null || limit >= capacity.activeSessions) return "";
  const over = capacity.activeSessions - limit;
  return html`<p class="callout">
    ${format.counted(capacity.activeSessions, "seat")} ${capacity.activeSessions === 1 ? "is" : "are"} taken. No session ends because of
    the new limit. Until more than ${format.number(over)} of the live sessions have ended, another user gets a seat only if
    the capacity ends the sessions with the oldest activity.
  </p>`;
}

/** @param {string} text @returns {number | null} */
function seatsOf(text) {
  const digits = text.replace(/[\s,_]/g, "");
  return /^\d{1,10}$/.test(digits) ? Number(digits) : null;
}

/** @param {HTMLFormElement} form @param {string | null} known */
function readForm(form, known) {
  const values = Object.fromEntries([...new FormData(form)].map(([name, value]) => [name, String(value).trim()]));
  /** @type {Record<string, string>} */
  const wrong = {};
  const capacityId = known ?? values.capacityId ?? "";
  if (!format.isUuid(capacityId)) wrong.capacityId = "This is not a UUID.";
  const text = values.maxSessions ?? "";
  const limit = seatsOf(text);
  if (text !== "" && (limit === null || limit > SEATS_MAX)) {
    wrong.maxSessions = `A whole number from 0 to ${format.number(SEATS_MAX)}, or nothing.`;
  }
  const tenant = values.tenantObjectId ?? "";
  if (tenant !== "" && !format.isUuid(tenant)) wrong.tenantObjectId = "This is not a UUID.";
  const body = { maxSessions: text === "" ? null : limit, whenFull: values.whenFull ?? "reject", tenantObjectId: tenant === "" ? null : tenant };
  return { capacityId, body, wrong };
}

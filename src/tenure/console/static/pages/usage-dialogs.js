// @ts-check
/** The dialogs of the usage page: export usage, retry failed deliveries, and send windows that were never sent. */

import { ApiError, ConnectionLost, request } from "../core/api.js";
import { serverNow } from "../core/clock.js";
import { csv, saveFile } from "../core/csv.js";
import * as format from "../core/format.js";
import { html } from "../core/template.js";
import { problem } from "../parts/bits.js";
import { confirm, openDialog } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { inUtc, local } from "../parts/span.js";
import { USAGES } from "./deliveries.js";

const PAGE = 500;
const BULK_TIMEOUT_MS = 600_000;
const DAY_MS = 86_400_000;

/** The field that identifies a group, by the value of `groupBy`. */
export const KEYS = /** @type {const} */ ({
  tenant: "tenantObjectId",
  capacity: "capacityId",
  user: "userObjectId",
  kind: "sessionKind",
});

/** @typedef {keyof typeof KEYS} GroupBy */

/**
 * Read all pages of a sum and save them as a file. If a request fails, a button continues the export where it stopped.
 * @param {Record<string, string>} query
 * @param {GroupBy} groupBy
 */
export function exportUsage(query, groupBy) {
  /** @type {(string | number)[][]} */
  const rows = [];
  /** @type {string | null} */
  let cursor = null;
  /** @type {unknown} */
  let error = null;
  let isDone = false;
  const stopped = new AbortController();
  const dialog = openDialog("Export usage", ({ close }) => {
    const state = isDone ? "The file is saved." : error === null ? "Reading…" : "The export has stopped.";
    return html`
      <p role="status">${state} ${format.counted(rows.length, "row")}.</p>
      ${isDone || error !== null ? "" : html`<progress aria-label="Export"></progress>`}
      ${error === null ? "" : problem(error)}
      <div class="buttons">
        ${error === null ? "" : html`<button type="button" class="primary" @click=${() => void read()}>Continue</button>`}
        <button type="button" class="${isDone ? "primary" : "plain"}" @click=${close}>${isDone ? "Close" : "Cancel"}</button>
      </div>
    `;
  });
  const read = async () => {
    error = null;
    try {
      do {
        /** @type {import("./usage.js").Sums} */
        const page = await request("GET", "usage", { query: { ...query, groupBy, limit: PAGE, cursor }, exact: true, signal: stopped.signal });
        for (const group of page.groups) rows.push([String(group[KEYS[groupBy]]), group.usage, group.sessions, page.from, page.to]);
        cursor = page.nextCursor;
        dialog.update();
        if (cursor === null) {
          const span = `${page.from.slice(0, 10)}-${page.to.slice(0, 10)}`;
          saveFile(`usage-by-${groupBy}-${span}.csv`, csv([[KEYS[groupBy], "usage", "sessions", "from", "to"], ...rows]));
          isDone = true;
        }
      } while (cursor !== null);
    } catch (caught) {
      if (stopped.signal.aborted) return;
      if (!(caught instanceof ApiError) && !(caught instanceof ConnectionLost)) throw caught;
      error = caught;
    }
    dialog.update();
  };
  void dialog.closed.then(() => stopped.abort());
  void read();
}

/**
 * Retry failed submissions, and those that wait for their next attempt.
 * @param {{failed: number, waiting: number}} counts
 * @param {() => void} changed
 */
export async function retryUsage({ failed, waiting }, changed) {
  let sent = 0;
  const isDone = await confirm({
    title: "Deliver usage again now?",
    body: html`<p>${format.counted(failed, "failed chunk")} and ${format.counted(waiting, "waiting chunk")} are sent at once, oldest first. A receiver
      that has seen a chunk before recognises its delivery key, so nothing is billed twice.</p>`,
    action: "Retry deliveries",
    danger: false,
    run: async () => {
      for (const state of ["failed", "pending"]) {
        const { count } = await request("POST", "submissions/retry", { body: { gateway: USAGES, state }, timeoutMs: BULK_TIMEOUT_MS });
        sent += count;
      }
    },
  });
  if (!isDone) return;
  notify(`${format.counted(sent, "chunk")} will be sent again.`);
  changed();
}

/** Send windows that were cut while no gateway was configured. @param {() => void} changed */
export function sendWindows(changed) {
  let windows = 0;
  let chunks = 0;
  let isRunning = false;
  let isDone = false;
  let isComplete = false;
  let wrong = "";
  /** @type {unknown} */
  let error = null;
  const dialog = openDialog(
    "Send windows never sent",
    ({ close }) => html`<form method="dialog" @submit=${(/** @type {SubmitEvent} */ event) => void submit(event)}>
      <p>Windows that were cut while no gateway <code>usages</code> was configured are sent only on request. No window is sent twice.</p>
      <label class="field"><span>Windows that begin at (UTC) or later</span>
        <input type="datetime-local" name="from" step="1" required value="${local(new Date(serverNow() - 30 * DAY_MS).toISOString())}"></label>
      <label class="field"><span>and before (UTC); empty: all later windows</span>
        <input type="datetime-local" name="to" step="1">${wrong === "" ? "" : html`<span class="error" role="alert">${wrong}</span>`}</label>
      ${isRunning || isDone ? html`<p role="status">${isDone ? "Done." : "Working…"} ${format.counted(windows, "window")} with ${format.counted(chunks, "chunk")} handed over.${isDone && !isComplete ? " Windows that were cut a moment ago are not divided yet: send again in a minute." : ""}</p>` : ""}
      ${error === null ? "" : problem(error)}
      <div class="buttons">
        <button type="button" class="plain" ?disabled=${isRunning} @click=${close}>${isDone ? "Close" : "Cancel"}</button>
        <button type="submit" class="primary" ?disabled=${isRunning}>${isRunning ? "Working…" : "Send"}</button>
      </div>
    </form>`,
    { mayClose: () => !isRunning },
  );
  const submit = async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const given = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const [from, to] = ["from", "to"].map((name) => inUtc(String(given.get(name) ?? "")));
    wrong = to && from && to <= from ? "This must be later than the beginning." : "";
    if (wrong === "" && from) {
      isRunning = true;
      isDone = false;
      error = null;
      windows = chunks = 0;
      dialog.update();
      try {
        for (let isOver = false; !isOver; ) {
          const body = { from, ...(to ? { to } : {}) };
          const sent = await request("POST", "usage/windows/send", { body, timeoutMs: BULK_TIMEOUT_MS });
          windows += sent.windows;
          chunks += sent.chunks;
          isComplete = sent.complete;
          isOver = isComplete || sent.windows === 0;
          dialog.update();
        }
        isDone = true;
      } catch (caught) {
        if (!(caught instanceof ApiError) && !(caught instanceof ConnectionLost)) throw caught;
        error = caught;
      }
      isRunning = false;
      changed();
    }
    dialog.update();
  };
}

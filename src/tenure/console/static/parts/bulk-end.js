// @ts-check
/**
 * Ends many sessions: counts them first, asks, and shows the progress.
 *
 * Each request ends up to BATCH sessions in short transactions, so that open requests and heartbeats are not delayed.
 * All requests have the same action id, so together they have one entry in the audit log, and a request can be repeated
 * if its response was lost. While the service is unavailable, the dialog waits, and then continues.
 */

import { isAway, request } from "../core/api.js";
import * as format from "../core/format.js";
import { newId } from "../core/ids.js";
import { html } from "../core/template.js";
import { problem } from "./bits.js";
import { openDialog, typedField } from "./dialog.js";

const BATCH = 500;
const RETRY_MS = 1_000;
const HELD_MS = 200;
/** To end the sessions of a filter, or more selected sessions than this, the user must type a text such as `end 12`. */
const TYPED_FROM = 10;

/**
 * @typedef {{tenant?: string, user?: string, capacity?: string, kind?: number, state?: string, sessionIds?: string[], all?: true}} Which
 * @typedef {"counting" | "asking" | "running" | "stopped" | "done"} Step
 */

/**
 * @param {Which} which
 * @param {string[]} described The filters, in words. Empty: no filter, so all live sessions match.
 * @returns {Promise<void>} Resolves when the dialog is closed.
 */
export async function endSessions(which, described) {
  /** @type {{step: Step, count: number, confirmed: number | null, isExact: boolean, ended: number, given: string, error: unknown, isWaiting: boolean}} */
  const now = { step: "counting", count: 0, confirmed: null, isExact: true, ended: 0, given: "", error: null, isWaiting: false };
  const actionId = newId();
  let isStopping = false;
  const word = () => (now.isExact ? `end ${now.count}` : "end all");
  const needsWord = () => which.sessionIds === undefined || now.count > TYPED_FROM;
  const isReady = () => now.step === "asking" && now.count > 0 && (!needsWord() || now.given.trim() === word());

  const dialog = openDialog("End sessions", content, { mayClose: () => now.step !== "running" });

  /** Draw the next step. If the element with the focus is gone, move the focus to another element of the dialog. */
  function draw() {
    dialog.update();
    const { element } = dialog;
    const focused = document.activeElement;
    if (!element.open || (focused !== element && element.contains(focused))) return;
    /** @type {HTMLElement | null} */ (element.querySelector("input[name=typed]") ?? element.querySelector("button:not(:disabled)"))?.focus();
  }

  async function count() {
    try {
      const answer = await request("POST", "sessions/end", { body: { ...which, dryRun: true } });
      now.count = answer.remaining;
      now.isExact = answer.exact;
      now.step = "asking";
    } catch (error) {
      now.error = error;
    }
    draw();
  }

  async function run() {
    if (now.step === "asking" && now.isExact) now.confirmed = now.count;
    now.step = "running";
    now.error = null;
    isStopping = false;
    draw();
    while (!isStopping) {
      try {
        const answer = await request("POST", "sessions/end", { body: { ...which, limit: BATCH, actionId } });
        now.ended = answer.totalEnded;
        now.count = now.ended + answer.remaining;
        now.isExact = answer.exact;
        now.isWaiting = false;
        // Other transactions hold the rows of the remaining sessions at the moment: wait before the next request.
        if (answer.ended === 0 && !answer.done) await new Promise((resolve) => setTimeout(resolve, HELD_MS));
        if (answer.done) {
          now.step = "done";
          draw();
          return;
        }
      } catch (error) {
        if (!isAway(error)) {
          now.error = error;
          break;
        }
        now.isWaiting = true;
        draw();
        await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
      }
      draw();
    }
    now.step = "stopped";
    now.isWaiting = false;
    draw();
  }

  /** @param {import("./dialog.js").DialogHandle} handle */
  function content({ close, update }) {
    const filters = described.length === 0 ? "There is no filter, so every live session matches." : html`Selected: ${described.join(", ")}.`;
    if (now.step === "counting") {
      return html`<p role="status">${now.error === null ? "Counting…" : ""}</p>
        ${now.error === null ? "" : problem(now.error)}
        <div class="buttons"><button type="button" class="plain" @click=${close}>Cancel</button></div>`;
    }
    if (now.step === "asking") {
      return html`<form
        method="dialog"
        @submit=${(/** @type {Event} */ event) => {
          event.preventDefault();
          if (isReady()) void run();
        }}
      >
        <div class="dialog-body">
          <p>This ends <strong>${now.isExact ? "" : "at least "}${format.counted(now.count, "live session")}</strong> as TERMINATED. Their users lose these sessions. This cannot be undone.</p>
          <p class="small">${filters} Sessions that are opened after the first session has ended stay live.</p>
        </div>
        ${needsWord() && now.count > 0 ? typedField(word(), (text) => ((now.given = text), update())) : ""}
        <div class="buttons">
          <button type="button" class="plain" @click=${close}>Cancel</button>
          <button type="submit" class="danger" ?disabled=${!isReady()}>End ${now.isExact ? format.counted(now.count, "session") : "all of them"}</button>
        </div>
      </form>`;
    }
    return html`
      <p role="status">${progressText(now)}</p>
      <progress aria-label="Sessions ended" max="${Math.max(1, now.count)}" value="${now.ended}"></progress>
      ${now.isWaiting ? html`<p class="callout">The service does not answer. The console tries again automatically.</p>` : ""}
      ${now.error === null ? "" : problem(now.error)}
      ${now.ended === 0 ? "" : html`<p class="small">The audit log has one entry for all these sessions.</p>`}
      <div class="buttons">
        ${now.step === "running"
          ? html`<button type="button" @click=${() => (isStopping = true)}>Stop</button>`
          : html`${now.step === "stopped" ? html`<button type="button" @click=${() => void run()}>Go on</button>` : ""}
              <button type="button" class="primary" @click=${close}>Close</button>`}
      </div>
    `;
  }

  void count();
  await dialog.closed;
}

/** @param {{step: Step, count: number, confirmed: number | null, isExact: boolean, ended: number}} now */
function progressText({ step, count, confirmed, isExact, ended }) {
  const text = `${format.number(ended)} of ${isExact ? "" : "at least "}${format.counted(count, "session")} ended`;
  const already = confirmed === null || ended >= confirmed ? "" : ` ${format.number(confirmed - ended)} had ended already.`;
  return step === "done" ? `Done. ${format.counted(ended, "session")} ended.${already}` : step === "stopped" ? `Stopped. ${text}.` : `${text}…`;
}

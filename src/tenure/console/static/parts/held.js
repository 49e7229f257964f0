// @ts-check
/** The session that this tab holds: a panel on the page of the session, and a line at the top of every other page. */

import { part, problemOf, request } from "../core/api.js";
import * as format from "../core/format.js";
import { held, LOSSES } from "../core/held.js";
import { hrefOf } from "../core/router.js";
import { html } from "../core/template.js";
import { startTicking, stopTicking } from "./element.js";
import { notify } from "./notice.js";
import { section } from "./bits.js";

/** `<tenure-held>`: how long this tab may still rely on the session. */
class TenureHeld extends HTMLElement {
  connectedCallback() {
    startTicking(this);
    this.tick();
  }

  disconnectedCallback() {
    stopTicking(this);
  }

  tick() {
    const text = held.session === null ? "" : held.loss !== null ? "lost" : format.countdown(held.session.remainingMs);
    if (this.textContent !== text) this.textContent = text;
  }
}

customElements.define("tenure-held", TenureHeld);

/**
 * The line that the shell shows at the top of every page except the page of the held session: which session this tab
 * holds, has lost, or held until a reload.
 * @param {string | null} shownSession The id of the session whose page is shown.
 */
export function heldLine(shownSession) {
  const session = held.session;
  if (session === null && held.interrupted !== null) return interruptedLine(held.interrupted);
  if (session === null || session.sessionId === shownSession) return "";
  const link = html`<a class="mono" href="${hrefOf(`sessions/${session.sessionId}`)}">${format.shortId(session.sessionId)}</a>`;
  if (held.loss !== null) {
    return html`<div class="held-line bad" role="alert">
      <span><strong>This tab lost session ${link}.</strong> ${LOSSES[held.loss.reason] ?? held.loss.reason}</span>
      <button type="button" class="plain" @click=${() => held.dismiss()}>Dismiss</button>
    </div>`;
  }
  return html`<div class="held-line ${held.isExpiring ? "warn" : ""}" role="${held.isExpiring ? "alert" : "status"}">
    <span>
      This tab holds session ${link}, for at least <tenure-held></tenure-held>.
      ${held.isExpiring ? html`<strong>No heartbeat has succeeded for a while: the session is about to lapse.</strong>` : ""}
    </span>
  </div>`;
}

/** @param {import("../core/held.js").Remembered} session */
function interruptedLine(session) {
  return html`<div class="held-line warn" role="status">
    <span>
      This tab held session <a class="mono" href="${hrefOf(`sessions/${session.sessionId}`)}">${format.shortId(session.sessionId)}</a>
      until it was reloaded. The session lapses at its deadline unless another client renews it.
    </span>
    <span>
      <button type="button" @click=${() => void resume(session)}>Hold again</button>
      <button type="button" class="plain" @click=${() => held.dismiss()}>Dismiss</button>
    </span>
  </div>`;
}

/** After a reload, holds the same session again if it is still live. @param {import("../core/held.js").Remembered} session */
async function resume({ sessionId, userObjectId, tenantObjectId, capacityId, sessionKind }) {
  try {
    const { isActive } = await request("GET", `sessions/${part(sessionId)}`);
    if (isActive) await held.begin({ userObjectId, tenantObjectId, capacityId, sessionKind });
    else {
      held.dismiss();
      notify("The session has ended since.", "bad");
    }
  } catch (error) {
    notify(problemOf(error), "bad");
  }
}

/** The panel on the page of the session. @param {import("../core/view.js").View} view */
export function heldPanel(view) {
  const { loss, isExpiring, renewals, renewedAt } = held;
  if (loss !== null) {
    return section(
      "Held in this tab",
      html`<div class="callout bad" role="alert">
        <p><strong>Lost.</strong> ${LOSSES[loss.reason] ?? loss.reason} ${loss.closeReason ? html`<code>${loss.closeReason}</code>` : ""}</p>
        <p>An application would now stop the work that needs the session, and open a new session if the user is still there.</p>
      </div>
      <div class="buttons">
        <button type="button" @click=${() => held.dismiss()}>Dismiss</button>
        <button type="button" class="primary" @click=${() => void again(view)}>Open again and hold</button>
      </div>`,
    );
  }
  return section(
    "Held in this tab",
    html`<div class="callout ${isExpiring ? "" : "good"}" role="${isExpiring ? "alert" : "status"}">
        ${isExpiring
          ? html`<p><strong>About to lapse.</strong> No heartbeat has succeeded for a while. If none succeeds, this tab loses
              the session in <tenure-held></tenure-held>.</p>`
          : html`<p>This tab sends heartbeats at the server's interval, with the session's own token. The tab may rely on
              the session for <strong><tenure-held></tenure-held></strong>.</p>`}
        <p class="small">${format.counted(renewals, "heartbeat")} acknowledged${renewedAt ? `, the last at ${format.time(renewedAt)} UTC` : ""}.</p>
      </div>
      <div class="buttons">
        <button type="button" @click=${() => void held.heartbeat()}>Heartbeat now</button>
        <button type="button" @click=${() => held.release()}>Stop holding</button>
      </div>`,
  );
}

/** @param {import("../core/view.js").View} view */
async function again(view) {
  const opened = held.opened;
  if (opened === null) return;
  const { userObjectId, tenantObjectId, capacityId, sessionKind } = opened;
  try {
    const next = await held.begin({ userObjectId, tenantObjectId, capacityId, sessionKind });
    view.go(`sessions/${next.sessionId}`);
  } catch (error) {
    notify(problemOf(error), "bad");
  }
}

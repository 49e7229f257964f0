// @ts-check
/** One submission: its attempts, each with status and error. */

import { part, request } from "../core/api.js";
import * as format from "../core/format.js";
import { html, keyed } from "../core/template.js";
import { ago, badge, empty, figure, id, instant, section, shown, table } from "../parts/bits.js";
import { confirm } from "../parts/dialog.js";
import { notify } from "../parts/notice.js";
import { submissionState, USAGES } from "./deliveries.js";

/**
 * @typedef {import("../core/types.js").SubmissionWithAttempts} Submission
 * @typedef {import("../core/types.js").Attempt} Attempt
 */

export class DeliveryPage {
  static path = "deliveries/:submissionId";
  static title = "Delivery";

  #view;
  #id;
  /** @type {import("../core/live.js").Watch<Submission>} */
  #submission;

  /** @param {import("../core/view.js").View} view */
  constructor(view) {
    this.#view = view;
    this.#id = view.params.submissionId ?? "";
    this.#submission = view.watch(() => `submissions/${part(this.#id)}`, 2_000);
  }

  render() {
    const found = this.#submission.data;
    return html`
      <div class="page-head">
        <h1>Delivery</h1>
        ${id(this.#id, { label: "submission id", isShort: false })}
        <span class="actions">${found !== null && this.#view.may("operator") ? this.#actions(found) : ""}</span>
      </div>
      ${shown(this.#submission, (submission) => this.#figures(submission))}
      ${found === null ? "" : section("Attempts", this.#attempts(found), { note: "newest first" })}
    `;
  }

  /** @param {Submission} submission */
  #figures(submission) {
    const { gateway, state, attemptCount, nextAttemptAt, lastError, createdAt, endedAt, requestId } = submission;
    return html`<div class="stack">
      <dl class="figures">
        ${figure("State", submissionState(submission), endedAt === null ? "" : instant(endedAt))}
        ${figure("Gateway", gateway, "", { href: this.#view.href(`deliveries?gateway=${part(gateway)}`) })}
        ${figure("Attempts", format.number(attemptCount), lastError === null ? "" : "the last error is below")}
        ${figure("Next attempt", nextAttemptAt === null ? "–" : ago(nextAttemptAt), nextText(state, nextAttemptAt))}
        ${figure("Submitted", ago(createdAt), requestId === null ? "by Tenure itself" : html`request ${requestId}`)}
      </dl>
      ${lastError === null || state === "delivered" ? "" : html`<p class="callout bad">${lastError}</p>`}
    </div>`;
  }

  /** @param {Submission} submission */
  #attempts({ attempts }) {
    if (attempts.length === 0) return empty("No attempt yet.", "Usually the leader starts the first attempt within a second after the attempt is due.");
    return table(
      "Attempts",
      [
        { label: "No.", className: "number" },
        "Started (UTC)",
        "Outcome",
        { label: "Status", className: "number" },
        "Error",
        { label: "Took", className: "optional number" },
        { label: "Receipt", className: "optional" },
        { label: "Epoch", className: "optional number" },
      ],
      [...attempts].reverse().map((attempt) =>
        keyed(
          attempt.number,
          html`<tr>
            <th scope="row" class="number">${format.number(attempt.number)}</th>
            <td>${instant(attempt.startedAt)}</td>
            <td>${outcome(attempt)} ${attempt.early ? badge("early") : ""}</td>
            <td class="number">${attempt.status === null ? html`<span class="faint">–</span>` : attempt.status}</td>
            <td class="${attempt.error === null ? "" : "wrap"}">${attempt.error ?? html`<span class="faint">–</span>`}</td>
            <td class="optional number">
              ${attempt.endedAt === null ? "–" : format.duration(Date.parse(attempt.endedAt) - Date.parse(attempt.startedAt))}
            </td>
            <td class="optional">${attempt.receipt ? "yes" : html`<span class="faint">no</span>`}</td>
            <td class="optional number">${format.number(attempt.epoch)}</td>
          </tr>`,
        ),
      ),
    );
  }

  /** @param {Submission} submission */
  #actions({ state, gateway }) {
    if (state === "delivered") return "";
    const mayCancel = gateway !== USAGES && state !== "cancelled";
    return html`
      <button type="button" class="primary" @click=${() => this.#command("retry")}>Retry now</button>
      ${mayCancel ? html`<button type="button" class="plain quiet-danger" @click=${() => this.#command("cancel")}>Cancel</button>` : ""}
    `;
  }

  /** @param {"retry" | "cancel"} command */
  async #command(command) {
    const isRetry = command === "retry";
    const isDone = await confirm({
      title: isRetry ? "Send this submission again now?" : "Cancel this submission?",
      body: isRetry
        ? html`<p>All attempts that the contract of the submission allows are available again. If an attempt is in progress, the next one starts after that attempt has failed.</p>`
        : html`<p>No further attempt is started. An attempt in progress may still deliver the submission.</p>`,
      action: isRetry ? "Retry now" : "Cancel it",
      danger: !isRetry,
      run: () => request("POST", `submissions/${part(this.#id)}/${command}`),
    });
    if (!isDone) return;
    notify(isRetry ? "The submission is sent again now." : "The submission is cancelled.");
    this.#submission.reload();
  }
}

/** @param {string} state @param {string | null} nextAttemptAt */
function nextText(state, nextAttemptAt) {
  if (nextAttemptAt !== null) return instant(nextAttemptAt);
  return state === "pending" ? "an attempt is in progress" : "none is planned";
}

/** @param {Attempt} attempt */
function outcome({ outcome: found }) {
  if (found === null) return badge("in progress");
  return badge(found, found === "delivered" ? "good" : found === "failed" ? "bad" : "warn");
}
